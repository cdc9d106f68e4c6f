//! Slots of processes that have ended: in the hands of the data thread, and waited for.

use std::collections::VecDeque;
use std::time::Instant;

use urdma_types::SlotId;

use crate::data::command::{NotTaken, Pending};
use crate::slots::Token;

/// A slot whose process has ended, while the data thread takes the last packets of the process.
#[derive(Debug)]
pub(super) struct Detaching {
    pub(super) token: Token,
    pub(super) pid: i32,
    pub(super) slot: SlotId,
    pub(super) generation: u32,
    pub(super) closing: Pending<()>,
    /// The request to detach that is to be answered.
    pub(super) request: Option<u64>,
}

/// Slots that are not free yet, and the requests for slots that wait for them.
#[derive(Debug, Default)]
pub(crate) struct Reaping {
    detaching: VecDeque<Detaching>,
    /// The slots that have been freed so far.
    freed: u64,
    /// Clients, each with the number of slots that are to be freed before.
    waiting: Vec<(Token, u64)>,
}

impl Reaping {
    /// Whether a request of a client waits until the slots are free that are not yet.
    pub(super) fn holds(&mut self, token: Token) -> bool {
        let not_yet = self.detaching.len() as u64;
        if not_yet > 0 {
            self.waiting.push((token, self.freed + not_yet));
        }
        not_yet > 0
    }

    /// The data thread is to be done with a slot.
    pub(super) fn push(&mut self, detaching: Detaching) {
        self.detaching.push_back(detaching);
    }

    /// When the data thread is not waited for any more.
    pub(super) fn due_at(&self) -> Option<Instant> {
        let first = self.detaching.front()?;
        Some(first.closing.deadline())
    }

    /// A slot that the data thread has done with, in the order in which they were given to it.
    pub(super) fn next(&mut self) -> Option<(Detaching, Result<(), NotTaken>)> {
        let outcome = self.detaching.front()?.closing.poll()?;
        self.freed += 1;
        Some((self.detaching.pop_front()?, outcome))
    }

    /// The clients that have waited for the slots that are free now.
    pub(super) fn take_served(&mut self) -> Vec<Token> {
        let freed = self.freed;
        let served = self.waiting.extract_if(.., |(_, after)| *after <= freed);
        served.map(|(token, _)| token).collect()
    }
}
