//! What was received for one segment, by itself or in a train, and why it may be refused.

use super::types::Status;
use crate::wire::{Flags, TerminateCause};
use urdma_types::Psn;

/// Why a segment was not taken.
#[derive(Clone, Copy, Debug)]
pub(super) enum Refusal {
    /// Not now: the peer will send it again.
    Later,
    /// No receive request is posted for its message.
    NotReady,
    /// The peer is at fault.
    Fault(TerminateCause),
    /// The expected message cannot be received: how its request ends, and what the peer is told.
    Receive(Status, TerminateCause),
    /// The list of this read or atomic cannot take the answer.
    Sink(u32),
}

/// What of a received packet concerns one segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet<'a> {
    pub(super) psn: Psn,
    pub(super) flags: Flags,
    /// A private copy of the first octets of the segment.
    pub(super) ddp: &'a [u8],
    /// Where in the datagram the segment begins.
    pub(super) at: usize,
    /// Where it ends.
    pub(super) end: usize,
}
