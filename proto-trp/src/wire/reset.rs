//! RESET: what a host answers to a packet that no queue pair takes (doc/spec/trp.md, section 8.4).

use super::trp::{Flags, PacketType, TrpHeader};
use urdma_types::Psn;

/// The bit of the window field that marks the acknowledgement as valid.
const ACKNOWLEDGES: u8 = 0x80;

/// Why nothing takes the packet; the low seven bits of the window field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ResetReason {
    /// The process has ended, or has no such queue pair.
    NoQueuePair = 0,
    /// The queue pair is in ERROR.
    Failed = 1,
    /// The queue pair is in RESET or INIT; it may be connected yet.
    NotConnected = 2,
}

impl ResetReason {
    /// The reason with this number; one that version 1 does not define means that the queue pair is
    /// gone.
    #[must_use]
    pub const fn from_number(number: u64) -> Self {
        match number {
            1 => ResetReason::Failed,
            2 => ResetReason::NotConnected,
            // R8.4-7
            //# A reason that it does not know MUST be treated as 0.
            _ => ResetReason::NoQueuePair,
        }
    }
}

impl TrpHeader {
    /// The RESET that answers a packet whose first 16 octets could be read, for a receiver that
    /// keeps no state.
    ///
    /// `None` when the packet is a RESET, no connection's or an unreliable one's, which are never
    /// answered so.
    pub fn reset_for(offender: &TrpHeader, reason: ResetReason) -> Option<Self> {
        // R8.4-1
        //# It MUST NOT answer RESET, CM, DATAGRAM or UDATA with RESET.
        if matches!(
            offender.kind,
            PacketType::Reset | PacketType::Cm | PacketType::Datagram | PacketType::UnreliableData
        ) {
            return None;
        }
        // R8.4-4
        //# A RESET MUST have these values, except that of section 17.2.
        Some(Self {
            kind: PacketType::Reset,
            flags: Flags::NONE,
            destination_index: 0,
            connection_id: offender.connection_id,
            window: reason as u8,
            psn: Psn::new(u32::from(offender.destination_index)),
            ack: Psn::new(0),
            extension_words: 0,
        })
    }

    /// The RESET that answers the datagram of `len` octets that begins with `head`, as
    /// [`TrpHeader::reset_for`]. `delivered` tells the sequence number that a queue pair, by its
    /// index, expects next of a stream, by its connection id; the RESET then acknowledges the
    /// packets before it.
    pub fn reset_answering(
        (head, len): (&[u8], usize),
        reason: ResetReason,
        delivered: impl FnOnce(u16, u32) -> Option<u32>,
    ) -> Option<Self> {
        let offender = Self::parse(head, len).ok()?;
        let reset = Self::reset_for(&offender, reason)?;
        // R8.4-2
        //# It MUST NOT answer a packet that fails checks 1 to 4 of section 4.3.
        let next = delivered(offender.destination_index, offender.connection_id.to_u32());
        Some(next.map_or(reset, |next| reset.acknowledging(Psn::new(next))))
    }

    /// A RESET that says besides that every packet before `next` of the stream that it names was
    /// taken.
    #[must_use]
    pub const fn acknowledging(self, next: Psn) -> Self {
        Self {
            window: self.window | ACKNOWLEDGES,
            ack: next,
            ..self
        }
    }

    /// Why a RESET was sent; a reason that version 1 does not define means that the queue pair is
    /// gone.
    pub const fn reset_reason(&self) -> ResetReason {
        ResetReason::from_number((self.window & !ACKNOWLEDGES) as u64)
    }

    /// What a RESET acknowledges, if anything.
    pub fn reset_acknowledges(&self) -> Option<Psn> {
        (self.window & ACKNOWLEDGES != 0).then_some(self.ack)
    }
}
