//! The process that owns the tables of descriptors.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

/// The process that owns the tables: set at load, and in each forked child.
static HOME_PID: AtomicI32 = AtomicI32::new(0);

/// The process in which the stand-in was loaded.
static FIRST_PID: AtomicI32 = AtomicI32::new(0);

/// The process id, in a page that the kernel clears in a forked child; null without such a page.
static KNOWN: AtomicPtr<AtomicI32> = AtomicPtr::new(ptr::null_mut());

/// Makes this process the owner of the tables, and each forked child the owner of its copy.
pub(crate) fn take_tables() {
    KNOWN.store(cleared_page(), Ordering::Release);
    FIRST_PID.store(pid(), Ordering::Relaxed);
    HOME_PID.store(pid(), Ordering::Relaxed);
    // SAFETY: the handler is a function that only stores to an atomic.
    unsafe { libc::pthread_atfork(None, None, Some(in_forked_child)) };
}

unsafe extern "C" fn in_forked_child() {
    HOME_PID.store(pid(), Ordering::Relaxed);
}

/// A page that a forked child finds filled with zeros; null if the kernel has none to give.
fn cleared_page() -> *mut AtomicI32 {
    const LEN: usize = 4096;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, which is never removed.
    let page = unsafe { libc::mmap(ptr::null_mut(), LEN, protection, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return ptr::null_mut();
    }
    // SAFETY: the mapping is ours.
    match unsafe { libc::madvise(page, LEN, libc::MADV_WIPEONFORK) } {
        0 => page.cast(),
        _ => ptr::null_mut(),
    }
}

/// Whether this process owns its tables: true in the process that opened the files and in a forked
/// child, which has a copy; false in a vforked child, which shares its parent's tables.
pub(crate) fn owns_tables() -> bool {
    HOME_PID.load(Ordering::Relaxed) == asked_pid()
}

/// Whether the stand-in was loaded in this process: false in a forked or vforked child.
pub(crate) fn is_first() -> bool {
    FIRST_PID.load(Ordering::Relaxed) == pid()
}

/// The process id; in a vforked child, which shares its parent's memory, the parent's.
pub(crate) fn pid() -> c_int {
    // SAFETY: the page is never removed.
    let Some(known) = (unsafe { KNOWN.load(Ordering::Acquire).as_ref() }) else {
        return asked_pid();
    };
    match known.load(Ordering::Relaxed) {
        0 => {
            let pid = asked_pid();
            known.store(pid, Ordering::Relaxed);
            pid
        }
        pid => pid,
    }
}

fn asked_pid() -> c_int {
    // SAFETY: getpid has no preconditions.
    unsafe { libc::getpid() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_that_no_handler_runs_in_knows_its_own_number() {
        take_tables();
        assert_eq!(pid(), asked_pid());
        let no_stack = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: as fork(2), but no handler runs; the child calls what needs no lock, and ends.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, no_stack, 0, 0, 0) };
        if child == 0 {
            let knows = pid() == asked_pid();
            // SAFETY: no precondition.
            unsafe { libc::_exit(i32::from(!knows)) };
        }
        let (child, mut status) = (libc::pid_t::try_from(child).unwrap(), -1);
        // SAFETY: a child of this process, and a word of this function.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }
}
