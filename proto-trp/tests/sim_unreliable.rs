//! Unreliable connections: a lost packet drops its whole message, and what is received is complete,
//! correct and in order.

#![allow(clippy::unwrap_used)]

use proto_trp::conn::{CompletionOp, Event, Payload, QpState, SendOp, SendWr, Status};
use trp_sim::{for_each_seed, LinkModel, Rights, Setup, SimHost, World, SIGNALED};

const SECOND: u64 = 1_000_000_000;
/// Longest message of these tests.
const ROOM: u32 = 6_000;

fn unreliable(link: LinkModel) -> Setup {
    let mut setup = Setup {
        link,
        ..Setup::default()
    };
    setup.config.unreliable = true;
    setup
}

fn perfect() -> Setup {
    unreliable(Setup::default().link)
}

/// A region of the peer's for each message, and one to send from.
fn region(world: &mut World, end: usize, len: usize) -> u32 {
    world.ends[end].host.register(vec![0; len], Rights::ALL)
}

/// What message `n` consists of.
fn octet(n: u32) -> u8 {
    1 + u8::try_from(n % 251).unwrap()
}

/// Length of message `n`: zero to several packets.
fn length(n: u32) -> u32 {
    n * 1_237 % ROOM
}

/// Whether message `n` is a Send; else it is a Write with immediate data.
fn is_send(n: u32) -> bool {
    n & 1 == 0
}

/// Posts message `n` with its number as immediate data: a Send, or a Write to the place `n` of
/// `sink`.
fn post(world: &mut World, n: u32, source: u32, sink: u32) {
    let len = length(n);
    world.ends[0].host.octets_mut(source).fill(octet(n));
    let op = if is_send(n) {
        SendOp::Send
    } else {
        let remote = SimHost::remote(sink, u64::from(n) * u64::from(ROOM));
        SendOp::Write { remote }
    };
    let wr = SendWr {
        wr_id: u64::from(n),
        op,
        imm: Some(n),
        flags: SIGNALED,
        shared_queue: 0,
        payload: Payload::Sges(&[SimHost::sge(source, 0, len)]),
    };
    world.post_send(0, &wr);
}

/// Sends `count` messages one after another over a link and returns the numbers of those that were
/// received, each of which is checked.
fn send_messages(link: LinkModel, seed: u64, count: u32) -> Vec<u32> {
    let mut world = World::new(&unreliable(link), seed);
    let source = region(&mut world, 0, ROOM as usize);
    let sink = region(&mut world, 1, (count * ROOM) as usize);
    let buffer = region(&mut world, 1, ROOM as usize);
    world.post_recv(1, 0, &[SimHost::sge(buffer, 0, ROOM)]);
    let mut received = Vec::new();
    for n in 0..count {
        post(&mut world, n, source, sink);
        world.run(SECOND / 1_000);
        assert_eq!(world.outcome(0), [(u64::from(n), Status::Success)]);
        while let Some(completion) = world.ends[1].host.completions.pop_front() {
            assert_eq!(completion.status, Status::Success);
            let got = completion.imm.unwrap();
            assert_eq!(completion.byte_len, length(got));
            let len = length(got) as usize;
            let octets = if is_send(got) {
                &world.ends[1].host.octets(buffer)[..len]
            } else {
                &world.ends[1].host.octets(sink)[(got * ROOM) as usize..][..len]
            };
            assert!(octets.iter().all(|&o| o == octet(got)), "message {got}");
            received.push(got);
            world.post_recv(1, 0, &[SimHost::sge(buffer, 0, ROOM)]);
        }
    }
    // A part of a lost message may be in memory, and nothing else.
    for n in 0..count {
        let place = &world.ends[1].host.octets(sink)[(n * ROOM) as usize..][..ROOM as usize];
        assert!(place.iter().all(|&o| o == 0 || o == octet(n)), "place {n}");
    }
    assert_eq!(world.conn(0).next_deadline(), None);
    assert_eq!(world.events(0), []);
    received
}

