//! The end of a peer: which of its last packets count, and the completions and events at the other
//! end.

#![allow(clippy::unwrap_used)]

use proto_trp::conn::{ConnConfig, Event, QpState, SendOp, SendWr, Status, Time};
use trp_sim::{for_each_seed, LinkModel, Rights, Setup, SimHost, World, SIGNALED};

const MS: u64 = 1_000_000;
const FLUSHED: Status = Status::WorkRequestFlushed;
const EXCEEDED: Status = Status::RetryExceeded;

/// A region of 4096 octets at an end.
fn region(world: &mut World, end: usize, rights: Rights) -> u32 {
    world.ends[end].host.register(vec![7; 4096], rights)
}

/// Timeout 14 and 7 retries: nominally 537 ms.
fn setup(fails_with_peer: bool) -> Setup {
    let setup = Setup::default();
    Setup {
        config: ConnConfig {
            fails_with_peer,
            ..setup.config
        },
        keepalive_ns: 100 * MS,
        ..setup
    }
}

/// Cuts the outgoing path of an end.
fn silence(world: &mut World, end: usize) {
    world.links[end].down_until = Time::from_ns(u64::MAX);
}

#[test]
fn message_that_was_taken_is_a_success_though_its_acknowledgement_is_lost() {
    for_each_seed(10, |seed| {
        let mut world = World::new(&setup(false), seed);
        let [source, target] = [0, 1].map(|end| region(&mut world, end, Rights::ALL));
        world.post_recv(1, 100, &[SimHost::sge(target, 0, 64)]);
        silence(&mut world, 1);
        world.post(0, 1, SendOp::Send, &[SimHost::sge(source, 0, 64)]);
        world.post(0, 2, SendOp::Send, &[SimHost::sge(source, 0, 64)]);
        let arrived = |world: &mut World| !world.ends[1].host.completions.is_empty();
        assert!(world.run_until(1_000 * MS, arrived));
        assert_eq!(world.outcome(1), [(100, Status::Success)]);
        world.kill(1);
        world.links[1].down_until = Time::ZERO;
        world.run(1_000 * MS);
        // The second found no receive request.
        assert_eq!(world.outcome(0), [(1, Status::Success), (2, EXCEEDED)]);
    });
}

#[test]
fn reset_that_answers_an_acknowledgement_fails_no_send_that_was_taken() {
    let mut world = World::new(&setup(false), 1);
    let [source, target] = [0, 1].map(|end| region(&mut world, end, Rights::ALL));
    for (end, region) in [(0, source), (1, target)] {
        world.post_recv(end, 100, &[SimHost::sge(region, 0, 64)]);
    }
    world.post(1, 2, SendOp::Send, &[SimHost::sge(target, 0, 64)]);
    world.flush(1);
    silence(&mut world, 1);
    world.post(0, 1, SendOp::Send, &[SimHost::sge(source, 0, 64)]);
    let arrived = |world: &mut World| !world.ends[1].host.completions.is_empty();
    assert!(world.run_until(1_000 * MS, arrived));
    world.kill(1);
    world.links[1].down_until = Time::ZERO;
    world.run(1_000 * MS);
    let outcome = world.outcome(0);
    assert_eq!(outcome, [(100, Status::Success), (1, Status::Success)]);
}

#[test]
fn write_that_was_refused_after_its_process_took_it_is_no_success() {
    let mut world = World::new(&setup(false), 1);
    let source = region(&mut world, 0, Rights::ALL);
    let target = region(&mut world, 1, Rights::default());
    silence(&mut world, 1);
    let remote = SimHost::remote(target, 0);
    world.post(
        0,
        1,
        SendOp::Write { remote },
        &[SimHost::sge(source, 0, 64)],
    );
    let refused = |world: &mut World| world.conn(1).state() == QpState::Error;
    assert!(world.run_until(1_000 * MS, refused));
    world.kill(1);
    world.links[1].down_until = Time::ZERO;
    world.run(1_000 * MS);
    assert_eq!(world.outcome(0), [(1, EXCEEDED)]);
}

