//! The epoll set of a lease's interrupts and of the process' wake socket.

#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::time::Duration;

/// Data of the event of the wake socket; those of the lease's own are 0.
const WAKE_SOCKET: u64 = 1;

/// How a sleep on the set has ended.
pub(crate) struct Slept {
    /// The wake socket is readable.
    pub(crate) is_woken: bool,
    /// The system does not let this process sleep so.
    pub(crate) is_refused: bool,
}

/// Sleeps until the set of a lease has an event or `signals` is readable; false if the system does
/// not let this process sleep so.
pub(crate) fn wait_beside(set: RawFd, signals: RawFd, limit: Option<Duration>) -> bool {
    let mut list = [set, signals].map(|fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    });
    // The system call changes it.
    let mut limit = limit.map(timespec);
    let limit = limit
        .as_mut()
        .map_or(std::ptr::null_mut(), std::ptr::from_mut);
    let none = std::ptr::null::<libc::c_void>();
    // SAFETY: a list of two entries; the time is null or valid; there is no signal mask.
    let found =
        unsafe { libc::syscall(libc::SYS_ppoll, list.as_mut_ptr(), 2, limit, none, 0_usize) };
    let is_interrupted =
        || std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted;
    let is_valid = list.iter().all(|entry| entry.revents & libc::POLLNVAL == 0);
    is_valid && (found >= 0 || is_interrupted())
}

fn timespec(limit: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    }
}

/// Adds the wake socket to the set of a lease.
pub(crate) fn add(set: RawFd, socket: RawFd) -> bool {
    let mut event = libc::epoll_event {
        events: libc::EPOLLIN.cast_unsigned(),
        u64: WAKE_SOCKET,
    };
    // SAFETY: the event is valid during the call.
    unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, socket, &raw mut event) == 0 }
}

/// Sleeps until an event of the set.
pub(crate) fn wait(set: RawFd, limit: Option<Duration>) -> Slept {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 2];
    let limit = limit.map(timespec);
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let none = std::ptr::null::<libc::c_void>();
    // SAFETY: there is room for two events; the time is null or valid; there is no signal mask.
    let found = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait2,
            set,
            events.as_mut_ptr(),
            2,
            limit,
            none,
            0_usize,
        )
    };
    let error = || std::io::Error::last_os_error().kind();
    let is_refused = found < 0 && error() != std::io::ErrorKind::Interrupted;
    let found = usize::try_from(found).unwrap_or(0).min(events.len());
    Slept {
        is_woken: events[..found].iter().any(|event| event.u64 == WAKE_SOCKET),
        is_refused,
    }
}
