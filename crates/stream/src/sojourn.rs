//! How long transfers take, which tells whether a sender without adverts loses time when it waits.
//!
//! Each message of the peer says how many messages it has received; a transfer is answered by the
//! first that counts it. The least time that a transfer has taken is that of an idle path. If the
//! answers take several times as long, transfers wait for others: path and peer stay busy while
//! this end waits for the adverts that the transfers on the way release, and an indirect transfer
//! would arrive no earlier. If they take about the least, the path would be idle during the wait.

use std::collections::VecDeque;

use crate::types::Clock;

/// Path and peer are busy if an answer takes this many times the least.
const BUSY: u64 = 2;
/// A wait ends when the oldest transfer without answer is older than this many times what answers
/// take, and this time besides, which is about a time slice of the peer's thread: the peer's user
/// posts no receives.
const PATIENCE: u64 = 4;
const PATIENCE_NS: u64 = 5_000_000;
/// An indirect transfer is preferred to direct ones that are shorter than this: copying fewer
/// octets takes less time than a transfer.
pub(crate) const SHORT_OCTETS: u64 = 4096;
/// The last transfer is one part in eight of a mean.
const MEAN_OF: u64 = 8;
/// Of this number of short transfers through the ring, one is timed.
const TIMED_OF: u8 = 16;

/// A transfer without answer: the number of its message, and when it was posted.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Unanswered {
    number: u64,
    at_ns: u64,
}

/// What a sender knows of its transfers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sojourn {
    unanswered: VecDeque<Unanswered>,
    /// Of completions and answers.
    least_ns: u64,
    /// The mean of answers, of which recent ones count more; 0 before the first.
    answer_ns: u64,
    /// The mean length of direct transfers; recent ones count more.
    direct_octets: u64,
    /// How many short transfers are not timed from now on.
    untimed: u8,
}

impl Sojourn {
    pub(crate) fn new() -> Self {
        Self {
            unanswered: VecDeque::new(),
            least_ns: u64::MAX,
            answer_ns: 0,
            direct_octets: 0,
            untimed: 0,
        }
    }

    /// Whether a short transfer, which is now posted, is timed.
    pub(crate) fn is_due(&mut self) -> bool {
        let left = self.untimed.checked_sub(1);
        self.untimed = left.unwrap_or(TIMED_OF - 1);
        left.is_none()
    }

    /// A direct transfer of `octets` octets begins.
    pub(crate) fn begin_direct(&mut self, octets: u64) {
        self.direct_octets = mean(self.direct_octets, octets);
    }

    /// The least time until a completion or an answer.
    pub(crate) fn least_ns(&self) -> u64 {
        self.least_ns
    }

    /// The last work request of a transfer, which is the message with this number, is posted.
    pub(crate) fn posted(&mut self, number: u64, at_ns: u64) {
        self.unanswered.push_back(Unanswered { number, at_ns });
    }

    /// A work request that was posted at this time is complete.
    pub(crate) fn completed(&mut self, at_ns: u64, now_ns: u64) {
        self.least_ns = self.least_ns.min(now_ns.saturating_sub(at_ns).max(1));
    }

    /// The peer has received `received` messages.
    pub(crate) fn answered(&mut self, received: u64, clock: &mut impl Clock) {
        while let Some(oldest) = self.unanswered.front().copied() {
            if oldest.number > received {
                return;
            }
            self.unanswered.pop_front();
            let answer_ns = clock.now_ns().saturating_sub(oldest.at_ns).max(1);
            self.answer_ns = mean(self.answer_ns, answer_ns);
            self.least_ns = self.least_ns.min(answer_ns);
        }
    }

    /// Until when a sender without adverts, in a direct phase, does better to wait for the next one
    /// than to send the `left` octets of its send indirectly.
    pub(crate) fn wait_until(&self, left: u64) -> Option<u64> {
        let oldest = self.unanswered.front()?;
        let is_free =
            self.answer_ns / BUSY >= self.least_ns && self.direct_octets >= left.min(SHORT_OCTETS);
        is_free.then(|| {
            let patience_ns = self.answer_ns.saturating_mul(PATIENCE);
            oldest
                .at_ns
                .saturating_add(patience_ns)
                .saturating_add(PATIENCE_NS)
        })
    }

    /// Of octets that are sent and not received, those that the path itself holds; the others wait
    /// at its ends.
    pub(crate) fn of_path(&self, octets: u64) -> u64 {
        if self.answer_ns == 0 {
            return octets;
        }
        let octets = u128::from(octets) * u128::from(self.least_ns) / u128::from(self.answer_ns);
        u64::try_from(octets).unwrap_or(u64::MAX)
    }
}

/// The mean of what was before and one more; 0 before the first.
pub(crate) fn mean(before: u64, next: u64) -> u64 {
    match before {
        0 => next,
        _ => before - before / MEAN_OF + next / MEAN_OF,
    }
}
