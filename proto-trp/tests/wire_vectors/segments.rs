//! DDP segments (RFC 5040, RFC 5041, RFC 7306).

use super::{check, send, send_octets};
use proto_trp::wire::{
    AtomicOperation, AtomicRequest, AtomicResponse, Flags, ImmediateData, Msn, ReadRequest,
    SegmentKind, Stag, TaggedOffset,
};

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
