//! What an end is configured with, and what it counts.

use crate::sojourn::SHORT_OCTETS;
use crate::types::{Buffer, Choice, Kind, GATHER_MAX};
use crate::wire::Hello;

/// The configuration of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// What the stream carries.
    pub kind: Kind,
    /// How this end chooses between direct and indirect transfers.
    pub choice: Choice,
    /// Receive slots: messages that this end can receive before it returns credits. At least 8.
    pub recv_slots: u16,
    /// Sends that may be queued.
    pub max_sends: usize,
    /// Receives that may be queued; also the adverts that this end takes from its peer.
    pub max_recvs: u16,
    /// Work requests that may be posted and not complete. At least 2.
    pub send_depth: usize,
    /// The most octets that one RDMA Write carries. A longer transfer is cut, so that control
    /// messages and other streams get their turn between its pieces.
    pub piece_max_octets: u32,
    /// An indirect flow pauses for one round trip, so that it can become direct again, when it has
    /// sent this many times what it could send in the pause; 0: never. doc/streams.md has the rule.
    pub pause_every: u32,
    /// Short sends that one RDMA Write carries at most: the elements of the scatter/gather list of
    /// a work request. 1 to [`GATHER_MAX`].
    pub gather_max: usize,
    /// Receives are advertised while they have at least this many octets on average, or twice as
    /// many where 8 or more are queued; shorter ones are filled from the ring, if this end and its
    /// peer permit indirect transfers.
    pub advert_min_octets: u64,
    /// The greatest length of this end's ring, which the peer may ask to be longer or shorter than
    /// that of the greeting.
    pub ring_max_octets: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            kind: Kind::Octets,
            choice: Choice::Dynamic,
            recv_slots: 128,
            max_sends: 256,
            max_recvs: 256,
            send_depth: 128,
            piece_max_octets: 256 << 10,
            pause_every: 32,
            gather_max: GATHER_MAX,
            advert_min_octets: SHORT_OCTETS,
            ring_max_octets: 64 << 20,
        }
    }
}

impl Config {
    /// The greeting of an end with this configuration and this ring.
    pub fn hello(&self, ring: Buffer) -> Hello {
        let offers_ring = self.kind == Kind::Octets && self.choice != Choice::Direct;
        Hello {
            kind: self.kind,
            choice: self.choice,
            recv_slots: self.recv_slots,
            max_adverts: self.max_recvs,
            ring: if offers_ring { ring } else { Buffer::default() },
        }
    }
}

/// What one end has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Direct transfers begun.
    pub direct_transfers: u64,
    /// Their octets.
    pub direct_octets: u64,
    /// Indirect transfers begun.
    pub indirect_transfers: u64,
    /// Their octets.
    pub indirect_octets: u64,
    /// Adverts sent.
    pub adverts_sent: u64,
    /// Adverts received and discarded since their octets had been sent indirectly.
    pub adverts_stale: u64,
    /// Pauses of indirect flows.
    pub pauses: u64,
    /// Rings of the peer that this end has taken in the place of others.
    pub rings_taken: u64,
    /// Octets copied out of the ring.
    pub copied_octets: u64,
    /// Control messages sent.
    pub controls_sent: u64,
    /// Messages of the peer that were refused.
    pub refused: u64,
}

impl Stats {
    /// Of the transfers begun, the fraction that were direct; 0 before the first.
    #[allow(clippy::cast_precision_loss)] // A ratio for people.
    pub fn direct_ratio(&self) -> f64 {
        let all = self.direct_transfers + self.indirect_transfers;
        self.direct_transfers as f64 / all.max(1) as f64
    }
}
