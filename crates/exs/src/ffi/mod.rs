//! The calls of librdmacm and libibverbs, behind types whose functions are safe to call. No other
//! module of this crate has unsafe code.

#![allow(unsafe_code)]

pub(crate) mod cm;
pub(crate) mod memory;
pub(crate) mod queue_pair;
pub(crate) mod verbs;

use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{fcntl, FcntlArg, OFlag};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};

use crate::error::Error;

/// Makes reading from a descriptor of a library return at once.
fn set_nonblocking(fd: RawFd) -> Result<(), Error> {
    let failed = |errno| Error::from_errno("fcntl", errno as i32);
    let fd = borrowed(fd);
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL).map_err(failed)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).map_err(failed)?;
    Ok(())
}

/// A descriptor that the caller knows to be open.
fn borrowed<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: callers pass descriptors of channels that they have borrowed, which keep them open.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Sleeps until one of the descriptors can be read, or for at most so long; a signal ends it, too.
/// Which of them can be read.
pub(crate) fn sleep<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    limit: Option<Duration>,
) -> Result<[bool; N], Error> {
    let mut fds = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    // Rounded up, so that a short limit is not a busy loop.
    let limit = limit.map(|limit| limit + Duration::from_micros(999));
    let longest = PollTimeout::MAX;
    let limit = limit.map_or(PollTimeout::NONE, |limit| {
        limit.try_into().unwrap_or(longest)
    });
    match poll(&mut fds, limit) {
        Ok(_) => Ok(fds.map(|fd| fd.any().unwrap_or(true))),
        Err(Errno::EINTR) => Ok([false; N]),
        Err(errno) => Err(Error::from_errno("poll", errno as i32)),
    }
}

/// The time in nanoseconds since a moment in the past; it does not go back. `Instant` takes several
/// times as many instructions to say the same.
#[inline]
pub(crate) fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the result is ours. It cannot fail: every Linux has the clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Registers a descriptor with the runtime, for reading.
#[cfg(feature = "tokio")]
pub(crate) fn register(
    fd: std::os::fd::OwnedFd,
) -> std::io::Result<tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>> {
    use tokio::io::{unix::AsyncFd, Interest};

    // SAFETY: the result owns the descriptor, which is therefore open, and always the same, as long
    // as it is registered.
    let registered = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
    registered.map_err(|refused| refused.into_parts().1)
}
