//! Why sockets stay with TCP or move back to it: counts in memory that urdmad reads.
//!
//! A count is one addition. The memory is there from the first connection to urdmad on, and tells
//! urdmad what was counted when the process executes another program, exits or is killed. After the
//! end of urdmad, reasons are counted where they were before, until the next one has the memory.

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering::SeqCst};

pub(crate) use urdma_ipc::SocketReason as Reason;

use crate::own::Own;
use crate::readiness;

const COUNT: usize = Reason::ALL.len();
const OCTETS: usize = COUNT * size_of::<AtomicU64>();

type Counts = [AtomicU64; COUNT];

/// Counts of which no urdmad knows.
static EARLY: Counts = [const { AtomicU64::new(0) }; COUNT];
/// The memory that urdmad reads; null while none does. It is never unmapped.
static SHARED: AtomicPtr<Counts> = AtomicPtr::new(null_mut());

/// The connection to urdmad of an agent without a thread, which would see its end; -1 otherwise.
static PARKED: AtomicI32 = AtomicI32::new(-1);

/// The memory for urdmad; once in a process.
pub(crate) struct Memory {
    fd: Own,
    place: *mut Counts,
}

// SAFETY: the counts are atomic, and stay mapped.
unsafe impl Send for Memory {}

impl Memory {
    pub(crate) fn new() -> Option<Self> {
        let memory = memory()?;
        let place = map(&memory)?;
        let no_more_writers = libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
        // SAFETY: the command takes an int.
        if unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_ADD_SEALS, no_more_writers) } < 0 {
            return None;
        }
        let fd = Own::copy(memory.as_fd())?;
        Some(Self { fd, place })
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as `self` has it.
        unsafe { BorrowedFd::borrow_raw(self.fd.as_raw_fd()) }
    }

    /// A urdmad has it: what was counted before, and what is counted from now on, is in it.
    pub(crate) fn share(&self) {
        SHARED.store(self.place, SeqCst);
        for (shared, early) in counts().iter().zip(&EARLY) {
            shared.fetch_add(early.swap(0, SeqCst), SeqCst);
        }
    }
}

/// The counts that urdmad reads.
fn shared() -> Option<&'static Counts> {
    // SAFETY: null, or a mapping of the counts, which stays.
    unsafe { SHARED.load(SeqCst).as_ref() }
}

fn counts() -> &'static Counts {
    shared().unwrap_or(&EARLY)
}

/// An agent that has this connection to urdmad has no thread from now on; -1: it has one.
pub(crate) fn set_parked(urdmad: c_int) {
    PARKED.store(urdmad, SeqCst);
}

/// Whether the urdmad that knows the counts has ended, and no thread sees it.
fn has_lost_urdmad() -> bool {
    let urdmad = PARKED.load(SeqCst);
    let ended = libc::POLLHUP | libc::POLLERR;
    shared().is_some() && urdmad >= 0 && readiness::of_file(urdmad, 0) & ended != 0
}

/// Counts a socket.
pub(crate) fn count(reason: Reason) {
    if has_lost_urdmad() {
        restart();
    }
    counts()[reason as usize].fetch_add(1, SeqCst);
}

/// Whether there are counts of which no urdmad knows.
pub(crate) fn has_early() -> bool {
    EARLY.iter().any(|count| count.load(SeqCst) != 0)
}

fn clear(counts: &Counts) {
    for count in counts {
        count.store(0, SeqCst);
    }
}

/// The urdmad that knows the counts is gone: the next one gets those from now on.
pub(crate) fn restart() {
    // SAFETY: null, or a mapping of the counts, which stays.
    if let Some(known) = unsafe { SHARED.swap(null_mut(), SeqCst).as_ref() } {
        clear(known);
    }
}

/// This is a forked child, whose counts begin at 0.
#[cfg_attr(test, allow(dead_code))]
pub(crate) fn in_child() {
    set_parked(-1);
    SHARED.store(null_mut(), SeqCst);
    clear(&EARLY);
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
