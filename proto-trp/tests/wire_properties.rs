//! Properties of the wire formats over random values: what is encoded is parsed to the same value,
//! and no octets make a parser panic.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use proto_trp::wire::train::{OVERHEAD, SEGMENTS_MAX};
use proto_trp::wire::{
    self, connection_id, AtomicOperation, AtomicRequest, AtomicResponse, ConnectionId, Extensions,
    Flags, ImmediateData, Msn, PacketType, ReadRequest, RnrTimer, Sack, Segment, SegmentKind, Stag,
    TaggedOffset, Terminate, TerminateCause, Timestamp, Train, TrainWriter, TrpHeader,
    HEAD_LEN_MAX, SEGMENT_HEAD_LEN,
};
use urdma_types::{Psn, Qpn, SlotId};

fn psn() -> impl Strategy<Value = Psn> {
    // Near the wrap as often as anywhere.
    prop_oneof![
        0u32..1 << 24,
        (0u32..64).prop_map(|n| n.wrapping_sub(32) & 0xff_ffff)
    ]
    .prop_map(Psn::new)
}

fn qpn() -> impl Strategy<Value = Qpn> {
    (0u8..254, 1u16..).prop_map(|(slot, index)| Qpn::new(SlotId::new(slot).unwrap(), index))
}

fn header(kind: PacketType) -> impl Strategy<Value = TrpHeader> {
    (0u8..32, any::<u16>(), any::<u32>(), 1u8.., psn(), psn()).prop_map(
        move |(flags, index, id, window, psn, ack)| TrpHeader {
            kind,
            // `encode` sets IMM.
            flags: Flags::from_octet(flags & !Flags::IMMEDIATE.octet()),
            destination_index: index,
            connection_id: ConnectionId::from_u32(id),
            window,
            psn,
            ack,
            extension_words: 0,
        },
    )
}

fn sack() -> impl Strategy<Value = Sack> {
    let bits = proptest::collection::vec(0u32..512, 1..20);
    (0u32..65_536, bits).prop_map(|(first, bits)| {
        let mut sack = Sack::starting_at(first);
        bits.into_iter()
            .for_each(|bit| sack.insert(32 * first + bit));
        sack
    })
}

fn extensions() -> impl Strategy<Value = Extensions> {
    let timestamp =
        any::<(u32, u32)>().prop_map(|(value_us, echo_us)| Timestamp { value_us, echo_us });
    (
        proptest::option::of(sack()),
        proptest::option::of(timestamp),
        proptest::option::of((0u8..32).prop_map(RnrTimer::new)),
        proptest::option::of(any::<u32>()),
    )
        .prop_map(|(sack, timestamp, rnr_timer, shared_queue)| Extensions {
            sack,
            timestamp,
            rnr_timer,
            shared_queue,
        })
}

fn operation() -> impl Strategy<Value = AtomicOperation> {
    (0..3, any::<(u64, u64, u64, u64)>()).prop_map(|(which, (a, b, c, d))| match which {
        0 => AtomicOperation::FetchAdd { add: a, mask: b },
        1 => AtomicOperation::Write {
            octets: a.to_be_bytes(),
        },
        _ => AtomicOperation::CompareSwap {
            swap: a,
            swap_mask: b,
            compare: c,
            compare_mask: d,
        },
    })
}

fn terminate() -> impl Strategy<Value = Terminate> {
    (
        proptest::sample::select(TerminateCause::ALL),
        proptest::collection::vec(any::<u8>(), 0..64),
        any::<u16>(),
    )
        .prop_map(|(cause, segment, len)| Terminate::about(cause, &segment, len.into()))
}

fn kind() -> impl Strategy<Value = SegmentKind> {
    let place = || any::<(u32, u64)>().prop_map(|(stag, to)| (Stag(stag), TaggedOffset(to)));
    let msn = || any::<u32>().prop_map(Msn);
    prop_oneof![
        place().prop_map(|(stag, offset)| SegmentKind::Write { stag, offset }),
        place().prop_map(|(stag, offset)| SegmentKind::ReadResponse { stag, offset }),
        (msn(), any::<u32>(), any::<bool>(), 0u8..3, any::<u32>()).prop_map(
            |(msn, offset, solicited, variant, ulp)| SegmentKind::Send {
                msn,
                offset,
                solicited,
                invalidate: (variant == 1).then_some(Stag(ulp)),
                immediate: (variant == 2).then_some(ulp),
            }
        ),
        (msn(), place(), place(), any::<u32>()).prop_map(|(msn, sink, source, len_octets)| {
            let request = ReadRequest {
                sink_stag: sink.0,
                sink_offset: sink.1,
                len_octets,
                source_stag: source.0,
                source_offset: source.1,
            };
            SegmentKind::ReadRequest { msn, request }
        }),
        (msn(), terminate()).prop_map(|(msn, terminate)| SegmentKind::Terminate { msn, terminate }),
        (msn(), any::<bool>(), any::<(u32, u32)>()).prop_map(|(msn, solicited, (imm, len))| {
            let data = ImmediateData {
                immediate: imm,
                write_len_octets: len,
            };
            SegmentKind::Immediate {
                msn,
                solicited,
                data,
            }
        }),
        (msn(), any::<u32>(), place(), operation()).prop_map(
            |(msn, request_id, (stag, offset), operation)| {
                let request = AtomicRequest {
                    request_id,
                    stag,
                    offset,
                    operation,
                };
                SegmentKind::AtomicRequest { msn, request }
            }
        ),
        (msn(), any::<u32>(), any::<u64>()).prop_map(|(msn, request_id, original)| {
            let response = AtomicResponse {
                request_id,
                original,
            };
            SegmentKind::AtomicResponse { msn, response }
        }),
    ]
}

