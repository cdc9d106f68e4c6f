//! This process: whether rings are possible in it, and its threads as owners of locks.

use std::ffi::{c_char, c_int, CStr, OsStr};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64};
use std::sync::OnceLock;

use urdma_ipc::SocketRules;
use urdma_socket_switch::Owner;

use crate::local::Here;

/// Bits of an owner's name that are the thread's.
const THREAD_BITS: u32 = 24;

/// The process that uses the table: a vforked child has the memory of its parent.
static HOME_PID: AtomicI32 = AtomicI32::new(0);
/// A program has asked for io_uring, whose calls no library sees.
static IS_OFF: AtomicBool = AtomicBool::new(false);
static THREADS: AtomicU64 = AtomicU64::new(0);
static RUN_DIR: OnceLock<PathBuf> = OnceLock::new();
static EXCLUDED: OnceLock<SocketRules> = OnceLock::new();
/// See [`offered_from`]. The meeting costs as much as some tens of round trips, and short
/// connections are spared.
static OFFERED_FROM: AtomicU32 = AtomicU32::new(8);

/// Notes the process and its environment, when the library is loaded.
#[cfg_attr(test, allow(dead_code))]
pub(crate) fn begin() {
    take_table();
    if let Some(dir) = variable(c"URDMA_RUN_DIR").filter(|dir| !dir.is_empty()) {
        let _ = RUN_DIR.set(PathBuf::from(OsStr::from_bytes(dir)));
    }
    // `urdma run` has checked it.
    let from = variable(c"URDMA_SOCKETS_FROM").and_then(|value| std::str::from_utf8(value).ok());
    if let Some(from) = from.and_then(|value| value.parse().ok()) {
        OFFERED_FROM.store(from, SeqCst);
    }
    if let Some(rules) = variable(c"URDMA_SOCKETS_EXCLUDE") {
        match std::str::from_utf8(rules).map(str::parse) {
            Ok(Ok(rules)) => _ = EXCLUDED.set(rules),
            // What it is to exclude gets no rings.
            _ => turn_off(),
        }
    }
}

/// Whether the configuration of the program excludes a connection with these ends.
pub(crate) fn is_excluded(ends: [SocketAddr; 2]) -> bool {
    EXCLUDED.get().is_some_and(|rules| rules.exclude(ends))
}

/// The call of a direction from which on a socket may be offered; 0: when it is connected.
pub(crate) fn offered_from() -> u32 {
    OFFERED_FROM.load(Relaxed)
}

/// This process uses the table: it has loaded the library, or is a forked child.
#[cfg_attr(test, allow(dead_code))]
pub(crate) fn take_table() {
    HOME_PID.store(pid(), SeqCst);
}

/// The run directory of the instance, if rings are possible.
pub(crate) fn run_dir() -> Option<&'static PathBuf> {
    RUN_DIR.get().filter(|_| !IS_OFF.load(SeqCst))
}

/// No socket gets rings from now on.
pub(crate) fn turn_off() {
    IS_OFF.store(true, SeqCst);
}

/// Whether this process uses the table: false in a vforked child.
pub(crate) fn is_home() -> bool {
    !Here::new().local().may_be_childs.get() || HOME_PID.load(SeqCst) == pid()
}

/// This thread is about to make a child that has its memory, or that no handler of forks is told
/// of.
pub(crate) fn note_child() {
    Here::new().local().may_be_childs.set(true);
}

/// A number for the calling thread, which has none.
#[cold]
fn number_thread() -> u64 {
    let thread = THREADS.fetch_add(1, SeqCst).wrapping_add(1);
    Here::new().local().thread.set(thread);
    thread
}

/// The name of the calling thread as the owner of locks, in a process with a number from urdmad.
#[inline]
pub(crate) fn owner(process: u64) -> Owner {
    let thread = match Here::new().local().thread.get() {
        0 => number_thread(),
        thread => thread,
    };
    Owner(process << THREAD_BITS | thread & ((1 << THREAD_BITS) - 1))
}

/// The number of the process of an owner.
pub(crate) fn of_owner(owner: Owner) -> u64 {
    owner.0 >> THREAD_BITS
}

fn pid() -> c_int {
    // SAFETY: no precondition.
    unsafe { libc::getpid() }
}

/// The value of an environment variable.
#[cfg_attr(test, allow(dead_code))]
pub(crate) fn variable(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: `name` is a C string.
    let value: *const c_char = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: getenv returns null or a C string; a program that changes the environment
    // concurrently has a data race of its own.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_bytes())
}
