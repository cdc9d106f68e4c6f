//! Signals: words of this process that a thread waits on beside its bells.

use crate::futex;
use crate::sync::{fence, AtomicU32, Ordering};

/// A word of this process that a driver waits on beside its bells.
#[derive(Debug)]
pub struct Signal {
    raised: AtomicU32,
    waiters: AtomicU32,
}

impl Default for Signal {
    fn default() -> Self {
        Self {
            raised: AtomicU32::new(0),
            waiters: AtomicU32::new(0),
        }
    }
}

impl Signal {
    /// How often it was raised.
    #[inline]
    pub fn count(&self) -> u32 {
        self.raised.load(Ordering::SeqCst)
    }

    pub(crate) fn word(&self) -> &AtomicU32 {
        &self.raised
    }

    /// Runs `sleep`, which sleeps on the signal among others.
    pub fn await_with<T>(&self, sleep: impl FnOnce() -> T) -> T {
        self.waiters.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let slept = sleep();
        self.waiters.fetch_sub(1, Ordering::SeqCst);
        slept
    }

    /// Wakes the threads that wait.
    #[inline]
    pub fn raise(&self) {
        self.raised.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) != 0 {
            futex::wake(&self.raised);
        }
    }

    /// Whether the system can have a thread wait on a signal and on bells.
    #[cfg(not(loom))]
    pub fn is_supported() -> bool {
        futex::is_supported()
    }
}
