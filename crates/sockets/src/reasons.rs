//! Why sockets stay with TCP or move back to it: counts in memory that urdmad reads.
//!
//! A count is one addition. The memory is there from the first connection to urdmad on, and tells
//! urdmad what was counted when the process executes another program, exits or is killed.

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::SeqCst};

pub(crate) use urdma_ipc::SocketReason as Reason;

use crate::own::Own;

const COUNT: usize = Reason::ALL.len();
const OCTETS: usize = COUNT * size_of::<AtomicU64>();

type Counts = [AtomicU64; COUNT];

/// Counts of before there is memory that urdmad reads.
static EARLY: Counts = [const { AtomicU64::new(0) }; COUNT];
/// That memory; null without it. It is never unmapped.
static SHARED: AtomicPtr<Counts> = AtomicPtr::new(null_mut());

fn counts() -> &'static Counts {
    // SAFETY: null, or a mapping of the counts, which stays.
    unsafe { SHARED.load(SeqCst).as_ref() }.unwrap_or(&EARLY)
}

/// Counts a socket.
pub(crate) fn count(reason: Reason) {
    counts()[reason as usize].fetch_add(1, SeqCst);
}

/// Makes the memory that urdmad reads, with what was counted before; once in a process.
pub(crate) fn share() -> Option<Own> {
    let memory = memory()?;
    let place = map(&memory)?;
    let no_more_writers = libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // SAFETY: the command takes an int.
    if unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_ADD_SEALS, no_more_writers) } < 0 {
        return None;
    }
    let own = Own::copy(memory.as_fd())?;
    SHARED.store(place, SeqCst);
    for (shared, early) in counts().iter().zip(&EARLY) {
        shared.fetch_add(early.swap(0, SeqCst), SeqCst);
    }
    Some(own)
}

/// Whether there are counts of before there is the memory.
pub(crate) fn has_early() -> bool {
    EARLY.iter().any(|count| count.load(SeqCst) != 0)
}

/// The urdmad that knows the counts is gone: the next one gets those from now on.
pub(crate) fn restart() {
    for count in counts() {
        count.store(0, SeqCst);
    }
}

/// This is a forked child, whose counts begin at 0.
#[cfg_attr(test, allow(dead_code))]
pub(crate) fn in_child() {
    SHARED.store(null_mut(), SeqCst);
    restart();
}

fn memory() -> Option<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a C string and flags.
    let fd: c_int = unsafe { libc::memfd_create(c"urdma-reasons".as_ptr(), flags) };
    // SAFETY: a new descriptor.
    let memory = (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })?;
    let len = libc::off_t::try_from(OCTETS).ok()?;
    // SAFETY: the call takes integers.
    (unsafe { libc::ftruncate(fd, len) } == 0).then_some(memory)
}

fn map(memory: &OwnedFd) -> Option<*mut Counts> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let fd = memory.as_raw_fd();
    // SAFETY: a new mapping.
    let place = unsafe { libc::mmap(null_mut(), OCTETS, protection, libc::MAP_SHARED, fd, 0) };
    (place != libc::MAP_FAILED).then_some(place.cast())
}
