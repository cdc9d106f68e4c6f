//! The table of descriptors that are stand-in files.
//!
//! One cell per descriptor, 0 for other files. A cell refers to an entry: the kind of file, the
//! process that opened it, and its device and inode number, which detect a descriptor that was
//! closed without a hooked call and reused.
//!
//! The cell of a descriptor that another thread is closing is [`CLOSING`].
//!
//! That check, [`find`], is a system call. All functions of the C library that close, replace and
//! copy a descriptor are hooked, so only a program that closes one by a system call of its own
//! needs it. It is made where a wrong answer would lose the program's octets or a file of its own:
//! before commands, closing and copying. Calls that are made for each event trust the table
//! ([`find_unchecked`]).

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering};

use urdma_abi::spared::identity;

use crate::device::Device;
use crate::owner;

/// Descriptors from this number on are never stand-in files.
pub(crate) const MAX_FDS: usize = 1 << 16;
/// Maximum number of stand-in files.
const MAX_ENTRIES: usize = 1 << 14;

/// What a cell holds between the end of the stand-in file and the close of its descriptor.
const CLOSING: u32 = u32::MAX;

static CELLS: [AtomicU32; MAX_FDS] = [const { AtomicU32::new(0) }; MAX_FDS];
static ENTRIES: [Entry; MAX_ENTRIES] = [const { Entry::EMPTY }; MAX_ENTRIES];
/// One more than the highest descriptor that ever was a stand-in file.
static END: AtomicU32 = AtomicU32::new(0);

/// The kind of a stand-in file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An opened device file.
    Device(Device),
    /// A completion channel.
    Channel,
    /// The asynchronous events of a context.
    AsyncEvents,
    /// Not a stand-in file but an epoll set with completion channels or files of rdma_cm.
    Set,
    /// A socket of RDMA netlink.
    Netlink,
    /// Not a stand-in file but a descriptor of the provider, which the program must not close.
    Spared,
}

impl Kind {
    fn to_number(self) -> u32 {
        match self {
            Self::Device(Device::Uverbs) => 1,
            Self::Device(Device::RdmaCm) => 2,
            Self::Channel => 3,
            Self::Spared => 4,
            Self::Set => 5,
            Self::Netlink => 6,
            Self::AsyncEvents => 7,
        }
    }

    fn from_number(number: u32) -> Self {
        match number {
            1 => Self::Device(Device::Uverbs),
            2 => Self::Device(Device::RdmaCm),
            3 => Self::Channel,
            5 => Self::Set,
            6 => Self::Netlink,
            7 => Self::AsyncEvents,
            _ => Self::Spared,
        }
    }
}

struct Entry {
    /// Descriptors that name this entry; 0 when it is free.
    users: AtomicU32,
    kind: AtomicU32,
    pid: AtomicI32,
    handle: AtomicI64,
    dev: AtomicU64,
    ino: AtomicU64,
    /// One of [`mode`].
    mode: AtomicU32,
}

/// Whether reads of a descriptor wait, as far as that is known.
mod mode {
    /// To be asked.
    pub(super) const UNKNOWN: u32 = 0;
    pub(super) const BLOCKING: u32 = 1;
    pub(super) const NON_BLOCKING: u32 = 2;
    /// Another descriptor of the same open file may change it: to be asked each time.
    pub(super) const SHARED: u32 = 3;
}

impl Entry {
    #[allow(clippy::declare_interior_mutable_const)] // the initial value of a static
    const EMPTY: Self = Self {
        users: AtomicU32::new(0),
        kind: AtomicU32::new(0),
        pid: AtomicI32::new(0),
        handle: AtomicI64::new(0),
        dev: AtomicU64::new(0),
        ino: AtomicU64::new(0),
        mode: AtomicU32::new(mode::UNKNOWN),
    };

    fn found(&self) -> Found {
        Found {
            kind: Kind::from_number(self.kind.load(Ordering::Relaxed)),
            handle: self.handle.load(Ordering::Relaxed),
            is_mine: self.pid.load(Ordering::Relaxed) == owner::pid(),
        }
    }
}

