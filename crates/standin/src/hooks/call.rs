//! What calls on descriptors have in common in which the provider makes progress: their time, and
//! what they return.

use std::ffi::{c_int, c_long};
use std::ptr::{from_mut, null, null_mut};

use libc::{sigset_t, ssize_t, timespec};

use crate::real::{self, set_errno};
use crate::signals;
use urdma_abi::front::{wait, FrontTable};

extern "C-unwind" {
    fn pthread_testcancel();
}

pub(super) const NS_PER_MS: i64 = 1_000_000;
pub(super) const NS_PER_S: i64 = 1_000_000_000;

/// The time of a call in nanoseconds, negative for ever; `None` if the timeout is not valid.
pub(super) fn limit_of(timeout: Option<&timespec>) -> Option<i64> {
    let Some(timeout) = timeout else {
        return Some(-1);
    };
    let is_valid = timeout.tv_sec >= 0 && (0..NS_PER_S).contains(&timeout.tv_nsec);
    is_valid.then(|| {
        let seconds = timeout.tv_sec.saturating_mul(NS_PER_S);
        seconds.saturating_add(timeout.tv_nsec)
    })
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

/// Calls `drive` with the number that shows a request to cancel the thread which comes from now on,
/// and with whether handlers of signals are put off while it holds locks.
///
/// # Safety
/// The thread may end here: its frames must have no values that need to be dropped.
pub(super) unsafe fn drive(table: &FrontTable, drive: impl FnOnce(u32, c_int) -> i64) -> i64 {
    // SAFETY: no precondition.
    let interrupts = unsafe { (table.interrupts)() };
    // SAFETY: the caller guarantees it.
    unsafe { pthread_testcancel() };
    let is_guarded = signals::begin_turns();
    let waited = drive(interrupts, c_int::from(is_guarded));
    if is_guarded {
        signals::end_turns();
    }
    waited
}

/// Goes on with a call whose file another thread has closed. In the kernel the call has its own
/// reference to the file and sleeps until a signal ends it; rping and others end with an error if
/// it returns.
///
/// # Safety
/// A cancellation point: the caller's frames have no values that need to be dropped.
pub(super) unsafe fn sleep_on() -> ssize_t {
    // SAFETY: no descriptor is named.
    unsafe { real::poll(null_mut(), 0, -1) as ssize_t }
}

/// The thread has slept, after a wait that ended so.
pub(super) fn has_waited(table: &FrontTable, waited: i64) {
    if waited == wait::BYSTANDER {
        // SAFETY: no precondition.
        unsafe { (table.has_waited)() };
    }
}

/// See the module.
pub(super) struct Call {
    /// When it ends without an event, in nanoseconds; negative for never.
    end_ns: i64,
    /// The mask of the caller, or null.
    pub(super) mask: *const sigset_t,
    /// What it returns, and errno.
    pub(super) result: c_int,
    errno: c_int,
}

impl Call {
    /// With the time of [`limit_of`].
    pub(super) fn new(limit_ns: i64, mask: *const sigset_t) -> Self {
        let end_ns = match limit_ns {
            1.. => now_ns().saturating_add(limit_ns),
            limit => limit,
        };
        Self {
            end_ns,
            mask,
            result: 0,
            errno: 0,
        }
    }

    /// Whether it only looks.
    pub(super) fn is_look(&self) -> bool {
        self.end_ns == 0
    }

    fn left_ns(&self) -> i64 {
        match self.end_ns {
            ..0 => -1,
            0 => 0,
            end => end.saturating_sub(now_ns()).max(0),
        }
    }

    /// The time that is left; `None` for ever.
    pub(super) fn left(&self) -> Option<timespec> {
        timespec_of(self.left_ns())
    }

    /// As milliseconds, -1 for ever.
    pub(super) fn left_ms(&self) -> c_int {
        milliseconds_of(self.left_ns())
    }

    /// A part of the call that the provider limits, with the signals of `mask` blocked.
    pub(super) fn sleep(&self, limit_ns: i64, mask: &u64) -> Sleep {
        let left_ns = self.left_ns();
        let is_last = left_ns >= 0 && (limit_ns < 0 || left_ns <= limit_ns);
        let sleep_ns = if is_last { left_ns } else { limit_ns };
        Sleep {
            sleep_ns,
            time: timespec_of(sleep_ns),
            mask: match (limit_ns, self.mask.is_null()) {
                (0, _) => null(),
                (_, true) if signals::is_in_turn() => null(),
                (_, true) => std::ptr::from_ref(mask),
                (_, false) => self.mask.cast(),
            },
            is_last,
        }
    }

    /// Notes what a system call has returned.
    pub(super) fn note(&mut self, result: c_int) {
        self.result = result;
        self.errno = real::errno();
    }

    /// What the call returns, with errno; `before` is errno before it.
    pub(super) fn end(&self, before: c_int) -> c_int {
        set_errno(if self.result < 0 { self.errno } else { before });
        self.result
    }
}

fn timespec_of(ns: i64) -> Option<timespec> {
    (ns >= 0).then_some(timespec {
        tv_sec: ns / NS_PER_S,
        tv_nsec: ns % NS_PER_S,
    })
}

fn milliseconds_of(ns: i64) -> c_int {
    match ns {
        ..0 => -1,
        ns => c_int::try_from((ns + NS_PER_MS - 1) / NS_PER_MS).unwrap_or(c_int::MAX),
    }
}

/// How a part of a call sleeps.
pub(super) struct Sleep {
    sleep_ns: i64,
    /// None for ever.
    time: Option<timespec>,
    /// Null or the kernel's mask.
    pub(super) mask: *const u64,
    /// The call ends with it.
    pub(super) is_last: bool,
}

impl Sleep {
    /// Makes the system call, which gets the time that it sleeps, null for ever.
    pub(super) fn make(&self, call: impl FnOnce(*mut timespec) -> c_long) -> c_long {
        if self.sleep_ns != 0 && signals::is_in_turn() {
            return signals::sleep(self.time, call);
        }
        // The system call may change it.
        let mut time = self.time;
        call(time.as_mut().map_or(null_mut(), from_mut))
    }

    /// As milliseconds, -1 for ever.
    pub(super) fn time_ms(&self) -> c_int {
        milliseconds_of(self.sleep_ns)
    }
}
