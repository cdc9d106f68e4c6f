//! Functions that install handlers of signals: see [`crate::signals`].

use std::ffi::c_int;

use libc::sighandler_t;

use crate::real;
use crate::signals::HANDLERS;

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the arguments of the caller.
    unsafe { HANDLERS.install(signal, new, old) }
}

/// Another name of sigaction.
#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn __sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the arguments of the caller.
    unsafe { sigaction(signal, new, old) }
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
                // SAFETY: the arguments of the caller.
                let old = unsafe { real::$name(signal, handler) };
                HANDLERS.has_installed(signal, old)
            }
        )*
    };
}

like_signal! { signal bsd_signal sysv_signal __sysv_signal ssignal sigset }
