//! Waits on epoll sets that have completion channels or files of rdma_cm: the provider makes
//! progress in the thread that waits.
//!
//! The provider's descriptor by which other processes wake that thread is a member of the set,
//! which the program does not know: its events are taken out of what a wait returns.

use std::ffi::{c_int, c_void};
use std::ptr::null;

use libc::{epoll_event, sigset_t, timespec};

use super::call::{self, Call, Sleep};
use super::lists::{self, File, Source};
use crate::device::Device;
use crate::fds::{self, Found, Kind};
use crate::provider;
use crate::real::{self, set_errno};
use urdma_abi::cancel::Disabled;
use urdma_abi::front::{look as looked, wait, FrontTable};
use urdma_abi::signals::SET_OCTETS;

/// The address of this is the data of the provider's member in each set.
static MEMBER: u8 = 0;

fn member() -> u64 {
    std::ptr::from_ref(&MEMBER) as u64
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn epoll_ctl(
    set: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    if fds::is_hit(fd) {
        // SAFETY: the arguments of the caller.
        return unsafe { change_ours(set, op, fd, event) };
    }
    // SAFETY: the arguments of the caller.
    unsafe { real::epoll_ctl(set, op, fd, event) }
}

/// Changes what a set has of a stand-in file.
///
/// # Safety
/// As epoll_ctl(2).
#[cold]
unsafe fn change_ours(set: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    // SAFETY: the arguments of the caller.
    let mut failed = unsafe { real::epoll_ctl(set, op, fd, event) };
    if failed != 0 && op == libc::EPOLL_CTL_ADD {
        // SAFETY: the arguments of the caller.
        failed = unsafe { add_exclusive(set, fd, event) };
    }
    if failed == 0 {
        // SAFETY: null only where there is no event.
        let event = unsafe { event.as_ref() }.copied();
        has_changed(set, fd, event.filter(|_| op != libc::EPOLL_CTL_DEL));
    }
    failed
}

/// Adds a file of rdma_cm that was refused. The kernel adds no epoll set, as which the application
/// has that file, with EPOLLEXCLUSIVE; without it, more threads wake than one.
///
/// # Safety
/// As epoll_ctl(2), which has set errno.
#[cold]
unsafe fn add_exclusive(set: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE.cast_unsigned();
    let is_cm =
        fds::find_unchecked(fd).is_some_and(|found| found.kind == Kind::Device(Device::RdmaCm));
    if real::errno() != libc::EINVAL || !is_cm {
        return -1;
    }
    // SAFETY: EINVAL and not EFAULT: the kernel has read it.
    let mut event = unsafe { *event };
    if event.events & EXCLUSIVE == 0 {
        return -1;
    }
    event.events &= !EXCLUSIVE;
    // SAFETY: one valid event.
    unsafe { real::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event) }
}

