//! Calls on lists of descriptors: what poll and select have in common. The provider makes progress
//! in the thread that waits. Its descriptor by which other processes wake that thread is one more
//! entry of the list, in a copy of it.

use std::ffi::{c_int, c_void};

use super::call::{self, Call, Sleep};
use crate::fds::{self, Kind};
use crate::provider;
use crate::real;
use urdma_abi::cancel::Disabled;
use urdma_abi::front::{look as looked, wait, FrontTable};

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
    table: &'static FrontTable,
    /// A completion channel.
    channel: c_int,
}

/// A completion channel of this process among the descriptors.
pub(super) fn source_among(mut fds: impl Iterator<Item = c_int>) -> Option<Source> {
    fds.find_map(|fd| if fds::is_hit(fd) { source(fd) } else { None })
}

#[cold]
fn source(fd: c_int) -> Option<Source> {
    let _uncancelled = Disabled::new();
    let before = real::errno();
    let found = fds::find(fd).filter(|found| found.kind == Kind::Channel && found.is_mine);
    real::set_errno(before);
    Some(Source {
        table: found.and_then(|_| provider::own())?,
        channel: fd,
    })
}

/// Waits for events of the list, which has this source.
///
/// # Safety
/// As the call on the list.
#[cold]
pub(super) unsafe fn wait_for<L: List>(mut list: L, source: Source) -> c_int {
    let before = real::errno();
    let Source { table, channel } = source;
    // SAFETY: no precondition.
    let waker = c_int::try_from(unsafe { (table.channel_waker)(channel) });
    let mut waited = wait::NOT_DRIVEN;
    if waker.is_ok_and(|waker| waker >= 0 && list.add(waker)) {
        let this = std::ptr::from_mut(&mut list).cast::<c_void>();
        let drive = |interrupts| {
            // SAFETY: `look` gets this, which outlives the wait.
            unsafe { (table.channel_poll)(channel, interrupts, this, look::<L>) }
        };
        // SAFETY: no value here needs to be dropped.
        waited = unsafe { call::drive(table, drive) };
    }
    if waited != wait::READY {
        // SAFETY: the caller guarantees it.
        let result = unsafe { list.sleep() };
        list.call().note(result);
    }
    call::has_waited(table, waited);
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
        // SAFETY: as above.
        unsafe { list.store() };
    }
    let woken = if is_woken { looked::WOKEN } else { 0 };
    woken | if is_done { looked::DONE } else { 0 }
}
