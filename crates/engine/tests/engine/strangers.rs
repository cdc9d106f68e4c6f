//! What a process that is not the peer can do to a connection, and what it can guess.

use std::collections::HashSet;

use proto_trp::wire::trp::HEADER_LEN;
use proto_trp::wire::{connection_id, Flags, PacketType, ResetReason, TrpHeader};
use urdma_arena::Endpoint;
use urdma_engine::{Access, SendOp, Status};
use urdma_types::{Psn, Qpn, SlotId};

use crate::rig::{arena, engine, pair_of, End};

/// First PSN of both ends.
const PSN: u32 = 100;

/// A packet of the stream from `peer` to `end`.
fn packet(kind: PacketType, end: &End, peer: &End) -> TrpHeader {
    let (to, from): (Qpn, Qpn) = (end.qp.number(), peer.qp.number());
    TrpHeader {
        kind,
        flags: Flags::default(),
        destination_index: to.index(),
        connection_id: connection_id(from, to, Psn::new(PSN)),
        window: 1,
        psn: Psn::new(PSN),
        ack: Psn::new(PSN),
        extension_words: 0,
    }
}

/// The RESET by which the peer's process would say that its queue pair is gone.
fn reset(end: &End, peer: &End) -> TrpHeader {
    let offender = TrpHeader {
        destination_index: peer.qp.number().index(),
        ..packet(PacketType::Probe, end, peer)
    };
    TrpHeader::reset_for(&offender, ResetReason::NoQueuePair).unwrap()
}

#[test]
fn packet_of_another_process_with_the_right_connection_id_changes_nothing() {
    // DDP: untagged, last, version 1; RDMAP: version 1, Terminate; queue 2, message 1, offset 0;
    // 0.0.00 without headers.
    let terminate = [
        0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    for (kind, rest) in [
        (PacketType::Fin, &[][..]),
        (PacketType::Reset, &[]),
        (PacketType::Data, &terminate),
    ] {
        let arena = arena();
        let engines = [1, 2].map(|slot| engine(arena, slot));
        let (a, b) = pair_of(engines, 64, Access::all());
        let mut stranger = Endpoint::attach(&arena, SlotId::new(3).unwrap()).unwrap();
        let header = match kind {
            PacketType::Reset => reset(&a, &b),
            kind => packet(kind, &a, &b),
        };
        let mut octets = [0; HEADER_LEN];
        header.encode(&mut octets).unwrap();
        let octets = [&octets, rest].concat();
        let mut frame = stranger.alloc(octets.len()).unwrap();
        frame.data_mut()[..octets.len()].copy_from_slice(&octets);
        stranger
            .send(SlotId::new(1).unwrap(), frame, octets.len())
            .unwrap();

        // Takes it.
        assert!(a.poll().is_empty());
        b.receive(1, &[b.sge(0, 8)]).unwrap();
        a.post(2, SendOp::Send, &[a.sge(0, 8)]).unwrap();
        b.expect(1, Status::Success);
        a.expect(2, Status::Success);
    }
}

#[test]
fn queue_pair_numbers_of_each_process_begin_anywhere() {
    let arena = arena();
    let engines = [1, 2, 3, 4, 5, 6].map(|slot| engine(arena, slot));
    let indices = engines.map(|engine| End::new(engine, 64).qp.number().index());
    let different: HashSet<u16> = indices.into_iter().collect();
    assert!(different.len() > 3, "{indices:?}");
}
