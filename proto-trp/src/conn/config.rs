//! What a connection is made with: sizes at creation, addresses and limits at each step of `ibv_modify_qp`.

use super::congestion::CongestionAlgorithm;
use crate::wire::WINDOW_UNIT_PACKETS;
use urdma_types::{Psn, Qpn};

/// What is fixed when the queue pair is created (`ibv_create_qp`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnConfig {
    /// This end's queue pair number.
    pub local_qpn: Qpn,
    /// Send work requests that may be outstanding, 1..=32768; rounded up to a power of two.
    pub sq_depth: u32,
    /// Receive work requests that may be outstanding, 0..=32768; rounded up to a power of two.
    pub rq_depth: u32,
    /// Receive work requests come from a shared queue through [`super::Host::take_shared_recv`], and `rq_depth` bounds how many may
    /// be in use by half-arrived messages.
    pub shared_recv: bool,
    /// Requests name a shared receive queue of the peer ([`super::SendWr::shared_queue`]); the packets have an extension for that.
    pub names_shared_queue: bool,
    /// Nothing is acknowledged or sent again (verbs: UC). There are no reads and atomics then.
    pub unreliable: bool,
    /// The queue pair goes to ERROR when its peer is gone, as an RNIC's does when its stream ends (RFC 5040 section 5.4). Otherwise, as
    /// InfiniBand has it, only a send that the peer does not answer fails.
    pub fails_with_peer: bool,
    /// Scatter-gather elements of one send work request, 1..=[`MAX_SGE`].
    pub max_send_sge: u8,
    /// Scatter-gather elements of one receive work request, 1..=[`MAX_SGE`].
    pub max_recv_sge: u8,
    /// Octets of inline data that one send work request may carry, 0..=[`MAX_INLINE`].
    pub max_inline: u32,
    /// Packets in flight per direction at most, a multiple of 256 in 256..=[`MAX_WINDOW_PACKETS`]. Memory is taken as a path proves to
    /// need it: 40 octets a packet in flight, 32 octets and a bit for one that arrives ahead of a missing one, and
    /// its payload if it is a write's.
    pub window_packets: u32,
    /// Reads and atomics of the peer that may be in progress here at most, whatever [`RtrParams::max_dest_rd_atomic`] says
    /// later, 0..=[`MAX_RD_ATOMIC`].
    pub max_dest_rd_atomic_cap: u8,
    /// The congestion controller on a network. A path inside a host and an unreliable connection
    /// have a fixed window instead.
    pub congestion: CongestionAlgorithm,
    /// Varies what must not be guessed or synchronous between connections.
    pub seed: u64,
}

impl ConnConfig {
    /// Usual sizes for a queue pair with this number.
    pub const fn new(local_qpn: Qpn) -> Self {
        Self {
            local_qpn,
            sq_depth: 128,
            rq_depth: 128,
            shared_recv: false,
            names_shared_queue: false,
            unreliable: false,
            fails_with_peer: false,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline: 256,
            window_packets: MAX_WINDOW_PACKETS,
            max_dest_rd_atomic_cap: 16,
            congestion: CongestionAlgorithm::DelayBased,
            seed: 0,
        }
    }
}

/// What the step from INIT to RTR says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtrParams {
    /// The peer's queue pair number.
    pub remote_qpn: Qpn,
    /// Initial sequence number of the peer (`rq_psn`).
    pub remote_psn: Psn,
    /// Largest datagram of the path: TRP header, extensions and DDP segment, without UDP; 256..=[`MAX_DATAGRAM`].
    pub max_datagram_octets: u32,
    /// Reads and atomics that the peer may have outstanding (`max_dest_rd_atomic`).
    pub max_dest_rd_atomic: u8,
    /// The code of the delay that RNR answers ask for (`min_rnr_timer`, 0..=31).
    pub min_rnr_timer: u8,
    /// The path stays in this host's memory and loses nothing: acknowledgements are coalesced, the window is fixed.
    pub reliable_path: bool,
}

/// What the step from RTR to RTS says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtsParams {
    /// Initial sequence number of this end (`sq_psn`).
    pub local_psn: Psn,
    /// Local acknowledge timeout code, 4.096 us * 2^code, 0 for no bound, 0..=31.
    pub timeout: u8,
    /// Silent timeouts before the peer counts as gone, 0..=7.
    pub retry_cnt: u8,
    /// Receiver-not-ready answers before a send fails, 0..=7, 7 for no bound.
    pub rnr_retry: u8,
    /// Reads and atomics that this end may have outstanding (`max_rd_atomic`).
    pub max_rd_atomic: u8,
    /// Silence after which an idle connection asks whether the peer lives, 0 for never.
    pub keepalive_ns: u64,
}

/// Scatter-gather elements of one work request at most.
pub const MAX_SGE: u8 = 32;
/// Octets of inline data at most.
pub const MAX_INLINE: u32 = 1024;
/// Packets in flight at most: 94 MB at an MTU of 1500, 584 MB at 9000.
pub const MAX_WINDOW_PACKETS: u32 = 255 * WINDOW_UNIT_PACKETS;
/// Reads and atomics in progress at most.
pub const MAX_RD_ATOMIC: u8 = 128;
/// Octets of one datagram at most.
pub const MAX_DATAGRAM: u32 = 65_536 + 64;
/// Octets of one message at most.
pub const MAX_MESSAGE_OCTETS: u64 = 1 << 31;
