//! Waiting for any of several words of other processes to change: futex(2), futex_waitv(2). Under
//! `--cfg loom`, a model of both.

#![allow(unsafe_code)]

use std::time::Duration;

use crate::sync::AtomicU32;

/// A word, and the value that it had.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Waiter {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

impl Waiter {
    #[inline]
    pub(crate) fn new(word: &AtomicU32, value: u32) -> Self {
        const FUTEX_32: u32 = 2;
        Self {
            value: value.into(),
            address: std::ptr::from_ref(word) as u64,
            flags: FUTEX_32,
            reserved: 0,
        }
    }

    /// The value that the word had.
    pub(crate) fn value(&self) -> u64 {
        self.value
    }
}

/// How long a thread sleeps that cannot wait on all of its words.
pub(crate) const NAP: Duration = Duration::from_millis(1);

/// Words that futex_waitv takes.
pub(crate) const WAITERS_MAX: usize = 128;

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// A word was woken or had changed, or for no reason.
    Woken,
    /// The time was up.
    Timeout,
    /// A handler of a signal ran that does not restart system calls.
    #[cfg_attr(loom, allow(dead_code))] // the model has no signals
    Interrupted,
}

/// Sleeps until one of the words is woken, if all have their values.
#[cfg(not(loom))]
pub(crate) fn wait(waiters: &[Waiter], timeout: Option<Duration>) -> Ended {
    let end = timeout.and_then(moment_after);
    let end = end.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the kernel reads the list and the optional timespec, which outlive the call, and the
    // words, whose addresses it checks.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_futex_waitv,
            waiters.as_ptr(),
            waiters.len(),
            0,
            end,
            libc::CLOCK_MONOTONIC,
        )
    };
    if rc >= 0 {
        return Ended::Woken;
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::ETIMEDOUT) => Ended::Timeout,
        Some(libc::EAGAIN) => Ended::Woken,
        Some(libc::EINTR) => Ended::Interrupted,
        // A system without this call: the caller looks at its channels every so often.
        _ => {
            std::thread::sleep(timeout.map_or(NAP, |timeout| timeout.min(NAP)));
            Ended::Woken
        }
    }
}

/// Whether the system has futex_waitv(2).
#[cfg(not(loom))]
pub(crate) fn is_supported() -> bool {
    static ERRNO: std::sync::OnceLock<Option<i32>> = std::sync::OnceLock::new();
    let errno = ERRNO.get_or_init(|| {
        let none = std::ptr::null::<Waiter>();
        // SAFETY: without a word it only fails: with EINVAL where there is such a call.
        unsafe { libc::syscall(libc::SYS_futex_waitv, none, 0, 0, none, 0) };
        std::io::Error::last_os_error().raw_os_error()
    });
    *errno == Some(libc::EINVAL)
}

/// A moment of the monotonic clock; None for one that the clock does not have.
#[cfg(not(loom))]
fn moment_after(pause: Duration) -> Option<libc::timespec> {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: fills the struct that the pointer names.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    let nanoseconds = now.tv_nsec + libc::c_long::from(pause.subsec_nanos());
    let seconds = libc::time_t::try_from(pause.as_secs()).ok()?;
    Some(libc::timespec {
        tv_sec: now
            .tv_sec
            .checked_add(seconds)?
            .checked_add(nanoseconds / 1_000_000_000)?,
        tv_nsec: nanoseconds % 1_000_000_000,
    })
}

/// Wakes all threads that wait for `word`.
#[cfg(not(loom))]
#[cold]
pub fn wake(word: &AtomicU32) {
    // SAFETY: FUTEX_WAKE only uses the address, which is mapped.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX);
    }
}

#[cfg(loom)]
loom::lazy_static! {
    static ref KERNEL: (loom::sync::Mutex<()>, loom::sync::Condvar) = Default::default();
}

/// Compares and sleeps in one step, as the kernel does; whatever is woken wakes it. Of the timeouts
/// only that of no time ends it.
#[cfg(loom)]
pub(crate) fn wait(waiters: &[Waiter], timeout: Option<Duration>) -> Ended {
    if timeout == Some(Duration::ZERO) {
        return Ended::Timeout;
    }
    let guard = KERNEL.0.lock().expect("no thread panics in here");
    let is_unchanged = |waiter: &Waiter| {
        // SAFETY: the models keep their memory until their threads have ended.
        let word = unsafe { &*(waiter.address as *const AtomicU32) };
        u64::from(word.load(crate::sync::Ordering::Relaxed)) == waiter.value
    };
    if waiters.iter().all(is_unchanged) {
        drop(KERNEL.1.wait(guard));
    }
    Ended::Woken
}

/// Wakes everyone, since the threads of a model wait for the same words.
#[cfg(loom)]
pub fn wake(_word: &AtomicU32) {
    drop(KERNEL.0.lock());
    KERNEL.1.notify_all();
}
