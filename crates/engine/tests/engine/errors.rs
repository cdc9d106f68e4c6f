//! What the application or the peer does wrong.

use urdma_engine::{Access, AsyncKind, EngineError, PostError, QpModify, QpState, SendOp, Status};

use crate::rig::{engine, pair, pair_with, until, End, DEPTH};

fn state(end: &End) -> QpState {
    end.engine.query_qp(&end.qp).0
}

#[test]
fn write_outside_the_region_touches_nothing_and_ends_both() {
    let (a, mut b) = pair(4096);
    b.memory.fill(9);
    let write = SendOp::Write {
        remote: b.remote(4090),
    };
    b.receive(3, &[b.sge(0, 8)]).unwrap();
    a.post(1, write, &[a.sge(0, 8)]).unwrap();
    a.expect(1, Status::RemoteAccessError);
    assert!(b.memory.iter().all(|&octet| octet == 9));
    until("both ends in ERR", || {
        b.poll();
        state(&a) == QpState::Error && state(&b) == QpState::Error
    });
    let events = b.events.0.lock().unwrap();
    assert!(events
        .iter()
        .any(|event| event.kind == AsyncKind::QpAccessError && event.element == Some(5)));
}

#[test]
fn wrong_rkey_or_missing_right_is_a_remote_access_error() {
    let (a, b) = pair(64);
    let mut remote = b.remote(0);
    remote.stag ^= 1;
    a.post(1, SendOp::Read { remote }, &[a.sge(0, 8)]).unwrap();
    a.expect(1, Status::RemoteAccessError);

    let (a, b) = pair_with(64, Access::LOCAL_WRITE | Access::REMOTE_READ);
    let remote = b.remote(0);
    a.post(1, SendOp::Write { remote }, &[a.sge(0, 8)]).unwrap();
    a.expect(1, Status::RemoteAccessError);
}

#[test]
fn wrong_lkey_is_a_local_protection_error() {
    let (a, b) = pair(64);
    let mut sge = a.sge(0, 8);
    sge.lkey ^= 1;
    b.receive(1, &[b.sge(0, 8)]).unwrap();
    a.post(1, SendOp::Send, &[sge]).unwrap();
    a.expect(1, Status::LocalProtectionError);
    assert_eq!(state(&a), QpState::Error);
}

#[test]
fn message_longer_than_the_buffer_fails_at_both_ends() {
    let (a, b) = pair(4096);
    b.receive(1, &[b.sge(0, 8)]).unwrap();
    a.post(1, SendOp::Send, &[a.sge(0, 9)]).unwrap();
    b.expect(1, Status::LocalLengthError);
    a.expect(1, Status::RemoteInvalidRequestError);
}

#[test]
fn send_without_a_buffer_waits_for_one() {
    let (a, b) = pair(64);
    a.post(1, SendOp::Send, &[a.sge(0, 8)]).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(5));
    assert!(a.poll().is_empty() && b.poll().is_empty());
    b.receive(1, &[b.sge(0, 8)]).unwrap();
    b.expect(1, Status::Success);
    a.expect(1, Status::Success);
}

#[test]
fn full_queues_are_refused_and_take_more_after_polling() {
    let (a, _b) = pair(64);
    for id in 0..u64::from(DEPTH) {
        a.receive(id, &[]).unwrap();
    }
    assert_eq!(a.receive(99, &[]), Err(PostError::QueueFull));
    let error = QpModify {
        state: Some(QpState::Error),
        ..QpModify::default()
    };
    a.engine.modify_qp(&a.qp, &error).unwrap();
    // All are flushed, but their completions still take their room.
    assert_eq!(a.receive(99, &[]), Err(PostError::QueueFull));
    let flushed = a.wait(DEPTH as usize);
    assert!(flushed
        .iter()
        .all(|wc| wc.completion.status == Status::WorkRequestFlushed));
    a.receive(100, &[]).unwrap();
    a.post(101, SendOp::Send, &[]).unwrap();
    let ids: Vec<u64> = a.wait(2).iter().map(|wc| wc.completion.wr_id).collect();
    assert_eq!(ids, [100, 101]);
}

#[test]
fn modify_that_skips_a_state_or_names_no_reachable_peer_is_refused() {
    let end = End::new(engine(&crate::rig::instance(), 1), 64);
    let to = |state| QpModify {
        state: Some(state),
        remote_qpn: Some(0x0002_0001),
        ..QpModify::default()
    };
    assert_eq!(
        end.engine.modify_qp(&end.qp, &to(QpState::Rts)),
        Err(EngineError::Invalid)
    );
    end.init(Access::all());
    let mut unreachable = to(QpState::Rtr);
    let mapped = urdma_engine::Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]);
    unreachable.address = Some((mapped, 0));
    assert_eq!(
        end.engine.modify_qp(&end.qp, &unreachable),
        Err(EngineError::NetUnreachable)
    );
    assert_eq!(state(&end), QpState::Init);
}

#[test]
fn objects_in_use_are_not_given_back() {
    let end = End::new(engine(&crate::rig::instance(), 1), 64);
    assert_eq!(end.engine.destroy_cq(&end.cq), Err(EngineError::Busy));
    assert_eq!(end.engine.dealloc_pd(end.pd), Err(EngineError::Busy));
    end.engine.destroy_qp(&end.qp).unwrap();
    assert_eq!(end.engine.destroy_qp(&end.qp), Err(EngineError::Invalid));
    end.engine.destroy_cq(&end.cq).unwrap();
    assert_eq!(end.engine.dealloc_pd(end.pd), Err(EngineError::Busy));
    end.engine.deregister_mr(end.key).unwrap();
    end.engine.dealloc_pd(end.pd).unwrap();
}
