//! What a process that is not the peer can do to a connection, and what it can guess.

use std::collections::HashSet;

use proto_trp::wire::message::{CELL_LEN, MESSAGE_HEAD_LEN};
use proto_trp::wire::{connection_id, MessageFlags, MessageHead, MessageKind};
use urdma_channel::Next;
use urdma_engine::{Access, EngineError, QpModify, QpState, SendOp, Status};
use urdma_types::{Psn, SlotId};

use crate::rig::{engine, instance, pair_of, until, End, Guest, GID};

/// First PSN of both ends.
const PSN: u32 = 100;

/// The head of a message of the stream from `peer` to `end`.
fn head(kind: MessageKind, end: &End, peer: &End) -> [u8; MESSAGE_HEAD_LEN] {
    let (to, from) = (end.qp.number(), peer.qp.number());
    let head = MessageHead {
        kind,
        flags: MessageFlags::LAST | MessageFlags::START,
        destination: to.index(),
        source: from.index(),
        connection_id: connection_id(from, to, Psn::new(PSN)),
        number: 1,
        offset: 0,
        ulp: 0,
        shared_queue: 0,
    };
    let mut octets = [0; MESSAGE_HEAD_LEN];
    head.encode(&mut octets);
    octets
}

#[test]
fn message_of_another_process_with_the_right_connection_id_changes_nothing() {
    use MessageKind::{Fin, Immediate, NotReady, Reset, Send, Terminate};
    let instance = instance();
    let engines = [1, 2].map(|slot| engine(&instance, slot));
    let (a, b) = pair_of(engines, 64, Access::all());
    let mut stranger = Guest::of(&instance, SlotId::new(3).unwrap(), &a.engine);
    a.receive(7, &[a.sge(8, 8)]).unwrap();
    for kind in [Send, Immediate, Terminate, NotReady, Reset, Fin] {
        let rest: &[u8] = match kind {
            // 0.0.00 without headers.
            Terminate => &[0, 0, 0, 0],
            Immediate => &[0; 8],
            _ => &[],
        };
        stranger.send(&[&head(kind, &a, &b), rest].concat(), &[]);
        stranger.until_settled();
        b.receive(1, &[b.sge(0, 8)]).unwrap();
        a.post(2, SendOp::Send, &[a.sge(0, 8)]).unwrap();
        b.expect(1, Status::Success);
        a.expect(2, Status::Success);
    }
    assert_eq!(a.engine.query_qp(&a.qp).0, QpState::Rts);
}

/// The writer of the refused message must not take those before it for refused, too.
#[test]
fn answer_counts_every_message_before_the_one_that_it_refuses() {
    const MESSAGES: u32 = 8;
    let instance = instance();
    let engines = [1, 2].map(|slot| engine(&instance, slot));
    let (a, b) = pair_of(engines, 64, Access::all());
    let mut stranger = Guest::of(&instance, SlotId::new(3).unwrap(), &a.engine);
    for message in (0..20).flat_map(|_| 0..MESSAGES) {
        if message == 0 {
            // All of them wait when the engine begins to take them.
            let refused = head(MessageKind::Send, &a, &b);
            (0..MESSAGES).for_each(|_| stranger.publish(&refused, &[]));
            stranger.channel.notify();
        }
        let before = stranger.channel.outgoing().written() - u64::from(MESSAGES - message);
        let mut cell = [0; CELL_LEN];
        let mut answered = Next::Empty;
        until("the message is refused", || {
            answered = stranger.channel.take(&mut cell);
            answered != Next::Empty
        });
        assert_eq!(cell[0], MessageKind::Reset as u8);
        let settled = stranger.channel.settled_by(&answered);
        assert_eq!(settled.unwrap_or(before), before);
        while settled.is_some_and(|end| stranger.channel.settle_run(end).is_some()) {}
        stranger.channel.settle();
    }
}

#[test]
fn process_that_writes_what_no_process_writes_loses_its_own_connections_only() {
    let instance = instance();
    let engines = [1, 2].map(|slot| engine(&instance, slot));
    let (a, b) = pair_of(engines, 64, Access::all());
    let slot = SlotId::new(3).unwrap();
    let mut stranger = Guest::of(&instance, slot, &a.engine);
    let other = End::new(a.engine.clone(), 64);
    other.init(Access::all());
    other.connect(u32::from(slot.number()) << 16 | 77);
    other.post(3, SendOp::Send, &[other.sge(0, 8)]).unwrap();
    until("the request has arrived", || stranger.take().is_some());
    other.expect(3, Status::Success);
    other.post(4, SendOp::Send, &[other.sge(0, 8)]).unwrap();
    // Ends within its head.
    stranger.send(&[1, 0, 0], &[]);
    other.expect(4, Status::RetryExceeded);
    other.post(5, SendOp::Send, &[other.sge(0, 8)]).unwrap();
    other.expect(5, Status::WorkRequestFlushed);
    b.receive(1, &[b.sge(0, 8)]).unwrap();
    a.post(2, SendOp::Send, &[a.sge(0, 8)]).unwrap();
    b.expect(1, Status::Success);
    a.expect(2, Status::Success);
    // There is no second channel to it, which urdmad would take for an offence.
    let again = End::new(a.engine.clone(), 64);
    again.init(Access::all());
    let change = QpModify {
        state: Some(QpState::Rtr),
        address: Some((GID, 0)),
        remote_qpn: Some(u32::from(slot.number()) << 16 | 77),
        ..QpModify::default()
    };
    let refused = again.engine.modify_qp(&again.qp, &change);
    assert_eq!(refused, Err(EngineError::HostUnreachable));
}

#[test]
fn queue_pair_numbers_of_each_process_begin_anywhere() {
    let instance = instance();
    let engines = [1, 2, 3, 4, 5, 6].map(|slot| engine(&instance, slot));
    let indices = engines.map(|engine| End::new(engine, 64).qp.number().index());
    let different: HashSet<u16> = indices.into_iter().collect();
    assert!(different.len() > 3, "{indices:?}");
}
