//! TRP packets other than DATA, and extensions.

use super::{datagram, trp};
use proto_trp::wire::{
    self, connection_id, Extensions, Flags, Msn, PacketType, ParseError, ResetReason, RnrTimer,
    Sack, Segment, SegmentKind, Stag, TaggedOffset, Timestamp, Train, TrainWriter, TrpHeader,
};
use urdma_types::{Psn, Qpn};

#[test]
fn packet_of_an_unreliable_connection_is_a_data_packet_of_another_type() {
    let kind = SegmentKind::Write {
        stag: Stag(0x1122_3344),
        offset: TaggedOffset(0x0102_0304_0506_0708),
    };
    let header = TrpHeader {
        kind: PacketType::UnreliableData,
        ..trp()
    };
    #[rustfmt::skip]
    let expected = [
        0x19, 0x00, 0x02, 0x03, 0xde, 0xad, 0xbe, 0xef,
        0x05, 0x0a, 0x0b, 0x0c, 0x00, 0x0d, 0x0e, 0x0f,
        0xc1, 0x40, 0x11, 0x22, 0x33, 0x44, 1, 2, 3, 4, 5, 6, 7, 8,
    ];
    let mut buf = [0; 64];
    let len = wire::encode(&header, &Extensions::NONE, &kind, true, &mut buf).unwrap();
    assert_eq!(buf[..len], expected);
    let (packet, segment) = Segment::parse(&expected, expected.len() + 100).unwrap();
    assert_eq!(
        (segment.kind, segment.last, segment.payload_len),
        (kind, true, 100)
    );
    assert_eq!(packet, header);
    assert_eq!(
        TrpHeader::reset_for(&header, ResetReason::NoQueuePair),
        None
    );
    let mut closed = expected;
    closed[8] = 0;
    assert_eq!(Segment::parse(&closed, 130), Err(ParseError::Window));
}

#[test]
fn acknowledgement_with_extensions_matches_the_specification() {
    let mut sack = Sack::default();
    sack.insert(0);
    sack.insert(33);
    let extensions = Extensions {
        sack: Some(sack),
        timestamp: Some(Timestamp {
            value_us: 0x0102_0304,
            echo_us: 0x0506_0708,
        }),
        rnr_timer: Some(RnrTimer::new(12)),
        shared_queue: Some(0x00ab_cdef),
    };
    let header = TrpHeader {
        kind: PacketType::Ack,
        flags: Flags::ECN_ECHO,
        ..trp()
    };
    #[rustfmt::skip]
    let expected = [
        0x11, 0x04, 0x02, 0x03, 0xde, 0xad, 0xbe, 0xef,
        0x05, 0x0a, 0x0b, 0x0c, 0x09, 0x0d, 0x0e, 0x0f,
        1, 2, 0, 0, 0x80, 0, 0, 0, 0x40, 0, 0, 0, // SACK
        2, 2, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, // TIMESTAMP
        3, 0, 0, 12, // RNR timer
        4, 1, 0, 0, 0, 0xab, 0xcd, 0xef, // SHARED_QUEUE
    ];
    let mut buf = [0; 64];
    let len = wire::encode(&header, &extensions, &SegmentKind::Absent, true, &mut buf).unwrap();
    assert_eq!(buf[..len], expected);

    let (packet, segment) = Segment::parse(&expected, expected.len()).unwrap();
    assert_eq!(
        (segment.kind, segment.payload_len),
        (SegmentKind::Absent, 0)
    );
    let found = Extensions::parse(packet.extension_octets(&expected)).unwrap();
    assert_eq!(found, extensions);
    assert_eq!(sack.iter().collect::<Vec<_>>(), [0, 33]);
    assert!(sack.contains(33) && !sack.contains(32) && !sack.contains(5000));
}

#[test]
fn extension_of_unknown_kind_is_skipped() {
    let octets = [99, 1, 1, 2, 3, 4, 5, 6, 3, 0, 0, 31];
    let found = Extensions::parse(&octets).unwrap();
    assert_eq!(
        found,
        Extensions {
            rnr_timer: Some(RnrTimer::new(31)),
            ..Extensions::NONE
        }
    );
    assert_eq!(found.rnr_timer.unwrap().as_us(), 491_520);
}

#[test]
fn extension_with_bad_length_is_refused() {
    let long_sack = datagram(&[&[1, 17, 0, 0], &[0; 68]]);
    for octets in [
        &[1u8, 1, 0, 0][..],         // ends outside
        &[2, 1, 0, 0, 0, 0, 0, 0],   // a time stamp of one word
        &[3, 0, 0, 1, 9, 255, 0, 0], // the second ends outside
        &[3, 0, 0],                  // half a word
        &long_sack,                  // a bitmap longer than allowed
    ] {
        assert_eq!(Extensions::parse(octets), Err(ParseError::Extension));
    }
}

