//! The futex system call on words that processes share.

use std::time::Duration;

use crate::sync::AtomicU32;

/// Sleeps while `*word == expected`; returns false on a timeout.
pub(crate) fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> bool {
    let limit = timeout.map(|t| libc::timespec {
        tv_sec: libc::time_t::try_from(t.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(t.subsec_nanos()),
    });
    let limit_ptr = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the word and the optional timespec outlive the call; FUTEX_WAIT only reads them.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            expected,
            limit_ptr,
        )
    };
    rc == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ETIMEDOUT)
}

/// Wakes all threads that sleep on `word`.
#[cold]
pub(crate) fn wake(word: &AtomicU32) {
    // SAFETY: FUTEX_WAKE only uses the address, which is mapped.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX);
    }
}
