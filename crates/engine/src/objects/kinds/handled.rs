//! What is to be done after a packet that was for no connection.

use proto_trp::wire::{TrpHeader, DC_RESET_LEN};

/// What is to be done after a packet.
pub(crate) enum Handled {
    /// It is for no queue pair that takes packets.
    NoQueuePair,
    /// Nothing.
    Done,
    /// Send this RESET to where the packet came from, at a limited rate; the number is its length.
    Answer([u8; DC_RESET_LEN], usize),
}

impl Handled {
    /// An answer.
    pub(crate) fn reset(header: &TrpHeader) -> Self {
        let mut octets = [0; DC_RESET_LEN];
        header
            .encode(&mut octets)
            .map_or(Self::Done, |len| Self::Answer(octets, len))
    }
}