/// A descriptor was added to a set, is reported otherwise, or was removed.
#[cold]
fn has_changed(set: c_int, fd: c_int, event: Option<epoll_event>) {
    let _uncancelled = Disabled::new();
    let before = real::errno();
    // A thread that waits on a set of sets drives nothing.
    let source = lists::source(fd).filter(|source| !matches!(source.file, File::Set(_)));
    if let Some(Source { table, file }) = source {
        let is_known = |found: Found| found.kind == Kind::Set && found.is_mine;
        if !fds::find_unchecked(set).is_some_and(is_known) {
            // SAFETY: no precondition; what was known of that descriptor is of another set.
            unsafe { (table.set_close)(set) };
            // Without room in the table, its waits are as they are.
            fds::add(set, Kind::Set, NO_MEMBER);
        }
        // SAFETY: open descriptors of this process.
        unsafe {
            match (file, event) {
                (File::Channel(_), Some(event)) => {
                    (table.set_join)(set, fd, event.events, event.u64);
                }
                (File::Channel(_), None) => (table.set_part)(set, fd),
                (File::RdmaCm(handle), Some(_)) => (table.set_join_cm)(set, handle),
                // A set without it is driven all the same.
                (File::RdmaCm(_), None) | (File::Set(_), _) => {}
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
    if !fds::is_hit(set) {
        // SAFETY: the arguments of the caller.
        return unsafe { real::epoll_pwait(set, events, max, timeout_ms, mask) };
    }
    let call = Call::new(i64::from(timeout_ms).saturating_mul(call::NS_PER_MS), mask);
    // SAFETY: the arguments of the caller.
    unsafe { SetWait::new(call, set, events, max).wait() }
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn epoll_pwait2(
    set: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: null or the caller's timeout.
    let limit_ns = call::limit_of(unsafe { timeout.as_ref() });
    match limit_ns {
        Some(limit_ns) if fds::is_hit(set) => {
            let call = Call::new(limit_ns, mask);
            // SAFETY: the arguments of the caller.
            unsafe { SetWait::new(call, set, events, max).wait() }
        }
        // SAFETY: the arguments of the caller.
        _ => unsafe { real::epoll_pwait2(set, events, max, timeout, mask) },
    }
}

/// A call of epoll_wait. It has nothing to drop, since the thread may be cancelled in it.
struct SetWait {
    call: Call,
    set: c_int,
    events: *mut epoll_event,
    max: c_int,
}

/// The handle of a set that has no member of the provider.
const NO_MEMBER: i64 = -1;

impl SetWait {
    fn new(call: Call, set: c_int, events: *mut epoll_event, max: c_int) -> Self {
        Self {
            call,
            set,
            events,
            max,
        }
    }

    /// # Safety
    /// As epoll_pwait(2).
    #[cold]
    unsafe fn wait(&mut self) -> c_int {
        let before = real::errno();
        let mut waited = wait::NOT_DRIVEN;
        if self.call.is_look() {
            provider::send_events();
        }
        let table = self.table();
        if let Some(table) = table {
            let (set, this) = (self.set, std::ptr::from_mut(self).cast::<c_void>());
            let drive = |interrupts, is_guarded| {
                // SAFETY: `look` and `put` get this, which outlives the wait.
                unsafe { (table.set_wait)(set, interrupts, is_guarded, this, look, put) }
            };
            // SAFETY: no value here needs to be dropped.
            waited = unsafe { call::drive(table, drive) };
        }
        if waited != wait::READY {
            // SAFETY: the caller guarantees it.
            unsafe { self.sleep() };
        }
        if let Some(table) = table {
            call::has_waited(table, waited);
        }
        self.call.end(before)
    }

    /// The provider's table if a thread of this process that waits on the set may wait for events
    /// of completion channels; the provider's descriptor is a member of the set then.
    fn table(&self) -> Option<&'static FrontTable> {
        if self.call.is_look() {
            return None;
        }
        let is_ours = |found: &Found| found.kind == Kind::Set && found.is_mine;
        let found = fds::find_unchecked(self.set).filter(is_ours)?;
        let table = provider::own()?;
        // SAFETY: no precondition.
        let waker = unsafe { (table.set_waker)(self.set) };
        let is_member = found.handle == waker || {
            let mut event = epoll_event {
                events: libc::EPOLLIN.cast_unsigned(),
                u64: member(),
            };
            let fd = c_int::try_from(waker).ok().filter(|fd| *fd >= 0)?;
            let op = libc::EPOLL_CTL_ADD;
            // SAFETY: one event.
            let failed = unsafe { real::epoll_ctl(self.set, op, fd, &raw mut event) };
            failed == 0 && fds::set_handle(self.set, waker)
        };
        is_member.then_some(table)
    }

    /// Sleeps as epoll_wait does, without the provider's help.
    ///
    /// # Safety
    /// As epoll_pwait(2).
    unsafe fn sleep(&mut self) {
        let mut is_last = false;
        loop {
            let (set, events, max) = (self.set, self.events, self.max);
            let (left_ms, mask) = (self.call.left_ms(), self.call.mask);
            // SAFETY: the caller guarantees it.
            let result = unsafe { real::epoll_pwait(set, events, max, left_ms, mask) };
            self.call.note(result);
            if !self.take_member() {
                return;
            }
            match provider::own() {
                // SAFETY: no precondition.
                Some(table) => unsafe { (table.set_was_woken)(self.set) },
                // A child, whose parent takes the message when it waits the next time.
                // SAFETY: an empty list.
                None => unsafe { _ = real::poll(std::ptr::null_mut(), 0, 1) },
            }
            if self.call.result > 0 || is_last {
                return;
            }
            // The member may have had the only place: what else is ready comes before it next.
            is_last = left_ms == 0;
        }
    }

    /// Takes the provider's member out of the events; whether it was among them.
    fn take_member(&mut self) -> bool {
        let count = usize::try_from(self.call.result).unwrap_or(0);
        if count == 0 {
            return false;
        }
        // SAFETY: the system call has filled `count` entries.
        let events = unsafe { std::slice::from_raw_parts_mut(self.events, count) };
        let Some(at) = events.iter().position(|event| event.u64 == member()) else {
            return false;
        };
        events.copy_within(at + 1.., at);
        self.call.result -= 1;
        true
    }
}

/// Looks for events, and sleeps until there are some. The C library's function would be a
/// cancellation point.
unsafe extern "C" fn look(this: *mut c_void, limit_ns: i64, mask: u64) -> c_int {
    // SAFETY: the provider passes what it got from `wait`.
    let this = unsafe { &mut *this.cast::<SetWait>() };
    let sleep = this.call.sleep(limit_ns, &mask);
    // SAFETY: the arguments of the caller, and a mask of this size.
    let result = unsafe { pwait(this, &sleep) };
    this.call.note(c_int::try_from(result).unwrap_or(-1));
    let is_woken = this.take_member();
    let is_done = this.call.result != 0 || (sleep.is_last && !is_woken);
    let woken = if is_woken { looked::WOKEN } else { 0 };
    woken | if is_done { looked::DONE } else { 0 }
}

/// Adds an event of a member to those that the call returns.
unsafe extern "C" fn put(this: *mut c_void, events: u32, data: u64) -> c_int {
    // SAFETY: the provider passes what it got from `wait`.
    let this = unsafe { &mut *this.cast::<SetWait>() };
    if !(0..this.max).contains(&this.call.result) {
        return 0;
    }
    let event = epoll_event { events, u64: data };
    // SAFETY: the caller's array has room for `max` events.
    unsafe {
        this.events
            .offset(this.call.result as isize)
            .write_unaligned(event)
    };
    this.call.result += 1;
    1
}

/// # Safety
/// As epoll_pwait2(2).
unsafe fn pwait(wait: &SetWait, sleep: &Sleep) -> libc::c_long {
    let (set, events, max) = (wait.set, wait.events, wait.max);
    let mask = sleep.mask;
    // SAFETY: the caller guarantees it.
    let found = sleep.make(|time| unsafe {
        let number = libc::SYS_epoll_pwait2;
        libc::syscall(number, set, events, max, time, mask, SET_OCTETS)
    });
    if found >= 0 || real::errno() != libc::ENOSYS {
        return found;
    }
    // Before Linux 5.11.
    let time_ms = sleep.time_ms();
    // SAFETY: the caller guarantees it.
    unsafe {
        let number = libc::SYS_epoll_pwait;
        libc::syscall(number, set, events, max, time_ms, mask, SET_OCTETS)
    }
}
