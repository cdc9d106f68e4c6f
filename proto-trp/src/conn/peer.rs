//! The peer of a connection, and the constants of the path to it.

use crate::wire::{ConnectionId, Prediction};
use urdma_types::Qpn;

/// The smallest datagram that a path may be limited to.
pub(super) const MIN_DATAGRAM: u32 = 256;
/// The largest datagram of any path: what fits into an IPv4 packet behind its header and UDP's.
pub(super) const MAX_DATAGRAM: u32 = 65_535 - 28;

/// The peer, the path to it, and what both ends have agreed on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    /// Index of the peer's queue pair in its process.
    pub(super) index: u16,
    /// Connection id of the outgoing stream.
    pub(super) tx_id: ConnectionId,
    /// Connection id of the incoming stream.
    pub(super) rx_id: ConnectionId,
    /// The first octets of the usual packet of the incoming stream.
    pub(super) prediction: Prediction,
    pub(super) max_datagram: usize,
    /// Maximum payload of a tagged segment, in octets.
    pub(super) max_tagged: u32,
    /// Maximum payload of an untagged segment, in octets.
    pub(super) max_untagged: u32,
    pub(super) min_rnr_timer: u8,
    pub(super) rnr_retry: u8,
    /// The peer has announced that it accepts trains.
    pub(super) takes_trains: bool,
    pub(super) remote_qpn: Option<Qpn>,
}

impl Peer {
    pub(super) const NONE: Self = Self {
        index: 0,
        tx_id: ConnectionId::from_u32(0),
        rx_id: ConnectionId::from_u32(0),
        prediction: Prediction::NONE,
        max_datagram: 0,
        max_tagged: 0,
        max_untagged: 0,
        min_rnr_timer: 0,
        rnr_retry: 0,
        takes_trains: false,
        remote_qpn: None,
    };
}
