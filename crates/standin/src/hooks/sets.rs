//! Waits on epoll sets that have completion channels: the provider makes progress in the thread
//! that waits.
//!
//! The provider's descriptor by which other processes wake that thread is a member of the set,
//! which the program does not know: its events are taken out of what a wait returns.

use std::ffi::{c_int, c_void};
use std::ptr::null;

use libc::{epoll_event, sigset_t, timespec};

use crate::fds::{self, Kind};
use crate::provider;
use crate::real::{self, set_errno};
use urdma_abi::cancel::Disabled;
use urdma_abi::front::{look as looked, wait, FrontTable};

extern "C-unwind" {
    fn pthread_testcancel();
}

/// The address of this is the data of the provider's member in each set.
static MEMBER: u8 = 0;

fn member() -> u64 {
    std::ptr::from_ref(&MEMBER) as u64
}

const NS_PER_MS: i64 = 1_000_000;
const NS_PER_S: i64 = 1_000_000_000;

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
    let is_kind = |fd, kind| fds::find(fd).is_some_and(|found| found.kind == kind && found.is_mine);
    if is_kind(fd, Kind::Channel) {
        if let Some(table) = provider::own() {
            // Without room in the table, its waits are as they are.
            if is_kind(set, Kind::Set) || fds::add(set, Kind::Set, NO_MEMBER) {
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
    if !fds::is_hit(set) {
        // SAFETY: the arguments of the caller.
        return unsafe { real::epoll_pwait(set, events, max, timeout_ms, mask) };
    }
    let limit = i64::from(timeout_ms).saturating_mul(NS_PER_MS);
    // SAFETY: the arguments of the caller.
    unsafe { Call::new(set, events, max, limit, mask).wait() }
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
    let limit = unsafe { timeout.as_ref() };
    let is_valid =
        limit.is_none_or(|limit| limit.tv_sec >= 0 && (0..NS_PER_S).contains(&limit.tv_nsec));
    if !fds::is_hit(set) || !is_valid {
        // SAFETY: the arguments of the caller.
        return unsafe { real::epoll_pwait2(set, events, max, timeout, mask) };
    }
    let limit = limit.map_or(-1, |limit| {
        let seconds = limit.tv_sec.saturating_mul(NS_PER_S);
        seconds.saturating_add(limit.tv_nsec)
    });
    // SAFETY: the arguments of the caller.
    unsafe { Call::new(set, events, max, limit, mask).wait() }
}

/// A call of epoll_wait. It has nothing to drop, since the thread may be cancelled in it.
struct Call {
    set: c_int,
    events: *mut epoll_event,
    max: c_int,
    /// When it ends without an event, in nanoseconds; negative for never.
    end_ns: i64,
    mask: *const sigset_t,
    /// What it returns, and errno.
    result: c_int,
    errno: c_int,
}

/// The handle of a set that has no member of the provider.
const NO_MEMBER: i64 = -1;

impl Call {
    fn new(
        set: c_int,
        events: *mut epoll_event,
        max: c_int,
        limit_ns: i64,
        mask: *const sigset_t,
    ) -> Self {
        let end_ns = match limit_ns {
            1.. => now_ns().saturating_add(limit_ns),
            limit => limit,
        };
        Self {
            set,
            events,
            max,
            end_ns,
            mask,
            result: 0,
            errno: 0,
        }
    }

    /// # Safety
    /// As epoll_pwait(2).
    #[cold]
    unsafe fn wait(&mut self) -> c_int {
        let before = real::errno();
        let table = if self.end_ns == 0 { None } else { self.table() };
        let mut waited = wait::NOT_DRIVEN;
        if let Some(table) = table {
            // SAFETY: no precondition.
            let interrupts = unsafe { (table.interrupts)() };
            // A request to cancel that comes later changes the number.
            // SAFETY: no value here needs to be dropped.
            unsafe { pthread_testcancel() };
            let call = std::ptr::from_mut(self).cast::<c_void>();
            // SAFETY: `look` gets a call, which outlives the wait.
            waited = unsafe { (table.set_wait)(self.set, interrupts, call, look) };
        }
        if waited != wait::READY {
            // SAFETY: the caller guarantees it.
            unsafe { self.sleep() };
        }
        if let (Some(table), wait::BYSTANDER) = (table, waited) {
            // SAFETY: no precondition.
            unsafe { (table.set_has_waited)() };
        }
        set_errno(if self.result < 0 { self.errno } else { before });
        self.result
    }

    /// The provider's table if a thread of this process that waits on the set may wait for events
    /// of completion channels; the provider's descriptor is a member of the set then.
    fn table(&self) -> Option<&'static FrontTable> {
        let _uncancelled = Disabled::new();
        let found = fds::find(self.set).filter(|found| found.kind == Kind::Set && found.is_mine)?;
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
        loop {
            let timeout_ms = match self.end_ns {
                ..0 => -1,
                0 => 0,
                end => {
                    let left = end.saturating_sub(now_ns()).max(0);
                    c_int::try_from((left + NS_PER_MS - 1) / NS_PER_MS).unwrap_or(c_int::MAX)
                }
            };
            let (set, events, max) = (self.set, self.events, self.max);
            // SAFETY: the caller guarantees it.
            self.result = unsafe { real::epoll_pwait(set, events, max, timeout_ms, self.mask) };
            self.errno = real::errno();
            if !self.take_member() {
                return;
            }
            if let Some(table) = provider::own() {
                // SAFETY: no precondition.
                unsafe { (table.set_was_woken)(self.set) };
            }
            if self.result > 0 || timeout_ms == 0 {
                return;
            }
        }
    }

    /// Takes the provider's member out of the events; whether it was among them.
    fn take_member(&mut self) -> bool {
        let count = usize::try_from(self.result).unwrap_or(0);
        if count == 0 {
            return false;
        }
        // SAFETY: the system call has filled so many.
        let events = unsafe { std::slice::from_raw_parts_mut(self.events, count) };
        let Some(at) = events.iter().position(|event| event.u64 == member()) else {
            return false;
        };
        events.copy_within(at + 1.., at);
        self.result -= 1;
        true
    }
}

fn now_ns() -> i64 {
    let mut now = timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: fills the struct that the pointer names.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec * NS_PER_S + now.tv_nsec
}

/// Looks for events, and sleeps until there are some. The C library's function would be a
/// cancellation point.
unsafe extern "C" fn look(call: *mut c_void, limit_ns: i64, mask: u64) -> c_int {
    // SAFETY: the provider passes what it got from `wait`.
    let call = unsafe { &mut *call.cast::<Call>() };
    let left_ns = match call.end_ns {
        ..0 => -1,
        end => end.saturating_sub(now_ns()).max(0),
    };
    let is_last = left_ns >= 0 && (limit_ns < 0 || left_ns <= limit_ns);
    let sleep_ns = if is_last { left_ns } else { limit_ns };
    let mask = match (limit_ns, call.mask.is_null()) {
        (0, _) => null(),
        (_, true) => &raw const mask,
        (_, false) => call.mask.cast(),
    };
    // SAFETY: the arguments of the caller, and a mask of this size.
    let found = unsafe { pwait(call, sleep_ns, mask) };
    call.errno = real::errno();
    call.result = c_int::try_from(found).unwrap_or(-1);
    let woken = if call.take_member() { looked::WOKEN } else { 0 };
    let is_done = call.result != 0 || (is_last && woken == 0);
    woken | if is_done { looked::DONE } else { 0 }
}

/// # Safety
/// As epoll_pwait2(2).
unsafe fn pwait(call: &Call, sleep_ns: i64, mask: *const u64) -> libc::c_long {
    let time = timespec {
        tv_sec: sleep_ns / NS_PER_S,
        tv_nsec: sleep_ns % NS_PER_S,
    };
    let time = if sleep_ns < 0 {
        null()
    } else {
        &raw const time
    };
    let (set, events, max, octets) = (call.set, call.events, call.max, size_of::<u64>());
    // SAFETY: the caller guarantees it.
    let found =
        unsafe { libc::syscall(libc::SYS_epoll_pwait2, set, events, max, time, mask, octets) };
    if found >= 0 || real::errno() != libc::ENOSYS {
        return found;
    }
    // Before Linux 5.11.
    let time_ms = match sleep_ns {
        ..0 => -1,
        ns => c_int::try_from((ns + NS_PER_MS - 1) / NS_PER_MS).unwrap_or(c_int::MAX),
    };
    // SAFETY: the caller guarantees it.
    unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait,
            set,
            events,
            max,
            time_ms,
            mask,
            octets,
        )
    }
}
