//! Header prediction (as in TCP: Jacobson, "4BSD TCP Header Prediction", 1990): the packets of
//! which a stream of RDMA Writes consists are recognised by comparing the first octets with those
//! of the next one. Everything else is left to [`super::TrpHeader::parse`].

use super::ddp::{self, Stag, TaggedOffset};
use super::octets::{be16, be32, be64};
use super::rdmap::Opcode;
use super::size::TAGGED_OVERHEAD;
use super::trp::{field, ConnectionId, Flags, PacketType, HEADER_LEN, WINDOW_UNIT_PACKETS};
use urdma_types::Psn;

/// The octet of the flags in the first 8 octets.
const FLAGS: u64 = 0xff << (56 - 8 * field::FLAGS);
/// What of the two control octets must be as in a Write: the reserved bits and "last" need not.
const CONTROL_MASK: u16 = u16::from_be_bytes([
    ddp::CONTROL_TAGGED | ddp::CONTROL_VERSION_MASK,
    ddp::RDMAP_VERSION_MASK | ddp::RDMAP_OPCODE_MASK,
]);
const CONTROL: u16 =
    u16::from_be_bytes([ddp::CONTROL_TAGGED | ddp::VERSION, Opcode::Write.control()]);

/// The first 8 octets of a DATA packet of one stream, with flags of 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prediction(u64);

/// A valid DATA packet without extensions, which carries a part of an RDMA Write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PredictedWrite {
    /// Flags of the packet.
    pub flags: Flags,
    /// The receive window in packets.
    pub window_packets: u32,
    /// Cumulative acknowledgement.
    pub ack: Psn,
    /// Memory to write to.
    pub stag: Stag,
    /// Where the payload goes, which begins at [`TAGGED_OVERHEAD`].
    pub offset: TaggedOffset,
}

impl Prediction {
    /// No packet is as predicted.
    pub const NONE: Self = Self(0);

    /// Packets of the stream `id` to the queue pair with this index.
    pub const fn new(destination_index: u16, id: ConnectionId) -> Self {
        let [a, b] = destination_index.to_be_bytes();
        let [c, d, e, f] = id.to_u32().to_be_bytes();
        let first = PacketType::Data.first_octet();
        Self(u64::from_be_bytes([first, 0, a, b, c, d, e, f]))
    }

    /// The packet that begins with `head`, if it is the one with this PSN and carries a part of an
    /// RDMA Write.
    #[inline(always)]
    pub fn parse(self, psn: Psn, head: &[u8]) -> Option<PredictedWrite> {
        let octets: &[u8; TAGGED_OVERHEAD] = head.first_chunk()?;
        // PSN and number of extension words, which is 0.
        let is_next = be32(octets, field::PSN) == psn.to_u32() << 8;
        let is_write = be16(octets, HEADER_LEN) & CONTROL_MASK == CONTROL;
        let window = octets[field::WINDOW];
        if be64(octets, 0) & !FLAGS != self.0 || !is_next || !is_write || window == 0 {
            return None;
        }
        Some(PredictedWrite {
            flags: Flags::from_octet(octets[field::FLAGS]),
            window_packets: u32::from(window) * WINDOW_UNIT_PACKETS,
            ack: Psn::new(be32(octets, field::EXTENSION_WORDS)),
            stag: Stag(be32(octets, HEADER_LEN + ddp::tagged::STAG)),
            offset: TaggedOffset(be64(octets, HEADER_LEN + ddp::tagged::OFFSET)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{encode, Extensions, Segment, SegmentKind, TrpHeader};

    /// What the general parser makes of a packet that may be predicted.
    fn by_general_parser(usual: &TrpHeader, octets: &[u8]) -> Option<PredictedWrite> {
        let (trp, segment) = Segment::parse(octets, octets.len()).ok()?;
        let SegmentKind::Write { stag, offset } = segment.kind else {
            return None;
        };
        let is_usual = trp.kind == PacketType::Data
            && trp.destination_index == usual.destination_index
            && trp.connection_id == usual.connection_id
            && trp.psn == usual.psn
            && trp.extension_words == 0;
        is_usual.then_some(PredictedWrite {
            flags: trp.flags,
            window_packets: trp.window_packets(),
            ack: trp.ack,
            stag,
            offset,
        })
    }

    #[test]
    fn predicted_packet_with_any_octet_changed_is_read_as_by_the_general_parser() {
        let usual = TrpHeader {
            kind: PacketType::Data,
            flags: Flags::ACK_REQUESTED | Flags::TRAINS,
            destination_index: 0x1234,
            connection_id: ConnectionId::from_u32(0xdead_beef),
            window: 5,
            psn: Psn::new(0x00ff_ffff),
            ack: Psn::new(0x000d_0e0f),
            extension_words: 0,
        };
        let write = SegmentKind::Write {
            stag: Stag(0x1122_3344),
            offset: TaggedOffset(0x0102_0304_0506_0708),
        };
        let mut packet = [0; 200];
        encode(&usual, &Extensions::NONE, &write, true, &mut packet).expect("room for the headers");
        let prediction = Prediction::new(usual.destination_index, usual.connection_id);
        let mut predicted = 0;
        for at in 0..TAGGED_OVERHEAD {
            for octet in 0..=u8::MAX {
                let mut packet = packet;
                packet[at] = octet;
                let read = prediction.parse(usual.psn, &packet);
                assert_eq!(read, by_general_parser(&usual, &packet), "{at} {octet}");
                predicted += u32::from(read.is_some());
                assert_eq!(Prediction::NONE.parse(usual.psn, &packet), None);
            }
        }
        assert!(predicted > 14 * 256, "{predicted}");
        assert_eq!(
            prediction.parse(usual.psn, &packet[..TAGGED_OVERHEAD - 1]),
            None
        );
    }
}
