//! DATAGRAM packets (doc/spec/trp.md, section 12).

use proto_trp::wire::datagram::group_of;
use proto_trp::wire::{DatagramHeader, ParseError};

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
        &[0x18, 0x0a, 0x02, 0x03, 0x11, 0x22, 0x33, 0x44,
          0x55, 0x01, 0x00, 0x2a, 0xde, 0xad, 0xbe, 0xef][..],
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
