//! The traffic of processes, as they have counted it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use urdma_channel::{PeerRecords, Traffic};

use crate::slots::Token;

/// Octets or packets that a process can have sent in a microsecond, at most: more than the
/// memory of a machine can take.
const PER_US_MAX: u64 = 1 << 20;
/// Added to the time that has passed, since the totals may be a little newer.
const ALLOWANCE: Duration = Duration::from_millis(10);

/// The totals of all processes, and the processes that are to store theirs.
#[derive(Debug, Default)]
pub(crate) struct Counting {
    /// Of all processes that are and were attached.
    pub(crate) total: Traffic,
    pub(crate) counted_at: Option<Instant>,
    /// Programs wait for the counters.
    pub(crate) has_readers: bool,
    /// When the processes that have not answered are not waited for any more, while totals are
    /// collected.
    pub(crate) deadline: Option<Instant>,
    pub(crate) missing: HashSet<Token>,
}

/// The totals of one process, of which only what is new is taken.
#[derive(Debug)]
pub(crate) struct Tally {
    records: Arc<PeerRecords>,
    seen: Traffic,
    at: Instant,
    /// It was asked then to store its totals, and has not answered.
    pub(crate) asked_at: Option<Instant>,
}

impl Tally {
    /// The totals of a process that has just attached.
    pub(crate) fn new(records: Arc<PeerRecords>, now: Instant) -> Self {
        Self {
            records,
            seen: Traffic::default(),
            at: now,
            asked_at: None,
        }
    }

    /// What the process has stored since the last call.
    pub(crate) fn take_new(&mut self, now: Instant) -> Traffic {
        let since = now.saturating_duration_since(self.at);
        self.at = now;
        let new = growth(self.seen, self.records.traffic(), since);
        self.seen += new;
        new
    }
}

/// How much totals have grown. A process chooses its totals: those that go back have not grown, and
/// those that cannot be true count as what can be, so that the counters of all processes neither go
/// back nor reach their end.
fn growth(seen: Traffic, found: Traffic, since: Duration) -> Traffic {
    let micros = u64::try_from((since + ALLOWANCE).as_micros()).unwrap_or(u64::MAX);
    let most = micros.saturating_mul(PER_US_MAX);
    found.zip(seen, |found, seen| found.saturating_sub(seen).min(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_grow_by_what_is_new() {
        let (records, fd) = urdma_channel::OwnRecords::create().unwrap();
        let now = Instant::now();
        let mut tally = Tally::new(Arc::new(PeerRecords::open(fd).unwrap()), now);
        let stored = |sent_octets| Traffic {
            sent_octets,
            ..Traffic::default()
        };
        assert_eq!(tally.take_new(now), stored(0));
        records.publish(stored(5000));
        assert_eq!(tally.take_new(now), stored(5000));
        assert_eq!(tally.take_new(now), stored(0));
        records.publish(stored(5001));
        assert_eq!(tally.take_new(now), stored(1));
    }

    #[test]
    fn totals_that_cannot_be_true_are_bounded() {
        let totals = |sent_octets, received_octets| Traffic {
            sent_octets,
            received_octets,
            ..Traffic::default()
        };
        let second = Duration::from_secs(1);
        // A total that goes back, and one that is at its end.
        let new = growth(totals(100, 100), totals(50, u64::MAX), second);
        let most = PER_US_MAX * 1_010_000;
        assert_eq!(new, totals(0, most));
    }
}
