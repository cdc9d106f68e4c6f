//! The socket pair of a completion channel, or of a context's asynchronous events: the program
//! reads from one end, and a library writes to the other.
//!
//! The kernel's files of events are readable when they have an event, and never writable. A program
//! that waits for either, such as one of libuv, would find a socket writable all the time. The
//! program's end is therefore filled, with a message that the library never reads.

use std::ffi::c_int;
use std::io;
use std::os::fd::RawFd;

/// More than a quarter of the smallest buffer, from which on a socket is not writable.
const FILLER: [u8; 2048] = [0; 2048];

const INT_OCTETS: libc::socklen_t = 4;

/// Both ends, which the caller owns: that of the program and that of the library.
///
/// # Errors
/// No descriptor is free.
pub fn event_socket() -> io::Result<[RawFd; 2]> {
    let mut ends: [c_int; 2] = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: `ends` has room for the two descriptors.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    fill(ends[0]);
    Ok(ends)
}

/// Makes a new socket not writable. Where a sandbox refuses that, it works all the same.
fn fill(end: RawFd) {
    // The kernel takes the smallest size instead.
    let size: c_int = 0;
    // SAFETY: the option is an int, and `size` is one.
    unsafe {
        libc::setsockopt(
            end,
            libc::SOL_SOCKET,
            libc::SO_SNDBUF,
            (&raw const size).cast(),
            INT_OCTETS,
        );
    }
    // The C library's function is a cancellation point.
    // SAFETY: `FILLER` has the octets that are sent; no address is named.
    unsafe {
        libc::syscall(
            libc::SYS_sendto,
            end,
            FILLER.as_ptr(),
            FILLER.len(),
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            std::ptr::null::<libc::sockaddr>(),
            0,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    /// What poll(2) reports now.
    fn polled(end: &OwnedFd) -> i16 {
        let mut list = libc::pollfd {
            fd: end.as_raw_fd(),
            events: libc::POLLIN | libc::POLLOUT,
            revents: 0,
        };
        // SAFETY: the list has one entry.
        let count = unsafe { libc::poll(&raw mut list, 1, 0) };
        assert!(count >= 0, "{}", io::Error::last_os_error());
        list.revents
    }

    // It was always writable: infinistore, which waits for that too, never slept.
    #[test]
    fn program_end_is_readable_after_an_event_and_never_writable() {
        let ends = event_socket().expect("two descriptors are free");
        // SAFETY: the call has just created both, and they have no other owner.
        let [program, library] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
        assert_eq!(polled(&program), 0);
        let event = [7_u8; 8];
        // SAFETY: the buffer has the octets that are sent.
        let sent = unsafe { libc::send(library.as_raw_fd(), event.as_ptr().cast(), 8, 0) };
        assert_eq!(sent, 8);
        assert_eq!(polled(&program), libc::POLLIN);
        let mut read = [0_u8; 16];
        // SAFETY: the buffer has room for the octets asked for.
        let count = unsafe { libc::read(program.as_raw_fd(), read.as_mut_ptr().cast(), 16) };
        assert_eq!((count, &read[..8]), (8, &event[..]));
        assert_eq!(polled(&program), 0);
    }
}
