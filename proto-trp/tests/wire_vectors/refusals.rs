//! Octets that the parsers refuse, or ignore.

use super::{datagram, send_octets, trp, TRP};
use proto_trp::wire::{
    self, AtomicOperation, AtomicRequest, Extensions, Msn, Opcode, ParseError, RnrTimer, Segment,
    SegmentKind, Stag, TaggedOffset,
};

/// Changes one octet of a valid vector and checks the parser's error.
#[track_caller]
fn refuse(good: &[u8], at: usize, octet: u8, error: ParseError) {
    let mut bad = good.to_vec();
    assert!(Segment::parse(&bad, bad.len()).is_ok());
    assert_ne!(bad[at], octet);
    bad[at] = octet;
    assert_eq!(Segment::parse(&bad, bad.len()), Err(error));
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
    refuse(&good, 12, 26, ParseError::Extension);
    refuse(&good, 12, 25, ParseError::Truncated);
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
        // A head shorter than the stated length of the datagram: refused, and not read beyond.
        assert_eq!(
            Segment::parse(&whole[..len], whole.len()),
            Err(ParseError::Truncated),
            "{len}"
        );
        // A datagram shorter than the head: the octets beyond it are ignored.
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
