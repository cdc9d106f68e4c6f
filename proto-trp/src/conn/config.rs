//! The configuration of a connection: sizes at creation, addresses and limits at each step of
//! `ibv_modify_qp`.

use super::stream::CongestionAlgorithm;
use crate::wire::WINDOW_UNIT_PACKETS;
use urdma_types::{Psn, Qpn};

/// Parameters that are fixed when the queue pair is created (`ibv_create_qp`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnConfig {
    /// This end's queue pair number.
    pub local_qpn: Qpn,
    /// Maximum number of outstanding send work requests, 1..=32768; rounded up to a power of two.
    pub sq_depth: u32,
    /// Maximum number of outstanding receive work requests, 0..=32768; rounded up to a power of
    /// two.
    pub rq_depth: u32,
    /// Receive work requests are taken from a shared receive queue through
    /// [`super::Host::take_shared_recv`], and `rq_depth` bounds how many may be in use by messages
    /// that are arriving.
    pub shared_recv: bool,
    /// Requests name a shared receive queue of the peer ([`super::SendWr::shared_queue`]) in an
    /// extension of their packets (XRC).
    pub names_shared_queue: bool,
    /// The service is UC: without acknowledgement and retransmission, reads and atomics.
    pub unreliable: bool,
    /// The queue pair goes to ERROR when its peer is gone, as an RNIC's does when its stream ends
    /// (RFC 5040 section 5.4). Otherwise, as InfiniBand has it, only a send that the peer does not
    /// answer fails.
    pub fails_with_peer: bool,
    /// Scatter-gather elements of one send work request, 1..=[`MAX_SGE`].
    pub max_send_sge: u8,
    /// Scatter-gather elements of one receive work request, 1..=[`MAX_SGE`].
    pub max_recv_sge: u8,
    /// Octets of inline data that one send work request may carry, 0..=[`MAX_INLINE`].
    pub max_inline: u32,
    /// Maximum number of packets in flight per direction, a multiple of 256 in
    /// 256..=[`MAX_WINDOW_PACKETS`]. Memory is allocated as a path proves to need it: 40 octets per
    /// packet in flight, 32 octets and a bit for one that arrives ahead of a missing one, and the
    /// payload of such a write.
    pub window_packets: u32,
    /// Bound of [`RtrParams::max_dest_rd_atomic`], 0..=[`MAX_RD_ATOMIC`].
    pub max_dest_rd_atomic_cap: u8,
    /// The congestion controller on a network. An unreliable connection has a fixed window instead.
    pub congestion: CongestionAlgorithm,
    /// Seeds values that must not be guessable, or equal between connections.
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

/// Parameters of the transition from INIT to RTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtrParams {
    /// The peer's queue pair number.
    pub remote_qpn: Qpn,
    /// The peer's initial PSN (`rq_psn`).
    pub remote_psn: Psn,
    /// Largest datagram of the path: TRP header, extensions and DDP segment, without UDP;
    /// 256..=65507, what IPv4 can carry.
    pub max_datagram_octets: u32,
    /// Maximum number of the peer's reads and atomics in progress (`max_dest_rd_atomic`, IRD).
    pub max_dest_rd_atomic: u8,
    /// The code of the delay in RNR packets (`min_rnr_timer`, 0..=31).
    pub min_rnr_timer: u8,
    /// The transport to the peer.
    pub path: Path,
}

/// By which transport a connection reaches its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// TRP over a network.
    Network,
    /// A channel between two processes of one host (doc/spec/channel.md). The sequence numbers only
    /// distinguish connections, and `max_datagram_octets` has no meaning.
    Channel,
}

/// Parameters of the transition from RTR to RTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtsParams {
    /// The initial PSN of this end (`sq_psn`).
    pub local_psn: Psn,
    /// Local acknowledge timeout code, 4.096 us * 2^code, 0 for no bound, 0..=31.
    pub timeout: u8,
    /// Timeouts in silence before the peer counts as gone, 0..=7 (`retry_cnt`).
    pub retry_cnt: u8,
    /// RNR packets before a send fails, 0..=7, 7 for no bound.
    pub rnr_retry: u8,
    /// Maximum number of this end's reads and atomics in progress (`max_rd_atomic`, ORD).
    pub max_rd_atomic: u8,
    /// Keep-alive interval of an idle connection, 0 for none.
    pub keepalive_ns: u64,
}

/// Maximum number of scatter-gather elements of one work request.
pub const MAX_SGE: u8 = 32;
/// Maximum length of inline data, in octets.
pub const MAX_INLINE: u32 = 1024;
/// Maximum number of packets in flight: 94 MB at an MTU of 1500, 584 MB at 9000.
pub const MAX_WINDOW_PACKETS: u32 = 255 * WINDOW_UNIT_PACKETS;
/// Maximum number of reads and atomics in progress.
pub const MAX_RD_ATOMIC: u8 = 128;
/// Maximum length of a message, in octets.
pub const MAX_MESSAGE_OCTETS: u64 = 1 << 31;