fn carries_payload(kind: &SegmentKind) -> bool {
    matches!(
        kind,
        SegmentKind::Write { .. } | SegmentKind::ReadResponse { .. } | SegmentKind::Send { .. }
    )
}

proptest! {
    #[test]
    fn data_packet_round_trips(
        carrier in proptest::sample::select(&[PacketType::Data, PacketType::UnreliableData][..]),
        trp in header(PacketType::Data),
        extensions in extensions(),
        kind in kind(),
        last in any::<bool>(),
        payload_len in 0usize..70_000,
    ) {
        let trp = TrpHeader { kind: carrier, ..trp };
        let mut buf = [0; HEAD_LEN_MAX];
        let len = wire::encode(&trp, &extensions, &kind, last, &mut buf).unwrap();
        let payload_len = if carries_payload(&kind) { payload_len } else { 0 };
        let (packet, segment) = Segment::parse(&buf, len + payload_len).unwrap();
        prop_assert_eq!(segment.kind, kind);
        prop_assert_eq!(segment.payload_len, payload_len);
        if carries_payload(&kind) {
            prop_assert_eq!((segment.last, segment.payload_offset), (last, len));
        }
        let immediate = matches!(kind, SegmentKind::Send { immediate: Some(_), .. });
        let flags = if immediate { trp.flags | Flags::IMMEDIATE } else { trp.flags };
        let expected = TrpHeader { flags, extension_words: extensions.words(), ..trp };
        prop_assert_eq!(packet, expected);
        prop_assert_eq!(Extensions::parse(packet.extension_octets(&buf)).unwrap(), extensions);
    }

    #[test]
    fn packet_without_segment_round_trips(
        kind in proptest::sample::select(&[
            PacketType::Ack, PacketType::Rnr, PacketType::Fin, PacketType::FinAck,
            PacketType::Probe,
        ][..]),
        trp in header(PacketType::Ack),
        extensions in extensions(),
    ) {
        let trp = TrpHeader { kind, ..trp };
        let mut buf = [0; HEAD_LEN_MAX];
        let len = wire::encode(&trp, &extensions, &SegmentKind::Absent, true, &mut buf).unwrap();
        let (packet, segment) = Segment::parse(&buf[..len], len).unwrap();
        prop_assert_eq!(packet, TrpHeader { extension_words: extensions.words(), ..trp });
        prop_assert_eq!(segment.kind, SegmentKind::Absent);
    }

    #[test]
    fn train_round_trips(
        trp in header(PacketType::Train),
        segments in proptest::collection::vec(
            (kind(), any::<bool>(), 0usize..300), 1..=SEGMENTS_MAX,
        ),
    ) {
        let mut buf = vec![0xee; 8192];
        let mut train = TrainWriter::default();
        for (kind, last, payload_len) in &segments {
            let begin = train.end();
            let headers = wire::encode_segment(kind, *last, &mut buf[begin..]).unwrap();
            let payload_len = if carries_payload(kind) { *payload_len } else { 0 };
            let has_immediate = matches!(kind, SegmentKind::Send { immediate: Some(_), .. });
            train.push(headers + payload_len, has_immediate);
        }
        let len = train.finish(&trp, &mut buf).unwrap();
        let parsed = TrpHeader::parse(&buf[..len.min(HEAD_LEN_MAX)], len).unwrap();
        prop_assert_eq!(parsed, trp);
        let found = Train::parse(&parsed, &buf[..len.min(HEAD_LEN_MAX)], len).unwrap();
        prop_assert_eq!(found.pieces().len(), segments.len());
        for (piece, (kind, last, payload_len)) in found.pieces().zip(&segments) {
            let flags = if piece.has_immediate { Flags::IMMEDIATE } else { Flags::NONE };
            let end = piece.at + piece.len;
            let head = &buf[piece.at..end.min(piece.at + SEGMENT_HEAD_LEN)];
            let segment = Segment::parse_at(flags, head, piece.at, end).unwrap();
            prop_assert_eq!(segment.kind, *kind);
            if carries_payload(kind) {
                prop_assert_eq!((segment.last, segment.payload_len), (*last, *payload_len));
                prop_assert_eq!(segment.payload_offset + segment.payload_len, end);
            }
        }
    }

    #[test]
    fn tables_of_random_trains_name_octets_of_the_packet(
        lens in proptest::collection::vec(0u16..80, SEGMENTS_MAX),
        off in -1i8..=1,
        mut octets in proptest::collection::vec(any::<u8>(), OVERHEAD..HEAD_LEN_MAX),
    ) {
        (octets[0], octets[8], octets[12]) = (0x1a, 1, 0);
        let used = lens.iter().position(|&len| len == 0).unwrap_or(SEGMENTS_MAX);
        for (entry, len) in octets[16..OVERHEAD].chunks_exact_mut(2).zip(&lens) {
            entry.copy_from_slice(&len.to_be_bytes());
        }
        let sum: usize = lens[..used].iter().map(|&len| usize::from(len)).sum();
        let len = (OVERHEAD + sum).saturating_add_signed(off.into());
        let is_good = off == 0
            && used > 0
            && lens[..used].iter().all(|&len| len >= 14)
            && lens[used..].iter().all(|&len| len == 0);
        let parsed = TrpHeader::parse(&octets, len);
        prop_assert_eq!(parsed.is_ok(), is_good, "{:?}", parsed);
        let Ok(trp) = parsed else { return Ok(()) };
        let train = Train::parse(&trp, &octets, len).unwrap();
        let mut at = OVERHEAD;
        for piece in train.pieces() {
            prop_assert_eq!(piece.at, at);
            at += piece.len;
        }
        prop_assert_eq!(at, len);
    }

    #[test]
    fn parsers_of_random_octets_never_panic(
        mut octets in proptest::collection::vec(any::<u8>(), 0..HEAD_LEN_MAX),
        len in 0usize..70_000,
        plausible in any::<bool>(),
    ) {
        if plausible && octets.len() > 18 {
            octets[0] = 0x10;
            octets[12] %= 4;
            let ddp = 16 + 4 * usize::from(octets[12]);
            if let Some([control, rdmap]) = octets.get_mut(ddp..ddp + 2) {
                *control = (*control & 0xc0) | 1;
                *rdmap = 0x40 | (*rdmap & 0x0f);
            }
        }
        if let Ok((_, segment)) = Segment::parse(&octets, len) {
            prop_assert!(segment.payload_offset + segment.payload_len <= len);
        }
        let _ = Segment::parse(&octets, octets.len());
        let _ = Extensions::parse(&octets);
        let _ = Terminate::parse(&octets);
    }

    #[test]
    fn psn_arithmetic_agrees_with_wide_integers(
        base in psn(), step in 0u32..1 << 23, far in 0u32..1 << 24,
    ) {
        let later = base.add(step);
        prop_assert_eq!(later.distance(base), i32::try_from(step).unwrap());
        prop_assert_eq!(base.distance(later), -i32::try_from(step).unwrap());
        prop_assert_eq!(base.precedes(later), step != 0);
        prop_assert!(!later.precedes(base));
        prop_assert_eq!(base.add(far).offset_from(base), far);
        prop_assert_eq!(base.add(far).sub(far), base);
        let sum = u64::from(base.to_u32()) + u64::from(step);
        prop_assert_eq!(u64::from(later.to_u32()), sum % (1 << 24));
    }

    #[test]
    fn msn_arithmetic_crosses_the_wrap(base in any::<u32>(), step in 0u32..1 << 31) {
        let later = Msn(base.wrapping_add(step));
        prop_assert_eq!(later.distance(Msn(base)), i32::try_from(step).unwrap());
        prop_assert_eq!(Msn(base).next().distance(Msn(base)), 1);
    }

    #[test]
    fn connection_id_depends_on_each_input(a in qpn(), b in qpn(), psn in psn(), bit in 0u32..24) {
        let id = connection_id(a, b, psn);
        prop_assert_ne!(id.to_u32(), 0);
        prop_assert_ne!(id, connection_id(a, b, Psn::new(psn.to_u32() ^ (1 << bit))));
    }

    #[test]
    fn sack_says_what_was_inserted(
        first in 0u32..20, bits in proptest::collection::btree_set(0u32..1200, 0..80)
    ) {
        let mut sack = Sack::starting_at(first);
        bits.iter().for_each(|&bit| sack.insert(bit));
        let reach = 32 * first..32 * first + 512;
        let expected: Vec<u32> = bits.into_iter().filter(|bit| reach.contains(bit)).collect();
        prop_assert_eq!(sack.iter().collect::<Vec<_>>(), expected.clone());
        prop_assert!(expected.iter().all(|&bit| sack.contains(bit)));
        prop_assert_eq!(sack.is_empty(), expected.is_empty());
    }
}
