//! Thread cancellation (pthread_cancel), which is off while a thread runs our code.
//!
//! glibc ends a cancelled thread by unwinding its stack from the cancellation point. That must not
//! pass frames of Rust that have something to drop, and [`std::panic::catch_unwind`] and functions
//! of the C ABI abort the process when they meet it. So a call holds [`Disabled`] wherever it can
//! reach a cancellation point (see pthreads(7)). A request that comes meanwhile stays pending.

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
        // SAFETY: a valid state, and a place for the one before.
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
        // SAFETY: the state that the same function gave.
        unsafe { pthread_setcancelstate(self.before, &raw mut ours) };
    }
}
