//! How an idle data thread waits.

use std::time::Duration;

/// How long it polls after the last packet.
const SPIN_NS: u64 = 50_000;
/// A yield that takes longer went to a thread that computes.
const CONTENDED_NS: u64 = 500_000;
/// How long it does not yield after that: then each yield costs a time slice, while a sleeping
/// thread is scheduled promptly on wake-up.
const NO_YIELD_NS: u64 = 50_000_000;
const FIRST_SLEEP: Duration = Duration::from_micros(20);
/// The fraction of the time since the last packet that a sleep takes, so that it adds little to the
/// latency.
const IDLE_PER_SLEEP: u64 = 8;
/// Polling interval of a port without receive interrupts while an exchange may continue.
const LONGEST_SLEEP: Duration = Duration::from_millis(1);
/// Without a packet for this long, no exchange is in progress.
const QUIET_NS: u64 = 1_000_000_000;
/// From then on, a sleep takes this fraction of the time since the last packet, up to a limit. Each
/// poll costs 30 to 140 us of CPU time, most of it in the kernel and in cold caches, and an idle
/// daemon is to take less than a fifth of a per cent of a core.
const QUIET_PER_SLEEP: u64 = 50;
const QUIET_SLEEP: Duration = Duration::from_millis(100);

/// How to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Poll again after sched_yield(2).
    Yield,
    /// Sleep this long.
    Sleep(Duration),
}

/// The state of the polling interval.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    last_work_ns: u64,
    no_yield_until_ns: u64,
}

impl Pace {
    /// The thread had work.
    #[inline]
    pub(crate) fn worked(&mut self, now_ns: u64) {
        self.last_work_ns = now_ns;
    }

    /// A yield that began at `before_ns` has returned.
    #[inline]
    pub(crate) fn yielded(&mut self, before_ns: u64, now_ns: u64) {
        if now_ns.saturating_sub(before_ns) > CONTENDED_NS {
            self.no_yield_until_ns = now_ns + NO_YIELD_NS;
        }
    }

    /// The thread had no work; returns how to wait.
    pub(crate) fn rest(&self, now_ns: u64) -> Rest {
        let idle_ns = now_ns.saturating_sub(self.last_work_ns);
        if idle_ns < SPIN_NS {
            return if now_ns < self.no_yield_until_ns {
                Rest::Sleep(FIRST_SLEEP)
            } else {
                Rest::Yield
            };
        }
        if idle_ns >= QUIET_NS {
            let share = Duration::from_nanos(idle_ns / QUIET_PER_SLEEP);
            return Rest::Sleep(share.min(QUIET_SLEEP));
        }
        let share = Duration::from_nanos(idle_ns / IDLE_PER_SLEEP);
        Rest::Sleep(share.clamp(FIRST_SLEEP, LONGEST_SLEEP))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_spins_first_then_sleeps_longer_and_longer() {
        let mut pace = Pace::default();
        pace.worked(1_000_000);
        assert_eq!(pace.rest(1_010_000), Rest::Yield);
        let mut now_ns = 1_000_000 + SPIN_NS;
        assert_eq!(pace.rest(now_ns), Rest::Sleep(FIRST_SLEEP));
        // An exchange whose round trip is long because CPUs are short is not slowed down further.
        assert_eq!(pace.rest(now_ns + 100_000), Rest::Sleep(FIRST_SLEEP));
        now_ns = 1_000_000 + 800_000;
        assert_eq!(pace.rest(now_ns), Rest::Sleep(Duration::from_micros(100)));
        assert_eq!(pace.rest(now_ns + 20_000_000), Rest::Sleep(LONGEST_SLEEP));
        let quiet_ns = 1_000_000 + QUIET_NS;
        assert_eq!(
            pace.rest(quiet_ns),
            Rest::Sleep(Duration::from_nanos(QUIET_NS / QUIET_PER_SLEEP))
        );
        assert_eq!(pace.rest(quiet_ns * 100), Rest::Sleep(QUIET_SLEEP));
        pace.worked(now_ns);
        assert_eq!(pace.rest(now_ns + 1), Rest::Yield);
    }
    #[test]
    fn rest_after_a_yield_to_a_computing_thread_sleeps() {
        let mut pace = Pace::default();
        let begin_ns = 1_000_000_000;
        pace.worked(begin_ns);
        pace.yielded(begin_ns, begin_ns + 10_000);
        assert_eq!(pace.rest(begin_ns + 10_000), Rest::Yield);
        let back_ns = begin_ns + 3_000_000;
        pace.yielded(begin_ns, back_ns);
        pace.worked(back_ns);
        assert_eq!(pace.rest(back_ns + 1), Rest::Sleep(FIRST_SLEEP));
        pace.worked(back_ns + NO_YIELD_NS);
        assert_eq!(pace.rest(back_ns + NO_YIELD_NS + 1), Rest::Yield);
    }
}
