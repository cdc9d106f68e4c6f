//! Requests for the status, which are answered in rounds: each asks every process for its report
//! once, however many requests it answers, so that the time for all of them is bounded.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use crate::data::command::{Pending, Reported};
use crate::slots::Token;

/// The time between the starts of two rounds.
const INTERVAL: Duration = Duration::from_millis(50);
/// Time limit for the reports of processes; slower ones are shown without a report.
const REPORT_LIMIT: Duration = Duration::from_millis(100);
/// Requests that a round answers, of each user in turn.
const ANSWERS_MAX: usize = 16;

/// A request of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) token: Token,
    /// The client's user.
    pub(super) uid: u32,
    /// The number of the request.
    pub(super) id: u64,
}

/// Requests that a round answers, once it is over.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) asked: Vec<Asked>,
    /// The processes that have not reported.
    pub(super) missing: HashSet<Token>,
    /// The state of the port, once the data thread has given it.
    pub(super) port: Option<Reported>,
    /// It has not given it yet.
    port_pending: Option<Pending<Reported>>,
    deadline: Instant,
}

impl Round {
    /// Whether nothing is waited for any more.
    fn is_over(&mut self, now: Instant) -> bool {
        if let Some(answer) = self.port_pending.as_ref().and_then(Pending::poll) {
            self.port = answer.ok();
            self.port_pending = None;
        }
        self.port_pending.is_none() && (self.missing.is_empty() || self.deadline <= now)
    }

    /// When it is over, unless there are answers before.
    fn due_at(&self) -> Instant {
        let of_port = self.port_pending.as_ref().map(Pending::deadline);
        of_port.map_or(self.deadline, |of_port| self.deadline.max(of_port))
    }
}

/// The requests that are not answered.
#[derive(Debug, Default)]
pub(crate) struct Statuses {
    /// For later rounds, in the order in which they came.
    waiting: Vec<Asked>,
    round: Option<Round>,
    /// The start of the last round.
    began_at: Option<Instant>,
}

impl Statuses {
    /// Takes a request.
    pub(super) fn ask(&mut self, asked: Asked) {
        self.waiting.push(asked);
    }

    /// The requests of a client that are not answered.
    pub(super) fn of_client(&self, token: Token) -> usize {
        let in_round = self.round.iter().flat_map(|round| &round.asked);
        let all = self.waiting.iter().chain(in_round);
        all.filter(|asked| asked.token == token).count()
    }

    /// The requests of the next round, if one may begin: the oldest of each user, then the next of
    /// each.
    pub(super) fn next(&mut self, now: Instant) -> Option<Vec<Asked>> {
        if self.round.is_some() || self.waiting.is_empty() || now < self.opens_at(now) {
            return None;
        }
        let mut of_user: BTreeMap<u32, usize> = BTreeMap::new();
        let mut ranked: Vec<(usize, Asked)> = Vec::with_capacity(self.waiting.len());
        for asked in self.waiting.drain(..) {
            let before = of_user.entry(asked.uid).or_default();
            ranked.push((*before, asked));
            *before += 1;
        }
        // A stable sort, so that the oldest come last.
        ranked.reverse();
        ranked.sort_by_key(|(rank, _)| Reverse(*rank));
        let chosen = ranked.split_off(ranked.len().saturating_sub(ANSWERS_MAX));
        self.waiting = ranked.into_iter().rev().map(|(_, asked)| asked).collect();
        Some(chosen.into_iter().rev().map(|(_, asked)| asked).collect())
    }

    /// Begins a round that waits for the reports of `missing` and, if there is a port, for its
    /// state.
    pub(super) fn begin(
        &mut self,
        now: Instant,
        asked: Vec<Asked>,
        missing: HashSet<Token>,
        port: Option<Pending<Reported>>,
    ) {
        self.began_at = Some(now);
        self.round = Some(Round {
            asked,
            missing,
            port: None,
            port_pending: port,
            deadline: now + REPORT_LIMIT,
        });
    }

    /// The round, if all have reported or its time is over.
    pub(super) fn take_over(&mut self, now: Instant) -> Option<Round> {
        self.round.take_if(|round| round.is_over(now))
    }

