//! Terminate messages (RFC 5040 section 4.8).

use super::{check, datagram, send_octets};
use proto_trp::wire::{self, Flags, Msn, SegmentKind, Terminate, TerminateCause};

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
