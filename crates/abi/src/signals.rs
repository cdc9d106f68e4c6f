//! Signals of the calling thread that are kept from running handlers while it holds locks.

use std::ffi::{c_int, c_void};

use libc::{sigaction, siginfo_t};

/// A handler that is installed with `SA_SIGINFO`.
pub type Handler = unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void);

/// sigaction(2), of the libraries behind this one.
pub type Install = unsafe fn(c_int, *const sigaction, *mut sigaction) -> c_int;

/// A set of signals, as the kernel has it.
pub type Set = u64;

/// The octets of a set, as the system calls want them.
pub const SET_OCTETS: usize = size_of::<Set>();

/// All signals but those of faults and the two that the C library uses itself.
pub const ALL: Set = {
    let faults = bit(libc::SIGSEGV)
        | bit(libc::SIGBUS)
        | bit(libc::SIGILL)
        | bit(libc::SIGFPE)
        | bit(libc::SIGTRAP);
    !(faults | bit(32) | bit(33))
};

/// The set of one signal, from 1 to 64.
pub const fn bit(signal: c_int) -> Set {
    1 << (signal - 1)
}

/// Changes the mask of the calling thread, as sigprocmask(2) by `how`, and returns the one before.
/// The C library's function would leave out the signals that it uses itself.
pub fn change_mask(how: c_int, set: Set) -> Set {
    let mut before: Set = 0;
    // SAFETY: both sets have the size that is named.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            how,
            &raw const set,
            &raw mut before,
            SET_OCTETS,
        )
    };
    before
}
