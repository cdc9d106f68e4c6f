//! Two engines in one process: what is read, what is copied, and what happens when a payload cannot
//! be read.
#![allow(clippy::cast_possible_truncation)]

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::referral::REFERRED_MESSAGE_MAX;
use crate::rig::{arena, connect, engine, pair, pair_in, until, End};
use crate::{Access, QpModify, QpState, SendOp, Status};

const MEMORY: usize = 600_000;

/// Datagrams whose payload was to be read, and those of which it could not be.
fn counts(end: &End) -> (u64, u64) {
    let shard = end.engine.shard.lock();
    (shard.counters.referred, shard.counters.unreadable)
}

fn set_read(end: &End, read: Read) {
    end.engine.shard.lock().cma.read = read;
}

fn fill(end: &mut End, seed: usize) {
    for (at, octet) in end.memory.iter_mut().enumerate() {
        *octet = ((at * 7 + at / 251 + seed) % 256) as u8;
    }
}

/// Sends `len` octets of `a` in two pieces to two places of `b`, then writes them to a third;
/// checks every octet of `b`.
fn exchange(a: &mut End, b: &mut End, len: usize) {
    fill(a, len);
    b.memory.fill(0xee);
    let (half, odd) = (len / 2, len / 3);
    let pieces = [a.sge(11, half), a.sge(250_003, len - half)];
    let places = [b.sge(5, odd), b.sge(100_001, len - odd)];
    b.receive(1, &places).unwrap();
    a.post(2, SendOp::Send, &pieces).unwrap();
    a.expect(2, Status::Success);
    assert_eq!(b.expect(1, Status::Success).completion.byte_len, len as u32);
    let remote = b.remote(300_007);
    a.post(3, SendOp::Write { remote }, &pieces).unwrap();
    a.expect(3, Status::Success);
    let sent = [
        &a.memory[11..11 + half],
        &a.memory[250_003..250_003 + len - half],
    ]
    .concat();
    let mut expected = vec![0xee; MEMORY];
    expected[5..5 + odd].copy_from_slice(&sent[..odd]);
    expected[100_001..100_001 + len - odd].copy_from_slice(&sent[odd..]);
    expected[300_007..300_007 + len].copy_from_slice(&sent);
    assert!(b.memory == expected, "{len} octets");
}

/// As many payloads as a message of this length has segments that are read, twice.
const LONG: usize = 100_000;
const LONG_READS: u64 = 4;

fn refused(_: u32, _: &Vectors, _: &Vectors) -> Result<usize, i32> {
    Err(libc::EPERM)
}

fn faulting(_: u32, _: &Vectors, _: &Vectors) -> Result<usize, i32> {
    Err(libc::EFAULT)
}

/// Copies half, as when the memory ends there.
fn half(pid: u32, own: &Vectors, far: &Vectors) -> Result<usize, i32> {
    read_by_kernel(pid, own, far).map(|octets| octets / 2)
}

#[test]
fn long_payload_is_read_where_it_lies_and_short_payload_is_copied() {
    let (mut a, mut b) = pair(MEMORY);
    exchange(&mut a, &mut b, REFER_FROM - 1);
    assert_eq!(counts(&b), (0, 0));
    exchange(&mut a, &mut b, REFER_FROM);
    assert_eq!(counts(&b), (2, 0));
    exchange(&mut a, &mut b, LONG);
    assert_eq!(counts(&b), (2 + LONG_READS, 0));
    // And the other way.
    exchange(&mut b, &mut a, LONG);
    assert_eq!(counts(&a), (LONG_READS, 0));
}

#[test]
fn payload_of_a_very_long_message_is_copied() {
    let (mut a, b) = pair(MEMORY);
    fill(&mut a, 1);
    let len = REFERRED_MESSAGE_MAX as usize + 1;
    let remote = b.remote(0);
    a.post(1, SendOp::Write { remote }, &[a.sge(0, len)])
        .unwrap();
    a.expect(1, Status::Success);
    assert!(a.memory[..len] == b.memory[..len]);
    assert_eq!(counts(&b), (0, 0));
}

