//! Functions that install handlers of signals.

use std::ffi::c_int;

use libc::sighandler_t;

use crate::real;
use crate::signals::{is_handler, note_handler};

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: null or the action of the caller.
    if unsafe { new.as_ref() }.is_some_and(|new| is_handler(new.sa_sigaction)) {
        note_handler();
    }
    // SAFETY: the arguments of the caller.
    unsafe { real::sigaction(signal, new, old) }
}

/// Hooks of functions like signal(2).
macro_rules! like_signal {
    ($($name:ident)*) => {
        $(
            #[cfg_attr(not(test), no_mangle)]
            unsafe extern "C-unwind" fn $name(
                signal: c_int,
                handler: sighandler_t,
            ) -> sighandler_t {
                if is_handler(handler) {
                    note_handler();
                }
                // SAFETY: the arguments of the caller.
                unsafe { real::$name(signal, handler) }
            }
        )*
    };
}

like_signal! { signal bsd_signal sysv_signal __sysv_signal ssignal sigset }
