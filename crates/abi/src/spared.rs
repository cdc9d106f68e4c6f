//! Descriptors of the provider that the stand-in has to know: those that stay open when the program
//! closes descriptors that it did not open, for example with closefrom(3), and those from which the
//! program reads asynchronous events.

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;

use crate::front::{mark, MarkFn, MARK_SYMBOL};

/// The least number of the provider's own descriptors, as far as it is free: the lower ones are the
/// program's, which may have room for few in its sets of select(2). The table of descriptors that a
/// process begins with has 64 entries; the kernel lets threads wait when it replaces it.
const FIRST: c_int = 40;

/// The same file with a number from 40 on; with the one that it has if that is one, or if the
/// process may have no such number.
pub fn raised(fd: OwnedFd) -> OwnedFd {
    if fd.as_raw_fd() >= FIRST {
        return fd;
    }
    copy_from_first(fd.as_fd()).unwrap_or(fd)
}

/// A copy of the descriptor, with a number from 40 on if the process may have one.
///
/// # Errors
/// Those of fcntl(2).
pub fn raised_copy(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    copy_from_first(fd).or_else(|_| fd.try_clone_to_owned())
}

fn copy_from_first(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: the command takes an int.
    let copy = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, FIRST) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has just opened it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// The function of the stand-in; `None` when this process has no stand-in.
fn mark_function() -> Option<MarkFn> {
    static FUNCTION: OnceLock<Option<MarkFn>> = OnceLock::new();
    *FUNCTION.get_or_init(|| {
        // SAFETY: the symbol is a C string. RTLD_DEFAULT finds preloaded libraries first.
        let symbol: *mut c_void = unsafe { libc::dlsym(libc::RTLD_DEFAULT, MARK_SYMBOL.as_ptr()) };
        // SAFETY: the stand-in exports this name, with this type.
        (!symbol.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, MarkFn>(symbol) })
    })
}

/// Gives a descriptor a mark; whether it has it.
fn give(fd: RawFd, mark: c_int) -> bool {
    // SAFETY: the function accepts any descriptor.
    mark_function().is_some_and(|function| unsafe { function(fd, mark) != 0 })
}

/// Marks the descriptor from which the program reads asynchronous events; whether there is a
/// stand-in that has it now.
pub fn mark_async_events(fd: RawFd) -> bool {
    give(fd, mark::ASYNC_EVENTS)
}

/// Spares a descriptor for its lifetime; it must be dropped before the descriptor is closed.
#[derive(Debug)]
pub struct Mark {
    fd: RawFd,
}

impl Mark {
    /// Marks an open descriptor that the caller owns.
    pub fn new(fd: RawFd) -> Self {
        give(fd, mark::SPARED);
        Self { fd }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        give(self.fd, mark::NONE);
    }
}

/// An owned descriptor that is [`raised`], and spared until it is closed.
#[derive(Debug)]
pub struct Spared {
    /// Precedes the descriptor, since fields are dropped in order of declaration.
    _mark: Mark,
    fd: OwnedFd,
}

impl From<OwnedFd> for Spared {
    fn from(fd: OwnedFd) -> Self {
        let fd = raised(fd);
        Self {
            _mark: Mark::new(fd.as_raw_fd()),
            fd,
        }
    }
}

impl AsFd for Spared {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Spared {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// Device and inode number of what the kernel has behind a descriptor. May be called in a forked
/// child.
pub fn identity(fd: RawFd) -> Option<(u64, u64)> {
    // SAFETY: all zeroes is a valid `struct stat`.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // The stand-in has functions of its own for the C library's.
    // SAFETY: `stat` is writable.
    let failed = unsafe { libc::syscall(libc::SYS_fstat, fd, &raw mut stat) };
    (failed == 0).then_some((stat.st_dev, stat.st_ino))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn raised_descriptor_is_the_same_file_and_leaves_its_number() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let (inode, fd) = (file.metadata().unwrap().ino(), file.as_raw_fd());
        assert!(fd < FIRST);
        let raised = std::fs::File::from(raised(file.into()));
        assert!(raised.as_raw_fd() >= FIRST);
        assert_eq!(raised.metadata().unwrap().ino(), inode);
    }
}
