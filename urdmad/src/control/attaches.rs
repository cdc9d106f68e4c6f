//! The rate at which a user attaches, and whose requests wait for it.
//!
//! An attach makes memory, wakes the data thread and, at its end, all other processes, so one
//! program that attaches and detaches without pause would take most of the control thread's time.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::slots::Token;
use crate::user_limits::UserLimits;

/// Attaches of one user at once, and then in a second: four times as many as there are slots, so
/// that programs which start together do not wait.
pub(super) const PER_SECOND: u32 = 1000;

/// The limits of all users, and whose requests wait.
#[derive(Debug)]
pub(crate) struct Attaches {
    start: Instant,
    limits: UserLimits,
    /// By user, in the order of the requests; no queue is empty.
    waiting: BTreeMap<u32, VecDeque<Token>>,
}

impl Attaches {
    /// No requests yet.
    pub(crate) fn new() -> Self {
        Self::within(UserLimits::per_second(PER_SECOND))
    }

    pub(super) fn within(limits: UserLimits) -> Self {
        Self {
            start: Instant::now(),
            limits,
            waiting: BTreeMap::new(),
        }
    }

    fn ns(&self, now: Instant) -> u64 {
        let since = now.saturating_duration_since(self.start).as_nanos();
        u64::try_from(since).unwrap_or(u64::MAX)
    }

    /// Whether a request of a client of `uid` is to be handled now. If not, the client waits.
    pub(super) fn admits(&mut self, now: Instant, uid: u32, token: Token) -> bool {
        let now_ns = self.ns(now);
        if !self.waiting.contains_key(&uid) && self.limits.allows(now_ns, uid) {
            return true;
        }
        self.waiting.entry(uid).or_default().push_back(token);
        false
    }

    /// A client whose request is due; it waits no more.
    pub(super) fn next(&mut self, now: Instant) -> Option<Token> {
        let now_ns = self.ns(now);
        let mut users = self.waiting.keys().copied();
        let uid = users.find(|uid| self.limits.allows(now_ns, *uid))?;
        let queue = self.waiting.get_mut(&uid)?;
        let token = queue.pop_front();
        if queue.is_empty() {
            self.waiting.remove(&uid);
        }
        token
    }

    /// When the next request is due, if one waits.
    pub(super) fn due_at(&self) -> Option<Instant> {
        let users = self.waiting.keys();
        let due_ns = users.map(|uid| self.limits.allows_at_ns(*uid)).min()?;
        Some(self.start + Duration::from_nanos(due_ns))
    }

    /// The number of clients that wait.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.waiting.values().map(VecDeque::len).sum()
    }

    /// A client of `uid` waits no more.
    pub(super) fn forget(&mut self, uid: u32, token: Token) {
        if let Some(queue) = self.waiting.get_mut(&uid) {
            queue.retain(|waiting| *waiting != token);
            if queue.is_empty() {
                self.waiting.remove(&uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_trp::limit::RateLimit;

    const A: u32 = 64_001;
    const B: u32 = 64_002;
    const MS_NS: u64 = 1_000_000;

    #[test]
    fn requests_beyond_the_rate_are_due_in_their_order_one_after_the_other() {
        let mut attaches = Attaches::within(UserLimits::new(RateLimit::new(2, MS_NS)));
        let start = attaches.start;
        let at = |ns| start + Duration::from_nanos(ns);
        let admitted: Vec<bool> = (1..=5)
            .map(|token| attaches.admits(start, A, token))
            .collect();
        assert_eq!(admitted, [true, true, false, false, false]);
        assert!(attaches.admits(start, B, 6));
        assert_eq!(attaches.next(start), None);
        let mut due = Vec::new();
        while let Some(due_at) = attaches.due_at() {
            assert_eq!(attaches.next(due_at - Duration::from_nanos(1)), None);
            due.push((attaches.next(due_at), due_at));
        }
        let times = [1, 1 + MS_NS, 1 + 2 * MS_NS].map(at);
        assert_eq!(
            due,
            [3, 4, 5]
                .map(Some)
                .into_iter()
                .zip(times)
                .collect::<Vec<_>>()
        );
        // One that comes later does not overtake those that wait.
        assert!(!attaches.admits(times[2], A, 7));
        assert!(!attaches.admits(at(1000 * MS_NS), A, 8));
        assert_eq!(attaches.next(at(1000 * MS_NS)), Some(7));
    }

    #[test]
    fn clients_that_have_gone_use_nothing_of_the_rate() {
        let mut attaches = Attaches::within(UserLimits::new(RateLimit::new(1, MS_NS)));
        let start = attaches.start;
        for token in 1..=4 {
            attaches.admits(start, A, token);
        }
        attaches.forget(A, 2);
        attaches.forget(A, 3);
        assert_eq!(attaches.next(start + Duration::from_millis(2)), Some(4));
        assert_eq!(attaches.due_at(), None);
        assert!(attaches.waiting.is_empty());
    }
}
