//! Memory that one process writes and others only read: a sealed memfd, and its mapping.
//!
//! The writer creates a [`Mapping`] and gives its descriptor to the readers, which map it by
//! [`Mapping::open`] after they have checked its seals, its length and its header. A writer that is
//! hostile can change every octet at any time, and nothing else: the file keeps its length, so no
//! reader gets SIGBUS.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::{null_mut, NonNull};

/// Octets of a page.
pub const PAGE: usize = 4096;
/// Octets of the header of a table: magic and version.
pub const TABLE_HEADER: usize = 12;

/// The header of a table.
pub fn magic(magic: &[u8; 8], version: u32) -> [u8; TABLE_HEADER] {
    let mut header = [0; TABLE_HEADER];
    header[..8].copy_from_slice(magic);
    header[8..].copy_from_slice(&version.to_le_bytes());
    header
}

/// Whether the program has registered any of these octets at an address.
type IsTaken<'a> = dyn Fn(usize, usize) -> bool + 'a;

thread_local! {
    /// See [`avoiding`].
    static TAKEN: Cell<Option<NonNull<IsTaken<'static>>>> = const { Cell::new(None) };
}

/// The largest reservation in search of a place: this many times the octets of the mapping.
const RESERVED_MAX: usize = 1 << 20;

/// Calls `make`, whose mappings keep out of each address and length for which `is_taken` returns
/// true though nothing is mapped there: of registered memory that the program has unmapped, which
/// peers may access.
///
/// A mapping is where the kernel chooses if there is no other place, as in a program that has
/// registered all of its address space.
pub fn avoiding<T>(is_taken: &IsTaken<'_>, make: impl FnOnce() -> T) -> T {
    /// Restores what the thread avoided before.
    struct Before(Option<NonNull<IsTaken<'static>>>);

    impl Drop for Before {
        fn drop(&mut self) {
            TAKEN.set(self.0);
        }
    }

    // SAFETY: only the lifetime changes; `Before` ends every use before this function returns.
    let is_taken = unsafe {
        std::mem::transmute::<NonNull<IsTaken<'_>>, NonNull<IsTaken<'static>>>(NonNull::from(
            is_taken,
        ))
    };
    let _before = Before(TAKEN.replace(Some(is_taken)));
    make()
}

/// Whether the calling thread avoids these octets.
fn is_avoided(at: usize, octets: usize) -> bool {
    // SAFETY: `avoiding` has borrowed it and has not returned.
    TAKEN
        .get()
        .is_some_and(|is_taken| unsafe { is_taken.as_ref()(at, octets) })
}

/// What a writer seals: the size, and the way to another writable mapping.
const SEALS: libc::c_int =
    libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;
/// What a reader needs: without it, reading could raise SIGBUS.
const SIZE_SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// Why memory could not be created or mapped.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// A system call failed.
    #[error("{0}: {1}")]
    System(&'static str, io::Error),
    /// The descriptor is of another kind. A memfd of hugepages is, too: without a free hugepage,
    /// reading it raises SIGBUS.
    #[error("not a memfd of ordinary pages")]
    NotMemfd,
    /// Its writer could still change its size.
    #[error("the size of the memfd is not sealed")]
    NotSealed,
    /// Its content is not what was expected.
    #[error(transparent)]
    Header(#[from] HeaderError),
}

/// Why the content of a memfd is not what its reader expects.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum HeaderError {
    /// A value is outside its range.
    #[error("shared memory out of range: {0}")]
    Range(&'static str),
    /// The header is of something else.
    #[error("not the expected kind of shared memory (bad magic)")]
    Magic,
    /// Another version made it.
    #[error("shared memory of version {found}, this program knows version {known}")]
    Version {
        /// The version in the header.
        found: u32,
        /// The version of this program.
        known: u32,
    },
    /// The file's length is not what its header says.
    #[error("shared memory of {file} octets whose header needs {header}")]
    Length {
        /// Octets of the file.
        file: u64,
        /// Octets that the header calls for.
        header: u64,
    },
}

fn check(call: &'static str, rc: libc::c_int) -> Result<libc::c_int, MemoryError> {
    if rc < 0 {
        return Err(MemoryError::System(call, io::Error::last_os_error()));
    }
    Ok(rc)
}

/// Mapped memory of a memfd; unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    octets: usize,
}

// SAFETY: the memory is mapped until the last owner drops this, whichever thread that is, and a
// mapping gives only addresses.
unsafe impl Send for Mapping {}
// SAFETY: the memory is mapped until the last owner drops this, whichever thread that is, and a
// mapping gives only addresses.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Creates a memfd of zeroes that starts with `header`, and seals it.
    ///
    /// The first `used` octets get their memory at once. The descriptor is for the readers.
    pub fn create(
        name: &std::ffi::CStr,
        octets: usize,
        header: &[u8],
        used: usize,
    ) -> Result<(Self, OwnedFd), MemoryError> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name ends with a zero.
        let raw = check("memfd_create", unsafe {
            libc::memfd_create(name.as_ptr(), flags)
        })?;
        // SAFETY: memfd_create has just returned this descriptor, no other code has it.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(raw) });
        file.set_len(octets as u64)
            .and_then(|()| file.write_all_at(header, 0))
            .map_err(|error| MemoryError::System("memfd", error))?;
        let mapping = Self::map(&file, octets, libc::PROT_READ | libc::PROT_WRITE)?;
        // C3-1: after the mapping, which stays writable.
        // SAFETY: only seals our own file.
        check("fcntl", unsafe {
            libc::fcntl(raw, libc::F_ADD_SEALS, SEALS)
        })?;
        mapping.advise(used, libc::MADV_POPULATE_WRITE);
        // C3-2: no other process had the descriptor before.
        Ok((mapping, file.into()))
    }

    /// Maps another process' memfd for reading. `validate` gets the first octets and the length of
    /// the file, and gives the octets that are read all the time, at the beginning.
    pub fn open<const N: usize, T>(
        fd: OwnedFd,
        validate: impl FnOnce(&[u8; N], u64) -> Result<(T, usize), HeaderError>,
    ) -> Result<(Self, T), MemoryError> {
        let raw = fd.as_raw_fd();
        // C3-3
        //# A reader MUST verify that the descriptor is a memfd of ordinary pages with the seals
        //# SHRINK and GROW, that its length is the length that the header calls for, and that the
        //# header's values are in their ranges, before it uses the mapping.
        // SAFETY: only reads the seals of a descriptor that we own.
        let seals = unsafe { libc::fcntl(raw, libc::F_GET_SEALS) };
        if seals < 0 || !is_on_tmpfs(&fd)? {
            return Err(MemoryError::NotMemfd);
        }
        if seals & SIZE_SEALS != SIZE_SEALS {
            return Err(MemoryError::NotSealed);
        }
        let file = File::from(fd);
        let system = |error| MemoryError::System("memfd", error);
        let octets = file.metadata().map_err(system)?.len();
        if octets < N as u64 {
            return Err(HeaderError::Magic.into());
        }
        // C3-4: one copy of the header.
        let mut header = [0; N];
        file.read_exact_at(&mut header, 0).map_err(system)?;
        let (valid, used) = validate(&header, octets)?;
        let octets = usize::try_from(octets).map_err(|_| HeaderError::Range("too long"))?;
        let mapping = Self::map(&file, octets, libc::PROT_READ)?;
        mapping.advise(used, libc::MADV_POPULATE_READ);
        Ok((mapping, valid))
    }

    /// Maps another process' table of a fixed size for reading.
    pub fn open_table(
        fd: OwnedFd,
        header: &[u8; TABLE_HEADER],
        total: usize,
    ) -> Result<Self, MemoryError> {
        let (mapping, ()) = Self::open(fd, |found: &[u8; TABLE_HEADER], octets| {
            if found[..8] != header[..8] {
                return Err(HeaderError::Magic);
            }
            if found != header {
                return Err(HeaderError::Range("it has another version"));
            }
            if octets != total as u64 {
                return Err(HeaderError::Length {
                    file: octets,
                    header: total as u64,
                });
            }
            Ok(((), PAGE))
        })?;
        Ok(mapping)
    }

    fn map(file: &File, octets: usize, access: libc::c_int) -> Result<Self, MemoryError> {
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let mapping = unsafe { Self::map_at(null_mut(), octets, access, flags, file.as_raw_fd())? };
        let mapping = mapping.moved_out();
        // A core dump would have the payload of strangers, and a page for each frame.
        mapping.advise(octets, libc::MADV_DONTDUMP);
        Ok(mapping)
    }

    /// # Safety
    /// As of mmap(2).
    unsafe fn map_at(
        at: *mut libc::c_void,
        octets: usize,
        access: libc::c_int,
        flags: libc::c_int,
        raw: libc::c_int,
    ) -> Result<Self, MemoryError> {
        // SAFETY: the caller's promise.
        let at = unsafe { libc::mmap(at, octets, access, flags, raw, 0) };
        let error = || MemoryError::System("mmap", io::Error::last_os_error());
        if at == libc::MAP_FAILED {
            return Err(error());
        }
        let base = NonNull::new(at.cast()).ok_or_else(error)?;
        Ok(Self { base, octets })
    }

    /// The mapping, to which nothing refers yet, out of what is avoided.
    fn moved_out(self) -> Self {
        let is_out = |of: &Self| !is_avoided(of.base.as_ptr() as usize, of.octets);
        if is_out(&self) {
            return self;
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // A longer reservation does not fit where a shorter one did.
        let mut factor = 1;
        while factor <= RESERVED_MAX {
            let Some(octets) = self.octets.checked_mul(factor) else {
                break;
            };
            // SAFETY: new, at an address of the kernel's choice.
            let reserved = unsafe { Self::map_at(null_mut(), octets, libc::PROT_NONE, flags, -1) };
            let Ok(mut reserved) = reserved else {
                break;
            };
            let rest = reserved.octets - self.octets;
            reserved.octets = self.octets;
            if rest > 0 {
                // SAFETY: the end of the reservation, which only this function knows.
                unsafe { libc::munmap(reserved.base.as_ptr().add(self.octets).cast(), rest) };
            }
            if is_out(&reserved) {
                return self.over(reserved);
            }
            factor *= 2;
        }
        self
    }

    /// Moves the mapping into the place of a reservation of its length.
    fn over(self, reserved: Self) -> Self {
        let (from, to) = (self.base.as_ptr().cast(), reserved.base.as_ptr());
        let (octets, flags) = (self.octets, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED);
        // SAFETY: both are ours, and nothing refers to either yet.
        let at = unsafe { libc::mremap(from, octets, octets, flags, to) };
        if at == libc::MAP_FAILED {
            return self;
        }
        // The kernel has unmapped what was at its old address.
        std::mem::forget(self);
        reserved
    }

    /// Gives the kernel advice about the first `octets`; it changes no content, and without it
    /// everything is only slower or longer.
    fn advise(&self, octets: usize, advice: libc::c_int) {
        if octets == 0 {
            return;
        }
        // SAFETY: within our mapping.
        unsafe { libc::madvise(self.base.as_ptr().cast(), octets, advice) };
    }

    /// The address at `offset`.
    #[inline(always)]
    pub fn at(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset < self.octets, "an offset outside of the layout");
        // SAFETY: every offset given comes from a layout, which was checked against the mapping's
        // length.
        unsafe { self.base.add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`; everything that refers to it borrows from its owner.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.octets) };
    }
}

/// Whether a file with seals is one of ordinary pages, not of hugepages.
fn is_on_tmpfs(fd: &OwnedFd) -> Result<bool, MemoryError> {
    let mut status = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: fstatfs fills the struct that the pointer names.
    check("fstatfs", unsafe {
        libc::fstatfs(fd.as_raw_fd(), status.as_mut_ptr())
    })?;
    // SAFETY: fstatfs succeeded, so the struct is filled.
    Ok(unsafe { status.assume_init() }.f_type == libc::TMPFS_MAGIC)
}
