//! The functions that install handlers of signals: see [`crate::signals`].

use std::ffi::c_int;

use libc::{sigaction as Action, sighandler_t};

use crate::active::is_active;
use crate::real;
use crate::signals::HANDLERS;

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn sigaction(
    signal: c_int,
    new: *const Action,
    old: *mut Action,
) -> c_int {
    if is_active() {
        // SAFETY: the arguments of the caller.
        return unsafe { HANDLERS.install(signal, new, old) };
    }
    // SAFETY: the arguments of the caller.
    unsafe { real::sigaction(signal, new, old) }
}

/// Another name of sigaction.
#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn __sigaction(
    signal: c_int,
    new: *const Action,
    old: *mut Action,
) -> c_int {
    // SAFETY: the arguments of the caller.
    unsafe { sigaction(signal, new, old) }
}

macro_rules! signal_functions {
    ($($name:ident),*) => {
        $(
            #[cfg_attr(not(test), no_mangle)]
            unsafe extern "C-unwind" fn $name(
                signal: c_int,
                handler: sighandler_t,
            ) -> sighandler_t {
                // SAFETY: the arguments of the caller.
                let old = unsafe { real::$name(signal, handler) };
                if is_active() {
                    HANDLERS.has_installed(signal, old)
                } else {
                    old
                }
            }
        )*
    };
}

signal_functions!(
    signal,
    bsd_signal,
    sysv_signal,
    __sysv_signal,
    ssignal,
    sigset
);
