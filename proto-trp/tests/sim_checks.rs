//! Segments that a peer must not send, ordering rules, and limits; one test per check.

#![allow(clippy::unwrap_used)]

use proto_trp::conn::{
    Event, Payload, QpState, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge, Status,
};
use proto_trp::wire::{
    self, connection_id, AtomicResponse, Extensions, Flags, ImmediateData, Msn, PacketType,
    ReadRequest, Segment, SegmentKind, Stag, TaggedOffset, TerminateCause, TrpHeader,
};
use trp_sim::{Rights, Setup, SimHost, World};
use urdma_types::{Psn, Qpn, SlotId};

const PSN: [u32; 2] = [0xff_fff0, 77];

fn qpn(index: u16) -> Qpn {
    Qpn::new(SlotId::DAEMON, index)
}

fn setup() -> Setup {
    Setup {
        psn: PSN,
        ..Setup::default()
    }
}

/// A world whose end 1 has a region of 4096 octets and two receives of 64.
fn prepared() -> (World, u32) {
    let mut world = World::new(&setup(), 1);
    let memory = world.ends[1].host.register(vec![7; 4096], Rights::ALL);
    for wr_id in 0..2 {
        let sges = [Sge {
            addr: SimHost::base(memory) + wr_id * 64,
            length: 64,
            lkey: memory,
        }];
        let wr = RecvWr { wr_id, sges: &sges };
        let (conn, host) = world.split(1);
        conn.post_recv(&wr, host).unwrap();
    }
    (world, memory)
}

/// A DATA packet of end 0, `ahead` packets after its first, with `payload` octets.
fn data(ahead: u32, kind: &SegmentKind, last: bool, payload: usize) -> Vec<u8> {
    let (own, peer) = (qpn(0x0101), qpn(0x0202));
    let trp = TrpHeader {
        kind: PacketType::Data,
        flags: Flags::NONE,
        destination_index: peer.index(),
        connection_id: connection_id(own, peer, Psn::new(PSN[0])),
        window: 4,
        psn: Psn::new(PSN[0]).add(ahead),
        ack: Psn::new(PSN[1]),
        extension_words: 0,
    };
    let mut octets = vec![0; wire::HEAD_LEN_MAX];
    let len = wire::encode(&trp, &Extensions::NONE, kind, last, &mut octets).unwrap();
    octets.truncate(len);
    octets.resize(len + payload, 0xab);
    octets
}

fn send(msn: u32, offset: u32) -> SegmentKind {
    SegmentKind::Send {
        msn: Msn(msn),
        offset,
        solicited: false,
        invalidate: None,
        immediate: None,
    }
}

fn read(msn: u32, memory: u32, len_octets: u32) -> SegmentKind {
    SegmentKind::ReadRequest {
        msn: Msn(msn),
        request: ReadRequest {
            sink_stag: Stag(1),
            sink_offset: TaggedOffset(0),
            len_octets,
            source_stag: Stag(memory),
            source_offset: TaggedOffset(SimHost::base(memory)),
        },
    }
}

/// The cause of the Terminate that end 1 sends now.
fn terminate_of(world: &mut World) -> Option<TerminateCause> {
    let now = world.now;
    let (conn, host) = world.split(1);
    let mut frame = vec![0; 1472];
    let sent = conn.poll_transmit(now, &mut frame, host)?;
    let (_, segment) = Segment::parse(&frame[..sent.len], sent.len).unwrap();
    match segment.kind {
        SegmentKind::Terminate { terminate, .. } => Some(terminate.cause),
        _ => None,
    }
}

