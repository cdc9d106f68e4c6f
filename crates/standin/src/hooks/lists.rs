//! Calls on lists of descriptors: what poll and select have in common. The provider makes progress
//! in the thread that waits. Its descriptor by which other processes wake that thread is one more
//! entry of the list, in a copy of it.

use std::ffi::{c_int, c_void};

use super::call::{self, Call, Sleep};
use crate::device::Device;
use crate::fds::{self, Kind};
use crate::provider;
use crate::real;
use urdma_abi::front::{look as looked, wait, FrontTable, LookFn};

/// A list of descriptors in a call. It has nothing to drop, since the thread may be cancelled in
/// the call.
pub(super) trait List {
    fn call(&mut self) -> &mut Call;

    /// Adds the provider's descriptor to the copy; false if there is no room.
    fn add(&mut self, waker: c_int) -> bool;

    /// Looks for events of the copy, and sleeps until there are some. Returns what the system call
    /// has returned.
    ///
    /// # Safety
    /// The list is that of the caller.
    unsafe fn look(&mut self, sleep: &Sleep) -> libc::c_long;

    /// Whether the provider's descriptor is readable, which is then no event any more.
    fn take_waker(&mut self) -> bool;

    /// Stores what was found where the caller looks for it.
    ///
    /// # Safety
    /// As for `look`.
    unsafe fn store(&mut self);

    /// Sleeps as the call does without the provider's help. Returns the same.
    ///
    /// # Safety
    /// As for `look`.
    unsafe fn sleep(&mut self) -> c_int;
}

/// A file in a list whose events the provider raises.
#[derive(Clone, Copy)]
pub(super) struct Source {
    pub(super) table: &'static FrontTable,
    pub(super) file: File,
}

/// See [`Source`].
#[derive(Clone, Copy)]
pub(super) enum File {
    /// A completion channel.
    Channel(c_int),
    /// A file of rdma_cm, by its handle.
    RdmaCm(i64),
    /// An epoll set that has such files.
    Set(c_int),
}

/// A file of this process among the descriptors whose events the provider raises: a completion
/// channel or a set if there is one.
pub(super) fn source_among(fds: impl Iterator<Item = c_int>) -> Option<Source> {
    let mut found = None;
    for source in fds.filter(|fd| fds::is_hit(*fd)).filter_map(source) {
        found = Some(source);
        if matches!(source.file, File::Channel(_) | File::Set(_)) {
            break;
        }
    }
    found
}

/// The file, if it is one whose events the provider raises.
#[cold]
pub(super) fn source(fd: c_int) -> Option<Source> {
    let found = fds::find_unchecked(fd).filter(|found| found.is_mine)?;
    let file = match found.kind {
        Kind::Channel => File::Channel(fd),
        Kind::Device(Device::RdmaCm) => File::RdmaCm(found.handle),
        Kind::Set => File::Set(fd),
        Kind::Device(Device::Uverbs) | Kind::AsyncEvents | Kind::Netlink | Kind::Spared => {
            return None
        }
    };
    let table = provider::own()?;
    Some(Source { table, file })
}

impl Source {
    /// The provider's descriptor that is to be in the list; negative if there is none.
    fn waker(self) -> i64 {
        // SAFETY: no precondition.
        unsafe {
            match self.file {
                File::Channel(fd) => (self.table.channel_waker)(fd),
                File::RdmaCm(handle) => (self.table.cm_waker)(handle),
                File::Set(fd) => (self.table.set_waker)(fd),
            }
        }
    }

    /// # Safety
    /// `look` may be called with `list`.
    unsafe fn poll(
        self,
        interrupts: u32,
        is_guarded: c_int,
        list: *mut c_void,
        look: LookFn,
    ) -> i64 {
        let table = self.table;
        // SAFETY: the caller guarantees it.
        unsafe {
            match self.file {
                File::Channel(fd) => (table.channel_poll)(fd, interrupts, is_guarded, list, look),
                File::RdmaCm(cm) => (table.cm_poll)(cm, interrupts, is_guarded, list, look),
                File::Set(fd) => (table.set_poll)(fd, interrupts, is_guarded, list, look),
            }
        }
    }
}

/// Waits for events of the list, which has this source.
///
/// # Safety
/// As the call on the list.
#[cold]
pub(super) unsafe fn wait_for<L: List>(mut list: L, source: Source) -> c_int {
    let before = real::errno();
    let waker = c_int::try_from(source.waker());
    let mut waited = wait::NOT_DRIVEN;
    if waker.is_ok_and(|waker| waker >= 0 && list.add(waker)) {
        let this = std::ptr::from_mut(&mut list).cast::<c_void>();
        let drive = |interrupts, is_guarded| {
            // SAFETY: `look` gets this, which outlives the wait.
            unsafe { source.poll(interrupts, is_guarded, this, look::<L>) }
        };
        // SAFETY: no value here needs to be dropped.
        waited = unsafe { call::drive(source.table, drive) };
    }
    if waited != wait::READY {
        // SAFETY: the caller guarantees it.
        let result = unsafe { list.sleep() };
        list.call().note(result);
    }
    call::has_waited(source.table, waited);
    list.call().end(before)
}

/// Looks for events, and sleeps until there are some.
unsafe extern "C" fn look<L: List>(this: *mut c_void, limit_ns: i64, mask: u64) -> c_int {
    // SAFETY: the provider passes what it got from `wait_for`.
    let list = unsafe { &mut *this.cast::<L>() };
    let sleep = list.call().sleep(limit_ns, &mask);
    // SAFETY: the caller of `wait_for` guarantees it.
    let result = unsafe { list.look(&sleep) };
    list.call().note(c_int::try_from(result).unwrap_or(-1));
    let is_woken = list.call().result > 0 && list.take_waker();
    if is_woken {
        list.call().result -= 1;
    }
    let result = list.call().result;
    let is_done = result != 0 || (sleep.is_last && !is_woken);
    if is_done && result >= 0 {
        // SAFETY: the caller of `wait_for` guarantees it.
        unsafe { list.store() };
    }
    let woken = if is_woken { looked::WOKEN } else { 0 };
    woken | if is_done { looked::DONE } else { 0 }
}