#[test]
fn messages_all_arrive_where_nothing_is_lost() {
    let received = send_messages(Setup::default().link, 1, 60);
    assert_eq!(received, (0..60).collect::<Vec<_>>());
}

#[test]
fn lost_packets_take_their_messages_with_them_and_no_others() {
    for_each_seed(100, |seed| {
        let received = send_messages(
            LinkModel {
                delay_ns: 10_000,
                loss_ppm: 100_000,
                duplicate_ppm: 50_000,
                reorder_ppm: 50_000,
                reorder_ns: 40_000,
                ..LinkModel::default()
            },
            seed,
            60,
        );
        assert!(received.is_sorted_by(|a, b| a < b), "{received:?}");
        // Messages have three packets on average.
        assert!((5..60).contains(&received.len()), "{}", received.len());
    });
}

#[test]
fn sender_completes_without_a_peer() {
    let mut world = World::new(&perfect(), 3);
    let memory = region(&mut world, 0, 4096);
    world.kill(1);
    for wr_id in 0..3 {
        world.post(0, wr_id, SendOp::Send, &[SimHost::sge(memory, 0, 4096)]);
    }
    world.run(SECOND);
    let all = [0, 1, 2].map(|wr_id| (wr_id, Status::Success));
    assert_eq!(world.outcome(0), all);
    assert_eq!(world.conn(0).state(), QpState::Rts);
    assert_eq!(world.conn(0).next_deadline(), None);
}

#[test]
fn message_that_cannot_be_received_is_dropped_and_the_next_is_not() {
    let mut world = World::new(&perfect(), 4);
    let source = region(&mut world, 0, 4096);
    let buffer = region(&mut world, 1, 4096);
    let shut = Rights {
        remote_write: false,
        ..Rights::ALL
    };
    let shut = world.ends[1].host.register(vec![0; 4096], shut);
    world.ends[0].host.octets_mut(source).fill(7);
    let send = |world: &mut World, len| {
        world.post(0, 1, SendOp::Send, &[SimHost::sge(source, 0, len)]);
        world.run(SECOND);
        assert_eq!(world.outcome(0), [(1, Status::Success)]);
    };
    // Nothing is posted.
    send(&mut world, 4096);
    // What is posted is too short for it, and is there for the next.
    world.post_recv(1, 20, &[SimHost::sge(buffer, 0, 2000)]);
    send(&mut world, 4096);
    assert_eq!(world.outcome(1), []);
    // No right to write, and so nothing for the immediate data to complete.
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Write {
            remote: SimHost::remote(shut, 0),
        },
        imm: Some(5),
        flags: SIGNALED,
        shared_queue: 0,
        payload: Payload::Sges(&[SimHost::sge(source, 0, 4096)]),
    };
    world.post_send(0, &wr);
    world.run(SECOND);
    assert_eq!(world.outcome(0), [(1, Status::Success)]);
    assert_eq!(world.outcome(1), []);
    assert!(world.ends[1].host.octets(shut).iter().all(|&o| o == 0));
    send(&mut world, 2000);
    assert_eq!(world.outcome(1), [(20, Status::Success)]);
    assert!(world.stats(1).rx_dropped_messages > 0);
    assert_eq!((world.events(0), world.events(1)), (vec![], vec![]));
}

#[test]
fn shared_receive_requests_outlive_messages_that_are_lost() {
    let mut setup = perfect();
    setup.config.shared_recv = true;
    let mut world = World::new(&setup, 5);
    let source = region(&mut world, 0, 8192);
    let buffer = region(&mut world, 1, 4096);
    let room = vec![SimHost::sge(buffer, 0, 4096)];
    world.ends[1].host.shared_recvs.push_back((30, room));
    for len in [8192, 8192, 4096] {
        world.post(0, 1, SendOp::Send, &[SimHost::sge(source, 0, len)]);
        world.run(SECOND);
    }
    assert_eq!(world.outcome(1), [(30, Status::Success)]);
}