#[test]
fn segment_that_the_peer_must_not_send_ends_the_connection() {
    let response = SegmentKind::ReadResponse {
        stag: Stag(9),
        offset: TaggedOffset(0),
    };
    let atomic_response = SegmentKind::AtomicResponse {
        msn: Msn(1),
        response: AtomicResponse {
            request_id: 1,
            original: 2,
        },
    };
    let immediate = SegmentKind::Immediate {
        msn: Msn(2),
        solicited: false,
        data: ImmediateData {
            immediate: 1,
            write_len_octets: 0,
        },
    };
    let cases = [
        ("old message", send(0, 0), TerminateCause::MSN_OUT_OF_RANGE),
        (
            "message left out",
            send(2, 0),
            TerminateCause::MSN_OUT_OF_RANGE,
        ),
        (
            "immediate left out",
            immediate,
            TerminateCause::MSN_OUT_OF_RANGE,
        ),
        (
            "octets left out",
            send(1, 8),
            TerminateCause::INVALID_MESSAGE_OFFSET,
        ),
        (
            "request left out",
            read(2, 0x15a, 8),
            TerminateCause::MSN_OUT_OF_RANGE,
        ),
        (
            "answer to nothing",
            response,
            TerminateCause::TAGGED_INVALID_STAG,
        ),
        (
            "old value of nothing",
            atomic_response,
            TerminateCause::UNEXPECTED_OPCODE,
        ),
    ];
    for (name, kind, cause) in cases {
        for first_ahead in [false, true] {
            let (mut world, memory) = prepared();
            let payload = if matches!(kind, SegmentKind::Send { .. }) {
                8
            } else {
                0
            };
            let bad = data(u32::from(first_ahead), &kind, true, payload);
            if first_ahead {
                let write = SegmentKind::Write {
                    stag: Stag(memory),
                    offset: TaggedOffset(SimHost::base(memory) + 1024),
                };
                world.deliver(1, &bad, false);
                world.deliver(1, &data(0, &write, true, 8), false);
                world.deliver(1, &bad, false);
            } else {
                world.deliver(1, &bad, false);
            }
            assert_eq!(terminate_of(&mut world), Some(cause), "{name}");
            assert_eq!(world.conn(1).state(), QpState::Error, "{name}");
            let events: Vec<_> = world.ends[1].host.events.drain(..).collect();
            let access = cause == TerminateCause::TAGGED_INVALID_STAG;
            let event = if access {
                Event::RemoteAccessError
            } else {
                Event::RemoteInvalidRequest
            };
            assert_eq!(events, [event], "{name}");
            assert_eq!(world.ends[1].host.completions.len(), 2, "{name}");
        }
    }
}

#[test]
fn segment_with_bad_ddp_header_ends_the_connection() {
    let (mut world, _) = prepared();
    let mut octets = data(0, &send(1, 0), true, 8);
    octets[16] = octets[16] & 0xfc | 2;
    world.deliver(1, &octets, false);
    assert_eq!(
        terminate_of(&mut world),
        Some(TerminateCause::UNTAGGED_VERSION)
    );
    assert_eq!(world.conn(1).stats().rx_malformed, 1);
}

#[test]
fn more_requests_than_allowed_end_the_connection() {
    let (mut world, memory) = prepared();
    for request in 0..5 {
        assert_eq!(world.conn(1).state(), QpState::Rts);
        world.deliver(
            1,
            &data(request, &read(request + 1, memory, 8), true, 0),
            false,
        );
    }
    assert_eq!(terminate_of(&mut world), Some(TerminateCause::NO_BUFFER));
}

#[test]
fn packet_beyond_the_window_is_dropped() {
    let (mut world, memory) = prepared();
    let window = world.conn(1).config().window_packets;
    let write = SegmentKind::Write {
        stag: Stag(memory),
        offset: TaggedOffset(SimHost::base(memory)),
    };
    world.deliver(1, &data(window, &write, true, 8), false);
    assert_eq!(world.conn(1).stats().rx_out_of_window, 1);
    assert!(world.ends[1].host.octets(memory).iter().all(|&o| o == 7));
    world.deliver(1, &data(window - 1, &write, true, 8), false);
    assert_eq!(world.conn(1).stats().rx_out_of_order, 1);
}

