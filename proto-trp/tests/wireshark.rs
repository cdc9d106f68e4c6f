//! Debian's tshark with tools/wireshark/trp.lua decodes what the encoder writes: every packet type,
//! opcode and extension.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

use std::fs;
use std::net::Ipv6Addr;

use proto_trp::wire::train::SEGMENTS_MAX;
use proto_trp::wire::{
    self, connection_id, AtomicOperation, AtomicRequest, AtomicResponse, DatagramHeader,
    Extensions, Flags, ImmediateData, Msn, Opcode, PacketType, ReadRequest, ResetReason, RnrTimer,
    Sack, SegmentKind, Stag, TaggedOffset, Terminate, TerminateCause, Timestamp, TrainWriter,
    TrpHeader,
};
use urdma_capture::PcapngWriter;
use urdma_harness::instance::Scratch;
use urdma_harness::tshark::{self, MALFORMED};
use urdma_types::{Psn, Qpn, SlotId};

fn sender() -> Qpn {
    Qpn::new(SlotId::new(1).unwrap(), 0x2a)
}

fn receiver() -> Qpn {
    Qpn::new(SlotId::new(2).unwrap(), 7)
}

/// Ones' complement sum of RFC 1071.
fn checksum(parts: &[&[u8]]) -> [u8; 2] {
    let mut sum = 0u32;
    let octets: Vec<u8> = parts.concat();
    for pair in octets.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

/// An Ethernet frame from 127.0.0.1 to 127.0.0.2, or IPv6 equivalents, around a TRP packet.
fn ethernet(trp: &[u8], v6: bool) -> Vec<u8> {
    let source_port = urdma_types::source_port(sender()).to_be_bytes();
    let port = urdma_types::udp_port(receiver().slot()).to_be_bytes();
    let udp_len = (8 + trp.len() as u16).to_be_bytes();
    let mut udp = [&source_port[..], &port, &udp_len, &[0, 0], trp].concat();
    let macs = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    if v6 {
        let mut addresses = [0; 32];
        (addresses[0], addresses[15], addresses[16], addresses[31]) = (0xfd, 1, 0xfd, 2);
        let sum = checksum(&[&addresses, &[0, 0], &udp_len, &[0, 0, 0, 17], &udp]);
        udp[6..8].copy_from_slice(&sum);
        [
            &macs[..],
            &[0x86, 0xdd, 0x60, 0, 0, 0],
            &udp_len,
            &[17, 64],
            &addresses,
            &udp,
        ]
        .concat()
    } else {
        let addresses = [127, 0, 0, 1, 127, 0, 0, 2];
        let sum = checksum(&[&addresses, &[0, 17], &udp_len, &udp]);
        udp[6..8].copy_from_slice(&sum);
        let len = (28 + trp.len() as u16).to_be_bytes();
        let mut ip = [
            &[0x45, 0][..],
            &len,
            &[0, 0, 0x40, 0, 64, 17, 0, 0],
            &addresses,
        ]
        .concat();
        let sum = checksum(&[&ip]);
        ip[10..12].copy_from_slice(&sum);
        [&macs[..], &[8, 0], &ip, &udp].concat()
    }
}

fn header(kind: PacketType, psn: u32) -> TrpHeader {
    TrpHeader {
        kind,
        flags: Flags::ACK_REQUESTED,
        destination_index: receiver().index(),
        connection_id: connection_id(sender(), receiver(), Psn::new(0x12_3456)),
        window: 4,
        psn: Psn::new(psn),
        ack: Psn::new(0xff_ffff),
        extension_words: 0,
    }
}

fn packet(trp: TrpHeader, extensions: &Extensions, kind: &SegmentKind, payload: &[u8]) -> Vec<u8> {
    let mut buf = [0; wire::HEAD_LEN_MAX];
    let len = wire::encode(&trp, extensions, kind, true, &mut buf).unwrap();
    [&buf[..len], payload].concat()
}

fn send(
    msn: u32,
    solicited: bool,
    invalidate: Option<Stag>,
    immediate: Option<u32>,
) -> SegmentKind {
    SegmentKind::Send {
        msn: Msn(msn),
        offset: 0,
        solicited,
        invalidate,
        immediate,
    }
}

/// One segment of every opcode, with its payload.
fn segments() -> Vec<(SegmentKind, Vec<u8>)> {
    let (stag, offset) = (Stag(0x1122_3344), TaggedOffset(0x7f00_0000_1000));
    let request = |operation| SegmentKind::AtomicRequest {
        msn: Msn(2),
        request: AtomicRequest {
            request_id: 42,
            stag,
            offset,
            operation,
        },
    };
    let data = ImmediateData {
        immediate: 0xcafe_f00d,
        write_len_octets: 1000,
    };
    let immediate = |msn, solicited| SegmentKind::Immediate {
        msn: Msn(msn),
        solicited,
        data,
    };
    let read = ReadRequest {
        sink_stag: Stag(0x5566_7788),
        sink_offset: TaggedOffset(64),
        len_octets: 4096,
        source_stag: stag,
        source_offset: offset,
    };
    let response = AtomicResponse {
        request_id: 42,
        original: 7,
    };
    let swap = AtomicOperation::CompareSwap {
        swap: 1,
        swap_mask: u64::MAX,
        compare: 2,
        compare_mask: u64::MAX,
    };
    vec![
        (SegmentKind::Write { stag, offset }, vec![0x5a; 1000]),
        (
            SegmentKind::ReadRequest {
                msn: Msn(1),
                request: read,
            },
            vec![],
        ),
        (SegmentKind::ReadResponse { stag, offset }, vec![0x5a; 4096]),
        (
            send(1, false, None, None),
            b"a short Send, as rping has it".to_vec(),
        ),
        (send(2, false, Some(stag), None), vec![1; 64]),
        (send(3, true, None, None), vec![2; 17]),
        (send(4, true, Some(stag), None), vec![]),
        (immediate(5, false), vec![]),
        (immediate(6, true), vec![]),
        (
            request(AtomicOperation::FetchAdd { add: 5, mask: 0 }),
            vec![],
        ),
        (request(swap), vec![]),
        (
            SegmentKind::AtomicResponse {
                msn: Msn(1),
                response,
            },
            vec![],
        ),
        (send(7, false, None, Some(0xfeed_beef)), vec![3; 8]),
    ]
}

/// A Terminate for every cause, about a segment of every kind it may be about.
fn terminates() -> Vec<SegmentKind> {
    let offenders: Vec<Vec<u8>> = segments()
        .iter()
        .map(|(kind, payload)| {
            packet(
                header(PacketType::Data, 0),
                &Extensions::NONE,
                kind,
                payload,
            )
        })
        .collect();
    let mut kinds = vec![];
    for &cause in TerminateCause::ALL {
        kinds.push(Terminate::new(cause));
        for offender in &offenders {
            // A tagged buffer error is never about an untagged segment, nor the reverse.
            let tagged = offender[16] & 0x80 != 0;
            if cause.layer() == 0 || tagged == (cause.error_type() == 1) {
                kinds.push(Terminate::about(
                    cause,
                    &offender[16..],
                    offender.len() - 16,
                ));
            }
        }
    }
    let msn = Msn::FIRST;
    kinds
        .into_iter()
        .map(|terminate| SegmentKind::Terminate { msn, terminate })
        .collect()
}

/// A frame of the capture and the values that tshark must print for it.
struct Expected {
    packet: Vec<u8>,
    /// Type, PSN, RDMAP opcode, MSN, immediate.
    fields: [String; 5],
}

fn expected(
    trp: TrpHeader,
    extensions: &Extensions,
    kind: &SegmentKind,
    payload: &[u8],
) -> Expected {
    let msn = match kind {
        SegmentKind::Absent | SegmentKind::Write { .. } | SegmentKind::ReadResponse { .. } => None,
        SegmentKind::Send { msn, .. }
        | SegmentKind::ReadRequest { msn, .. }
        | SegmentKind::Terminate { msn, .. }
        | SegmentKind::Immediate { msn, .. }
        | SegmentKind::AtomicRequest { msn, .. }
        | SegmentKind::AtomicResponse { msn, .. } => Some(msn.0),
    };
    let immediate = match kind {
        SegmentKind::Send { immediate, .. } => *immediate,
        SegmentKind::Immediate { data, .. } => Some(data.immediate),
        _ => None,
    };
    let psn = (trp.kind != PacketType::Reset).then_some(trp.psn.to_u32());
    let text = |value: Option<u32>| value.map_or(String::new(), |value| value.to_string());
    Expected {
        packet: packet(trp, extensions, kind, payload),
        fields: [
            (trp.kind as u8).to_string(),
            text(psn),
            text(kind.opcode().map(|opcode| u32::from(opcode as u8))),
            text(msn),
            immediate.map_or(String::new(), |value| format!("{value:#010x}")),
        ],
    }
}

fn frames() -> Vec<Expected> {
    let mut sack = Sack::default();
    [0, 1, 2, 40].into_iter().for_each(|bit| sack.insert(bit));
    let all = Extensions {
        sack: Some(sack),
        timestamp: Some(Timestamp {
            value_us: 1_000_000,
            echo_us: 999_000,
        }),
        rnr_timer: Some(RnrTimer::new(12)),
        shared_queue: Some(0x01_0007),
    };
    let stamped = Extensions {
        sack: None,
        rnr_timer: None,
        ..all
    };
    let rnr = Extensions {
        sack: None,
        timestamp: None,
        shared_queue: None,
        ..all
    };
    let mut frames = vec![];
    let mut psn = 0xff_fff0;
    let mut next = |kind| {
        psn = (psn + 1) & 0xff_ffff;
        header(kind, psn)
    };
    for (kind, payload) in segments() {
        for extensions in [Extensions::NONE, stamped] {
            frames.push(expected(
                next(PacketType::Data),
                &extensions,
                &kind,
                &payload,
            ));
        }
    }
    for (kind, payload) in segments() {
        let trp = next(PacketType::UnreliableData);
        frames.push(expected(trp, &Extensions::NONE, &kind, &payload));
    }
    for kind in terminates() {
        frames.push(expected(
            next(PacketType::Data),
            &Extensions::NONE,
            &kind,
            &[],
        ));
    }
    for (kind, extensions) in [
        (PacketType::Ack, Extensions::NONE),
        (PacketType::Ack, all),
        (PacketType::Rnr, rnr),
        (PacketType::Fin, Extensions::NONE),
        (PacketType::FinAck, Extensions::NONE),
        (PacketType::Probe, stamped),
    ] {
        frames.push(expected(next(kind), &extensions, &SegmentKind::Absent, &[]));
    }
    for reason in [ResetReason::NoQueuePair, ResetReason::Failed] {
        let reset = TrpHeader::reset_for(&next(PacketType::Data), reason).unwrap();
        for reset in [reset, reset.acknowledging(Psn::new(77))] {
            let absent = &SegmentKind::Absent;
            frames.push(expected(reset, &Extensions::NONE, absent, &[]));
        }
    }
    frames
}

/// Writes a capture of `packets` to `scratch` and decodes it with tshark.
fn tshark(scratch: &Scratch, packets: &[Vec<u8>], arguments: &[&str]) -> Vec<String> {
    let capture = scratch.path().join("capture.pcapng");
    let mut out = PcapngWriter::new(fs::File::create(&capture).unwrap()).unwrap();
    for (i, packet) in packets.iter().enumerate() {
        let time_ns = 1_700_000_000_000_000_000 + i as u64 * 1_001;
        out.frame(time_ns, &ethernet(packet, i % 3 == 2)).unwrap();
    }
    out.finish().unwrap();
    tshark::read(scratch.path(), &capture, arguments).unwrap()
}

#[test]
fn tshark_decodes_every_type_and_opcode() {
    let scratch = Scratch::new("wireshark").unwrap();
    let frames = frames();
    let packets: Vec<Vec<u8>> = frames.iter().map(|frame| frame.packet.clone()).collect();
    let fields = [
        "trp.type",
        "trp.psn",
        "trp.opcode",
        "trp.immediate",
        "frame.protocols",
    ];
    let msn = ["iwarp_ddp.msn", "trp.ddp.msn", "iwarp_rdma.opcode"];
    let mut arguments = vec!["-T", "fields"];
    fields
        .iter()
        .chain(&msn)
        .for_each(|field| arguments.extend(["-e", field]));

    let found = tshark(&scratch, &packets, &arguments);
    assert_eq!(found.len(), frames.len());
    for (line, frame) in found.iter().zip(&frames) {
        let values: Vec<&str> = line.split('\t').collect();
        let [kind, psn, opcode, immediate, protocols, ddp_msn, own_msn, ddp_opcode] = values[..]
        else {
            panic!("{line}");
        };
        assert!(protocols.contains(":udp:trp"), "{line}");
        let msn = [ddp_msn, own_msn].concat();
        assert_eq!(
            [kind, psn, opcode, &msn, immediate],
            frame.fields.each_ref().map(String::as_str),
            "{line}"
        );
        // Wireshark's own dissector decodes the opcodes that it knows.
        let own = [Opcode::Immediate, Opcode::ImmediateSolicited]
            .map(|opcode| (opcode as u8).to_string());
        if !opcode.is_empty() && !own.iter().any(|own| own == opcode) {
            assert_eq!(
                u8::from_str_radix(ddp_opcode.trim_start_matches("0x"), 16)
                    .unwrap()
                    .to_string(),
                opcode
            );
        }
    }
    let bad = tshark(&scratch, &packets, &["-V", "-Y", MALFORMED]);
    assert_eq!(bad, Vec::<String>::new());
}

/// A train of the segments of every kind, as many as it takes.
fn train() -> Vec<u8> {
    let mut buf = vec![0; 9000];
    let mut train = TrainWriter::default();
    for (kind, mut payload) in segments().into_iter().take(SEGMENTS_MAX) {
        payload.truncate(100);
        let begin = train.end();
        let end = begin + wire::encode_segment(&kind, true, &mut buf[begin..]).unwrap();
        buf[end..end + payload.len()].copy_from_slice(&payload);
        let has_immediate = matches!(
            kind,
            SegmentKind::Send {
                immediate: Some(_),
                ..
            }
        );
        train.push(end + payload.len() - begin, has_immediate);
    }
    let trp = header(PacketType::Train, 0xff_fffd);
    let len = train.finish(&trp, &mut buf).unwrap();
    buf.truncate(len);
    buf
}

#[test]
fn tshark_decodes_each_segment_of_a_train() {
    let scratch = Scratch::new("wireshark").unwrap();
    let fields = [
        "trp.type",
        "trp.psn",
        "trp.train.psn",
        "trp.opcode",
        "trp.immediate",
    ];
    let mut arguments = vec!["-T", "fields"];
    fields
        .iter()
        .for_each(|field| arguments.extend(["-e", field]));
    let found = tshark(&scratch, &[train()], &arguments);
    let list = |values: Vec<u32>| {
        values
            .iter()
            .map(u32::to_string)
            .collect::<Vec<_>>()
            .join(",")
    };
    let kinds: Vec<SegmentKind> = segments().into_iter().map(|(kind, _)| kind).collect();
    let count = u32::try_from(kinds.len()).unwrap();
    let psns = (0..count).map(|i| (0xff_fffd + i) & 0xff_ffff).collect();
    let opcodes = kinds
        .iter()
        .filter_map(|kind| kind.opcode().map(|opcode| u32::from(opcode as u8)))
        .collect();
    // Those of Sends are shown with the table, before all segments.
    let of_sends = kinds.iter().filter_map(|kind| match kind {
        SegmentKind::Send { immediate, .. } => *immediate,
        _ => None,
    });
    let of_writes = kinds.iter().filter_map(|kind| match kind {
        SegmentKind::Immediate { data, .. } => Some(data.immediate),
        _ => None,
    });
    let immediates: Vec<String> = of_sends
        .chain(of_writes)
        .map(|value| format!("{value:#010x}"))
        .collect();
    let expected = format!(
        "10\t16777213\t{}\t{}\t{}",
        list(psns),
        list(opcodes),
        immediates.join(",")
    );
    assert_eq!(found, [expected]);
    let bad = tshark(&scratch, &[train()], &["-Y", MALFORMED]);
    assert_eq!(bad, Vec::<String>::new());

    let cut: Vec<Vec<u8>> = (1..train().len())
        .step_by(7)
        .map(|len| train()[..len].to_vec())
        .collect();
    let marked = tshark(&scratch, &cut, &["-Y", "trp.broken"]);
    assert_eq!(marked.len(), cut.len());
    let lua = tshark(&scratch, &cut, &["-Y", "_ws.lua.error"]);
    assert_eq!(lua, Vec::<String>::new());
}

#[test]
fn tshark_shows_names_and_extensions() {
    let scratch = Scratch::new("wireshark").unwrap();
    let packets: Vec<Vec<u8>> = frames().into_iter().map(|frame| frame.packet).collect();
    let text = tshark(&scratch, &packets, &["-V"]).join("\n");
    for wanted in [
        "DATA RDMA Write",
        "DATA RDMA Read Request",
        "DATA RDMA Read Response",
        "DATA Send,",
        "DATA Send with Invalidate",
        "DATA Send with SE,",
        "DATA Send with SE and Invalidate",
        "DATA Terminate",
        "DATA Immediate Data,",
        "DATA Immediate Data with SE",
        "DATA Atomic Request",
        "DATA Atomic Response",
        "ACK, QP 7",
        "RNR, QP 7",
        "RESET, id 0x4d6cc835, no QP 7",
        "RESET, id 0x4d6cc835, QP 7 in ERR, ACK 77",
        "FIN, QP 7",
        "FIN_ACK, QP 7",
        "PROBE, QP 7",
        "Destination QP number: 0x020007",
        "Source slot: 1",
        "Destination slot: 2",
        "Connection id: 0x4d6cc835",
        "256 packets",
        "PSNs received: 0-2, 40",
        "Echo, us: 999000",
        "RNR timer code: 12",
        "Wait, us: 640",
        "Shared receive queue: 0x00010007",
        "Length of the RDMA Write: 1000",
    ] {
        assert!(text.contains(wanted), "tshark does not print \"{wanted}\"");
    }
}

/// A connection-management message: kind, body, private data (doc/spec/trp.md, section 9).
fn cm(kind: u8, body: &[u8], private: &[u8]) -> Vec<u8> {
    let len = (24 + body.len() + private.len()) as u16;
    #[rustfmt::skip]
    let ids = [
        0, 0, 0, 0x11, 0, 0, 0, 0x22, // communication ids
        1, 2, 3, 4, 5, 6, 7, 8, // nonce
        9, 0, 0, private.len() as u8, // slot, 0, length of the private data
    ];
    [&[0x17, kind][..], &len.to_be_bytes(), &ids, body, private].concat()
}

#[test]
fn tshark_decodes_connection_management() {
    let scratch = Scratch::new("wireshark").unwrap();
    let mut source = [0; 16];
    source[10..].copy_from_slice(&[0xff, 0xff, 127, 0, 0, 1]);
    #[rustfmt::skip]
    let req = [
        &[0, 1, 0, 0x2a, 0, 0x12, 0x34, 0x56, 16, 8, 3, 0x76,
          14, 3, 1, 6, 0, 0, 0, 0, 0, 0, 0, 0][..],
        &source, &[0; 16], &[0x30, 0x39, 0x1c, 0x5d], &[0; 4],
    ].concat();
    #[rustfmt::skip]
    let rep = [0, 2, 0, 7, 0, 0, 0, 5, 4, 2, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0];
    let packets = [
        cm(1, &req, b"hello"),
        cm(2, &rep, b""),
        cm(3, b"", b""),
        cm(4, &[0, 28, 0, 0], b"no"),
        cm(5, &[0, 2, 0, 7], b""),
        cm(6, b"", b""),
        cm(7, &[0, 0, 0, 250], b""),
    ];
    let fields = [
        "trp.cm.kind",
        "trp.cm.qpn",
        "trp.cm.psn",
        "trp.cm.retry",
        "trp.cm.rnr_retry",
        "trp.cm.source",
        "trp.cm.destination_port",
        "trp.cm.port_space",
        "trp.cm.reason",
        "trp.cm.private",
        "trp.cm.mra_ms",
    ];
    let mut arguments = vec!["-T", "fields", "-E", "separator=,"];
    fields
        .iter()
        .for_each(|field| arguments.extend(["-e", field]));
    let found = tshark(&scratch, &packets, &arguments);
    let expected = [
        "1,0x0001002a,1193046,7,6,::ffff:127.0.0.1,7261,0x0106,,68656c6c6f,",
        "2,0x00020007,5,,7,,,,,,",
        "3,,,,,,,,,,",
        "4,,,,,,,,28,6e6f,",
        "5,0x00020007,,,,,,,,,",
        "6,,,,,,,,,,",
        "7,,,,,,,,,,250",
    ];
    assert_eq!(found, expected);
    let bad = tshark(&scratch, &packets, &["-Y", MALFORMED]);
    assert_eq!(bad, Vec::<String>::new());

    let mut cut = packets
        .map(|packet| packet[..packet.len() - 1].to_vec())
        .to_vec();
    cut.push(cm(8, b"", b""));
    let marked = tshark(&scratch, &cut, &["-Y", "trp.broken"]);
    assert_eq!(marked.len(), cut.len());
}

#[test]
fn tshark_decodes_datagrams() {
    let scratch = Scratch::new("wireshark").unwrap();
    let header = DatagramHeader {
        destination_index: 7,
        qkey: 0x1122_3344,
        traffic_class: 3,
        source_qpn: 0x01_002a,
        imm: None,
        solicited: true,
        source_gid: "::ffff:127.0.0.1".parse::<Ipv6Addr>().unwrap().octets(),
        destination_gid: "fe80::2".parse::<Ipv6Addr>().unwrap().octets(),
    };
    let packet = |imm, message: &[u8]| {
        let mut octets = [0; 48];
        DatagramHeader { imm, ..header }
            .encode(&mut octets)
            .unwrap();
        [&octets[..], message].concat()
    };
    let to_group = |text: &str| {
        let mut octets = packet(None, b"hi");
        octets[2..4].fill(0);
        octets[32..48].copy_from_slice(&text.parse::<Ipv6Addr>().unwrap().octets());
        octets
    };
    let packets = [
        packet(None, b""),
        packet(Some(0xdead_beef), b"hello"),
        to_group("::ffff:239.1.2.3"),
        to_group("ff02::7"),
    ];
    let fields = [
        "frame.number",
        "trp.ud.group",
        "trp.qpn",
        "trp.ud.source_qpn",
        "trp.ud.qkey",
        "trp.ud.source_gid",
        "trp.ud.destination_gid",
        "trp.immediate",
        "trp.ud.message",
    ];
    let mut arguments = vec!["-T", "fields", "-E", "separator=,"];
    fields
        .iter()
        .for_each(|field| arguments.extend(["-e", field]));
    let found = tshark(&scratch, &packets, &arguments);
    let ends = "0x020007,0x01002a,0x11223344,::ffff:127.0.0.1,fe80::2";
    // A group has no queue pair number.
    let from = "0x01002a,0x11223344,::ffff:127.0.0.1";
    let expected = [
        format!("1,,{ends},,"),
        format!("2,,{ends},0xdeadbeef,68656c6c6f"),
        format!("3,1,,{from},::ffff:239.1.2.3,,6869"),
        format!("4,1,,{from},ff02::7,,6869"),
    ];
    assert_eq!(found, expected);
    let bad = tshark(&scratch, &packets, &["-Y", MALFORMED]);
    assert_eq!(bad, Vec::<String>::new());
    let cut = [packets[0][..47].to_vec()];
    let marked = tshark(&scratch, &cut, &["-Y", "trp.broken"]);
    assert_eq!(marked.len(), 1);
}

#[test]
fn tshark_marks_bad_packets_and_survives_them() {
    let scratch = Scratch::new("wireshark").unwrap();
    let good = frames();
    let mut packets = vec![];
    for frame in good.iter().step_by(7) {
        for len in 1..frame.packet.len().min(90) {
            packets.push(frame.packet[..len].to_vec());
        }
    }
    packets.push(vec![0x20; 16]);
    packets.push(vec![0x1b; 16]);
    let shown = tshark(&scratch, &packets, &["-Y", "trp"]);
    assert_eq!(shown.len(), packets.len());
    let lua = tshark(&scratch, &packets, &["-Y", "_ws.lua.error"]);
    assert_eq!(lua, Vec::<String>::new());
    let version = tshark(
        &scratch,
        &packets[packets.len() - 2..],
        &["-Y", "trp.broken"],
    );
    assert_eq!(version.len(), 2);
}