#[test]
fn who_may_not_read_says_so_and_gets_copies() {
    let arena = arena();
    let (first, second) = (engine(arena, 1), engine(arena, 2));
    second.shard.lock().cma.read = refused;
    let mut a = End::new(first, MEMORY);
    let mut b = End::new(second, MEMORY);
    connect(&a, &b, Access::all());
    exchange(&mut a, &mut b, LONG);
    assert_eq!(counts(&b), (0, 0));
    assert_eq!(b.engine.shard.lock().cma.unreadable(), [1]);
    // The other direction is another question.
    exchange(&mut b, &mut a, LONG);
    assert_eq!(counts(&a), (LONG_READS, 0));
}

/// As in another pid namespace: the process of that number is another one, where something else
/// lies at that address.
#[test]
fn process_without_the_witness_is_not_read() {
    let arena = arena();
    let (first, second) = (engine(arena, 1), engine(arena, 2));
    let elsewhere = Box::new(1u64);
    let at = std::ptr::from_ref(&*elsewhere).expose_provenance() as u64;
    first.shard.lock().endpoint.show_witness(at, 2);
    let mut a = End::new(first, MEMORY);
    let mut b = End::new(second, MEMORY);
    connect(&a, &b, Access::all());
    exchange(&mut a, &mut b, LONG);
    assert_eq!(counts(&b), (0, 0));
    assert_eq!(b.engine.shard.lock().cma.unreadable(), [1]);
}

#[test]
fn refusal_after_the_connection_was_made_loses_nothing() {
    let (mut a, mut b) = pair(MEMORY);
    set_read(&b, refused);
    exchange(&mut a, &mut b, LONG);
    let (referred, unreadable) = counts(&b);
    assert!(
        unreadable > 0 && unreadable == referred,
        "{referred} {unreadable}"
    );
    // From then on it is not tried again.
    set_read(&b, read_by_kernel);
    exchange(&mut a, &mut b, LONG);
    assert_eq!(counts(&b), (referred, unreadable));
}

#[test]
fn payload_that_cannot_be_read_is_copied_and_after_some_of_them_everything() {
    for read in [faulting as Read, half] {
        let (mut a, mut b) = pair(MEMORY);
        set_read(&b, read);
        for _ in 0..FAULTS_MAX {
            exchange(&mut a, &mut b, REFER_FROM);
        }
        let (referred, unreadable) = counts(&b);
        assert_eq!(referred, unreadable);
        assert!(unreadable >= FAULTS_MAX.into(), "{unreadable}");
        exchange(&mut a, &mut b, LONG);
        assert_eq!(counts(&b), (referred, unreadable));
    }
}

/// Payload of several packets of which some cannot be read: those behind them are placed, or kept,
/// meanwhile.
#[test]
fn stream_of_which_some_payloads_cannot_be_read_arrives_whole_and_in_order() {
    static TURN: AtomicU32 = AtomicU32::new(0);
    fn sometimes(pid: u32, own: &Vectors, far: &Vectors) -> Result<usize, i32> {
        match TURN.fetch_add(1, Ordering::Relaxed) % 7 {
            3 => Err(libc::ESRCH),
            _ => read_by_kernel(pid, own, far),
        }
    }
    const LEN: usize = 40_000;
    let (mut a, b) = pair(MEMORY);
    set_read(&b, sometimes);
    for (at, octet) in a.memory.iter_mut().enumerate() {
        *octet = (at / LEN) as u8;
    }
    for round in 0..14 {
        let remote = b.remote(round % 3);
        a.post(
            round as u64,
            SendOp::Write { remote },
            &[a.sge(round * LEN, LEN)],
        )
        .unwrap();
    }
    for (round, done) in (0..14).zip(a.wait(14)) {
        let done = done.completion;
        assert_eq!((done.wr_id, done.status), (round, Status::Success));
    }
    // The last three went to 2, 0 and 1.
    assert_eq!(b.memory[0], 12);
    assert!(b.memory[1..LEN + 1].iter().all(|octet| *octet == 13));
    assert_eq!(b.memory[LEN + 1], 11);
    assert!(counts(&b).1 > 0);
}

