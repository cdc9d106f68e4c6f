//! Connections over channels.

use std::io::Read;
use std::time::Duration;

use urdma_engine::{Access, Notify, QpState, RemoteAddr, SendOp, Status};

use crate::rig::{connect, engine, instance, pair, until, End, MAX_WAIT};

/// Lengths around those of cells, frames and segments.
const LENGTHS: [usize; 10] = [0, 1, 80, 81, 2048, 2049, 65_536, 65_537, 200_000, 5_000_000];

fn fill(end: &mut End, len: usize, seed: u8) {
    for (at, octet) in end.memory[..len].iter_mut().enumerate() {
        *octet = (at as u8).wrapping_mul(31).wrapping_add(seed);
    }
}

fn assert_equal(a: &End, b: &End, len: usize) {
    assert!((0..len).all(|at| a.octet(at) == b.octet(at)), "{len}");
}

#[test]
fn sends_writes_and_reads_of_every_length_arrive_whole() {
    let (mut a, b) = pair(5_000_000);
    for (seed, len) in (1..).zip(LENGTHS) {
        fill(&mut a, len, seed);
        b.receive(1, &[b.sge(0, len)]).unwrap();
        a.post(2, SendOp::Send, &[a.sge(0, len)]).unwrap();
        assert_eq!(
            b.expect(1, Status::Success).completion.byte_len as usize,
            len
        );
        a.expect(2, Status::Success);
        assert_equal(&a, &b, len);
        fill(&mut a, len, seed + 100);
        let write = SendOp::Write {
            remote: b.remote(0),
        };
        b.receive(3, &[]).unwrap();
        a.post_with(4, write, Some(9), true, &[a.sge(0, len)])
            .unwrap();
        assert_eq!(b.expect(3, Status::Success).completion.imm, Some(9));
        a.expect(4, Status::Success);
        assert_equal(&a, &b, len);
        fill(&mut a, len, seed + 200);
        let read = SendOp::Read {
            remote: a.remote(0),
        };
        b.post(5, read, &[b.sge(0, len)]).unwrap();
        b.expect(5, Status::Success);
        assert_equal(&a, &b, len);
    }
}

#[test]
fn atomics_return_the_old_value() {
    let (a, b) = pair(64);
    let add = |add| SendOp::FetchAdd {
        remote: RemoteAddr {
            to: b.remote(0).to.next_multiple_of(8),
            ..b.remote(0)
        },
        add,
    };
    for (wr_id, old) in [(1, 0u64), (2, 5), (3, 10)] {
        a.post(wr_id, add(5), &[a.sge(0, 8)]).unwrap();
        a.expect(wr_id, Status::Success);
        assert_eq!(
            u64::from_ne_bytes(std::array::from_fn(|at| a.octet(at))),
            old
        );
    }
}

#[test]
fn more_messages_than_the_ring_has_cells_arrive_in_order() {
    const MESSAGES: u64 = 1000;
    let (a, b) = pair(64);
    let (mut sent, mut posted, mut received) = (0, 0, 0);
    until("all messages have arrived", || {
        while posted < MESSAGES && b.receive(posted, &[b.sge(0, 8)]).is_ok() {
            posted += 1;
        }
        while sent < MESSAGES && a.post(sent, SendOp::Send, &[a.sge(0, 8)]).is_ok() {
            sent += 1;
        }
        a.poll();
        for wc in b.poll() {
            assert_eq!(
                (wc.completion.wr_id, wc.completion.status),
                (received, Status::Success)
            );
            received += 1;
        }
        received == MESSAGES
    });
}

#[test]
fn message_without_a_receive_request_waits_for_one() {
    let (a, b) = pair(64);
    for wr_id in 1..=3 {
        a.post(wr_id, SendOp::Send, &[a.sge(0, 8)]).unwrap();
    }
    // The peer's thread refuses them meanwhile.
    std::thread::sleep(Duration::from_millis(20));
    for wr_id in 1..=3 {
        b.receive(wr_id, &[b.sge(0, 8)]).unwrap();
    }
    for end in [&b, &a] {
        let found = end.wait(3);
        let found = found
            .iter()
            .map(|wc| (wc.completion.wr_id, wc.completion.status));
        assert!(found.eq((1..=3).map(|wr_id| (wr_id, Status::Success))));
    }
}

#[test]
fn message_to_a_queue_pair_that_is_not_connected_yet_waits() {
    let instance = instance();
    let [a, b] = [1, 2].map(|slot| End::new(engine(&instance, slot), 64));
    a.init(Access::all());
    b.init(Access::all());
    b.receive(2, &[b.sge(0, 8)]).unwrap();
    a.connect(b.qp.number().to_u32());
    a.post(1, SendOp::Send, &[a.sge(0, 8)]).unwrap();
    b.poll();
    b.connect(a.qp.number().to_u32());
    b.expect(2, Status::Success);
    a.expect(1, Status::Success);
}

#[test]
fn write_without_the_right_ends_both_queue_pairs() {
    let (a, b) = pair(64);
    let write = SendOp::Write {
        remote: RemoteAddr {
            stag: b.remote(0).stag ^ 1,
            ..b.remote(0)
        },
    };
    a.post(1, write, &[a.sge(0, 8)]).unwrap();
    a.expect(1, Status::RemoteAccessError);
    until("the other end fails, too", || {
        b.engine.query_qp(&b.qp).0 == QpState::Error
    });
}

#[test]
fn two_queue_pairs_of_one_process_are_connected() {
    let engine = engine(&instance(), 1);
    let [a, b] = [(); 2].map(|()| End::new(engine.clone(), 100_000));
    connect(&a, &b, Access::all());
    b.receive(1, &[b.sge(0, 100_000)]).unwrap();
    a.post(2, SendOp::Send, &[a.sge(0, 100_000)]).unwrap();
    b.expect(1, Status::Success);
    a.expect(2, Status::Success);
}

#[test]
fn armed_queue_wakes_a_sleeper() {
    let (a, mut b) = pair(64);
    b.channel.set_read_timeout(Some(MAX_WAIT)).unwrap();
    for id in 0..200 {
        b.receive(id, &[b.sge(0, 64)]).unwrap();
        b.engine.req_notify_cq(&b.cq, Notify::Any).unwrap();
        assert!(b.poll().is_empty());
        a.post(id, SendOp::Send, &[a.sge(0, 64)]).unwrap();
        let mut cookie = [0; 8];
        b.channel.read_exact(&mut cookie).unwrap();
        b.expect(id, Status::Success);
        a.expect(id, Status::Success);
    }
}

#[test]
fn request_that_the_peer_took_succeeds_though_its_process_ends_and_the_next_one_fails() {
    let (a, b) = pair(64);
    b.receive(1, &[b.sge(0, 8)]).unwrap();
    a.post(2, SendOp::Send, &[a.sge(0, 8)]).unwrap();
    b.expect(1, Status::Success);
    let slot = b.engine.info().slot;
    a.engine.peer_slot_gone(slot, 1);
    a.expect(2, Status::Success);
    a.post(3, SendOp::Send, &[a.sge(0, 8)]).unwrap();
    a.expect(3, Status::RetryExceeded);
}
