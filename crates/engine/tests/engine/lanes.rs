//! Engines beside a process's first one.

use std::sync::Arc;

use urdma_engine::{Access, Engine, EngineError, Pd, SendOp, Status};

use crate::rig::{connect, engine, instance, parts, qp_config, End, DEPTH};

/// The first engine of a process, a lane beside it with one queue pair in a domain, and another
/// process's end that is connected to that.
struct Rig {
    first: Arc<Engine>,
    lane: Arc<Engine>,
    pd: Pd,
    a: End,
    b: End,
}

fn rig() -> Rig {
    let instance = instance();
    let first = engine(&instance, 1);
    let pd = first.alloc_pd().unwrap();
    let lane = first.start_lane(parts(&instance, 2)).unwrap();
    let a = End::in_lane(&first, lane.clone(), pd, 4096);
    let b = End::new(engine(&instance, 3), 4096);
    connect(&a, &b, Access::all());
    Rig {
        first,
        lane,
        pd,
        a,
        b,
    }
}

#[test]
fn regions_of_before_and_after_are_known_in_a_lane_until_they_end() {
    let instance = instance();
    let first = engine(&instance, 1);
    let pd = first.alloc_pd().unwrap();
    let early = [3u8; 64];
    let at = early.as_ptr() as u64;
    let key = first.register_mr(pd, at, 64, at, Access::LOCAL_WRITE);
    let early_key = key.unwrap().lkey;
    let lane = first.start_lane(parts(&instance, 2)).unwrap();
    let a = End::in_lane(&first, lane, pd, 64);
    let b = End::new(engine(&instance, 3), 64);
    connect(&a, &b, Access::all());
    let from = |lkey| urdma_engine::Sge {
        addr: at,
        length: 8,
        lkey,
    };
    let write = SendOp::Write {
        remote: b.remote(0),
    };
    a.post(1, write, &[from(early_key)]).unwrap();
    a.expect(1, Status::Success);
    assert_eq!((b.octet(7), b.octet(8)), (3, 0));
    let read = SendOp::Read {
        remote: a.remote(0),
    };
    b.post(2, read, &[b.sge(0, 64)]).unwrap();
    b.expect(2, Status::Success);
    first.deregister_mr(early_key).unwrap();
    a.post(3, write, &[from(early_key)]).unwrap();
    a.expect(3, Status::LocalProtectionError);
}

#[test]
fn region_that_ends_is_closed_to_peers_of_a_lane() {
    let Rig { first, a, b, .. } = rig();
    let remote = a.remote(0);
    first.deregister_mr(a.key).unwrap();
    b.post(1, SendOp::Write { remote }, &[b.sge(0, 8)]).unwrap();
    b.expect(1, Status::RemoteAccessError);
    assert!(a.memory.iter().all(|&octet| octet == 0));
}

#[test]
fn domain_is_busy_while_a_lane_has_a_queue_pair_in_it() {
    let Rig {
        first, lane, pd, a, ..
    } = rig();
    first.deregister_mr(a.key).unwrap();
    assert_eq!(first.dealloc_pd(pd), Err(EngineError::Busy));
    lane.destroy_qp(&a.qp).unwrap();
    first.dealloc_pd(pd).unwrap();
    assert_eq!(first.dealloc_pd(pd), Err(EngineError::Invalid));
    let next = first.alloc_pd().unwrap();
    drop(End::in_lane(&first, lane, next, 64));
}

// Completions in a queue of another lane are counted where the queue pair is: without that its send
// queue would be full for good.
#[test]
fn completion_queue_serves_queue_pairs_of_other_lanes() {
    let Rig { first, a, b, .. } = rig();
    let c = End::new(first, 64);
    let config = qp_config(a.pd, &c.cq, &a.events, false);
    let qp = a.engine.create_qp(&config).unwrap();
    let mixed = End { qp, ..a };
    let d = End::new(b.engine.clone(), 64);
    connect(&mixed, &d, Access::all());
    for round in 0..3 * u64::from(DEPTH) {
        let write = SendOp::Write {
            remote: d.remote(0),
        };
        mixed.post(round, write, &[mixed.sge(0, 8)]).unwrap();
        c.expect(round, Status::Success);
    }
}

#[test]
fn lanes_come_to_an_end() {
    let instance = instance();
    let first = engine(&instance, 1);
    let made = (2..8).filter(|slot| first.start_lane(parts(&instance, *slot)).is_ok());
    assert_eq!(made.count(), 6);
    // Without urdmad no further slots are assigned.
    assert!(first.take_lane().is_none());
}
