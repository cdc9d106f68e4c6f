//! Probes of a connection on which nothing else is sent: without them, a host that ends without a
//! word is never noticed.

use std::time::{Duration, Instant};

use urdma_node_table::Region;

use crate::ffi::{Id, Memory};

/// Between two probes. One that is not answered fails a few seconds later.
pub(crate) const PROBE_EVERY: Duration = Duration::from_secs(5);
/// How often the answer to one is looked for that is late.
const PROBE_LOOK: Duration = Duration::from_secs(1);
/// Octets that a probe reads.
pub(crate) const PROBE_LEN: usize = 8;

/// The probes of one connection.
#[derive(Debug)]
pub(crate) struct Probe {
    /// Memory of the peer.
    region: Region,
    next: Instant,
    is_pending: bool,
}

impl Probe {
    /// Of the peer that has described this memory.
    pub(crate) fn new(region: Region) -> Self {
        Self {
            region,
            next: Instant::now() + PROBE_EVERY,
            is_pending: false,
        }
    }

    /// Sends the next one, if it is time and the last one has been answered; `false`: the queue
    /// pair does not take it.
    pub(crate) fn send(&mut self, now: Instant, wr_id: u64, cm: &Id, memory: &Memory) -> bool {
        if self.is_pending || now < self.next {
            return true;
        }
        (self.next, self.is_pending) = (now + PROBE_EVERY, true);
        let len = self.region.len_octets.min(PROBE_LEN as u64);
        let len = u32::try_from(len).unwrap_or(0);
        cm.read(wr_id, memory, (self.region.addr, self.region.rkey), len)
    }

    /// After how long the answer is to be looked for, or the next one sent.
    pub(crate) fn due(&self, now: Instant) -> Duration {
        match self.next.checked_duration_since(now) {
            Some(left) => left,
            // It has not been answered.
            None if self.is_pending => PROBE_LOOK,
            None => Duration::ZERO,
        }
    }

    /// The last one was answered.
    pub(crate) fn answered(&mut self) {
        self.is_pending = false;
    }
}
