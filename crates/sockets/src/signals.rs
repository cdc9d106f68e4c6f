//! Signals, whose handlers must not run while a thread has the lock of a direction: a handler may
//! use the same connection, or not return.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use urdma_abi::signals::{change_mask, Set, ALL};

use crate::real;

/// Whether the program has installed a handler. Without one no signal interrupts a thread.
static HAS_HANDLERS: AtomicBool = AtomicBool::new(false);

/// The program installs a handler.
pub(crate) fn note_handler() {
    HAS_HANDLERS.store(true, SeqCst);
}

/// No handler runs in this thread while it lives.
pub(crate) struct Masked(Option<Set>);

impl Masked {
    pub(crate) fn new() -> Self {
        Self(
            HAS_HANDLERS
                .load(SeqCst)
                .then(|| change_mask(libc::SIG_BLOCK, ALL)),
        )
    }

    /// Also of signals whose handlers are installed meanwhile.
    pub(crate) fn always() -> Self {
        Self(Some(change_mask(libc::SIG_BLOCK, ALL)))
    }
}

impl Drop for Masked {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            change_mask(libc::SIG_SETMASK, before);
        }
    }
}

/// Whether a call goes on that a handler has interrupted: all handlers are installed with
/// SA_RESTART. Which one has run is not known.
pub(crate) fn do_restart() -> bool {
    (1..=64).all(|signal| {
        // SAFETY: all zeroes is a valid `sigaction`.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: the action is only asked for.
        let rc = unsafe { real::sigaction(signal, std::ptr::null(), &raw mut action) };
        rc < 0 || !is_handler(action.sa_sigaction) || action.sa_flags & libc::SA_RESTART != 0
    })
}

/// Whether an action is a function of the program.
pub(crate) fn is_handler(action: libc::sighandler_t) -> bool {
    const HOLD: libc::sighandler_t = 2;
    ![libc::SIG_DFL, libc::SIG_IGN, libc::SIG_ERR, HOLD].contains(&action)
}

/// The system call or function that a thread was in was interrupted.
pub(crate) fn is_interrupted(result: c_int) -> bool {
    result < 0 && real::errno() == libc::EINTR
}