/// A stand-in file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Its kind.
    pub(crate) kind: Kind,
    /// The provider's handle, or the state of a socket of RDMA netlink.
    pub(crate) handle: i64,
    /// This process opened it; false in a child.
    pub(crate) is_mine: bool,
}

/// What the provider must do when a descriptor is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    /// Nothing.
    Nothing,
    /// The last descriptor of an rdma_cm file with this handle is gone.
    RdmaCm(i64),
    /// The descriptor of a completion channel or of asynchronous events is gone.
    Channel,
    /// An epoll set is gone.
    Set,
}

/// Initialises the tables.
pub(crate) fn prepare() {
    END.store(0, Ordering::Relaxed);
}

/// Stores the provider's handle of a stand-in file; false if it is none.
#[cold]
pub(crate) fn set_handle(fd: c_int, handle: i64) -> bool {
    let entry = cell(fd).and_then(|cell| entry_of(cell.load(Ordering::Acquire)));
    if let Some(entry) = entry {
        entry.handle.store(handle, Ordering::Relaxed);
    }
    entry.is_some()
}

/// Whether a descriptor may be a stand-in file: the fast check.
#[inline]
pub(crate) fn is_hit(fd: c_int) -> bool {
    cell(fd).is_some_and(|cell| cell.load(Ordering::Relaxed) != 0)
}

/// Makes `fd` a stand-in file; false if there is no room, which the caller must treat as EMFILE.
pub(crate) fn add(fd: c_int, kind: Kind, handle: i64) -> bool {
    let (Some(cell), Some((dev, ino))) = (cell(fd), identity(fd)) else {
        return false;
    };
    let claim = |e: &&Entry| {
        let claimed = e
            .users
            .compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed);
        claimed.is_ok()
    };
    let Some(index) = ENTRIES.iter().position(|e| claim(&e)) else {
        return false;
    };
    let entry = &ENTRIES[index];
    entry.kind.store(kind.to_number(), Ordering::Relaxed);
    entry.pid.store(owner::pid(), Ordering::Relaxed);
    entry.handle.store(handle, Ordering::Relaxed);
    entry.dev.store(dev, Ordering::Relaxed);
    entry.ino.store(ino, Ordering::Relaxed);
    entry.mode.store(mode::UNKNOWN, Ordering::Relaxed);
    let stale = set(cell, fd, index);
    if let Some(stale) = stale {
        release(stale);
    }
    true
}

/// The stand-in file `fd`; `None` if it is none, or not any more.
#[cold]
pub(crate) fn find(fd: c_int) -> Option<Found> {
    let cell = cell(fd)?;
    let entry = entry_of(cell.load(Ordering::Acquire))?;
    let seen = (
        entry.dev.load(Ordering::Relaxed),
        entry.ino.load(Ordering::Relaxed),
    );
    if identity(fd) != Some(seen) {
        forget(fd);
        return None;
    }
    Some(entry.found())
}

/// As [`find`], but without the check that detects a descriptor that was closed without a hooked
/// call and reused: no system call.
pub(crate) fn find_unchecked(fd: c_int) -> Option<Found> {
    Some(entry_of(cell(fd)?.load(Ordering::Acquire))?.found())
}

/// Whether reads of a stand-in file wait. `ask` finds out where it is not known.
pub(crate) fn is_blocking(fd: c_int, ask: impl FnOnce() -> bool) -> bool {
    let entry = cell(fd).and_then(|cell| entry_of(cell.load(Ordering::Acquire)));
    let Some(entry) = entry else {
        return ask();
    };
    match entry.mode.load(Ordering::Relaxed) {
        mode::BLOCKING => true,
        mode::NON_BLOCKING => false,
        known => {
            let is_blocking = ask();
            if known == mode::UNKNOWN {
                let found = if is_blocking {
                    mode::BLOCKING
                } else {
                    mode::NON_BLOCKING
                };
                let order = Ordering::Relaxed;
                // Another thread may have made a copy meanwhile.
                let _ = entry
                    .mode
                    .compare_exchange(mode::UNKNOWN, found, order, order);
            }
            is_blocking
        }
    }
}

