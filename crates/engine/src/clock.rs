//! The engine's clock: nanoseconds of CLOCK_MONOTONIC, read from the processor's time stamp counter
//! where the kernel reads that too.
//!
//! A call of the kernel's vdso costs three times as much as reading the counter, and each message
//! needs two readings. The rate of the counter is measured from the attach of the first engine on
//! ([`measure_pace`]), and the kernel's clock read until then. Its error matters to no timer.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::OnceLock;

use proto_trp::conn::Time;

/// Conversion of the counter to nanoseconds.
#[derive(Debug)]
struct Pace {
    ticks: u64,
    ns: AtomicU64,
    /// Nanoseconds per tick in units of 2^-32.
    ns_per_tick: u64,
}

/// `None` inside when the counter is not to be used.
static PACE: OnceLock<Option<Pace>> = OnceLock::new();

/// The counter and the kernel's time when the measurement of the pace began; `None` inside when the
/// counter is not to be used.
static BEGUN: OnceLock<Option<(u64, u64)>> = OnceLock::new();

/// Whether a thread has ended the measurement, or is about to: no other waits for it.
static IS_ENDED: AtomicBool = AtomicBool::new(false);

/// Time that the measurement of the pace takes at least.
const CALIBRATION_NS: u64 = 500_000;

/// Now.
#[inline]
pub(super) fn now() -> Time {
    Time::from_ns(now_ns())
}

/// Now, in nanoseconds.
#[inline]
pub(super) fn now_ns() -> u64 {
    #[cfg(test)]
    if let Some(now_ns) = crate::check::now_ns() {
        return now_ns;
    }
    match PACE.get() {
        Some(Some(pace)) => {
            let ticks = counter().wrapping_sub(pace.ticks);
            let ns = (u128::from(ticks) * u128::from(pace.ns_per_tick)) >> 32;
            pace.ns.load(Ordering::Relaxed).wrapping_add(low64(ns))
        }
        _ => ns_before_pace(),
    }
}

/// The kernel's time; ends the measurement of the pace when it has taken long enough.
#[cold]
fn ns_before_pace() -> u64 {
    let ns = kernel_ns();
    let begun = BEGUN.get().copied().flatten();
    let is_due = |begun: &(u64, u64)| ns >= begun.1 + CALIBRATION_NS;
    if let Some(begun) = begun.filter(is_due) {
        if !IS_ENDED.swap(true, Ordering::Relaxed) {
            // `StoppedClock` has set it only where none was measured.
            let _ = PACE.set(pace_since(begun));
        }
    }
    ns
}

#[inline]
fn low64(value: u128) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = value.to_le_bytes();
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

fn kernel_ns() -> u64 {
    read_ns(libc::CLOCK_MONOTONIC)
}

/// Now, in nanoseconds since 1970; can be set, also back.
pub(super) fn wall_ns() -> u64 {
    read_ns(libc::CLOCK_REALTIME)
}

fn read_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is writable; the callers' clocks always exist.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the counter; a kernel that forbids it to programs does not
    // use it as clock source either.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> u64 {
    0
}

/// The kernel's time and the counter just before it, at the best of five tries: a clock that starts
/// with them is not behind the kernel's, which other threads may have read.
fn both() -> (u64, u64) {
    let mut best = (u64::MAX, 0, 0);
    for _ in 0..5 {
        let before = counter();
        let ns = kernel_ns();
        let width = counter().wrapping_sub(before);
        if width < best.0 {
            best = (width, before, ns);
        }
    }
    (best.1, best.2)
}

fn kernel_uses_counter() -> bool {
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    cfg!(target_arch = "x86_64")
        && std::fs::read_to_string(path).is_ok_and(|name| name.trim() == "tsc")
}

/// Begins to measure the pace of the counter, once in a process; readings of the clock end it.
pub(super) fn measure_pace() {
    BEGUN.get_or_init(|| kernel_uses_counter().then(both));
}

/// The pace of the counter since both clocks were read.
fn pace_since((ticks, ns): (u64, u64)) -> Option<Pace> {
    let (ticks_now, ns_now) = both();
    let elapsed_ticks = u128::from(ticks_now.checked_sub(ticks)?);
    let elapsed_ns = u128::from(ns_now.checked_sub(ns)?);
    let pace = (elapsed_ns << 32).checked_div(elapsed_ticks)?;
    Some(Pace {
        ticks: ticks_now,
        ns: AtomicU64::new(ns_now),
        ns_per_tick: u64::try_from(pace).ok()?,
    })
}

/// The clock of all engines of this process, which stands still but for [`StoppedClock::advance`]:
/// for measurements that count instructions. Reading it takes as many as reading a clock that runs.
#[derive(Debug)]
pub struct StoppedClock(&'static Pace);

impl StoppedClock {
    /// Stops the clock; None if an engine of this process has read it.
    pub fn stop() -> Option<Self> {
        if PACE.get().is_none() && BEGUN.get().is_some() {
            return None;
        }
        let stopped = PACE.get_or_init(|| {
            Some(Pace {
                ticks: 0,
                ns: AtomicU64::new(CALIBRATION_NS),
                ns_per_tick: 0,
            })
        });
        let pace = stopped.as_ref()?;
        (pace.ns_per_tick == 0).then_some(Self(pace))
    }

    /// The time, nanoseconds, as engines read it.
    #[inline]
    pub fn now_ns() -> u64 {
        now_ns()
    }

    /// Lets time pass.
    pub fn advance(&self, ns: u64) {
        self.0.ns.fetch_add(ns, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_goes_on_while_its_pace_is_measured_and_keeps_the_kernels_pace() {
        measure_pace();
        let mut last = now_ns();
        let begin = kernel_ns();
        while kernel_ns() < begin + 2 * CALIBRATION_NS {
            let now = now_ns();
            assert!(last <= now, "{now} after {last}");
            last = now;
        }
        assert_eq!(PACE.get().is_some(), kernel_uses_counter());
        // The thread may lose the processor between two readings, so ours lies between two of the
        // kernel's.
        let (before, own, after) = (kernel_ns(), now_ns(), kernel_ns());
        std::thread::sleep(std::time::Duration::from_millis(50));
        let (before_later, own_later, after_later) = (kernel_ns(), now_ns(), kernel_ns());
        let passed = own_later - own;
        let (least, most) = (before_later - after, after_later - before);
        let tolerance = most / 20;
        assert!(
            (least - tolerance..=most + tolerance).contains(&passed),
            "{passed} not in {least}..={most}"
        );
    }
}
