//! Whose the tables of descriptors are.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, Ordering};

/// The process that last took the tables: at load, or as a forked child.
static HOME_PID: AtomicI32 = AtomicI32::new(0);

/// Makes this process the owner of the tables, and each forked child that of its copy.
pub(crate) fn take_tables() {
    HOME_PID.store(pid(), Ordering::Relaxed);
    // SAFETY: the handler is a function that only stores to an atomic.
    unsafe { libc::pthread_atfork(None, None, Some(in_forked_child)) };
}

unsafe extern "C" fn in_forked_child() {
    HOME_PID.store(pid(), Ordering::Relaxed);
}

/// Whether this is the process that opened what the tables hold, or a forked copy with its own copy of the
/// tables; false in a vforked child, whose tables are its parent's.
pub(crate) fn owns_tables() -> bool {
    HOME_PID.load(Ordering::Relaxed) == pid()
}

/// The process id.
pub(crate) fn pid() -> c_int {
    // SAFETY: getpid has no preconditions.
    unsafe { libc::getpid() }
}