/// The mode of a descriptor may have changed.
#[cold]
pub(crate) fn forget_mode(fd: c_int) {
    set_mode(fd, mode::UNKNOWN);
}

fn set_mode(fd: c_int, to: u32) {
    if let Some(entry) = cell(fd).and_then(|cell| entry_of(cell.load(Ordering::Acquire))) {
        let order = Ordering::Relaxed;
        let change = |known: u32| (known != mode::SHARED).then_some(to);
        let _ = entry.mode.fetch_update(order, order, change);
    }
}

/// `fd` is about to be closed; [`end_close`] is called afterwards. Does nothing in a vforked child,
/// whose tables are its parent's.
#[cold]
pub(crate) fn begin_close(fd: c_int) -> Closed {
    let Some(found) = find(fd).filter(|_| owner::owns_tables()) else {
        return Closed::Nothing;
    };
    let was_last = replace(fd, CLOSING);
    match found.kind {
        _ if !found.is_mine => Closed::Nothing,
        Kind::Device(Device::RdmaCm) if was_last => Closed::RdmaCm(found.handle),
        Kind::Channel | Kind::AsyncEvents => Closed::Channel,
        Kind::Set => Closed::Set,
        Kind::Device(_) | Kind::Netlink | Kind::Spared => Closed::Nothing,
    }
}

/// `fd` is closed, unless another thread has opened another file at that number meanwhile.
pub(crate) fn end_close(fd: c_int) {
    if let Some(cell) = cell(fd) {
        let (done, order) = (Ordering::AcqRel, Ordering::Relaxed);
        let _ = cell.compare_exchange(CLOSING, 0, done, order);
    }
}

/// Whether a thread is closing `fd`, which was a stand-in file.
pub(crate) fn is_closing(fd: c_int) -> bool {
    cell(fd).is_some_and(|cell| cell.load(Ordering::Acquire) == CLOSING)
}

/// `fd` is a stand-in file no longer.
pub(crate) fn remove(fd: c_int) -> Closed {
    let closed = begin_close(fd);
    end_close(fd);
    closed
}

/// Whether `fd` belongs to the provider, in the process that opened it; a child may close its copy.
#[cold]
pub(crate) fn is_spared(fd: c_int) -> bool {
    let is_ours = |found: Found| found.kind == Kind::Spared && found.is_mine;
    find(fd).is_some_and(is_ours) && owner::owns_tables()
}

/// `new_fd` has become a copy of `fd`. Copies of completion channels are not tracked, since the
/// provider knows a channel by its first descriptor; neither are copies of its own descriptors.
pub(crate) fn copy(fd: c_int, new_fd: c_int) {
    let (Some(from), Some(to)) = (cell(fd), cell(new_fd)) else {
        return;
    };
    let value = from.load(Ordering::Acquire);
    let Some(entry) = entry_of(value).filter(|_| owner::owns_tables()) else {
        return;
    };
    set_mode(fd, mode::SHARED);
    let kind = Kind::from_number(entry.kind.load(Ordering::Relaxed));
    if !matches!(kind, Kind::Device(_)) || find(fd).is_none() {
        return;
    }
    entry.users.fetch_add(1, Ordering::AcqRel);
    let stale = set(to, new_fd, value as usize - 1);
    if let Some(stale) = stale {
        release(stale);
    }
}

/// The stand-in files among the descriptors `first..=last`.
pub(crate) fn hits(first: u32, last: u32) -> impl Iterator<Item = c_int> {
    let end = END.load(Ordering::Acquire).min(last.saturating_add(1));
    (first..end.max(first))
        .filter_map(|fd| c_int::try_from(fd).ok())
        .filter(|&fd| is_hit(fd))
}

fn cell(fd: c_int) -> Option<&'static AtomicU32> {
    CELLS.get(usize::try_from(fd).ok()?)
}

fn entry_of(value: u32) -> Option<&'static Entry> {
    ENTRIES.get((value as usize).checked_sub(1)?)
}

