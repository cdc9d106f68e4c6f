//! The mapping that has an address, of `/proc/self/maps`. A handler of SIGSYS reads it: nothing
//! here allocates or waits for a lock that is held for long.

use std::ffi::c_void;
use std::fmt;
use std::slice::from_raw_parts;

use libc::{c_int, dl_phdr_info, size_t, Elf64_Phdr};

/// Octets of the longest line that is understood.
const LINE_OCTETS: usize = 1024;

/// The first address of a mapping, and the one behind it.
pub(super) type Range = (usize, usize);

/// Octets of a line, as far as there is room.
pub(super) struct Line {
    octets: [u8; LINE_OCTETS],
    len: usize,
}

impl Line {
    pub(super) const fn new() -> Self {
        Self {
            octets: [0; LINE_OCTETS],
            len: 0,
        }
    }

    pub(super) fn push(&mut self, octets: &[u8]) {
        let room = &mut self.octets[self.len..];
        let len = octets.len().min(room.len());
        room[..len].copy_from_slice(&octets[..len]);
        self.len += len;
    }

    /// Ends it, whatever room there is.
    pub(super) fn end(&mut self) {
        self.len = self.len.min(LINE_OCTETS - 1);
        self.push(b"\n");
    }

    pub(super) fn octets(&self) -> &[u8] {
        &self.octets[..self.len]
    }
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

/// The mapping that has an address, whose name is appended to `name`.
pub(super) fn find(address: usize, name: &mut Line) -> Option<Range> {
    let fd = open_maps()?;
    let mut buffer = [0; LINE_OCTETS];
    let mut len = 0;
    let mut found = None;
    while found.is_none() {
        let count = read(fd, &mut buffer[len..]);
        if count == 0 {
            break;
        }
        len += count;
        let mut begin = 0;
        while let Some(end) = buffer[begin..len].iter().position(|octet| *octet == b'\n') {
            found = found.or_else(|| parse(&buffer[begin..begin + end], address, name));
            begin += end + 1;
        }
        // A line that is longer than the buffer is dropped.
        begin = if begin == 0 && len == buffer.len() {
            len
        } else {
            begin
        };
        buffer.copy_within(begin..len, 0);
        len -= begin;
    }
    // SAFETY: opened above.
    unsafe { libc::syscall(libc::SYS_close, fd) };
    found
}

fn open_maps() -> Option<c_int> {
    let (path, flags) = (c"/proc/self/maps", libc::O_RDONLY | libc::O_CLOEXEC);
    // SAFETY: a C string.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
    c_int::try_from(fd).ok().filter(|fd| *fd >= 0)
}

/// Reads some octets; 0 at the end.
fn read(fd: c_int, room: &mut [u8]) -> usize {
    // SAFETY: the room is this function's.
    let count = unsafe { libc::syscall(libc::SYS_read, fd, room.as_mut_ptr(), room.len()) };
    usize::try_from(count).unwrap_or(0)
}

/// Parses a line, if it is of the mapping that has the address.
fn parse(line: &[u8], address: usize, name: &mut Line) -> Option<Range> {
    let mut fields = line.splitn(6, |octet| *octet == b' ');
    let mut range = fields.next()?.split(|octet| *octet == b'-');
    let range = (hex(range.next()?)?, hex(range.next()?)?);
    if !(range.0..range.1).contains(&address) {
        return None;
    }
    match fields.nth(4)?.trim_ascii() {
        b"" => name.push(b"memory without a file"),
        path => name.push(path),
    }
    Some(range)
}

/// An address as its program or library has it in its file, which may be loaded anywhere; as it is
/// for other memory.
pub(super) fn in_file(address: usize) -> u64 {
    let mut sought = Sought {
        address: address as u64,
        base: 0,
    };
    // SAFETY: the function gets the value for as long as this call lasts.
    unsafe { libc::dl_iterate_phdr(Some(is_in), (&raw mut sought).cast()) };
    sought.address - sought.base
}

struct Sought {
    address: u64,
    /// Where the file that has it is loaded.
    base: u64,
}

/// Ends the search of [`in_file`] at the file that has the address.
unsafe extern "C" fn is_in(info: *mut dl_phdr_info, _: size_t, sought: *mut c_void) -> c_int {
    // SAFETY: the arguments of dl_iterate_phdr, and of its caller.
    let (info, sought) = unsafe { (&*info, &mut *sought.cast::<Sought>()) };
    // SAFETY: as many headers as the linker says.
    let headers = unsafe { from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let has = |header: &Elf64_Phdr| {
        let within = sought
            .address
            .wrapping_sub(info.dlpi_addr.wrapping_add(header.p_vaddr));
        header.p_type == libc::PT_LOAD && within < header.p_memsz
    };
    if !headers.iter().any(has) {
        return 0;
    }
    sought.base = info.dlpi_addr;
    1
}

fn hex(digits: &[u8]) -> Option<usize> {
    usize::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_has_range_and_path() {
        let line = b"7f00-7f20 r-xp 00028000 fe:01 1234     /usr/lib/a b.so";
        let mut name = Line::new();
        assert_eq!(parse(line, 0x7eff, &mut name), None);
        assert_eq!(parse(line, 0x7f20, &mut name), None);
        assert_eq!(parse(line, 0x7f00, &mut name), Some((0x7f00, 0x7f20)));
        assert_eq!(name.octets(), b"/usr/lib/a b.so");
        let mut name = Line::new();
        parse(b"7f00-7f20 rwxp 00000000 00:00 0 ", 0x7f00, &mut name).unwrap();
        assert_eq!(name.octets(), b"memory without a file");
    }

    #[test]
    fn function_of_this_program_is_in_its_file() {
        let mut name = Line::new();
        let function = function_of_this_program_is_in_its_file as *const () as usize;
        assert!(find(function, &mut name).is_some());
        let own = std::env::current_exe().unwrap();
        assert_eq!(name.octets(), own.to_str().unwrap().as_bytes());
        assert_eq!(find(1, &mut Line::new()), None);
    }

    #[test]
    fn line_takes_what_it_has_room_for() {
        let mut line = Line::new();
        line.push(&[b'x'; 2 * LINE_OCTETS]);
        line.end();
        assert_eq!(
            (line.octets().len(), line.octets().last()),
            (LINE_OCTETS, Some(&b'\n'))
        );
    }
}
