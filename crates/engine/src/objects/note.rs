//! What is left to the background thread, because it needs locks or calls of others.

use std::net::IpAddr;

use urdma_types::{Qpn, SlotId};

use crate::paths::channels::{Offer, PeerChannel};

/// An event that the background thread delivers once the engine's lock is free.
#[derive(Debug)]
pub(crate) enum Note {
    /// The first message came in on this queue pair.
    QpData(Qpn),
    /// The other end of this queue pair has ended.
    QpGone(Qpn),
    /// A channel to a slot was created and is to be offered.
    Offer(SlotId, Offer),
    /// A channel was closed, and its memory is to be unmapped.
    Closed(Box<PeerChannel>),
    /// A datagram of connection management.
    Cm(IpAddr, Box<[u8]>),
    /// The process that had a slot in this generation has ended. What it sent before is in notes
    /// before this one.
    SlotGone(SlotId, u32),
    /// There is no channel to the process that had a slot. What it sent before is in notes before
    /// this one.
    Refused(SlotId),
}
