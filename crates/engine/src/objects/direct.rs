//! Completions that an application's poll finds while it polls: they go to the poll and not through
//! the ring of the completion queue, which has a lock of its own.
//!
//! A poll that has found its queue empty takes the engine's lock and names the queue. What
//! completes there until the poll has read it waits here, while the lock is held. A completion goes
//! to the ring if the ring is not empty, so that the order of a queue pair's completions is kept;
//! if the queue is armed or keeps times; and if the poll has no room for more.
//!
//! What waits here takes no place of the ring beyond the lock, and is not counted as polled: those
//! counts are written under the ring's lock (`qp::Polled`).

#![allow(unsafe_code)]

use std::ptr;
use std::sync::Arc;

use super::cq::Cq;
use crate::fault::{has, Fault};
use crate::types::WorkCompletion;

/// Completions for one poll at most; more go to the ring.
const ENTRIES: usize = 16;

/// See the module.
#[derive(Debug)]
pub(crate) struct Direct {
    /// The queue that is polled; null between polls.
    cq: *const Cq,
    room: usize,
    len: usize,
    entries: [WorkCompletion; ENTRIES],
}

// SAFETY: the pointer is only compared.
unsafe impl Send for Direct {}

impl Default for Direct {
    fn default() -> Self {
        Self {
            cq: ptr::null(),
            room: 0,
            len: 0,
            entries: [WorkCompletion::NONE; ENTRIES],
        }
    }
}

impl Direct {
    /// A poll of `cq` begins, for at most `max` completions.
    #[inline(always)]
    pub(crate) fn begin(&mut self, cq: &Cq, max: usize) {
        self.cq = cq;
        self.room = max.min(ENTRIES);
        self.len = 0;
    }

    /// The poll takes what has come; returns the number.
    #[inline(always)]
    pub(crate) fn end(&mut self, mut take: impl FnMut(&WorkCompletion)) -> usize {
        self.cq = ptr::null();
        let mut at = 0;
        while let Some(completion) = self.entries[..self.len].get(at) {
            take(completion);
            at += 1;
        }
        at
    }

    /// Whether anything has come.
    #[inline(always)]
    pub(crate) fn has_any(&self) -> bool {
        self.len > 0
    }

    /// Whether the next completion of `cq` goes to the poll, so that no other thread sees it before
    /// the lock is released.
    #[inline(always)]
    pub(crate) fn takes(&self, cq: &Arc<Cq>) -> bool {
        let is_polled = ptr::eq(Arc::as_ptr(cq), self.cq);
        let is_next = cq.is_plainly_empty() || has(Fault::Overtaking);
        is_polled && self.len < self.room && is_next
    }

    /// Adds a completion of `cq`, here or in the queue's ring; whether it waits in the ring, until
    /// a poll counts it.
    #[inline(always)]
    pub(crate) fn push(&mut self, cq: &Arc<Cq>, completion: &WorkCompletion) -> bool {
        self.put(self.takes(cq), cq, completion)
    }

    /// As [`Direct::push`]; `takes` is what [`Direct::takes`] has just returned.
    #[inline(always)]
    pub(crate) fn put(&mut self, takes: bool, cq: &Arc<Cq>, completion: &WorkCompletion) -> bool {
        if takes {
            self.entries[self.len] = *completion;
            self.len += 1;
            has(Fault::CountUnlocked)
        } else {
            cq.push(completion);
            true
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::objects::cq::{CqConfig, Notify};

    fn cq(keeps_time: bool) -> Arc<Cq> {
        let cq = Cq::new(CqConfig {
            keeps_time,
            ..CqConfig::with_depth(1)
        });
        let cq = cq.unwrap();
        cq.attach(16).unwrap();
        cq
    }

    /// Pushes completions with these identifiers.
    fn push(direct: &mut Direct, cq: &Arc<Cq>, ids: std::ops::Range<u64>) {
        for id in ids {
            let mut completion = WorkCompletion::NONE;
            completion.completion.wr_id = id;
            direct.push(cq, &completion);
        }
    }

    fn ids(take: impl FnOnce(&mut dyn FnMut(&WorkCompletion)) -> usize) -> Vec<u64> {
        let mut ids = Vec::new();
        take(&mut |completion| ids.push(completion.completion.wr_id));
        ids
    }

    #[test]
    fn completions_beyond_the_room_of_a_poll_follow_in_the_ring() {
        let (cq, other) = (cq(false), cq(false));
        let mut direct = Direct::default();
        direct.begin(&cq, 2);
        push(&mut direct, &cq, 0..5);
        push(&mut direct, &other, 5..6);
        assert!(direct.has_any());
        assert_eq!(ids(|take| direct.end(take)), [0, 1]);
        // The poll has ended.
        push(&mut direct, &cq, 6..7);
        assert_eq!(ids(|take| cq.pop(16, take)), [2, 3, 4, 6]);
        assert_eq!(ids(|take| other.pop(16, take)), [5]);
        direct.begin(&cq, 2);
        assert!(!direct.has_any());
    }

    #[test]
    fn completions_after_one_in_the_ring_and_of_watched_queues_go_to_the_ring() {
        let (plain, armed, timed) = (cq(false), cq(false), cq(true));
        push(&mut Direct::default(), &plain, 9..10);
        armed.arm(Notify::Any);
        for (cq, waiting) in [(&plain, vec![9, 0]), (&armed, vec![0]), (&timed, vec![0])] {
            let mut direct = Direct::default();
            direct.begin(cq, 16);
            push(&mut direct, cq, 0..1);
            assert!(ids(|take| direct.end(take)).is_empty());
            assert_eq!(ids(|take| cq.pop(16, take)), waiting);
        }
    }
}
