//! Whether the stand-in is active in this process, decided once.

use std::ffi::{c_char, CStr};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::OnceLock;

use crate::{fds, owner, real};

const UNDECIDED: u8 = 0;
const DECIDING: u8 = 1;
const INERT: u8 = 2;
const ACTIVE: u8 = 3;

static DECISION: AtomicU8 = AtomicU8::new(UNDECIDED);
static SYSFS: OnceLock<Vec<u8>> = OnceLock::new();

/// Called by the dynamic linker when the library is loaded.
#[cfg(not(test))]
#[used]
#[link_section = ".init_array"]
static AT_LOAD: extern "C" fn() = at_load;

#[cfg(not(test))]
extern "C" fn at_load() {
    let before = real::errno();
    real::look_up_early();
    is_active();
    real::set_errno(before);
}

/// Whether the stand-in handles paths and descriptors.
#[inline]
pub(crate) fn is_active() -> bool {
    match DECISION.load(Ordering::Acquire) {
        ACTIVE => true,
        UNDECIDED => decide(),
        _ => false,
    }
}

/// The directory that replaces `/sys`; `None` when inert.
pub(crate) fn sysfs() -> Option<&'static [u8]> {
    SYSFS.get().map(Vec::as_slice)
}

/// Decides; concurrent calls behave as if the stand-in were inert.
#[cold]
fn decide() -> bool {
    let mine = DECISION.compare_exchange(UNDECIDED, DECIDING, Ordering::AcqRel, Ordering::Acquire);
    if mine.is_err() {
        return false;
    }
    let before = real::errno();
    let sysfs = sysfs_of_environment().filter(|_| !has_real_device());
    let active = sysfs.is_some();
    if let Some(sysfs) = sysfs {
        let _ = SYSFS.set(sysfs);
        owner::take_tables();
        fds::prepare();
    }
    DECISION.store(if active { ACTIVE } else { INERT }, Ordering::Release);
    real::set_errno(before);
    active
}

/// `$SYSFS_PATH`, by default `$URDMA_RUN_DIR/sysfs`; `None` without `$URDMA_RUN_DIR`.
fn sysfs_of_environment() -> Option<Vec<u8>> {
    let run_dir = variable(c"URDMA_RUN_DIR").filter(|dir| !dir.is_empty())?;
    let sysfs = variable(c"SYSFS_PATH").filter(|dir| !dir.is_empty());
    let mut sysfs = match sysfs {
        Some(sysfs) => sysfs.to_vec(),
        None => [run_dir, b"/sysfs"].concat(),
    };
    while sysfs.last() == Some(&b'/') {
        sysfs.pop();
    }
    Some(sysfs)
}

/// The value of an environment variable.
pub(crate) fn variable(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: `name` is a C string.
    let value: *const c_char = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: getenv returns a C string; a program that changes the environment concurrently has a
    // data race of its own.
    Some(unsafe { CStr::from_ptr(value) }.to_bytes())
}

fn has_real_device() -> bool {
    let path = c"/dev/infiniband/uverbs0";
    // SAFETY: `path` is a C string; the raw system call bypasses the hook.
    let found = unsafe { libc::syscall(libc::SYS_faccessat, libc::AT_FDCWD, path.as_ptr(), 0) };
    found == 0
}
