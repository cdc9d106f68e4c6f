//! epoll: sets whose members have rings.

use std::ffi::c_int;
use std::ptr::null;
use std::time::{Duration, Instant};

use libc::{epoll_event, sigset_t, timespec};

use urdma_abi::cancel::Disabled;

use super::polls::duration;
use crate::begin::{begin, joined, Begun};
use crate::reasons::Reason;
use crate::sets::{self, Events, Set};
use crate::signals::Masked;
use crate::spins::spin;
use crate::table::{self, Cell};
use crate::{leave, lent, limits, process, real, signals};

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn epoll_create(size: c_int) -> c_int {
    let forks = lent::forks();
    // SAFETY: the arguments of the caller.
    let fd = unsafe { real::epoll_create(size) };
    sets::begin_set(fd, forks);
    fd
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn epoll_create1(flags: c_int) -> c_int {
    let forks = lent::forks();
    // SAFETY: the arguments of the caller.
    let fd = unsafe { real::epoll_create1(flags) };
    sets::begin_set(fd, forks);
    fd
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn epoll_ctl(
    epfd: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    if let Some(inner) = sets::known(fd).filter(|_| process::is_home()) {
        leave::give_up(inner, Reason::Epoll);
    }
    let Some(cell) = table::hit(fd) else {
        // SAFETY: the arguments of the caller.
        return unsafe { real::epoll_ctl(epfd, op, fd, event) };
    };
    let is_add = op != libc::EPOLL_CTL_DEL;
    // SAFETY: null or the event of the caller.
    let is_exclusive = || match unsafe { event.cast::<u32>().as_ref() } {
        Some(events) => events & libc::EPOLLEXCLUSIVE.cast_unsigned() != 0,
        None => false,
    };
    match sets::known(epfd) {
        Some(set) if !(set.is_plain() || is_add && is_exclusive()) && process::is_home() => {
            // SAFETY: the event of the caller.
            if let Some(result) = unsafe { set.control_alone((op, fd), cell, event) } {
                return result;
            }
            if !sets::leave_other(set, fd, cell, op) {
                leave::retire(fd, Reason::Epoll);
            }
            // SAFETY: the arguments of the caller.
            unsafe { control(set, (op, fd), cell, event) }
        }
        _ => {
            if is_add {
                leave::retire(fd, Reason::Epoll);
            }
            // SAFETY: the arguments of the caller.
            unsafe { real::epoll_ctl(epfd, op, fd, event) }
        }
    }
}

/// # Safety
/// As epoll_ctl(2).
unsafe fn control(
    set: &Set,
    (op, fd): (c_int, c_int),
    cell: &'static Cell,
    event: *mut epoll_event,
) -> c_int {
    let _uncancelled = Disabled::new();
    let masked = Masked::new();
    let begun = begin(cell);
    let connection = match begun {
        Begun::Rings(connection) => Some(connection),
        Begun::Kernel(_) => None,
    };
    // SAFETY: the arguments of the caller.
    let (result, is_ours) = unsafe { set.control((op, fd), cell, connection, event) };
    if let Some(connection) = connection.filter(|_| is_ours) {
        joined(cell, connection);
    }
    begun.leave(cell);
    drop(masked);
    if !is_ours {
        leave::retire(fd, Reason::Epoll);
    }
    result
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn epoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    room: c_int,
    timeout_ms: c_int,
) -> c_int {
    let Some(set) = sets::known(epfd) else {
        // SAFETY: the arguments of the caller.
        return unsafe { real::epoll_wait(epfd, events, room, timeout_ms) };
    };
    let wait = Wait::of_ms(epfd, timeout_ms, null());
    // SAFETY: the arguments of the caller. Not by epoll_wait: see `Wait::sleep`.
    let kernel = || unsafe { real::epoll_pwait(epfd, events, room, timeout_ms, null()) };
    // SAFETY: the arguments of the caller.
    unsafe { wait.run(set, events, room, kernel) }
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn epoll_pwait(
    epfd: c_int,
    events: *mut epoll_event,
    room: c_int,
    timeout_ms: c_int,
    mask: *const sigset_t,
) -> c_int {
    let Some(set) = sets::known(epfd) else {
        // SAFETY: the arguments of the caller.
        return unsafe { real::epoll_pwait(epfd, events, room, timeout_ms, mask) };
    };
    let wait = Wait::of_ms(epfd, timeout_ms, mask);
    // SAFETY: the arguments of the caller.
    let kernel = || unsafe { real::epoll_pwait(epfd, events, room, timeout_ms, mask) };
    // SAFETY: the arguments of the caller.
    unsafe { wait.run(set, events, room, kernel) }
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn epoll_pwait2(
    epfd: c_int,
    events: *mut epoll_event,
    room: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: null or the timeout of the caller.
    let limit = unsafe { timeout.as_ref() }.map(duration);
    let (Some(set), false) = (sets::known(epfd), limit == Some(None)) else {
        // SAFETY: the arguments of the caller.
        return unsafe { real::epoll_pwait2(epfd, events, room, timeout, mask) };
    };
    let wait = Wait {
        epfd,
        limit: limit.flatten(),
        is_fine: true,
        mask,
    };
    // SAFETY: the arguments of the caller.
    let kernel = || unsafe { real::epoll_pwait2(epfd, events, room, timeout, mask) };
    // SAFETY: the arguments of the caller.
    unsafe { wait.run(set, events, room, kernel) }
}

/// A wait on a set.
#[derive(Clone, Copy)]
struct Wait {
    epfd: c_int,
    limit: Option<Duration>,
    /// The limit is not one of milliseconds.
    is_fine: bool,
    mask: *const sigset_t,
}

impl Wait {
    fn of_ms(epfd: c_int, timeout_ms: c_int, mask: *const sigset_t) -> Self {
        Self {
            epfd,
            limit: u64::try_from(timeout_ms).ok().map(Duration::from_millis),
            is_fine: false,
            mask,
        }
    }

    /// Waits in the kernel. The stand-in's epoll_wait calls epoll_pwait by its name, which would be
    /// the hook of this file. A cancellation point: the frames of this file have no values to be
    /// dropped.
    unsafe fn sleep(self, events: *mut epoll_event, room: c_int, limit: Option<Duration>) -> c_int {
        let (epfd, mask) = (self.epfd, self.mask);
        if !self.is_fine {
            let ms = limit.map_or(-1, up_to_ms);
            // SAFETY: the arguments of the caller.
            return unsafe { real::epoll_pwait(epfd, events, room, ms, mask) };
        }
        let time = limit.map(limits::timespec);
        let time = time.as_ref().map_or(null(), std::ptr::from_ref);
        // SAFETY: the arguments of the caller.
        unsafe { real::epoll_pwait2(epfd, events, room, time, mask) }
    }

    /// Asks the kernel; adds what it reports. The result is that of the last epoll_wait(2).
    unsafe fn ask(self, set: &Set, found: &mut Events, limit: Option<Duration>) -> c_int {
        let mut is_first = true;
        loop {
            let (rest, left) = found.rest();
            let left = c_int::try_from(left).unwrap_or(c_int::MAX);
            let this = if found.count() > 0 {
                Some(Duration::ZERO)
            } else {
                limit
            };
            // SAFETY: the rest of the array of the caller.
            let result = unsafe { self.sleep(rest, left, this) };
            if std::mem::take(&mut is_first) {
                set.end_sleep();
            }
            let Ok(count) = usize::try_from(result) else {
                return result;
            };
            let had_reports = found.count() > 0;
            let is_ours = set.sort(found, count);
            // More registrations of this library's may be there, which belong to these reports.
            if !(had_reports && is_ours && result == left) {
                return result;
            }
        }
    }

    /// Waits; `kernel` makes the call of the program itself.
    #[inline]
    unsafe fn run(
        self,
        set: &'static Set,
        events: *mut epoll_event,
        room: c_int,
        kernel: impl Fn() -> c_int,
    ) -> c_int {
        let is_limited = self.limit.is_some_and(|limit| !limit.is_zero());
        let begin = is_limited.then(Instant::now);
        let end = || begin.and_then(|begin| begin.checked_add(self.limit?));
        let mut limit = self.limit;
        if set.begin_sleep_without_rings() {
            let result = kernel();
            set.end_sleep();
            let count = usize::try_from(result).unwrap_or(0);
            if count == 0 || !set.is_ringed() {
                return result;
            }
            // SAFETY: the array of the caller, where the kernel has written these.
            let sorted = unsafe { sorted(set, events, room, count) };
            if sorted > 0 {
                return sorted;
            }
            limit = left_until(end()).or(limit);
        }
        // SAFETY: the arguments of the caller.
        unsafe { self.run_with_rings(set, events, room, (limit, end())) }
    }

    /// Waits on a set that has had members with rings; how much of the limit is left, and when it
    /// ends, unless the wait has none or returns at once.
    #[inline(never)]
    unsafe fn run_with_rings(
        self,
        set: &'static Set,
        events: *mut epoll_event,
        room: c_int,
        (mut limit, end): (Option<Duration>, Option<Instant>),
    ) -> c_int {
        let len = usize::try_from(room).unwrap_or(0);
        if len == 0 || events.is_null() || set.is_given_up() {
            // SAFETY: the arguments of the caller.
            return unsafe { self.sleep(events, room, limit) };
        }
        let glance = || {
            // SAFETY: the array of the caller.
            let found = unsafe { Events::new(events, len) };
            // SAFETY: the array of the caller.
            unsafe { self.glance(set, found) }
        };
        if set.is_order_unknown() {
            let result = glance();
            if result != 0 {
                return result;
            }
        }
        if may_sleep(limit) && self.mask.is_null() && set.may_spin() {
            signals::begin_call();
            let mut result = 0;
            let look = || {
                result = glance();
                result != 0
            };
            if spin(|| set.is_due(), look) {
                return result;
            }
            if signals::has_ended_call(true) {
                real::set_errno(libc::EINTR);
                return -1;
            }
        }
        loop {
            // SAFETY: the array of the caller.
            let found = unsafe { Events::new(events, len) };
            // SAFETY: the array of the caller.
            if let Some(result) = unsafe { self.attempt(set, found, limit) } {
                return result;
            }
            // Only registrations of this library's were reported.
            limit = left_until(end).or(limit);
        }
    }

    /// Looks once, and does not wait. Returns how many events there are, or -1.
    ///
    /// # Safety
    /// A cancellation point, as [`Wait::sleep`].
    unsafe fn glance(self, set: &Set, mut found: Events) -> c_int {
        if !set.begin_glance(&mut found) {
            // SAFETY: guaranteed by the caller.
            let looked = unsafe { self.attempt(set, found, Some(Duration::ZERO)) };
            return looked.unwrap_or(0);
        }
        // SAFETY: guaranteed by the caller.
        let result = unsafe { self.ask(set, &mut found, Some(Duration::ZERO)) };
        match found.count() {
            0 => result.min(0),
            _ => returned(&found),
        }
    }

    /// Looks at the members with rings, and asks the kernel, where the thread sleeps if none is
    /// ready; `None` if only registrations of this library's were reported.
    ///
    /// # Safety
    /// A cancellation point, as [`Wait::sleep`].
    unsafe fn attempt(
        self,
        set: &Set,
        mut found: Events,
        limit: Option<Duration>,
    ) -> Option<c_int> {
        if !set.look(&mut found, may_sleep(limit)) {
            return Some(returned(&found));
        }
        // SAFETY: guaranteed by the caller.
        let result = unsafe { self.ask(set, &mut found, limit) };
        if found.count() == 0 && result < 0 {
            return Some(result);
        }
        (found.count() > 0 || result == 0).then(|| returned(&found))
    }
}

/// Sorts what the kernel has reported in a wait that began before a member got rings; returns how
/// many of these are the program's.
///
/// # Safety
/// The kernel has written `count` entries of the array, which has `room`.
#[cold]
unsafe fn sorted(set: &Set, events: *mut epoll_event, room: c_int, count: usize) -> c_int {
    // SAFETY: guaranteed by the caller.
    let mut found = unsafe { Events::new(events, usize::try_from(room).unwrap_or(0)) };
    set.sort(&mut found, count);
    returned(&found)
}

/// Milliseconds of a limit, rounded up.
fn up_to_ms(limit: Duration) -> c_int {
    let rest = u64::from(limit.subsec_nanos().div_ceil(1_000_000));
    let ms = limit.as_secs().saturating_mul(1_000).saturating_add(rest);
    c_int::try_from(ms).unwrap_or(c_int::MAX)
}

/// What is left of a limit that ends then.
fn left_until(end: Option<Instant>) -> Option<Duration> {
    end.map(|end| end.saturating_duration_since(Instant::now()))
}

fn may_sleep(limit: Option<Duration>) -> bool {
    limit.is_none_or(|limit| !limit.is_zero())
}

fn returned(events: &Events) -> c_int {
    c_int::try_from(events.count()).unwrap_or(c_int::MAX)
}
