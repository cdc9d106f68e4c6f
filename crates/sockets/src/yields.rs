//! When a thread that looks for octets yields the processor: its peer may be on the same one, where
//! it answers only then.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

/// This many yields in a row, after each of which octets were there, show that the peer shares the
/// processor. Octets of a peer on another one are there after some yields, by chance.
const ENOUGH: u32 = 8;
/// Receives in vain after which a program that polls yields otherwise.
const BETWEEN_YIELDS: u32 = 64;

/// Whether yields have lately paid.
#[derive(Debug)]
pub(crate) struct Yields(AtomicU32);

impl Yields {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Whether a thread is to yield before it looks any further.
    pub(crate) fn come_first(&self) -> bool {
        self.0.load(Relaxed) >= ENOUGH
    }

    /// Octets were there right after a yield, or not; or they came without one.
    pub(crate) fn learn(&self, have_paid: bool) {
        let paid = if have_paid {
            self.0.load(Relaxed).saturating_add(1)
        } else {
            0
        };
        self.0.store(paid, Relaxed);
    }
}

/// What a late yield counts, in yields that are not late. A peer that has much to do causes few of
/// them; a program that never waits causes one each time.
const LATE: u32 = 8;
/// Count at which waits stop to end with a yield.
const TOO_LATE: u32 = 4 * LATE;
/// Least and most time for which they stop, which doubles while the first yield after it is late.
const REST_NS: (u64, u64) = (100_000_000, 1_600_000_000);

/// Whether a thread that is about to sleep yields before: unless that has lately given the
/// processor to programs that keep it, where a sleep would end with the wake-up.
#[derive(Debug)]
pub(crate) struct LastYields {
    /// Late yields, less those that were not.
    lateness: AtomicU32,
    /// The end of the rest, and how long the last one was.
    rest_until: AtomicU64,
    last_rest: AtomicU64,
}

impl LastYields {
    pub(crate) const fn new() -> Self {
        Self {
            lateness: AtomicU32::new(0),
            rest_until: AtomicU64::new(0),
            last_rest: AtomicU64::new(0),
        }
    }

    /// Whether a thread is to yield that is about to sleep now.
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.rest_until.load(Relaxed)
    }

    /// A yield has ended now.
    pub(crate) fn learn(&self, is_late: bool, now_ns: u64) {
        let lateness = self.lateness.load(Relaxed);
        let mut next = if is_late {
            lateness + LATE
        } else {
            lateness.saturating_sub(1)
        };
        if next >= TOO_LATE {
            let rest = (self.last_rest.load(Relaxed) * 2).clamp(REST_NS.0, REST_NS.1);
            self.last_rest.store(rest, Relaxed);
            self.rest_until.store(now_ns + rest, Relaxed);
            // One more ends the next attempt.
            next = TOO_LATE - LATE;
        } else if next == 0 {
            self.last_rest.store(0, Relaxed);
        }
        self.lateness.store(next, Relaxed);
    }
}

/// The receives of a connection that do not wait.
#[derive(Debug)]
pub(crate) struct Polls {
    /// How many have found nothing since the last yield, or since one that has.
    in_vain: AtomicU32,
    /// Whether the last one was followed by a yield.
    has_yielded: AtomicBool,
    yields: Yields,
}

impl Polls {
    pub(crate) const fn new() -> Self {
        Self {
            in_vain: AtomicU32::new(0),
            has_yielded: AtomicBool::new(false),
            yields: Yields::new(),
        }
    }

    /// A receive has ended. Returns whether the thread is to yield: a program that polls makes no
    /// system call by which its peer would get the processor.
    pub(crate) fn note(&self, has_found: bool) -> bool {
        if self.has_yielded.load(Relaxed) {
            self.has_yielded.store(false, Relaxed);
            self.yields.learn(has_found);
        }
        let in_vain = self.in_vain.load(Relaxed);
        if has_found {
            if in_vain != 0 {
                self.in_vain.store(0, Relaxed);
            }
            return false;
        }
        let is_due = in_vain + 1 >= BETWEEN_YIELDS || self.yields.come_first();
        self.in_vain
            .store(if is_due { 0 } else { in_vain + 1 }, Relaxed);
        self.has_yielded.store(is_due, Relaxed);
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Receives in vain until one is followed by a yield.
    fn receives_before_a_yield(polls: &Polls) -> u32 {
        (1..).find(|_| polls.note(false)).unwrap_or(0)
    }

    #[test]
    fn polls_yield_at_once_while_yields_pay() {
        let polls = Polls::new();
        for _ in 0..ENOUGH {
            assert_eq!(receives_before_a_yield(&polls), BETWEEN_YIELDS);
            assert!(!polls.note(true));
        }
        for _ in 0..3 {
            assert_eq!(receives_before_a_yield(&polls), 1);
            assert!(!polls.note(true));
        }
        assert_eq!(receives_before_a_yield(&polls), 1);
        // One in vain.
        assert_eq!(receives_before_a_yield(&polls), BETWEEN_YIELDS);
    }

    #[test]
    fn octets_that_come_without_a_yield_say_nothing_of_yields() {
        let polls = Polls::new();
        for _ in 0..3 * ENOUGH {
            assert!(!polls.note(false));
            assert!(!polls.note(true));
        }
        assert_eq!(receives_before_a_yield(&polls), BETWEEN_YIELDS);
    }

    #[test]
    fn waits_rest_from_yields_that_are_late_each_time_and_longer_while_they_are() {
        let last = LastYields::new();
        let mut now = 0;
        for _ in 1..TOO_LATE / LATE {
            last.learn(true, now);
            assert!(last.is_due(now));
        }
        for rest in [100_000_000, 200_000_000, 400_000_000] {
            last.learn(true, now);
            assert!(!last.is_due(now + rest - 1));
            now += rest;
            assert!(last.is_due(now));
        }
        for _ in 0..TOO_LATE {
            last.learn(false, now);
        }
        for _ in 0..TOO_LATE / LATE {
            last.learn(true, now);
        }
        assert!(last.is_due(now + REST_NS.0));
    }

    #[test]
    fn waits_go_on_to_yield_while_few_yields_are_late() {
        let last = LastYields::new();
        for yields in 0..1_000 {
            last.learn(yields % (LATE + 2) == 0, 0);
            assert!(last.is_due(0));
        }
    }
}
