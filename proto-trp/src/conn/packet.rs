//! A received datagram; one received segment, from a packet of its own or from a train, and why it
//! may be refused.

use super::queues::RecvError;
use super::types::Status;
use crate::wire::{self, Flags, TerminateCause};
use urdma_types::Psn;

/// Octets at the start of a datagram that the driver copies, out of memory that others may write
/// to, before it calls [`super::Connection::handle_datagram`].
pub const HEAD_OCTETS: usize = wire::HEAD_LEN_MAX;

/// A datagram that arrived for a connection.
#[derive(Debug)]
pub struct Datagram<'a, B: ?Sized> {
    /// A private copy of the first `min(len, HEAD_OCTETS)` octets, from the TRP header on.
    pub head: &'a [u8],
    /// Length of the datagram, in octets.
    pub len: usize,
    /// The host's handle of the whole datagram.
    pub body: &'a B,
    /// The network marked it (ECN CE).
    pub congestion_experienced: bool,
}

/// Why a segment was not accepted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Refusal {
    /// Cannot be accepted now; the peer retransmits it.
    Later,
    /// No receive request is posted for its message.
    NotReady,
    /// The peer is at fault and gets a Terminate.
    Fault(TerminateCause),
    /// The expected message cannot be received: the status of its receive request, and the cause of
    /// the Terminate.
    Receive(Status, TerminateCause),
    /// The scatter-gather list of this read or atomic cannot take the response.
    Sink(u32),
}

impl From<RecvError> for Refusal {
    fn from(error: RecvError) -> Self {
        match error {
            RecvError::NotReady => Self::NotReady,
            RecvError::NoQueue => Self::Fault(TerminateCause::INVALID_QUEUE_NUMBER),
            RecvError::WrongMessage => Self::Fault(TerminateCause::MSN_OUT_OF_RANGE),
            RecvError::WrongOffset => Self::Fault(TerminateCause::INVALID_MESSAGE_OFFSET),
            RecvError::TooLong => {
                Self::Receive(Status::LocalLengthError, TerminateCause::MESSAGE_TOO_LONG)
            }
            RecvError::NoAccess => Self::Receive(
                Status::LocalProtectionError,
                TerminateCause::STREAM_CATASTROPHIC,
            ),
        }
    }
}

/// The part of a received packet that concerns one segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet<'a> {
    pub(super) psn: Psn,
    pub(super) flags: Flags,
    /// A private copy of the first octets of the segment.
    pub(super) ddp: &'a [u8],
    /// Offset of the segment in the datagram.
    pub(super) at: usize,
    /// Offset of its end.
    pub(super) end: usize,
}
