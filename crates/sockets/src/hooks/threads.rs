//! Functions by which threads begin and block signals, for [`crate::diagnosis`], and are cancelled.

use std::ffi::{c_int, c_void};

use libc::{pthread_attr_t, pthread_t, sigset_t};

use crate::real::Main;
use crate::{diagnosed, diagnosis, real, signals};

/// A thread's function and argument.
struct Begun(Main, *mut c_void);

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn pthread_create(
    thread: *mut pthread_t,
    attributes: *const pthread_attr_t,
    main: Main,
    argument: *mut c_void,
) -> c_int {
    if !diagnosed::is_on() {
        // SAFETY: the arguments of the caller.
        return unsafe { real::pthread_create(thread, attributes, main, argument) };
    }
    let begun = Box::into_raw(Box::new(Begun(main, argument)));
    // SAFETY: the arguments of the caller, but for the function and its argument.
    let errno = unsafe { real::pthread_create(thread, attributes, begin, begun.cast()) };
    if errno != 0 {
        // SAFETY: no thread has it.
        drop(unsafe { Box::from_raw(begun) });
    }
    errno
}

/// The function of a thread whose system calls are diagnosed.
unsafe extern "C-unwind" fn begin(begun: *mut c_void) -> *mut c_void {
    // SAFETY: of pthread_create above, for this thread alone.
    let Begun(main, argument) = *unsafe { Box::from_raw(begun.cast::<Begun>()) };
    diagnosis::begin_thread();
    // SAFETY: what the program has given to pthread_create.
    unsafe { main(argument) }
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn pthread_cancel(thread: pthread_t) -> c_int {
    signals::note_cancelled();
    // SAFETY: the argument of the caller.
    unsafe { real::pthread_cancel(thread) }
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn pthread_sigmask(
    how: c_int,
    new: *const sigset_t,
    old: *mut sigset_t,
) -> c_int {
    // SAFETY: the arguments of the caller.
    unsafe { with_own_signals(how, new, |new| real::pthread_sigmask(how, new, old)) }
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn sigprocmask(
    how: c_int,
    new: *const sigset_t,
    old: *mut sigset_t,
) -> c_int {
    // SAFETY: the arguments of the caller.
    unsafe { with_own_signals(how, new, |new| real::sigprocmask(how, new, old)) }
}

/// Changes a mask without blocking the signals of the diagnosis.
///
/// # Safety
/// `new` is null or a set.
unsafe fn with_own_signals(
    how: c_int,
    new: *const sigset_t,
    change: impl FnOnce(*const sigset_t) -> c_int,
) -> c_int {
    // SAFETY: the caller guarantees it.
    let set = unsafe { new.as_ref() }.filter(|_| diagnosed::is_on() && how != libc::SIG_UNBLOCK);
    let Some(mut set) = set.copied() else {
        return change(new);
    };
    diagnosed::keep_unblocked(&mut set);
    change(&raw const set)
}