#[test]
fn pages_that_may_be_missing_are_copied_and_targets_that_may_be_are_filled() {
    let (mut a, mut b) = pair(MEMORY);
    for end in [&mut a, &mut b] {
        let addr = end.remote(0).to;
        let access = Access::all();
        assert!(access.contains(Access::ON_DEMAND));
        let keys = end
            .engine
            .register_mr(end.pd, addr, MEMORY as u64, addr, access);
        end.key = keys.unwrap().lkey;
    }
    exchange(&mut a, &mut b, LONG);
    assert_eq!(counts(&b), (0, 0));
    let addr = a.remote(0).to;
    let plain = Access::LOCAL_WRITE;
    let keys = a.engine.register_mr(a.pd, addr, MEMORY as u64, addr, plain);
    a.key = keys.unwrap().lkey;
    exchange(&mut a, &mut b, LONG);
    assert_eq!(counts(&b), (LONG_READS, 0));
}

#[test]
fn request_that_was_given_back_is_not_read_any_more() {
    let arena = arena();
    let (a, b) = pair_in(arena, MEMORY, Access::all());
    b.receive(1, &[b.sge(0, LONG)]).unwrap();
    // The receiver does nothing while its lock is held.
    let held = b.engine.shard.lock();
    a.post(2, SendOp::Send, &[a.sge(0, LONG)]).unwrap();
    let failed = QpModify {
        state: Some(QpState::Error),
        ..QpModify::default()
    };
    a.engine.modify_qp(&a.qp, &failed).unwrap();
    a.expect(2, Status::WorkRequestFlushed);
    drop(held);
    until("the datagrams have been looked at", || {
        assert!(b.poll().is_empty());
        counts(&b).0 == 2
    });
    // That says nothing about the process.
    assert_eq!(counts(&b).1, 0);
    assert!(b.engine.shard.lock().cma.unreadable().is_empty());
}

/// A request of an unreliable connection is done when it is sent, and its memory the application's.
#[test]
fn payload_of_unreliable_connections_is_copied() {
    let arena = arena();
    let mut a = End::unreliable(engine(arena, 1), MEMORY);
    let b = End::unreliable(engine(arena, 2), MEMORY);
    connect(&a, &b, Access::all());
    a.memory.fill(3);
    b.receive(1, &[b.sge(0, LONG)]).unwrap();
    let held = b.engine.shard.lock();
    a.post(2, SendOp::Send, &[a.sge(0, LONG)]).unwrap();
    a.expect(2, Status::Success);
    a.memory.fill(4);
    drop(held);
    b.expect(1, Status::Success);
    assert!(b.memory[..LONG].iter().all(|octet| *octet == 3));
    assert_eq!(counts(&b), (0, 0));
}

#[test]
fn new_process_in_a_slot_is_met_anew() {
    let (a, b) = pair(MEMORY);
    let reads = || {
        let slot = |number| urdma_types::SlotId::new(number).unwrap();
        let shard = b.engine.shard.lock();
        shard.endpoint.arena().reads(slot(2), slot(1))
    };
    assert!(reads());
    b.engine.peer_slot_gone(a.engine.info().slot, 0);
    assert!(!reads());
    let mut shard = b.engine.shard.lock();
    let shard = &mut *shard;
    shard.cma.probe(&shard.endpoint, a.engine.info().slot);
    assert!(shard
        .endpoint
        .arena()
        .reads(shard.slot, urdma_types::SlotId::new(1).unwrap()));
}

#[test]
fn process_that_is_switched_off_neither_refers_nor_reads() {
    let arena = arena();
    let (first, second) = (engine(arena, 1), engine(arena, 2));
    {
        let mut shard = second.shard.lock();
        shard.endpoint.show_witness(0, 0);
        shard.cma.is_on = false;
    }
    let mut a = End::new(first, MEMORY);
    let mut b = End::new(second, MEMORY);
    connect(&a, &b, Access::all());
    exchange(&mut a, &mut b, LONG);
    exchange(&mut b, &mut a, LONG);
    assert_eq!((counts(&a), counts(&b)), ((0, 0), (0, 0)));
}