#[test]
fn idle_end_of_a_killed_peer_changes_nothing_and_its_next_send_fails_at_once() {
    let mut world = World::new(&setup(false), 1);
    let source = region(&mut world, 0, Rights::ALL);
    world.post_recv(0, 100, &[]);
    world.kill(1);
    world.run_until(2_000 * MS, |_| false);
    assert_eq!(world.events(0), [Event::PeerGone]);
    assert_eq!(world.outcome(0), []);
    assert_eq!(world.conn(0).state(), QpState::Rts);
    world.post(0, 1, SendOp::Send, &[SimHost::sge(source, 0, 64)]);
    assert_eq!(world.outcome(0), [(1, EXCEEDED), (100, FLUSHED)]);
    assert_eq!(world.events(0), []);
}

#[test]
fn idle_end_that_fails_with_its_peer_is_flushed() {
    let mut world = World::new(&setup(true), 1);
    world.post_recv(0, 100, &[]);
    world.kill(1);
    world.run_until(2_000 * MS, |_| false);
    assert_eq!(world.events(0), [Event::Fatal, Event::PeerGone]);
    assert_eq!(world.outcome(0), [(100, FLUSHED)]);
    assert_eq!(world.conn(0).state(), QpState::Error);
}

#[test]
fn send_posted_in_sqd_to_a_peer_that_is_gone_fails_when_the_queue_is_resumed() {
    let mut world = World::new(&setup(false), 1);
    let (conn, host) = world.split(0);
    conn.to_sqd(host).unwrap();
    world.kill(1);
    let (conn, host) = world.split(0);
    conn.peer_gone(host);
    world.post(0, 1, SendOp::Send, &[]);
    world.run_until(1_000 * MS, |_| false);
    assert_eq!(world.outcome(0), []);
    world.conn(0).resume().unwrap();
    world.run(1_000 * MS);
    assert_eq!(world.outcome(0), [(1, EXCEEDED)]);
}

/// One end posts to a peer that is in `state`; returns how long the request takes to fail, in
/// milliseconds.
fn fails_after_ms(state: QpState) -> u64 {
    let mut world = World::unconnected(&setup(false), 1);
    world.connect(0);
    if state == QpState::Error {
        world.connect(1);
        let (conn, host) = world.split(1);
        conn.to_error(host);
    } else if state == QpState::Reset {
        world.conn(1).reset();
    }
    assert_eq!(world.conn(1).state(), state);
    let source = region(&mut world, 0, Rights::ALL);
    let begin = world.now;
    world.post(0, 1, SendOp::Send, &[SimHost::sge(source, 0, 64)]);
    world.post(0, 2, SendOp::Send, &[SimHost::sge(source, 0, 64)]);
    let failed = |world: &mut World| world.conn(0).state() == QpState::Error;
    assert!(world.run_until(10_000 * MS, failed));
    assert_eq!(world.outcome(0), [(1, EXCEEDED), (2, FLUSHED)]);
    assert_eq!(world.events(0), []);
    world.now.since_ns(begin) / MS
}

#[test]
fn send_to_a_peer_in_error_fails_after_half_a_second() {
    assert_eq!(fails_after_ms(QpState::Error), 500);
}

#[test]
fn send_to_a_peer_that_is_not_connected_fails_after_the_nominal_time() {
    for state in [QpState::Reset, QpState::Init] {
        let waited = fails_after_ms(state);
        assert!((537..537 + 250).contains(&waited), "{state:?}: {waited} ms");
    }
}

#[test]
fn send_to_a_peer_that_is_connected_a_little_later_succeeds() {
    let mut world = World::unconnected(&setup(false), 1);
    world.connect(0);
    let [source, target] = [0, 1].map(|end| region(&mut world, end, Rights::ALL));
    world.post(0, 1, SendOp::Send, &[SimHost::sge(source, 0, 64)]);
    world.run_until(500 * MS, |_| false);
    world.connect(1);
    world.post_recv(1, 100, &[SimHost::sge(target, 0, 64)]);
    world.run(10_000 * MS);
    assert_eq!(world.outcome(0), [(1, Status::Success)]);
}

