//! Waits on epoll sets that have completion channels: the provider makes progress in the thread
//! that is about to sleep.

use std::ffi::{c_int, c_void};
use std::ptr::null;

use libc::{epoll_event, sigset_t, timespec};

use crate::fds::{self, Kind};
use crate::provider;
use crate::real::{self, set_errno};
use urdma_abi::cancel::Disabled;
use urdma_abi::front::{wait, FrontTable};


#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn epoll_ctl(
    set: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    // SAFETY: the arguments of the caller.
    let failed = unsafe { real::epoll_ctl(set, op, fd, event) };
    if failed == 0 && op == libc::EPOLL_CTL_ADD && fds::is_hit(fd) {
        join(set, fd);
    }
    failed
}

/// A descriptor was added to a set.
#[cold]
fn join(set: c_int, fd: c_int) {
    let _uncancelled = Disabled::new();
    let before = real::errno();
    let is_kind =
        |fd, kind| fds::find(fd).is_some_and(|found| found.kind == kind && found.is_mine);
    if is_kind(fd, Kind::Channel) {
        if let Some(table) = provider::own() {
            // Without room in the table, its waits are as they are.
            if is_kind(set, Kind::Set) || fds::add(set, Kind::Set, 0) {
                // SAFETY: two open descriptors, of a channel and a set.
                unsafe { (table.set_join)(set, fd) };
            }
        }
    }
    set_errno(before);
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn epoll_wait(
    set: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: the arguments of the caller.
    unsafe { epoll_pwait(set, events, max, timeout_ms, null()) }
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn epoll_pwait(
    set: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout_ms: c_int,
    mask: *const sigset_t,
) -> c_int {
    if !fds::is_hit(set) || timeout_ms == 0 {
        // SAFETY: the arguments of the caller.
        return unsafe { real::epoll_pwait(set, events, max, timeout_ms, mask) };
    }
    let (mut call, table) = (Call::new(set, events, max), table(set));
    if let Some(found) = call.is_served(table) {
        return found;
    }
    // SAFETY: the arguments of the caller.
    let found = unsafe { real::epoll_pwait(set, events, max, timeout_ms, mask) };
    call.has_slept(table);
    found
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn epoll_pwait2(
    set: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    if !fds::is_hit(set) {
        // SAFETY: the arguments of the caller.
        return unsafe { real::epoll_pwait2(set, events, max, timeout, mask) };
    }
    let (mut call, table) = (Call::new(set, events, max), table(set));
    if let Some(found) = call.is_served(table) {
        return found;
    }
    // SAFETY: the arguments of the caller.
    let found = unsafe { real::epoll_pwait2(set, events, max, timeout, mask) };
    call.has_slept(table);
    found
}

/// The provider's table if a thread of this process that waits on the set may wait for events of
/// completion channels.
#[cold]
fn table(set: c_int) -> Option<&'static FrontTable> {
    let _uncancelled = Disabled::new();
    let before = real::errno();
    let found = fds::find(set).filter(|found| found.kind == Kind::Set && found.is_mine);
    set_errno(before);
    found.and_then(|_| provider::own())
}

/// A call of epoll_wait. It has nothing to drop, since the thread may be cancelled in it.
#[derive(Clone, Copy)]
struct Call {
    set: c_int,
    events: *mut epoll_event,
    max: c_int,
    found: c_int,
    is_bystander: bool,
}

impl Call {
    fn new(set: c_int, events: *mut epoll_event, max: c_int) -> Self {
        Self {
            set,
            events,
            max,
            found: 0,
            is_bystander: false,
        }
    }

    /// Has the provider look for events; gives their number if there are any.
    fn is_served(&mut self, table: Option<&FrontTable>) -> Option<c_int> {
        let before = real::errno();
        let call = std::ptr::from_mut(self).cast::<c_void>();
        // SAFETY: `look` gets a call, which outlives the wait.
        let waited = unsafe { (table?.set_wait)(self.set, call, look) };
        set_errno(before);
        self.is_bystander = waited == wait::BYSTANDER;
        (waited == wait::READY).then_some(self.found)
    }

    fn has_slept(&self, table: Option<&FrontTable>) {
        if let Some(table) = table.filter(|_| self.is_bystander) {
            let before = real::errno();
            // SAFETY: no precondition.
            unsafe { (table.set_has_waited)() };
            set_errno(before);
        }
    }
}

/// Looks for events without sleeping; other results than events are left to the C library's call.
unsafe extern "C" fn look(call: *mut c_void) -> c_int {
    // SAFETY: the provider passes what it got from `is_served`.
    let call = unsafe { &mut *call.cast::<Call>() };
    // SAFETY: the arguments of the caller. The C library's function is a cancellation point.
    let found = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait,
            call.set,
            call.events,
            call.max,
            0,
            null::<sigset_t>(),
            0,
        )
    };
    call.found = c_int::try_from(found).unwrap_or(0).max(0);
    call.found
}
