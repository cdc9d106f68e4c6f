//! When a thread that looks for octets yields the processor: its peer may be on the same one, where
//! it answers only then.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};

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
}
