//! Thread cancellation (pthread_cancel), which is disabled while a thread runs code of urdma.
//!
//! glibc ends a cancelled thread by unwinding its stack from the cancellation point. The unwinding
//! must not pass Rust frames that have values to drop, and [`std::panic::catch_unwind`] and
//! functions of the C ABI abort the process when they meet it. A call therefore holds [`Disabled`]
//! wherever it can reach a cancellation point (pthreads(7)). A request that arrives meanwhile stays
//! pending.

use std::ffi::c_int;

/// `PTHREAD_CANCEL_DISABLE`.
const DISABLE: c_int = 1;

extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// The calling thread cannot be cancelled while this lives.
#[derive(Debug)]
#[must_use]
pub struct Disabled {
    before: c_int,
}

impl Disabled {
    /// Disables cancellation.
    pub fn new() -> Self {
        let mut before = DISABLE;
        // SAFETY: the state is valid, and `before` is writable.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        Self { before }
    }
}

impl Default for Disabled {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Disabled {
    fn drop(&mut self) {
        let mut ours = DISABLE;
        // SAFETY: the state is one that the same function returned, and `ours` is writable.
        unsafe { pthread_setcancelstate(self.before, &raw mut ours) };
    }
}
