//! Whether system calls of this process are diagnosed ([`crate::diagnosis`]), and what that needs
//! of signals.

use std::sync::atomic::{AtomicBool, Ordering};

use libc::sigset_t;

/// The signals that must not be blocked.
const SIGNALS: [libc::c_int; 2] = [libc::SIGSYS, libc::SIGTRAP];

static IS_ON: AtomicBool = AtomicBool::new(false);

/// They are from now on.
pub(crate) fn begin() {
    IS_ON.store(true, Ordering::Relaxed);
}

/// Whether system calls of this process are diagnosed.
#[inline]
pub(crate) fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Whether a signal's handler is the diagnosis's.
pub(crate) fn is_own(signal: libc::c_int) -> bool {
    is_on() && SIGNALS.contains(&signal)
}

/// Takes the signals out of a set that a thread is about to block.
pub(crate) fn keep_unblocked(set: &mut sigset_t) {
    if is_on() {
        for signal in SIGNALS {
            // SAFETY: a valid set.
            unsafe { libc::sigdelset(set, signal) };
        }
    }
}