/// An end fails by a local error: the sink of its read is protected.
fn fail_locally(world: &mut World, end: usize) {
    let sink = region(world, end, Rights::default());
    let source = region(world, 1 - end, Rights::ALL);
    let remote = SimHost::remote(source, 0);
    world.post(
        end,
        50,
        SendOp::Read { remote },
        &[SimHost::sge(sink, 0, 64)],
    );
}

#[test]
fn local_error_of_the_peer_is_the_reason_of_the_oldest_request() {
    let lossy = LinkModel {
        loss_ppm: 100_000,
        ..Setup::default().link
    };
    for_each_seed(10, |seed| {
        let setup = Setup {
            link: lossy,
            ..setup(false)
        };
        let mut world = World::new(&setup, seed);
        let source = region(&mut world, 0, Rights::ALL);
        world.post_recv(0, 100, &[]);
        // The peer posts no receive requests.
        for wr_id in 1..=3 {
            world.post(0, wr_id, SendOp::Send, &[SimHost::sge(source, 0, 64)]);
        }
        fail_locally(&mut world, 1);
        world.run(10_000 * MS);
        let first = (1, Status::RemoteOperationError);
        let wanted = [first, (2, FLUSHED), (3, FLUSHED), (100, FLUSHED)];
        assert_eq!(world.outcome(0), wanted);
        assert_eq!(world.events(0), []);
    });
}

#[test]
fn local_error_of_the_peer_of_an_idle_end_is_the_reason_of_its_next_request() {
    let mut world = World::new(&setup(false), 1);
    world.post_recv(0, 100, &[]);
    fail_locally(&mut world, 1);
    world.run_until(90 * MS, |_| false);
    assert_eq!(world.outcome(0), []);
    assert_eq!(world.events(0), []);
    assert_eq!(world.conn(0).state(), QpState::Rts);
    world.post(0, 1, SendOp::Send, &[]);
    world.run(10_000 * MS);
    let wanted = [(1, Status::RemoteOperationError), (100, FLUSHED)];
    assert_eq!(world.outcome(0), wanted);
}

#[test]
fn refused_write_with_immediate_data_ends_the_receive_with_a_local_access_error() {
    for (loss_ppm, shared) in [(0, false), (200_000, false), (0, true)] {
        for_each_seed(10, |seed| {
            let setup = Setup {
                link: LinkModel {
                    loss_ppm,
                    ..Setup::default().link
                },
                config: ConnConfig {
                    shared_recv: shared,
                    ..Setup::default().config
                },
                ..Setup::default()
            };
            let mut world = World::new(&setup, seed);
            let source = region(&mut world, 0, Rights::ALL);
            let target = region(&mut world, 1, Rights::default());
            let remote = SimHost::remote(target, 0);
            for wr_id in [100, 101] {
                if shared {
                    world.ends[1].host.shared_recvs.push_back((wr_id, vec![]));
                } else {
                    world.post_recv(1, wr_id, &[]);
                }
            }
            for (wr_id, imm) in [(1, None), (2, Some(9))] {
                let len = if imm.is_some() { 3000 } else { 0 };
                let sges = [SimHost::sge(source, 0, len)];
                world.post_send(
                    0,
                    &SendWr {
                        wr_id,
                        op: SendOp::Write { remote },
                        imm,
                        flags: SIGNALED,
                        shared_queue: 0,
                        payload: proto_trp::conn::Payload::Sges(&sges),
                    },
                );
            }
            world.run(10_000 * MS);
            let wanted = [(1, Status::Success), (2, Status::RemoteAccessError)];
            assert_eq!(world.outcome(0), wanted);
            let received = world.outcome(1);
            assert_eq!(received[0], (100, Status::LocalAccessError));
            assert_eq!(received.get(1), (!shared).then_some(&(101, FLUSHED)));
        });
    }
}