    /// A process has reported.
    pub(super) fn has_reported(&mut self, token: Token) {
        if let Some(round) = &mut self.round {
            round.missing.remove(&token);
        }
    }

    /// A client has gone.
    pub(super) fn forget(&mut self, token: Token) {
        self.has_reported(token);
        self.waiting.retain(|asked| asked.token != token);
        if let Some(round) = &mut self.round {
            round.asked.retain(|asked| asked.token != token);
        }
    }

    /// When there is something to do, unless a process reports before.
    pub(super) fn due_at(&self, now: Instant) -> Option<Instant> {
        match &self.round {
            Some(round) => Some(round.due_at()),
            None => (!self.waiting.is_empty()).then(|| self.opens_at(now)),
        }
    }

    fn opens_at(&self, now: Instant) -> Instant {
        self.began_at.map_or(now, |began_at| began_at + INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use urdma_waiting::OwnPage;

    use super::*;
    use crate::data::command::{Command, Inbox};

    fn asked(uid: u32, id: u64) -> Asked {
        Asked {
            token: u64::from(uid),
            uid,
            id,
        }
    }

    #[test]
    fn round_answers_users_in_turn_and_later_rounds_the_rest_in_order() {
        let mut statuses = Statuses::default();
        let now = Instant::now();
        (0..40).for_each(|id| statuses.ask(asked(7, id)));
        statuses.ask(asked(8, 0));
        statuses.ask(asked(9, 0));
        let first = statuses.next(now).unwrap();
        assert_eq!(first.len(), ANSWERS_MAX);
        assert_eq!(first[..3], [asked(7, 0), asked(8, 0), asked(9, 0)]);
        let rest: Vec<Asked> = (1..14).map(|id| asked(7, id)).collect();
        assert_eq!(first[3..], rest);
        statuses.begin(now, first, HashSet::new(), None);
        assert_eq!(statuses.next(now + INTERVAL), None);
        assert_eq!(statuses.of_client(7), 40);
        assert_eq!(statuses.take_over(now).unwrap().asked.len(), ANSWERS_MAX);
        // One that comes later is answered before those of a user that has asked for many.
        statuses.ask(asked(8, 1));
        assert_eq!(statuses.next(now), None);
        assert_eq!(statuses.due_at(now), Some(now + INTERVAL));
        let second = statuses.next(now + INTERVAL).unwrap();
        assert_eq!(second[..3], [asked(7, 14), asked(8, 1), asked(7, 15)]);
    }

    #[test]
    fn round_is_over_when_all_have_reported_or_gone_or_when_its_time_is() {
        let mut statuses = Statuses::default();
        let now = Instant::now();
        for ends in [false, true] {
            let both = vec![asked(7, 1), asked(8, 1)];
            statuses.begin(now, both, HashSet::from([1, 2]), None);
            assert_eq!(statuses.due_at(now), Some(now + REPORT_LIMIT));
            statuses.has_reported(1);
            assert!(statuses.take_over(now).is_none());
            if ends {
                statuses.forget(2);
                statuses.forget(8);
                assert_eq!(statuses.take_over(now).unwrap().asked, [asked(7, 1)]);
            } else {
                let late = statuses.take_over(now + REPORT_LIMIT).unwrap();
                assert_eq!(late.missing, HashSet::from([2]));
            }
        }
        assert_eq!(statuses.due_at(now), None);
    }

    #[test]
    fn round_waits_for_the_port_longer_than_for_processes() {
        let inbox = Inbox::new();
        let (page, _) = OwnPage::create().unwrap();
        let data = inbox.handle(Arc::new(page));
        let mut statuses = Statuses::default();
        let now = Instant::now();
        let port = Some(data.report().unwrap());
        statuses.begin(now, vec![asked(7, 1)], HashSet::from([1]), port);
        assert!(statuses.take_over(now + REPORT_LIMIT).is_none());
        assert!(statuses.due_at(now).unwrap() > now + REPORT_LIMIT);
        let Some(Command::Report { done }) = inbox.pop() else {
            panic!("the port is not asked");
        };
        done.send(Reported::default()).unwrap();
        let late = statuses.take_over(now + REPORT_LIMIT).unwrap();
        assert!(late.port.is_some());
    }
}
