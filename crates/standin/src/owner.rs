//! The process that owns the tables of descriptors.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, Ordering};

/// The process that owns the tables: set at load, and in each forked child.
static HOME_PID: AtomicI32 = AtomicI32::new(0);

/// The process in which the stand-in was loaded.
static FIRST_PID: AtomicI32 = AtomicI32::new(0);

/// Makes this process the owner of the tables, and each forked child the owner of its copy.
pub(crate) fn take_tables() {
    FIRST_PID.store(pid(), Ordering::Relaxed);
    HOME_PID.store(pid(), Ordering::Relaxed);
    // SAFETY: the handler is a function that only stores to an atomic.
    unsafe { libc::pthread_atfork(None, None, Some(in_forked_child)) };
}

unsafe extern "C" fn in_forked_child() {
    HOME_PID.store(pid(), Ordering::Relaxed);
}

/// Whether this process owns its tables: true in the process that opened the files and in a forked
/// child, which has a copy; false in a vforked child, which shares its parent's tables.
pub(crate) fn owns_tables() -> bool {
    HOME_PID.load(Ordering::Relaxed) == pid()
}

/// Whether the stand-in was loaded in this process: false in a forked or vforked child.
pub(crate) fn is_first() -> bool {
    FIRST_PID.load(Ordering::Relaxed) == pid()
}

/// The process id.
pub(crate) fn pid() -> c_int {
    // SAFETY: getpid has no preconditions.
    unsafe { libc::getpid() }
}
