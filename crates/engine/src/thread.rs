//! Threads of the engine.

use std::io;

/// A thread that takes no signals, so that the application's handlers run in the application's
/// threads.
pub(super) fn spawn_quiet(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    // SAFETY: an all-zero sigset_t is a valid place for sigfillset and pthread_sigmask to write to.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    let mut before = all;
    // SAFETY: `all` is writable.
    unsafe { libc::sigfillset(&raw mut all) };
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