/// Stores an entry's index in a cell; returns the entry that was there.
fn set(cell: &AtomicU32, fd: c_int, index: usize) -> Option<u32> {
    let value = u32::try_from(index + 1).unwrap_or(0);
    let before = cell.swap(value, Ordering::AcqRel);
    END.fetch_max(u32::try_from(fd + 1).unwrap_or(0), Ordering::AcqRel);
    (before != 0).then_some(before)
}

/// Empties a cell; true if its entry has no other user.
fn forget(fd: c_int) -> bool {
    owner::owns_tables() && replace(fd, 0)
}

/// Stores a value in a cell; true if the entry that was there has no other user.
fn replace(fd: c_int, value: u32) -> bool {
    match cell(fd).map(|cell| cell.swap(value, Ordering::AcqRel)) {
        Some(value) if value != 0 => release(value),
        _ => false,
    }
}

fn release(value: u32) -> bool {
    entry_of(value).is_some_and(|entry| entry.users.fetch_sub(1, Ordering::AcqRel) == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};

    const CM: Kind = Kind::Device(Device::RdmaCm);

    fn null() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    #[test]
    fn descriptor_added_is_found_until_removed() {
        owner::take_tables();
        let fd = null();
        assert!(!is_hit(fd.as_raw_fd()));
        assert!(add(fd.as_raw_fd(), CM, 7));
        let found = find(fd.as_raw_fd()).unwrap();
        assert_eq!((found.kind, found.handle, found.is_mine), (CM, 7, true));
        assert_eq!(remove(fd.as_raw_fd()), Closed::RdmaCm(7));
        assert!(!is_hit(fd.as_raw_fd()));
    }

    #[test]
    fn descriptor_copied_closes_with_the_last_copy() {
        owner::take_tables();
        let (a, b) = (null(), null());
        assert!(add(a.as_raw_fd(), CM, 8));
        copy(a.as_raw_fd(), b.as_raw_fd());
        assert_eq!(remove(a.as_raw_fd()), Closed::Nothing);
        assert_eq!(remove(b.as_raw_fd()), Closed::RdmaCm(8));
    }

    #[test]
    fn descriptor_reused_without_a_hooked_call_is_detected() {
        owner::take_tables();
        let fd = null().into_raw_fd();
        assert!(add(fd, CM, 9));
        let other = std::fs::File::open("/proc/self/status").unwrap();
        // SAFETY: the test owns both descriptors; the raw system call bypasses the hooks.
        unsafe { libc::syscall(libc::SYS_dup3, other.as_raw_fd(), fd, 0) };
        assert_eq!(find(fd), None);
        assert!(!is_hit(fd));
        // SAFETY: the test owns the descriptor, and this is its last use.
        unsafe { libc::syscall(libc::SYS_close, fd) };
    }

    #[test]
    fn mode_is_asked_for_once_until_it_may_have_changed() {
        owner::take_tables();
        let fd = null();
        let asked = std::cell::Cell::new(0);
        let is_blocking = || {
            is_blocking(fd.as_raw_fd(), || {
                asked.set(asked.get() + 1);
                true
            })
        };
        assert!(add(fd.as_raw_fd(), Kind::Channel, 0));
        assert!(is_blocking() && is_blocking());
        assert_eq!(asked.get(), 1);
        forget_mode(fd.as_raw_fd());
        assert!(is_blocking() && is_blocking());
        assert_eq!(asked.get(), 2);
        // A copy, which is not tracked, has the same mode and may change it.
        copy(fd.as_raw_fd(), null().as_raw_fd());
        assert!(is_blocking() && is_blocking());
        assert_eq!(asked.get(), 4);
        remove(fd.as_raw_fd());
    }

    #[test]
    fn hits_in_a_range_are_listed() {
        owner::take_tables();
        let fd = null();
        let number = u32::try_from(fd.as_raw_fd()).unwrap();
        assert!(add(fd.as_raw_fd(), CM, 10));
        assert!(hits(3, u32::MAX).any(|hit| hit == fd.as_raw_fd()));
        assert!(!hits(number + 1, u32::MAX).any(|hit| hit == fd.as_raw_fd()));
        remove(fd.as_raw_fd());
    }
}
