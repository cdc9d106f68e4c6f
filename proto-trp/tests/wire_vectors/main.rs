//! Vectors written by hand from doc/spec/trp.md, RFC 5040, RFC 5041 and RFC 7306: each is encoded
//! and parsed.
#![allow(clippy::unwrap_used)]

mod datagrams;
mod packets;
mod refusals;
mod segments;
mod terminate;

use proto_trp::wire::{
    self, ConnectionId, Extensions, Flags, Msn, PacketType, Segment, SegmentKind, Stag, TrpHeader,
};
use urdma_types::Psn;

/// TRP of every vector: DATA to index 0x0203, id 0xdeadbeef, window 5, PSN 0x0a0b0c, ACK 0x0d0e0f.
const TRP: [u8; 16] = [
    0x10, 0x00, 0x02, 0x03, 0xde, 0xad, 0xbe, 0xef, 0x05, 0x0a, 0x0b, 0x0c, 0x00, 0x0d, 0x0e, 0x0f,
];

fn trp() -> TrpHeader {
    TrpHeader {
        kind: PacketType::Data,
        flags: Flags::NONE,
        destination_index: 0x0203,
        connection_id: ConnectionId::from_u32(0xdead_beef),
        window: 5,
        psn: Psn::new(0x0a_0b0c),
        ack: Psn::new(0x0d_0e0f),
        extension_words: 0,
    }
}

fn datagram(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

/// Encodes and parses a segment, and compares both with the vector.
#[track_caller]
fn check(kind: SegmentKind, last: bool, flags: Flags, ddp: &[u8], payload_len: usize) {
    let mut expected = datagram(&[&TRP, ddp]);
    expected[1] = flags.octet();
    let mut buf = [0xee; 192];
    let len = wire::encode(&trp(), &Extensions::NONE, &kind, last, &mut buf).unwrap();
    assert_eq!(buf[..len], expected);
    assert_eq!(buf[len], 0xee, "an octet after the headers was written");

    let whole = datagram(&[&expected, &vec![0x55; payload_len]]);
    let (packet, segment) = Segment::parse(&whole[..whole.len().min(192)], whole.len()).unwrap();
    assert_eq!((segment.kind, segment.last), (kind, last));
    assert_eq!(packet, TrpHeader { flags, ..trp() });
    assert_eq!(segment.payload_len, payload_len);
    if matches!(
        kind,
        SegmentKind::Write { .. } | SegmentKind::ReadResponse { .. } | SegmentKind::Send { .. }
    ) {
        assert_eq!(segment.payload_offset, expected.len());
        assert_eq!(kind.overhead(), expected.len());
    }
}

fn send(solicited: bool, invalidate: Option<Stag>, immediate: Option<u32>) -> SegmentKind {
    SegmentKind::Send {
        msn: Msn(7),
        offset: 0x0001_0000,
        solicited,
        invalidate,
        immediate,
    }
}

#[rustfmt::skip]
fn send_octets(rdmap: u8, ulp: [u8; 4]) -> [u8; 18] {
    [
        0x41, rdmap, ulp[0], ulp[1], ulp[2], ulp[3], // L, DV 1; RV 1, opcode; reserved for the ULP
        0, 0, 0, 0, // QN
        0, 0, 0, 7, // MSN
        0, 1, 0, 0, // MO
    ]
}
