//! How often a program has polled all its completion queues in vain.
//!
//! A program may poll many queues in turn: one that finds nothing in each of a hundred has looked
//! once, not a hundred times. Its queues are not known; a round begins when the queue with which
//! the last one began is polled again.

use super::cq::Cq;

/// Polls after which a round begins in any case: the first queue may not be polled any more.
const POLLS_MAX: u32 = 1024;

/// The rounds of polls that have found nothing.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    /// The address of the queue with which this one began; 0 without one.
    first: usize,
    /// Polls of this one.
    polls: u32,
    /// Those that have begun.
    begun: u32,
}

impl Rounds {
    /// A poll of a queue has found nothing.
    #[inline]
    pub(crate) fn note(&mut self, cq: &Cq) {
        let queue = std::ptr::from_ref(cq).addr();
        self.polls += 1;
        if self.first == 0 || self.first == queue || self.polls > POLLS_MAX {
            *self = Self {
                first: queue,
                polls: 0,
                begun: self.begun.saturating_add(1),
            };
        }
    }

    /// Whether `count` rounds have begun; they are counted anew then.
    pub(crate) fn take(&mut self, count: u32) -> bool {
        let has_count = self.begun >= count;
        if has_count {
            *self = Self::default();
        }
        has_count
    }
}
