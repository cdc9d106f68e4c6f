//! What makes an rdma_cm file readable: an eventfd in the epoll set that the application has in
//! place of the file.
//!
//! The kernel's file is readable while it has an event, never writable, and cannot be read. An
//! epoll set is so too; an eventfd alone would always be writable.

#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::driver::Errno;
use urdma_abi::spared::Spared;

/// The eventfd of one rdma_cm file; the application does not know it.
#[derive(Debug)]
pub(crate) struct Pending(Spared);

impl Pending {
    /// Makes a member of the epoll set `file`, which is not readable yet.
    ///
    /// # Errors
    /// EMFILE when there is no descriptor left, EBADF.
    pub(crate) fn new(file: RawFd) -> Result<Self, Errno> {
        // SAFETY: eventfd has no preconditions.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(last_errno());
        }
        // SAFETY: `fd` is a new descriptor without another owner.
        let fd = Spared::from(unsafe { OwnedFd::from_raw_fd(fd) });
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: 0,
        };
        // SAFETY: `event` is one valid event.
        let failed =
            unsafe { libc::epoll_ctl(file, libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &raw mut event) };
        if failed != 0 {
            return Err(last_errno());
        }
        Ok(Self(fd))
    }

    /// The file is readable from now on.
    pub(crate) fn set(&self) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: `one` is 8 readable octets; an eventfd takes them whole or not at all.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// The file is not readable from now on.
    pub(crate) fn clear(&self) {
        let mut count = [0_u8; 8];
        // SAFETY: `count` is 8 writable octets.
        unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

fn last_errno() -> Errno {
    std::io::Error::last_os_error()
        .raw_os_error()
        .unwrap_or(libc::EIO)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What poll(2) reports now.
    fn polled(file: &OwnedFd) -> i16 {
        let mut list = libc::pollfd {
            fd: file.as_raw_fd(),
            events: libc::POLLIN | libc::POLLOUT,
            revents: 0,
        };
        // SAFETY: the list has one entry.
        let count = unsafe { libc::poll(&raw mut list, 1, 0) };
        assert!(count >= 0, "{}", last_errno());
        list.revents
    }

    #[test]
    fn file_is_readable_while_an_event_is_pending_and_never_writable() {
        // SAFETY: the call has just created the descriptor, which has no other owner.
        let file = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
        let pending = Pending::new(file.as_raw_fd()).unwrap();
        for _ in 0..2 {
            assert_eq!(polled(&file), 0);
            pending.set();
            assert_eq!(polled(&file), libc::POLLIN);
            pending.clear();
        }
        pending.set();
        drop(pending);
        assert_eq!(polled(&file), 0, "nor is there an end");
    }
}