#[test]
fn memory_of_this_end_that_fails_ends_this_end_only() {
    let mut world = World::new(&perfect(), 6);
    let source = region(&mut world, 0, 64);
    world.post_recv(1, 20, &[SimHost::sge(0xbad, 0, 64)]);
    world.post(0, 1, SendOp::Send, &[SimHost::sge(source, 0, 64)]);
    world.run(SECOND);
    assert_eq!(world.outcome(1), [(20, Status::LocalProtectionError)]);
    assert_eq!(world.events(1), [Event::Fatal]);
    assert_eq!(world.conn(1).state(), QpState::Error);
    assert_eq!(world.outcome(0), [(1, Status::Success)]);
    assert_eq!(world.conn(0).state(), QpState::Rts);
}

#[test]
fn failed_send_stops_sends_alone_until_the_queue_pair_is_resumed() {
    let mut world = World::new(&perfect(), 10);
    let memory = [0, 1].map(|end| region(&mut world, end, 64));
    world.post_recv(0, 30, &[SimHost::sge(memory[0], 0, 64)]);
    world.post_recv(1, 20, &[SimHost::sge(memory[1], 0, 64)]);
    let send = |world: &mut World, end, wr_id, stag| {
        world.post(end, wr_id, SendOp::Send, &[SimHost::sge(stag, 0, 64)]);
    };
    for (wr_id, stag) in [(1, memory[0]), (2, 0xbad), (3, memory[0])] {
        send(&mut world, 0, wr_id, stag);
    }
    world.run(SECOND);
    let outcome = [
        (1, Status::Success),
        (2, Status::LocalProtectionError),
        (3, Status::WorkRequestFlushed),
    ];
    assert_eq!(world.outcome(0), outcome);
    assert_eq!(world.outcome(1), [(20, Status::Success)]);
    assert_eq!(world.conn(0).state(), QpState::Sqe);
    // What is posted now is flushed; what the peer sends is received.
    send(&mut world, 0, 4, memory[0]);
    send(&mut world, 1, 5, memory[1]);
    world.run(SECOND);
    let outcome = [(4, Status::WorkRequestFlushed), (30, Status::Success)];
    assert_eq!(world.outcome(0), outcome);
    assert_eq!(world.outcome(1), [(5, Status::Success)]);
    world.conn(0).resume().unwrap();
    world.post_recv(1, 21, &[SimHost::sge(memory[1], 0, 64)]);
    send(&mut world, 0, 6, memory[0]);
    world.run(SECOND);
    assert_eq!(world.outcome(0), [(6, Status::Success)]);
    assert_eq!(world.outcome(1), [(21, Status::Success)]);
    assert_eq!((world.events(0), world.events(1)), (vec![], vec![]));
}

/// The part of a write that was sent before its memory failed must not count to the next write.
#[test]
fn write_after_one_that_failed_half_way_is_whole() {
    let mut world = World::new(&perfect(), 11);
    let source = region(&mut world, 0, ROOM as usize);
    let sink = region(&mut world, 1, ROOM as usize);
    let write = |world: &mut World, wr_id, lists: &[_]| {
        let wr = SendWr {
            wr_id,
            op: SendOp::Write {
                remote: SimHost::remote(sink, 0),
            },
            imm: Some(5),
            flags: SIGNALED,
            shared_queue: 0,
            payload: Payload::Sges(lists),
        };
        world.post_send(0, &wr);
        world.run(SECOND);
    };
    world.post_recv(1, 20, &[]);
    let half = ROOM / 2;
    let bad = [SimHost::sge(source, 0, half), SimHost::sge(0xbad, 0, half)];
    write(&mut world, 1, &bad);
    assert_eq!(world.outcome(0), [(1, Status::LocalProtectionError)]);
    assert!(world.conn(0).stats().tx_datagrams > 0);
    world.conn(0).resume().unwrap();
    write(&mut world, 2, &[SimHost::sge(source, 0, ROOM)]);
    assert_eq!(world.outcome(0), [(2, Status::Success)]);
    assert_eq!(world.outcome(1), [(20, Status::Success)]);
}