#[test]
fn connection_id_matches_the_specification() {
    for (sender, receiver, psn, id) in [
        (0x01_0001, 0x02_0001, 0, 0xf86a_7ad9),
        (0x02_0001, 0x01_0001, 0, 0xf24a_056c),
        (0x01_0001, 0x02_0001, 1, 0x7484_6cb3),
        (0xfd_ffff, 0xfd_ffff, 0xff_ffff, 0xff55_5d57),
        (0x01_002a, 0x02_0007, 0x12_3456, 0x4d6c_c835),
    ] {
        let sender = Qpn::from_u32(sender).unwrap();
        let receiver = Qpn::from_u32(receiver).unwrap();
        assert_eq!(
            connection_id(sender, receiver, Psn::new(psn)).to_u32(),
            id,
            "{sender} {receiver} {psn}"
        );
    }
}

#[test]
fn reset_copies_the_connection_id_of_its_cause() {
    let reset = TrpHeader::reset_for(&trp(), ResetReason::NoQueuePair).unwrap();
    let mut buf = [0; 16];
    reset.encode(&mut buf).unwrap();
    #[rustfmt::skip]
    let expected = [0x13, 0, 0, 0, 0xde, 0xad, 0xbe, 0xef, 0, 0, 0x02, 0x03, 0, 0, 0, 0];
    assert_eq!(buf, expected);
    let parsed = TrpHeader::parse(&buf, 16).unwrap();
    assert_eq!(parsed, reset);
    assert_eq!(
        TrpHeader::reset_for(&parsed, ResetReason::NoQueuePair),
        None
    );
}

#[test]
fn reset_names_its_reason_and_acknowledges_what_was_taken() {
    use ResetReason::{Failed, NoQueuePair, NotConnected};
    for (octet, reason) in [(0, NoQueuePair), (1, Failed), (2, NotConnected)] {
        let reset = TrpHeader::reset_for(&trp(), reason).unwrap();
        assert_eq!((reset.window, reset.reset_acknowledges()), (octet, None));
        let mut buf = [0; 16];
        let reset = reset.acknowledging(Psn::new(0x0d_0e0f));
        reset.encode(&mut buf).unwrap();
        #[rustfmt::skip]
        let expected = [
            0x13, 0, 0, 0, 0xde, 0xad, 0xbe, 0xef,
            0x80 | octet, 0, 0x02, 0x03, 0, 0x0d, 0x0e, 0x0f,
        ];
        assert_eq!(buf, expected);
        let parsed = TrpHeader::parse(&buf, 16).unwrap();
        assert_eq!(parsed.reset_reason(), reason);
        assert_eq!(parsed.reset_acknowledges(), Some(Psn::new(0x0d_0e0f)));
    }
    let unknown = TrpHeader {
        window: 0x7f,
        ..TrpHeader::reset_for(&trp(), NoQueuePair).unwrap()
    };
    assert_eq!(unknown.reset_reason(), NoQueuePair);
}

#[test]
fn train_is_the_specifications() {
    #[rustfmt::skip]
    let vector = [
        &[0x1a, 0x11, 0x02, 0x03, 0xde, 0xad, 0xbe, 0xef,
          0x05, 0x0a, 0x0b, 0x0c, 0x00, 0x0d, 0x0e, 0x0f][..],
        &[0x00, 0x10, 0x80, 0x14], &[0; 28],
        &[0xc1, 0x40, 0x11, 0x22, 0x33, 0x44, 1, 2, 3, 4, 5, 6, 7, 8], b"hi",
        &[0x41, 0x43, 0xfe, 0xed, 0xbe, 0xef, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0], b"ho",
    ]
    .concat();
    let header = TrpHeader {
        kind: PacketType::Train,
        flags: Flags::ACK_REQUESTED | Flags::TRAINS,
        ..trp()
    };
    let write = SegmentKind::Write {
        stag: Stag(0x1122_3344),
        offset: TaggedOffset(0x0102_0304_0506_0708),
    };
    let send = SegmentKind::Send {
        msn: Msn(7),
        offset: 0,
        solicited: false,
        invalidate: None,
        immediate: Some(0xfeed_beef),
    };
    let mut buf = [0xee; 128];
    let mut train = TrainWriter::default();
    for (kind, payload) in [(write, b"hi"), (send, b"ho")] {
        let begin = train.end();
        let end = begin + wire::encode_segment(&kind, true, &mut buf[begin..]).unwrap();
        buf[end..end + 2].copy_from_slice(payload);
        train.push(end + 2 - begin, kind == send);
    }
    let len = train.finish(&header, &mut buf).unwrap();
    assert_eq!(buf[..len], vector);
    let parsed = TrpHeader::parse(&vector, len).unwrap();
    assert_eq!(parsed, header);
    let found: Vec<(SegmentKind, usize, usize)> = Train::parse(&parsed, &vector, len)
        .unwrap()
        .pieces()
        .map(|piece| {
            let flags = if piece.has_immediate {
                Flags::IMMEDIATE
            } else {
                Flags::NONE
            };
            let end = piece.at + piece.len;
            let segment = Segment::parse_at(flags, &vector[piece.at..end], piece.at, end).unwrap();
            (segment.kind, segment.payload_offset, segment.payload_len)
        })
        .collect();
    assert_eq!(found, [(write, 62, 2), (send, 82, 2)]);
}
