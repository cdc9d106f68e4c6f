//! Octets written down by hand from doc/spec/trp.md, RFC 5040, RFC 5041 and RFC 7306, in both directions.
#![allow(clippy::unwrap_used)]

use proto_trp::wire::datagram::group_of;
use proto_trp::wire::{
    self, connection_id, AtomicOperation, AtomicRequest, AtomicResponse, ConnectionId,
    DatagramHeader, Extensions, Flags, ImmediateData, Msn, Opcode, PacketType, ParseError,
    ReadRequest, ResetReason, RnrTimer, Sack, Segment, SegmentKind, Stag, TaggedOffset, Terminate,
    TerminateCause, Timestamp, Train, TrainWriter, TrpHeader,
};
use urdma_types::{Psn, Qpn};

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

/// Encodes and parses, and compares each with what was written down.
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

#[test]
fn write_matches_rfc_5041_section_4_2() {
    #[rustfmt::skip]
    let ddp = [
        0xc1, 0x40, // T, L, DV 1; RV 1, opcode 0
        0x11, 0x22, 0x33, 0x44, // STag
        0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, // TO
    ];
    let stag = Stag(0x1122_3344);
    let offset = TaggedOffset(0x0102_0304_0506_0708);
    check(
        SegmentKind::Write { stag, offset },
        true,
        Flags::NONE,
        &ddp,
        1442,
    );
}