/// They stop the send queue as any failed request does: what was posted before is sent, what
/// follows is flushed.
#[test]
fn reads_and_atomics_fail_in_their_turn() {
    let octets = [1; 8];
    for_each_seed(3, |seed| {
        let mut world = World::new(&perfect(), seed);
        let memory = [0, 1].map(|end| region(&mut world, end, 64));
        let remote = SimHost::remote(memory[1], 0);
        let list = [SimHost::sge(memory[0], 0, 8)];
        let swap = SendOp::CompareSwap {
            remote,
            compare: 0,
            swap: 1,
        };
        let cases = [
            (SendOp::Read { remote }, CompletionOp::Read, &list[..]),
            (swap, CompletionOp::CompareSwap, &list),
            (
                SendOp::FetchAdd { remote, add: 1 },
                CompletionOp::FetchAdd,
                &list[..0],
            ),
            (
                SendOp::AtomicWrite { remote, octets },
                CompletionOp::AtomicWrite,
                &[],
            ),
        ];
        let before = world.ends[1].host.octets(memory[1]).to_vec();
        for (op, name, list) in cases {
            world.post_recv(1, 20, &[SimHost::sge(memory[1], 0, 64)]);
            world.post(0, 1, SendOp::Send, &[]);
            world.post(0, 2, op, list);
            world.post(0, 3, SendOp::Send, &[]);
            world.run(SECOND);
            let failed = &world.ends[0].host.completions[1];
            assert_eq!((failed.op, failed.byte_len), (name, 0));
            let wanted = [
                (1, Status::Success),
                (2, Status::LocalQpOperationError),
                (3, Status::WorkRequestFlushed),
            ];
            assert_eq!(world.outcome(0), wanted);
            assert_eq!(world.outcome(1), [(20, Status::Success)]);
            assert_eq!(world.conn(0).state(), QpState::Sqe);
            world.conn(0).resume().unwrap();
        }
        assert_eq!(world.ends[1].host.octets(memory[1]), before);
    });
}

/// An RC end and a UC end drop each other's packets, without any other effect.
#[test]
fn ends_of_different_services_take_nothing_from_one_another() {
    let reliable = Setup {
        retry_cnt: 1,
        ..Setup::default()
    };
    let mut world = World::unconnected(&reliable, 8);
    let mut config = *world.conn(1).config();
    config.unreliable = true;
    *world.conn(1) = proto_trp::conn::Connection::new(config);
    world.conn(1).to_init().unwrap();
    world.connect(0);
    world.connect(1);
    let memory = [0, 1].map(|end| region(&mut world, end, 4096));
    for end in [0, 1] {
        world.post_recv(end, 20, &[SimHost::sge(memory[end], 0, 4096)]);
        world.post(end, 1, SendOp::Send, &[SimHost::sge(memory[end], 0, 64)]);
    }
    world.run(10 * SECOND);
    assert_eq!(world.outcome(1), [(1, Status::Success)]);
    let failed = [(1, Status::RetryExceeded), (20, Status::WorkRequestFlushed)];
    assert_eq!(world.outcome(0), failed);
    assert_eq!(world.conn(1).state(), QpState::Rts);
}

/// A gap of any length is only a gap.
#[test]
fn stream_goes_on_after_a_long_silence() {
    let mut world = World::new(&perfect(), 9);
    let memory = [0, 1].map(|end| region(&mut world, end, 64));
    world.links[0].model.loss_ppm = 1_000_000;
    for wr_id in 0..100_000 {
        world.post(0, wr_id, SendOp::Send, &[SimHost::sge(memory[0], 0, 64)]);
        world.flush(0);
        world.ends[0].host.completions.clear();
    }
    world.links[0].model.loss_ppm = 0;
    world.post_recv(1, 20, &[SimHost::sge(memory[1], 0, 64)]);
    world.post(0, 1, SendOp::Send, &[SimHost::sge(memory[0], 0, 64)]);
    world.run(SECOND);
    assert_eq!(world.outcome(1), [(20, Status::Success)]);
}
