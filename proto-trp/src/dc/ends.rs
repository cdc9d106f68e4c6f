//! How both ends name one another.

use crate::conn::TransmitPlan;
use std::net::IpAddr;
use urdma_types::{Qpn, SlotId};

/// An initiator, as a target knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DcSource {
    /// The IP source address of its packets.
    pub address: IpAddr,
    /// Its queue pair number.
    pub initiator: Qpn,
}

/// Where requests go: what an address handle and the fields of a work request name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DcTargetAddress {
    /// The IP address of the target's host.
    pub address: IpAddr,
    /// The target's number.
    pub number: Qpn,
    /// The target's access key.
    pub key: u64,
    /// The source address of the packets: its index in the driver's table.
    pub local: u8,
}

/// Where a packet came from, and to which address it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DcArrival {
    /// The IP source address.
    pub address: IpAddr,
    /// The slot that its UDP source port names; that of a host's daemon for its RESETs.
    pub sender: SlotId,
    /// The IP destination address: its index in the driver's table.
    pub local: u8,
}

impl DcArrival {
    /// Whether the process of a queue pair at an address sent the packet, or, for a RESET, the
    /// daemon of its host.
    pub(super) fn is_from(&self, address: IpAddr, peer: Qpn, is_reset: bool) -> bool {
        // R3-9
        //# A packet of a connection MUST be accepted only from its peer: its IP source address is
        //# the one that the connection was set up with, and its UDP source port is that of the
        //# peer's QPN or that of the peer's slot (e = 0); in a RESET, it is that of the peer's slot
        //# or of its daemon.
        let is_sender = self.sender == peer.slot() || is_reset && self.sender == SlotId::DAEMON;
        self.address == address && is_sender
    }
}

/// What would be sent next, and where it goes.
#[derive(Clone, Copy, Debug)]
pub struct DcPlan {
    /// The IP address of the peer's host.
    pub address: IpAddr,
    /// The peer's number.
    pub peer: Qpn,
    /// The source address of the packet: its index in the driver's table.
    pub local: u8,
    /// Octets that the buffer must hold.
    pub room: usize,
    pub(super) plan: TransmitPlan,
    /// The context, of a target.
    pub(super) place: u32,
}