#[test]
fn read_response_not_last_has_l_clear() {
    #[rustfmt::skip]
    let ddp = [0x81, 0x42, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0x10, 0];
    let stag = Stag(9);
    let offset = TaggedOffset(4096);
    check(
        SegmentKind::ReadResponse { stag, offset },
        false,
        Flags::NONE,
        &ddp,
        9000,
    );
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

#[test]
fn sends_match_rfc_5041_section_4_3() {
    let stag = Some(Stag(0xaabb_ccdd));
    let ulp = [0xaa, 0xbb, 0xcc, 0xdd];
    for (kind, rdmap, ulp, flags) in [
        (send(false, None, None), 0x43, [0; 4], Flags::NONE),
        (send(false, stag, None), 0x44, ulp, Flags::NONE),
        (send(true, None, None), 0x45, [0; 4], Flags::NONE),
        (send(true, stag, None), 0x46, ulp, Flags::NONE),
        (
            send(false, None, Some(0xaabb_ccdd)),
            0x43,
            ulp,
            Flags::IMMEDIATE,
        ),
        (
            send(true, None, Some(0xaabb_ccdd)),
            0x45,
            ulp,
            Flags::IMMEDIATE,
        ),
    ] {
        check(kind, true, flags, &send_octets(rdmap, ulp), 100);
        check(kind, true, flags, &send_octets(rdmap, ulp), 0);
    }
}

#[test]
fn read_request_matches_rfc_5040_section_4_4() {
    #[rustfmt::skip]
    let ddp = [
        0x41, 0x41, 0, 0, 0, 0, // L, DV 1; RV 1, opcode 1
        0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, // QN 1, MSN 2, MO 0
        1, 2, 3, 4, // sink STag
        0, 0, 0, 0, 0, 0, 0, 5, // sink TO
        0, 0, 2, 0, // size
        6, 7, 8, 9, // source STag
        0xff, 0, 0, 0, 0, 0, 0, 1, // source TO
    ];
    let request = ReadRequest {
        sink_stag: Stag(0x0102_0304),
        sink_offset: TaggedOffset(5),
        len_octets: 512,
        source_stag: Stag(0x0607_0809),
        source_offset: TaggedOffset(0xff00_0000_0000_0001),
    };
    let kind = SegmentKind::ReadRequest {
        msn: Msn(2),
        request,
    };
    check(kind, true, Flags::NONE, &ddp, 0);
}

#[test]
fn immediate_data_matches_rfc_7306_section_6() {
    for (solicited, rdmap) in [(false, 0x48), (true, 0x49)] {
        #[rustfmt::skip]
        let ddp = [
            0x41, rdmap, 0, 0, 0, 0,
            0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, // QN 0, MSN 3, MO 0
            0xca, 0xfe, 0xf0, 0x0d, 0, 1, 0, 0, // immediate, length of the write
        ];
        let data = ImmediateData {
            immediate: 0xcafe_f00d,
            write_len_octets: 65536,
        };
        let msn = Msn(3);
        let kind = SegmentKind::Immediate {
            msn,
            solicited,
            data,
        };
        check(kind, true, Flags::NONE, &ddp, 0);
    }
}

#[test]
fn fetch_add_matches_rfc_7306_section_5_2_1() {
    #[rustfmt::skip]
    let ddp = [
        0x41, 0x4a, 0, 0, 0, 0,
        0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 0, // QN 1, MSN 4, MO 0
        0, 0, 0, 0, // FetchAdd
        0, 0, 0, 0x2a, // request id
        9, 8, 7, 6, // STag
        0, 0, 0, 0, 0, 0, 0x10, 0x08, // TO
        0, 0, 0, 0, 0, 0, 0, 1, // add
        0, 0, 0, 0, 0, 0, 0, 0, // add mask
        0, 0, 0, 0, 0, 0, 0, 0, // compare
        0, 0, 0, 0, 0, 0, 0, 0, // compare mask
    ];
    let request = AtomicRequest {
        request_id: 42,
        stag: Stag(0x0908_0706),
        offset: TaggedOffset(0x1008),
        operation: AtomicOperation::FetchAdd { add: 1, mask: 0 },
    };
    let kind = SegmentKind::AtomicRequest {
        msn: Msn(4),
        request,
    };
    check(kind, true, Flags::NONE, &ddp, 0);
}

#[test]
fn compare_swap_matches_rfc_7306_section_5_2_1() {
    #[rustfmt::skip]
    let ddp = [
        0x41, 0x4a, 0, 0, 0, 0,
        0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0,
        0, 0, 0, 2, // CmpSwap
        0, 0, 0, 1,
        0, 0, 0, 2,
        0, 0, 0, 0, 0, 0, 0, 3,
        0x10, 0, 0, 0, 0, 0, 0, 4, // swap
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, // swap mask
        0x20, 0, 0, 0, 0, 0, 0, 5, // compare
        0, 0, 0, 0, 0, 0, 0, 0xff, // compare mask
    ];
    let request = AtomicRequest {
        request_id: 1,
        stag: Stag(2),
        offset: TaggedOffset(3),
        operation: AtomicOperation::CompareSwap {
            swap: 0x1000_0000_0000_0004,
            swap_mask: u64::MAX,
            compare: 0x2000_0000_0000_0005,
            compare_mask: 0xff,
        },
    };
    let kind = SegmentKind::AtomicRequest {
        msn: Msn(u32::MAX),
        request,
    };
    check(kind, true, Flags::NONE, &ddp, 0);
}

#[test]
fn atomic_response_matches_rfc_7306_section_5_2_2() {
    #[rustfmt::skip]
    let ddp = [
        0x41, 0x4b, 0, 0, 0, 0,
        0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0, // QN 3, MSN 1, MO 0
        0, 0, 0, 0x2a, 1, 2, 3, 4, 5, 6, 7, 8,
    ];
    let response = AtomicResponse {
        request_id: 42,
        original: 0x0102_0304_0506_0708,
    };
    let kind = SegmentKind::AtomicResponse {
        msn: Msn(1),
        response,
    };
    check(kind, true, Flags::NONE, &ddp, 0);
}

/// A Terminate with DDP headers: QN 2, MSN 1, MO 0.
#[rustfmt::skip]
const TERMINATE_DDP: [u8; 18] = [0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0];

#[track_caller]
fn check_terminate(terminate: Terminate, body: &[u8]) {
    let kind = SegmentKind::Terminate {
        msn: Msn::FIRST,
        terminate,
    };
    check(
        kind,
        true,
        Flags::NONE,
        &datagram(&[&TERMINATE_DDP, body]),
        0,
    );
}

#[test]
fn terminate_about_nothing_is_the_control_field() {
    check_terminate(
        Terminate::new(TerminateCause::STREAM_CATASTROPHIC),
        &[0x02, 0x07, 0, 0],
    );
}

#[test]
fn terminate_about_a_write_includes_the_tagged_header() {
    #[rustfmt::skip]
    let offender = [0xc1, 0x40, 0x11, 0x22, 0x33, 0x44, 1, 2, 3, 4, 5, 6, 7, 8, 0x99, 0x99];
    let terminate = Terminate::about(TerminateCause::TAGGED_BOUNDS, &offender, 1456);
    let body = datagram(&[&[0x11, 0x01, 0xc0, 0, 0x05, 0xb0], &offender[..14]]);
    check_terminate(terminate, &body);
}

#[test]
fn terminate_about_a_read_request_includes_both_headers() {
    #[rustfmt::skip]
    let offender = [
        0x41, 0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0,
        1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 2, 0, 6, 7, 8, 9, 0, 0, 0, 0, 0, 0, 0, 1,
    ];
    let terminate = Terminate::about(TerminateCause::ACCESS, &offender, offender.len());
    let body = datagram(&[&[0x01, 0x02, 0xe0, 0, 0, 46], &offender]);
    assert_eq!(body.len(), wire::terminate::LEN_MAX);
    check_terminate(terminate, &body);
}

#[test]
fn terminate_about_a_send_includes_the_untagged_header() {
    let offender = datagram(&[&send_octets(0x43, [0; 4]), &[0x77; 80]]);
    let terminate = Terminate::about(TerminateCause::MESSAGE_TOO_LONG, &offender, 98);
    let body = datagram(&[&[0x12, 0x05, 0xc0, 0, 0, 98], &offender[..18]]);
    check_terminate(terminate, &body);
}

#[test]
fn terminate_about_a_tagged_header_of_a_wrong_version_leaves_it_out() {
    let offender = [0xc1, 0x80, 1, 2, 3, 4, 1, 2, 3, 4, 5, 6, 7, 8];
    let terminate = Terminate::about(TerminateCause::RDMAP_VERSION, &offender, 14);
    assert_eq!(terminate, Terminate::new(TerminateCause::RDMAP_VERSION));
    let cut = Terminate::about(TerminateCause::TAGGED_BOUNDS, &offender[..13], 13);
    assert_eq!(cut, Terminate::new(TerminateCause::TAGGED_BOUNDS));
}

#[test]
fn terminate_causes_have_the_codes_of_rfc_5040_section_4_8() {
    for (cause, layer, error_type, code) in [
        (TerminateCause::INVALID_STAG, 0, 1, 0),
        (TerminateCause::ACCESS, 0, 1, 2),
        (TerminateCause::RDMAP_VERSION, 0, 2, 5),
        (TerminateCause::REMOTE_OPERATION_UNSPECIFIED, 0, 2, 0xff),
        (TerminateCause::TAGGED_OFFSET_WRAP, 1, 1, 3),
        (TerminateCause::UNTAGGED_VERSION, 1, 2, 6),
    ] {
        assert_eq!(
            (cause.layer(), cause.error_type(), cause.code()),
            (layer, error_type, code)
        );
        assert_ne!(cause.name(), "unknown cause");
    }
    assert!(TerminateCause::ACCESS.is_access_error());
    assert!(TerminateCause::TAGGED_BOUNDS.is_access_error());
    assert!(!TerminateCause::TAGGED_VERSION.is_access_error());
    assert!(!TerminateCause::MESSAGE_TOO_LONG.is_access_error());
    assert_eq!(TerminateCause::from_u16(0x7fff).name(), "unknown cause");
}

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
        0x19, 0x00, 0x02, 0x03, 0xde, 0xad, 0xbe, 0xef, 0x05, 0x0a, 0x0b, 0x0c, 0x00, 0x0d, 0x0e, 0x0f,
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
        0x11, 0x04, 0x02, 0x03, 0xde, 0xad, 0xbe, 0xef, 0x05, 0x0a, 0x0b, 0x0c, 0x09, 0x0d, 0x0e, 0x0f,
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
        let expected = [0x13, 0, 0, 0, 0xde, 0xad, 0xbe, 0xef, 0x80 | octet, 0, 0x02, 0x03, 0, 0x0d, 0x0e, 0x0f];
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

/// Changes one octet of a good vector and says what the parser must answer.
#[track_caller]
fn refuse(good: &[u8], at: usize, octet: u8, error: ParseError) {
    let mut bad = good.to_vec();
    assert!(Segment::parse(&bad, bad.len()).is_ok());
    assert_ne!(bad[at], octet);
    bad[at] = octet;
    assert_eq!(Segment::parse(&bad, bad.len()), Err(error));
}

#[test]
fn datagram_header_is_48_octets_in_this_order() {
    let header = DatagramHeader {
        destination_index: 0x0203,
        qkey: 0x1122_3344,
        traffic_class: 0x55,
        source_qpn: 0x01_002a,
        imm: Some(0xdead_beef),
        solicited: true,
        source_gid: [0xaa; 16],
        destination_gid: [0xbb; 16],
    };
    #[rustfmt::skip]
    let expected = [
        &[0x18, 0x0a, 0x02, 0x03, 0x11, 0x22, 0x33, 0x44, 0x55, 0x01, 0x00, 0x2a, 0xde, 0xad, 0xbe, 0xef][..],
        &[0xaa; 16],
        &[0xbb; 16],
    ].concat();
    let mut buf = [0xee; 64];
    assert_eq!(header.encode(&mut buf), Ok(48));
    assert_eq!((&buf[..48], buf[48]), (&expected[..], 0xee));
    assert_eq!(DatagramHeader::parse(&expected, 100), Ok(header));
    let mut plain = expected.clone();
    plain[1] = 0;
    let parsed = DatagramHeader::parse(&plain, 48).unwrap();
    assert_eq!((parsed.imm, parsed.solicited), (None, false));
}

#[test]
fn datagram_that_is_cut_long_or_of_another_type_is_refused() {
    let mut octets = [0; 48];
    octets[0] = 0x18;
    let parse = |octets: &[u8], len| DatagramHeader::parse(octets, len);
    assert!(parse(&octets, 48 + 4096).is_ok());
    assert_eq!(parse(&octets, 48 + 4097), Err(ParseError::Trailing));
    assert_eq!(parse(&octets[..47], 47), Err(ParseError::Truncated));
    octets[0] = 0x28;
    assert_eq!(parse(&octets, 48), Err(ParseError::Version));
    octets[0] = 0x10;
    assert_eq!(parse(&octets, 48), Err(ParseError::PacketType));
}

#[test]
fn datagram_to_a_group_is_the_specifications() {
    #[rustfmt::skip]
    let vector = [
        0x18, 0x00, 0x00, 0x00, 0x01, 0x23, 0x45, 0x67, 0x00, 0x01, 0x00, 0x2a, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3,
    ];
    let header = DatagramHeader {
        destination_index: 0,
        qkey: 0x0123_4567,
        traffic_class: 0,
        source_qpn: 0x01_002a,
        imm: None,
        solicited: false,
        source_gid: vector[16..32].try_into().unwrap(),
        destination_gid: vector[32..].try_into().unwrap(),
    };
    let mut octets = [0xee; 48];
    header.encode(&mut octets).unwrap();
    assert_eq!(octets, vector);
    assert_eq!(DatagramHeader::parse(&vector, 48 + 4096), Ok(header));
    assert_eq!(group_of(&vector, 48), Some(header.destination_gid));
}

#[test]
fn train_is_the_specifications() {
    #[rustfmt::skip]
    let vector = [
        &[0x1a, 0x11, 0x02, 0x03, 0xde, 0xad, 0xbe, 0xef, 0x05, 0x0a, 0x0b, 0x0c, 0x00, 0x0d, 0x0e, 0x0f][..],
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

#[test]
fn datagram_for_a_group_names_it() {
    let mut octets = [0; 48];
    octets[0] = 0x18;
    assert_eq!(group_of(&octets, 48), None);
    octets[32..36].copy_from_slice(&[0xff, 0x0e, 0, 0]);
    assert_eq!(group_of(&octets, 48).unwrap()[..2], [0xff, 0x0e]);
    octets[32..].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3]);
    assert_eq!(group_of(&octets, 48).unwrap()[12..], [239, 1, 2, 3]);
    octets[0] = 0x10;
    assert_eq!(group_of(&octets, 48), None);
}

#[test]
fn packet_with_bad_trp_field_is_refused_without_terminate() {
    let good = datagram(&[&TRP, &send_octets(0x43, [0; 4])]);
    refuse(&good, 0, 0x20, ParseError::Version);
    refuse(&good, 0, 0x00, ParseError::Version);
    refuse(&good, 0, 0x18, ParseError::PacketType);
    refuse(&good, 0, 0x1b, ParseError::PacketType);
    refuse(&good, 0, 0x1a, ParseError::Truncated);
    refuse(&good, 0, 0x17, ParseError::ConnectionManagement);
    refuse(&good, 0, 0x11, ParseError::Trailing);
    refuse(&good, 8, 0, ParseError::Window);
    refuse(&good, 12, 25, ParseError::Extension);
    refuse(&good, 12, 24, ParseError::Truncated);
    for error in [
        ParseError::Version,
        ParseError::Window,
        ParseError::Extension,
        ParseError::Truncated,
    ] {
        assert_eq!(error.terminate_cause(), None);
    }
}

#[test]
fn segment_with_bad_ddp_or_rdmap_field_is_refused_with_its_cause() {
    let send = datagram(&[&TRP, &send_octets(0x43, [0; 4])]);
    let write = datagram(&[&TRP, &[0xc1, 0x40], &[0; 12]]);
    let immediate = datagram(&[&TRP, &send_octets(0x48, [0; 4])[..14], &[0; 12]]);
    refuse(&send, 16, 0x42, ParseError::UntaggedDdpVersion);
    refuse(&write, 16, 0xc0, ParseError::TaggedDdpVersion);
    refuse(&send, 17, 0x83, ParseError::RdmapVersion);
    refuse(&send, 17, 0x4c, ParseError::Opcode);
    refuse(&send, 17, 0x40, ParseError::Opcode);
    refuse(&write, 17, 0x43, ParseError::Opcode);
    refuse(&send, 25, 1, ParseError::QueueNumber);
    refuse(&send, 22, 1, ParseError::QueueNumber);
    refuse(&immediate, 16, 0x01, ParseError::NotLast);
    refuse(&immediate, 33, 1, ParseError::MessageOffset);
    let longer = datagram(&[&immediate, &[0]]);
    assert_eq!(
        Segment::parse(&longer, longer.len()),
        Err(ParseError::MessageLength)
    );
    for (error, cause) in [
        (ParseError::TaggedDdpVersion, 0x1104),
        (ParseError::UntaggedDdpVersion, 0x1206),
        (ParseError::RdmapVersion, 0x0205),
        (ParseError::Opcode, 0x0206),
        (ParseError::QueueNumber, 0x1201),
    ] {
        assert_eq!(error.terminate_cause().unwrap().to_u16(), cause);
    }
}

#[test]
fn atomic_request_of_unknown_operation_is_refused() {
    let mut octets = [0; 52];
    octets[3] = 1;
    assert_eq!(
        AtomicRequest::parse(&octets),
        Err(ParseError::AtomicOperation)
    );
    octets[3] = 0xf2; // the 28 reserved bits are ignored
    assert!(AtomicRequest::parse(&octets).is_ok());
}

#[test]
fn reserved_bits_are_ignored() {
    let good = datagram(&[&TRP, &send_octets(0x43, [0; 4])]);
    let mut odd = good.clone();
    odd[1] = 0xe0; // TRP flags
    odd[16] |= 0x3c; // DDP
    odd[17] |= 0x30; // RDMAP
    assert_eq!(
        Segment::parse(&odd, odd.len()),
        Segment::parse(&good, good.len())
    );
}

#[test]
fn packet_cut_short_anywhere_is_refused() {
    #[rustfmt::skip]
    let read = [0x41, 0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0];
    let whole = datagram(&[&TRP, &read, &[0; 28]]);
    assert!(Segment::parse(&whole, whole.len()).is_ok());
    for len in 0..whole.len() {
        let error = Segment::parse(&whole[..len], len).unwrap_err();
        let expected = if len < 34 {
            ParseError::Truncated
        } else {
            ParseError::MessageLength
        };
        assert_eq!(error, expected, "{len}");
        // A head shorter than the datagram says it is: refused too, never read beyond.
        assert_eq!(
            Segment::parse(&whole[..len], whole.len()),
            Err(ParseError::Truncated),
            "{len}"
        );
        // A datagram shorter than the head: what lies beyond it does not count.
        assert!(Segment::parse(&whole, len).is_err(), "{len}");
    }
}

#[test]
fn opcode_numbers_are_those_of_the_registry() {
    for (number, opcode) in (0u8..).zip(Opcode::ALL) {
        assert_eq!(opcode.control(), 0x40 | number);
        assert_eq!(Opcode::of_control(0x70 | number), Ok(opcode));
    }
    assert_eq!(Opcode::of_control(0x4c), Err(ParseError::Opcode));
    assert_eq!(Opcode::of_control(0x03), Err(ParseError::RdmapVersion));
}

#[test]
fn encode_into_too_little_room_fails_and_does_not_panic() {
    let request = AtomicRequest {
        request_id: 1,
        stag: Stag(2),
        offset: TaggedOffset(3),
        operation: AtomicOperation::FetchAdd { add: 1, mask: 0 },
    };
    let kind = SegmentKind::AtomicRequest {
        msn: Msn(1),
        request,
    };
    let extensions = Extensions {
        rnr_timer: Some(RnrTimer::new(1)),
        ..Extensions::NONE
    };
    let mut buf = [0; 90];
    for room in 0..90 {
        assert!(wire::encode(&trp(), &extensions, &kind, true, &mut buf[..room]).is_err());
    }
    assert_eq!(
        wire::encode(&trp(), &extensions, &kind, true, &mut buf),
        Ok(90)
    );
}
