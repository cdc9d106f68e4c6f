//! What the connections to one process have in common.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::bell;
use crate::own::Own;

/// How many sleeps are remembered, since several sets of a process may sleep at once.
const SLEEPS: usize = 8;

/// The process of a peer.
#[derive(Debug)]
pub(crate) struct Peer {
    /// The bell of its agent.
    agent: Own,
    /// Sleeps of its sets for which a bell was rung, at their numbers modulo [`SLEEPS`].
    rung: [AtomicU64; SLEEPS],
}

impl Peer {
    pub(crate) const fn new(agent: Own) -> Self {
        Self {
            agent,
            rung: [const { AtomicU64::new(0) }; SLEEPS],
        }
    }

    /// Calls its agent.
    pub(crate) fn call(&self) {
        bell::ring(self.agent.as_raw_fd());
    }

    /// Whether a bell was rung for a sleep. The thread that wakes, or another one of the process,
    /// looks at every member that was armed for that sleep.
    pub(crate) fn is_rung(&self, sleep: u64) -> bool {
        self.rung_at(sleep).load(SeqCst) == sleep
    }

    /// A bell was rung for a sleep; 0 is none.
    pub(crate) fn note_rung(&self, sleep: u64) {
        if sleep != 0 {
            self.rung_at(sleep).store(sleep, SeqCst);
        }
    }

    fn rung_at(&self, sleep: u64) -> &AtomicU64 {
        let index = usize::try_from(sleep % SLEEPS as u64).unwrap_or(0);
        &self.rung[index]
    }
}
