//! sendfile(2) to a connection with rings: the file is read in pieces, which are sent as the octets
//! of other calls.
//!
//! A file that is not regular, an error, and arguments that the kernel refuses are the kernel's.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use libc::{iovec, off_t, size_t, ssize_t};

use crate::begin::{begin, Begun};
use crate::calls::{self, Way};
use crate::octets::Octets;
use crate::reasons::Reason;
use crate::table::{self, Cell};
use crate::{leave, real, signals};

/// Octets that are read at once, onto the stack.
const PIECE_OCTETS: usize = 16 * 1024;
/// `MAX_RW_COUNT` of the kernel: a call sends no more.
const COUNT_MAX: usize = 0x7fff_f000;

/// The file of a call, and where its offset is: null if the position of the file is the offset.
pub(crate) struct File {
    fd: c_int,
    offset: *mut off_t,
}

impl File {
    pub(crate) fn new(fd: c_int, offset: *mut off_t) -> Self {
        Self { fd, offset }
    }

    /// The length of a regular file.
    fn len(&self) -> Option<off_t> {
        // SAFETY: all zeroes is a valid `stat`.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the struct is writable.
        let rc = unsafe { libc::fstat(self.fd, &raw mut status) };
        (rc == 0 && status.st_mode & libc::S_IFMT == libc::S_IFREG).then_some(status.st_size)
    }

    /// Where the next octet is; negative if it has no place.
    ///
    /// # Safety
    /// The offset is the caller's.
    unsafe fn position(&self) -> off_t {
        // SAFETY: null, or guaranteed by the caller.
        match unsafe { self.offset.as_ref() } {
            Some(offset) => *offset,
            // SAFETY: no memory is named.
            None => unsafe { libc::lseek(self.fd, 0, libc::SEEK_CUR) },
        }
    }

    /// # Safety
    /// As [`Self::position`].
    unsafe fn set_position(&self, at: off_t) {
        // SAFETY: as there.
        match unsafe { self.offset.as_mut() } {
            Some(offset) => *offset = at,
            // SAFETY: no memory is named.
            None => drop(unsafe { libc::lseek(self.fd, at, libc::SEEK_SET) }),
        }
    }

    /// Whether `count` octets have places; else the call is an error.
    ///
    /// # Safety
    /// As [`Self::position`].
    unsafe fn has_range(&self, count: size_t) -> bool {
        // SAFETY: as there.
        let offset = unsafe { self.offset.as_ref() }.copied().unwrap_or(0);
        off_t::try_from(count).is_ok_and(|count| offset.checked_add(count).is_some())
    }

    /// Reads octets from a place on; 0 at the end. Not by pread(3), where a thread may be
    /// cancelled.
    fn read(
        &self,
        piece: &mut MaybeUninit<[u8; PIECE_OCTETS]>,
        at: off_t,
        most: usize,
    ) -> Option<usize> {
        let len = most.min(PIECE_OCTETS);
        // SAFETY: the kernel writes at most `len` octets into the piece.
        let read =
            unsafe { libc::syscall(libc::SYS_pread64, self.fd, piece.as_mut_ptr(), len, at) };
        usize::try_from(read).ok()
    }
}

/// Why no more octets are sent by the ring.
enum Ended {
    /// The call has ended, with an error if it has sent nothing.
    Call,
    /// The file has no more.
    File,
    /// The file is not regular, has no length, or cannot be read.
    Unreadable,
    /// The connection has no rings any more.
    Rings,
}

/// sendfile(2); `kernel` makes the call of the program with another count.
///
/// # Safety
/// The arguments are the caller's. A cancellation point: its frames have no values to be dropped.
pub(crate) unsafe fn send_file(
    fd: c_int,
    file: &File,
    count: size_t,
    kernel: impl Fn(size_t) -> ssize_t,
) -> ssize_t {
    // The kernel moves octets of a socket to a pipe, and to nothing else.
    if table::hit(file.fd).is_some() {
        if kernel(0) < 0 {
            return -1;
        }
        leave::retire(file.fd, Reason::Splice);
    }
    // SAFETY: as for the caller.
    let is_valid = count > 0 && unsafe { file.has_range(count) };
    let Some(cell) = table::hit(fd).filter(|_| is_valid) else {
        return kernel(count);
    };
    signals::begin_call();
    let (count, before) = (count.min(COUNT_MAX), real::errno());
    let mut sent = 0;
    let last = loop {
        if let Begun::Kernel(entered) = begin(cell) {
            let last = kernel(count - sent);
            if last > 0 {
                calls::count(fd, cell, Way::Send(0));
            }
            cell.leave_since(entered);
            break last;
        }
        cell.leave();
        // SAFETY: as for the caller.
        let (moved, ended) = unsafe { send_by_ring(fd, cell, file, count - sent) };
        sent += moved;
        match ended {
            Ended::Rings => {}
            _ if sent > 0 => break 0,
            Ended::Call => break -1,
            // The kernel moves nothing, and knows whether the call is an error.
            Ended::File => break kernel(0),
            Ended::Unreadable => {
                if kernel(0) < 0 {
                    break -1;
                }
                leave::retire(fd, Reason::Splice);
            }
        }
    };
    if sent == 0 {
        return last;
    }
    real::set_errno(before);
    ssize_t::try_from(sent).unwrap_or(ssize_t::MAX) + last.max(0)
}

/// Sends by the ring until the call ends, and returns how many octets were sent, which the position
/// of the file follows.
///
/// # Safety
/// As [`send_file`].
unsafe fn send_by_ring(
    fd: c_int,
    cell: &'static Cell,
    file: &File,
    count: usize,
) -> (usize, Ended) {
    // SAFETY: as for the caller.
    let (Some(len), begin) = (file.len(), unsafe { file.position() }) else {
        return (0, Ended::Unreadable);
    };
    let mut piece = MaybeUninit::uninit();
    let mut sent = 0;
    while sent < count {
        let at = begin.saturating_add(signed(sent));
        let read = match file.read(&mut piece, at, count - sent) {
            Some(0) => return (sent, Ended::File),
            // Files that the kernel makes when they are read have no length.
            Some(read) if len > 0 => read,
            _ => return (sent, Ended::Unreadable),
        };
        let has_more = read < count - sent && at.saturating_add(signed(read)) < len;
        let flags = if has_more { libc::MSG_MORE } else { 0 };
        let mut done = 0;
        while done < read {
            let part = iovec {
                // SAFETY: within the piece.
                iov_base: unsafe { piece.as_mut_ptr().cast::<c_void>().add(done) },
                iov_len: read - done,
            };
            // SAFETY: an array of one part, which lives as long as the call.
            let octets = unsafe { Octets::new(&raw const part, 1) };
            // The kernel sends the file itself.
            let kernel = || 0;
            let way = Way::SendSome(flags);
            // SAFETY: octets of the piece; as for the caller.
            let moved = unsafe { calls::transfer_in_call(fd, cell, octets, way, kernel) };
            match usize::try_from(moved) {
                Ok(0) => return (sent, Ended::Rings),
                Ok(moved) => done += moved,
                Err(_) => return (sent, Ended::Call),
            }
            sent += usize::try_from(moved).unwrap_or(0);
            // SAFETY: as for the caller.
            unsafe { file.set_position(begin.saturating_add(signed(sent))) };
        }
    }
    (sent, Ended::Call)
}

/// A count of a call, which is at most [`COUNT_MAX`].
fn signed(count: usize) -> off_t {
    off_t::try_from(count).unwrap_or(off_t::MAX)
}

#[cfg(test)]
mod tests;
