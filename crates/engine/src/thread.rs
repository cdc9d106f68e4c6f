//! Threads of the engine.

#![allow(unsafe_code)]

use std::arch::asm;
use std::io;

/// What [`this_thread`] returns in no thread.
pub(super) const NO_THREAD: usize = 0;

/// The calling thread: a number that no other thread of the process has while it lives. Costs an
/// instruction, and a handler of signals may ask.
#[inline(always)]
pub(super) fn this_thread() -> usize {
    let pointer: usize;
    // SAFETY: reads the thread pointer, which the ABI keeps at this place, and changes nothing.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!("mov {}, fs:0", out(reg) pointer, options(nostack, preserves_flags, readonly, pure));
    }
    // SAFETY: reads the thread pointer, which the ABI keeps at this place, and changes nothing.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, preserves_flags, nomem, pure));
    }
    pointer
}

/// A thread that takes no signals but that of a fault, so that the application's handlers run in
/// the application's threads. The kernel ends a process for a fault whose signal is blocked, also
/// one that `engine/unmapped.rs` repairs.
pub(super) fn spawn_quiet(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    // SAFETY: an all-zero sigset_t is a valid place for sigfillset and pthread_sigmask to write to.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    let mut before = all;
    // SAFETY: `all` is writable.
    unsafe {
        libc::sigfillset(&raw mut all);
        libc::sigdelset(&raw mut all, libc::SIGSEGV);
    }
    // SAFETY: both sets are valid; the mask is put back below.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
    let spawned = std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(512 * 1024)
        .spawn(work);
    // SAFETY: `before` holds the mask from above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    spawned.map(drop)
}
