//! Unreliable connections: over shared memory all messages arrive, and a sender does not wait for a
//! peer that has ended.

use urdma_engine::{Access, EngineError, QpModify, QpState, SendOp, Status};

use crate::rig::{connect, engine, instance, until, End, DEPTH};

fn pair(octets: usize) -> (End, End) {
    let instance = instance();
    let a = End::unreliable(engine(&instance, 1), octets);
    let b = End::unreliable(engine(&instance, 2), octets);
    connect(&a, &b, Access::all());
    (a, b)
}

const LONG: usize = 1_000_000;

#[test]
fn sends_and_writes_of_many_frames_arrive_whole() {
    let (mut a, b) = pair(LONG);
    a.memory.fill(7);
    b.receive(1, &[b.sge(0, LONG)]).unwrap();
    a.post(1, SendOp::Send, &[a.sge(0, LONG)]).unwrap();
    a.expect(1, Status::Success);
    let received = b.expect(1, Status::Success);
    assert_eq!(received.completion.byte_len as usize, LONG);
    assert_eq!((b.octet(0), b.octet(LONG - 1)), (7, 7));
    a.memory.fill(8);
    b.receive(2, &[]).unwrap();
    let remote = b.remote(0);
    let write = SendOp::Write { remote };
    a.post_with(2, write, Some(9), true, &[a.sge(0, LONG)])
        .unwrap();
    a.expect(2, Status::Success);
    let received = b.expect(2, Status::Success);
    assert_eq!(received.completion.imm, Some(9));
    assert_eq!((b.octet(0), b.octet(LONG - 1)), (8, 8));
}

#[test]
fn send_to_a_peer_that_has_ended_completes() {
    let (a, b) = pair(64);
    b.engine.destroy_qp(&b.qp).unwrap();
    a.engine.peer_slot_gone(b.engine.info().slot, 0);
    drop(b);
    for wr_id in 0..u64::from(2 * DEPTH) {
        a.post(wr_id, SendOp::Send, &[a.sge(0, 8)]).unwrap();
        a.expect(wr_id, Status::Success);
    }
    assert_eq!(a.engine.query_qp(&a.qp).0, QpState::Rts);
}

#[test]
fn messages_without_a_receive_request_are_dropped_in_silence() {
    let (a, b) = pair(64);
    a.post(1, SendOp::Send, &[a.sge(0, 8)]).unwrap();
    a.expect(1, Status::Success);
    b.receive(2, &[b.sge(0, 8)]).unwrap();
    let mut received = Vec::new();
    until("a message arrives", || {
        a.post(2, SendOp::Send, &[a.sge(0, 8)]).unwrap();
        a.expect(2, Status::Success);
        received.extend(b.poll());
        !received.is_empty()
    });
    assert_eq!(received.len(), 1);
    assert_eq!(b.engine.query_qp(&b.qp).0, QpState::Rts);
}

#[test]
fn failed_send_stops_the_send_queue_until_it_is_mended() {
    let (a, b) = pair(64);
    let go = |state| {
        let change = QpModify {
            state: Some(state),
            ..QpModify::default()
        };
        a.engine.modify_qp(&a.qp, &change)
    };
    let state = || a.engine.query_qp(&a.qp).0;
    let fail = |wr_id| {
        let mut foreign = a.sge(0, 8);
        foreign.lkey ^= 1;
        a.post(wr_id, SendOp::Send, &[foreign]).unwrap();
        a.expect(wr_id, Status::LocalProtectionError);
        assert_eq!(state(), QpState::Sqe);
    };
    assert_eq!(go(QpState::Sqe), Err(EngineError::Invalid));
    fail(1);
    a.post(2, SendOp::Send, &[a.sge(0, 8)]).unwrap();
    a.expect(2, Status::WorkRequestFlushed);
    // It goes on receiving.
    a.receive(3, &[a.sge(0, 8)]).unwrap();
    b.post(3, SendOp::Send, &[b.sge(0, 8)]).unwrap();
    b.expect(3, Status::Success);
    a.expect(3, Status::Success);
    assert_eq!(go(QpState::Sqd), Err(EngineError::Invalid));
    go(QpState::Rts).unwrap();
    b.receive(4, &[b.sge(0, 8)]).unwrap();
    a.post(4, SendOp::Send, &[a.sge(0, 8)]).unwrap();
    a.expect(4, Status::Success);
    b.expect(4, Status::Success);
    fail(5);
    a.receive(6, &[a.sge(0, 8)]).unwrap();
    go(QpState::Error).unwrap();
    a.expect(6, Status::WorkRequestFlushed);
    assert_eq!(state(), QpState::Error);
    go(QpState::Reset).unwrap();
    assert_eq!(state(), QpState::Reset);
    assert!(a.events.0.lock().unwrap().is_empty());
}