#[test]
fn duplicate_after_completion_is_not_placed() {
    let (mut world, memory) = prepared();
    let packet = data(0, &send(1, 0), true, 8);
    world.deliver(1, &packet, false);
    assert_eq!(world.ends[1].host.completions.len(), 1);
    world.ends[1].host.octets_mut(memory)[..8].fill(1);
    world.deliver(1, &packet, false);
    assert_eq!(world.ends[1].host.octets(memory)[..8], [1; 8]);
    assert_eq!(world.conn(1).stats().rx_duplicates, 1);
    assert!(world.conn(1).ack_is_due());
}

/// Posts a read of 8 octets and a write to the same place, and returns what was read.
fn read_then_write(fence: bool) -> u8 {
    let mut world = World::new(&setup(), 1);
    let own = world.ends[0].host.register(vec![1; 64], Rights::ALL);
    let peers = world.ends[1].host.register(vec![7; 64], Rights::ALL);
    let remote = RemoteAddr {
        stag: peers,
        to: SimHost::base(peers),
    };
    let piece = |at: u64| {
        [Sge {
            addr: SimHost::base(own) + at,
            length: 8,
            lkey: own,
        }]
    };
    let now = world.now;
    let operations = [SendOp::Read { remote }, SendOp::Write { remote }];
    for (op, at) in operations.into_iter().zip([0, 32]) {
        let wr = SendWr {
            wr_id: at,
            op,
            imm: None,
            flags: SendFlags {
                signaled: true,
                fence: fence && at > 0,
                solicited: false,
            },
            shared_queue: 0,
            payload: Payload::Sges(&piece(at)),
        };
        let (conn, host) = world.split(0);
        conn.post_send(|| now, &wr, host).unwrap();
    }
    world.run(1_000_000_000);
    let statuses: Vec<_> = world.ends[0]
        .host
        .completions
        .drain(..)
        .map(|c| c.status)
        .collect();
    assert_eq!(statuses, [Status::Success; 2]);
    world.ends[0].host.octets(own)[0]
}

#[test]
fn write_with_fence_waits_for_the_read_before_it() {
    assert_eq!(read_then_write(true), 7);
    // Without a fence the write overtakes the response, so the fence makes the difference.
    assert_eq!(read_then_write(false), 1);
}

#[test]
fn reads_outstanding_never_exceed_the_limit() {
    let limited = Setup {
        rd_atomic: 2,
        ..setup()
    };
    let mut world = World::new(&limited, 1);
    let own = world.ends[0].host.register(vec![1; 64], Rights::ALL);
    let peers = world.ends[1].host.register(vec![7; 64], Rights::ALL);
    let sges = [Sge {
        addr: SimHost::base(own),
        length: 64,
        lkey: own,
    }];
    let wr = SendWr {
        wr_id: 0,
        op: SendOp::Read {
            remote: RemoteAddr {
                stag: peers,
                to: SimHost::base(peers),
            },
        },
        imm: None,
        flags: SendFlags {
            signaled: true,
            ..SendFlags::default()
        },
        shared_queue: 0,
        payload: Payload::Sges(&sges),
    };
    let now = world.now;
    for _ in 0..10 {
        let (conn, host) = world.split(0);
        conn.post_send(|| now, &wr, host).unwrap();
    }
    world.flush(0);
    assert_eq!(world.conn(0).stats().tx_datagrams, 2);
    world.run(1_000_000_000);
    assert_eq!(world.ends[0].host.completions.len(), 10);
}

#[test]
fn congestion_mark_is_echoed_once() {
    let (mut world, _) = prepared();
    world.deliver(1, &data(0, &send(1, 0), true, 8), true);
    assert_eq!(world.conn(1).stats().ecn_marks, 1);
    let now = world.now;
    let mut frame = vec![0; 1472];
    for echoed in [true, false] {
        // Each duplicate requests an acknowledgement.
        world.deliver(1, &data(0, &send(1, 0), true, 8), false);
        let (conn, host) = world.split(1);
        let sent = conn.poll_transmit(now, &mut frame, host).unwrap();
        let trp = TrpHeader::parse(&frame[..sent.len], sent.len).unwrap();
        assert_eq!(trp.flags.contains(Flags::ECN_ECHO), echoed);
    }
}
