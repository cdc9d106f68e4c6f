//! Faults that software RDMA drivers really had, a test each. Sums of address and length beyond 64
//! bits are in `rights`; an atomic that is repeated is in proto-trp's simulator, which counts what
//! the atomics of a lossy path add up to; opcodes beyond the table are in `verbs::post`.

use std::collections::HashSet;
use std::hint::black_box;
use std::sync::Arc;

use urdma_engine::{Access, EngineError, RemoteAddr, SendOp, Sge, Status};

use crate::rig::{connect, engine, instance, pair, pair_in, until, End};

/// A work request is copied when it is posted: what the application writes over it afterwards is
/// not looked at.
#[test]
fn request_changed_after_it_was_posted_does_what_it_was() {
    let (mut a, b) = pair(4096);
    a.memory[..8].fill(1);
    a.memory[8..16].fill(2);
    let mut list = [a.sge(0, 8)];
    let mut room = [b.sge(0, 8)];
    // Without a receive request of the peer it stays in the queue for a while.
    a.post(1, SendOp::Send, &list).unwrap();
    list[0] = Sge {
        addr: 8,
        length: u32::MAX,
        lkey: 0,
    };
    b.receive(2, &room).unwrap();
    room[0] = list[0];
    black_box((&list, &room));
    b.expect(2, Status::Success);
    a.expect(1, Status::Success);
    assert_eq!(b.memory[..16], [[1; 8], [0; 8]].concat());
}

/// Queue pairs and regions that end while packets for them are on their way: nothing comes to
/// memory that is no longer theirs.
#[test]
fn destroy_with_packets_in_flight_touches_nothing_afterwards() {
    let instance = instance();
    let (first, second) = (engine(&instance, 1), engine(&instance, 2));
    for round in 0..12 {
        let a = End::new(Arc::clone(&first), 1 << 16);
        let mut b = End::new(Arc::clone(&second), 1 << 16);
        connect(&a, &b, Access::all());
        for wr_id in 0..16 {
            let write = SendOp::Write {
                remote: b.remote(0),
            };
            a.post(wr_id, write, &[a.sge(0, 1 << 16)]).unwrap();
        }
        if round % 2 == 0 {
            b.engine.destroy_qp(&b.qp).unwrap();
            b.engine.deregister_mr(b.key).unwrap();
        } else {
            b.engine.deregister_mr(b.key).unwrap();
            b.engine.destroy_qp(&b.qp).unwrap();
        }
        b.memory.fill(9);
        // Whatever was on its way has arrived when the sender knows how all of it ended.
        let ended = a.wait(16);
        let failed = ended
            .iter()
            .position(|wc| wc.completion.status != Status::Success);
        let failed = failed.unwrap_or(16);
        assert!(ended[failed..]
            .iter()
            .all(|wc| wc.completion.status != Status::Success));
        assert!(b.memory.iter().all(|&octet| octet == 9), "round {round}");
        a.engine.destroy_qp(&a.qp).unwrap();
    }
}

/// Keys of one process are not to be guessed from one another.
#[test]
fn keys_of_regions_are_not_predictable() {
    let end = End::new(engine(&instance(), 1), 64);
    let addr = end.remote(0).to;
    let keys: Vec<u32> = (0..200)
        .map(|_| {
            let keys = end
                .engine
                .register_mr(end.pd, addr, 64, addr, Access::all());
            keys.unwrap().rkey
        })
        .collect();
    // The part of a key that is not its region's place in the table, which follows the one before.
    let low = |key: &u32| key & 0x3fff;
    let values: HashSet<u32> = keys.iter().map(low).collect();
    let steps: HashSet<u32> = keys
        .windows(2)
        .map(|pair| low(&pair[1].wrapping_sub(pair[0])))
        .collect();
    // 200 draws of 16384 values repeat two or three times, and hardly ever thirty times.
    assert!(values.len() > 170, "{} values", values.len());
    assert!(steps.len() > 170, "{} steps", steps.len());
}

/// The request that failed first says why; those behind it say that they were flushed, whatever is
/// wrong with them.
#[test]
fn error_of_the_first_request_is_not_lost_by_the_second() {
    let (a, b) = pair(4096);
    let foreign = Sge {
        lkey: a.key ^ 1,
        ..a.sge(0, 8)
    };
    let nowhere = RemoteAddr {
        stag: b.key ^ 1,
        ..b.remote(0)
    };
    let write = |remote| SendOp::Write { remote };
    a.post(1, write(b.remote(0)), &[a.sge(0, 8)]).unwrap();
    a.post(2, write(nowhere), &[a.sge(0, 8)]).unwrap();
    // After the error of the second is known these are flushed without a look at what is wrong with
    // them.
    a.post(3, write(b.remote(0)), &[foreign]).unwrap();
    a.post(4, write(nowhere), &[a.sge(0, 8)]).unwrap();
    let ended: Vec<_> = a
        .wait(4)
        .iter()
        .map(|wc| (wc.completion.wr_id, wc.completion.status))
        .collect();
    assert_eq!(ended[0], (1, Status::Success));
    assert_eq!(ended[1], (2, Status::RemoteAccessError));
    let flushed = Status::WorkRequestFlushed;
    assert_eq!(ended[2..], [(3, flushed), (4, flushed)]);
}

/// A region over the end of the address space would wrap round in every check.
#[test]
fn region_over_the_end_of_the_address_space_is_refused() {
    let end = End::new(engine(&instance(), 1), 64);
    let addr = end.remote(0).to;
    let register = |addr, len, iova| {
        let access = Access::LOCAL_WRITE;
        end.engine.register_mr(end.pd, addr, len, iova, access)
    };
    assert_eq!(register(addr, 64, u64::MAX - 62), Err(EngineError::Invalid));
    assert!(register(addr, 64, u64::MAX - 63).is_ok());
    assert!(register(u64::MAX - 62, 64, 0).is_err());
    assert!(register(addr, u64::MAX, 0).is_err());
}

/// Both ends end at once, with messages both ways.
#[test]
fn both_ends_destroyed_at_once_leave_nothing() {
    let instance = instance();
    let (a, b) = pair_in(&instance, 4096, Access::all());
    for end in [&a, &b] {
        for wr_id in 0..32 {
            end.receive(wr_id, &[end.sge(0, 8)]).unwrap();
            end.post(wr_id, SendOp::Send, &[end.sge(8, 8)]).unwrap();
        }
    }
    std::thread::scope(|scope| {
        for end in [&a, &b] {
            scope.spawn(|| end.engine.destroy_qp(&end.qp).unwrap());
        }
    });
    until("no completion is left", || {
        a.poll().is_empty() && b.poll().is_empty()
    });
    for end in [&a, &b] {
        end.engine.deregister_mr(end.key).unwrap();
        end.engine.destroy_cq(&end.cq).unwrap();
        end.engine.dealloc_pd(end.pd).unwrap();
    }
}
