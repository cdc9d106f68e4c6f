//! Errors between two connections, and the completions and events at both ends.

#![allow(clippy::unwrap_used)]

use proto_trp::conn::{
    Completion, Event, Payload, PostError, QpState, RecvWr, RemoteAddr, SendOp, SendWr, Sge, Status,
};
use trp_sim::{for_each_seed, LinkModel, Rights, Setup, SimHost, World, SIGNALED};

const MS: u64 = 1_000_000;
/// A region of 4096 octets at an end.
fn region(world: &mut World, end: usize, rights: Rights) -> u32 {
    world.ends[end].host.register(vec![7; 4096], rights)
}

fn lossy(loss_ppm: u32) -> Setup {
    Setup {
        link: LinkModel {
            delay_ns: 20_000,
            loss_ppm,
            ..LinkModel::default()
        },
        ..Setup::default()
    }
}

/// Runs one bad request between good ones and checks the completions and events of both ends.
fn check_refused(
    seed: u64,
    bad: impl Fn(&mut World) -> (SendOp, Vec<Sge>),
    wanted: Status,
    event: Event,
) {
    let mut world = World::new(&lossy(100_000), seed);
    let source = region(&mut world, 0, Rights::ALL);
    let target = region(&mut world, 1, Rights::ALL);
    let (op, sges) = bad(&mut world);
    let before = world.ends[1].host.octets(target).to_vec();
    let good = SendOp::Write {
        remote: SimHost::remote(target, 0),
    };
    world.post_recv(1, 100, &[SimHost::sge(target, 2048, 64)]);
    world.post(0, 1, good, &[SimHost::sge(source, 0, 512)]);
    world.post(0, 2, op, &sges);
    world.post(0, 3, good, &[SimHost::sge(source, 0, 512)]);
    world.run(20_000 * MS);
    let got = world.outcome(0);
    let flushed = Status::WorkRequestFlushed;
    assert_eq!(got, [(1, Status::Success), (2, wanted), (3, flushed)]);
    assert_eq!(world.outcome(1), [(100, flushed)]);
    assert_eq!(world.events(0), []);
    assert_eq!(world.events(1), [event]);
    assert_eq!(world.conn(0).state(), QpState::Error);
    assert_eq!(world.conn(1).state(), QpState::Error);
    assert_eq!(
        world.ends[1].host.octets(target),
        before,
        "memory was touched"
    );
    world.post(0, 4, SendOp::Send, &[]);
    assert_eq!(world.outcome(0), [(4, flushed)]);
}

#[test]
fn write_without_permission_is_refused_with_terminate() {
    let refused = Status::RemoteAccessError;
    let event = Event::RemoteAccessError;
    type Bad = fn(&mut World) -> RemoteAddr;
    let cases: [Bad; 6] = [
        |_| SimHost::remote(0x7f5a, 0),
        |world| RemoteAddr {
            stag: region(world, 1, Rights::ALL) ^ 1,
            ..RemoteAddr::default()
        },
        |world| SimHost::remote(region(world, 1, Rights::ALL), 4096 - 1000),
        |world| SimHost::remote(region(world, 1, Rights::ALL), u64::MAX - 100),
        |world| {
            let read_only = Rights {
                remote_write: false,
                ..Rights::ALL
            };
            SimHost::remote(region(world, 1, read_only), 0)
        },
        |world| {
            let host = &mut world.ends[1].host;
            SimHost::remote(host.register_in(vec![0; 4096], Rights::ALL, true), 0)
        },
    ];
    for case in cases {
        for_each_seed(5, |seed| {
            let write = |world: &mut World| {
                let source = region(world, 0, Rights::ALL);
                let remote = case(world);
                (
                    SendOp::Write { remote },
                    vec![SimHost::sge(source, 0, 2000)],
                )
            };
            check_refused(seed, write, refused, event);
            let read = |world: &mut World| {
                let sink = region(world, 0, Rights::ALL);
                let mut remote = case(world);
                if world.ends[1].host.octets(0x15a).is_empty() {
                    remote.to = 0;
                }
                (SendOp::Read { remote }, vec![SimHost::sge(sink, 0, 2000)])
            };
            if !std::ptr::fn_addr_eq(case, cases[4]) {
                check_refused(seed, read, refused, event);
            }
        });
    }
}

#[test]
fn read_and_atomic_without_permission_are_refused_with_terminate() {
    let nothing = Rights {
        local_write: true,
        ..Rights::default()
    };
    for_each_seed(10, |seed| {
        let read = |world: &mut World| {
            let sink = region(world, 0, Rights::ALL);
            let remote = SimHost::remote(region(world, 1, nothing), 0);
            (SendOp::Read { remote }, vec![SimHost::sge(sink, 0, 2000)])
        };
        check_refused(
            seed,
            read,
            Status::RemoteAccessError,
            Event::RemoteAccessError,
        );
        let atomic = |world: &mut World| {
            let sink = region(world, 0, Rights::ALL);
            let remote = SimHost::remote(region(world, 1, nothing), 0);
            (
                SendOp::FetchAdd { remote, add: 1 },
                vec![SimHost::sge(sink, 0, 8)],
            )
        };
        check_refused(
            seed,
            atomic,
            Status::RemoteAccessError,
            Event::RemoteAccessError,
        );
        let misaligned = |world: &mut World| {
            let sink = region(world, 0, Rights::ALL);
            let remote = SimHost::remote(region(world, 1, Rights::ALL), 4);
            (
                SendOp::FetchAdd { remote, add: 1 },
                vec![SimHost::sge(sink, 0, 8)],
            )
        };
        let (status, event) = (
            Status::RemoteInvalidRequestError,
            Event::RemoteInvalidRequest,
        );
        check_refused(seed, misaligned, status, event);
    });
}

#[test]
fn atomic_write_needs_the_right_to_write_and_no_other() {
    let write_only = Rights {
        local_write: true,
        remote_write: true,
        ..Rights::default()
    };
    let octets = [1, 2, 3, 4, 5, 6, 7, 8];
    for_each_seed(10, |seed| {
        let mut world = World::new(&lossy(50_000), seed);
        let target = region(&mut world, 1, write_only);
        let remote = SimHost::remote(target, 16);
        world.post(0, 1, SendOp::AtomicWrite { remote, octets }, &[]);
        world.run(1_000 * MS);
        assert_eq!(world.outcome(0), [(1, Status::Success)]);
        assert_eq!(world.ends[1].host.octets(target)[16..24], octets);
        let refused = |world: &mut World| {
            let rights = Rights {
                remote_write: false,
                ..Rights::ALL
            };
            let remote = SimHost::remote(region(world, 1, rights), 0);
            (SendOp::AtomicWrite { remote, octets }, vec![])
        };
        let (status, event) = (Status::RemoteAccessError, Event::RemoteAccessError);
        check_refused(seed, refused, status, event);
    });
}

#[test]
fn read_beyond_what_the_responder_allows_is_refused() {
    let mut world = World::unconnected(&Setup::default(), 1);
    world.connect(0);
    world.connect_with(
        1,
        &Setup {
            rd_atomic: 0,
            ..Setup::default()
        },
    );
    let sink = region(&mut world, 0, Rights::ALL);
    let source = region(&mut world, 1, Rights::ALL);
    let remote = SimHost::remote(source, 0);
    world.post(0, 1, SendOp::Read { remote }, &[SimHost::sge(sink, 0, 64)]);
    world.run(1_000 * MS);
    assert_eq!(world.outcome(0), [(1, Status::RemoteInvalidRequestError)]);
    assert_eq!(world.events(1), [Event::RemoteInvalidRequest]);
}

#[test]
fn message_longer_than_receive_fails_both_ends() {
    for_each_seed(10, |seed| {
        let mut world = World::new(&lossy(100_000), seed);
        let source = region(&mut world, 0, Rights::ALL);
        let target = region(&mut world, 1, Rights::ALL);
        world.post_recv(1, 100, &[SimHost::sge(target, 0, 2000)]);
        world.post_recv(1, 101, &[SimHost::sge(target, 2048, 1999)]);
        world.post_recv(1, 102, &[SimHost::sge(target, 0, 64)]);
        world.post(0, 1, SendOp::Send, &[SimHost::sge(source, 0, 2000)]);
        world.post(0, 2, SendOp::Send, &[SimHost::sge(source, 0, 2000)]);
        world.run(10_000 * MS);
        let refused = Status::RemoteInvalidRequestError;
        assert_eq!(world.outcome(0), [(1, Status::Success), (2, refused)]);
        let wanted = [
            (100, Status::Success),
            (101, Status::LocalLengthError),
            (102, Status::WorkRequestFlushed),
        ];
        assert_eq!(world.outcome(1), wanted);
        assert_eq!(world.events(1), [Event::RemoteInvalidRequest]);
        let end = world.ends[1].host.octets(target)[2048 + 1999];
        assert_eq!(end, 7, "beyond the receive buffer");
    });
}

#[test]
fn send_from_bad_local_memory_fails_after_those_before_it() {
    for_each_seed(10, |seed| {
        let mut world = World::new(&lossy(100_000), seed);
        let source = region(&mut world, 0, Rights::ALL);
        let target = region(&mut world, 1, Rights::ALL);
        let write = SendOp::Write {
            remote: SimHost::remote(target, 0),
        };
        world.post(0, 1, write, &[SimHost::sge(source, 0, 4096)]);
        world.post(
            0,
            2,
            write,
            &[SimHost::sge(source, 0, 10), SimHost::sge(0x995a, 0, 64)],
        );
        world.post(0, 3, write, &[SimHost::sge(source, 0, 4096)]);
        world.run(10_000 * MS);
        let wanted = [
            (1, Status::Success),
            (2, Status::LocalProtectionError),
            (3, Status::WorkRequestFlushed),
        ];
        assert_eq!(world.outcome(0), wanted);
        assert_eq!(world.events(1), []);
    });
}

#[test]
fn read_into_read_only_memory_fails_locally() {
    for_each_seed(10, |seed| {
        let mut world = World::new(&lossy(100_000), seed);
        let sink = region(&mut world, 0, Rights::default());
        let source = region(&mut world, 1, Rights::ALL);
        let remote = SimHost::remote(source, 0);
        world.post(
            0,
            1,
            SendOp::Read { remote },
            &[SimHost::sge(sink, 0, 4096)],
        );
        world.run(10_000 * MS);
        assert_eq!(world.outcome(0), [(1, Status::LocalProtectionError)]);
        assert_eq!(world.conn(1).state(), QpState::Rts);
    });
}

#[test]
fn receive_into_read_only_memory_fails_both_ends() {
    for_each_seed(10, |seed| {
        let mut world = World::new(&lossy(100_000), seed);
        let source = region(&mut world, 0, Rights::ALL);
        let target = region(&mut world, 1, Rights::default());
        world.post_recv(1, 100, &[SimHost::sge(target, 0, 64)]);
        world.post(0, 1, SendOp::Send, &[SimHost::sge(source, 0, 64)]);
        world.run(10_000 * MS);
        assert_eq!(world.outcome(0), [(1, Status::RemoteOperationError)]);
        assert_eq!(world.outcome(1), [(100, Status::LocalProtectionError)]);
        assert_eq!(world.events(1), [Event::Fatal]);
    });
}

#[test]
fn send_without_receive_waits_until_one_is_posted() {
    for_each_seed(10, |seed| {
        let mut world = World::new(&lossy(50_000), seed);
        let source = region(&mut world, 0, Rights::ALL);
        let target = region(&mut world, 1, Rights::ALL);
        world.post(0, 1, SendOp::Send, &[SimHost::sge(source, 0, 3000)]);
        world.post(0, 2, SendOp::Send, &[SimHost::sge(source, 0, 10)]);
        let refused = |world: &mut World| world.stats(0).rnr_received > 3;
        assert!(world.run_until(1_000 * MS, refused), "{}", world.summary());
        assert_eq!(world.outcome(0), []);
        world.post_recv(1, 100, &[SimHost::sge(target, 0, 4096)]);
        world.post_recv(1, 101, &[SimHost::sge(target, 0, 4096)]);
        world.run(1_000 * MS);
        let done = [(1, Status::Success), (2, Status::Success)];
        assert_eq!(world.outcome(0), done);
        let wanted = [(100, Status::Success), (101, Status::Success)];
        assert_eq!(world.outcome(1), wanted);
    });
}

#[test]
fn receive_posted_during_the_pause_ends_it() {
    let setup = Setup {
        // 655 ms, the default of rdma_cm.
        min_rnr_timer: 0,
        rnr_retry: 1,
        ..Setup::default()
    };
    let mut world = World::new(&setup, 1);
    let source = region(&mut world, 0, Rights::ALL);
    world.post(0, 1, SendOp::Send, &[SimHost::sge(source, 0, 0)]);
    world.run_until(MS, |_| false);
    let posted = world.now;
    world.post_recv(1, 100, &[]);
    let done = world.run_until(MS, |world| !world.ends[0].host.completions.is_empty());
    assert!(done, "waited since {posted:?}");
    assert_eq!(world.outcome(0), [(1, Status::Success)]);
}

#[test]
fn send_without_receive_fails_after_rnr_retries() {
    for rnr_retry in [0, 3] {
        let setup = Setup {
            rnr_retry,
            ..Setup::default()
        };
        let mut world = World::new(&setup, 1);
        let source = region(&mut world, 0, Rights::ALL);
        world.post(0, 1, SendOp::Send, &[SimHost::sge(source, 0, 64)]);
        world.post(0, 2, SendOp::Send, &[SimHost::sge(source, 0, 64)]);
        let begin = world.now;
        world.run(1_000 * MS);
        let exceeded = (1, Status::RnrRetryExceeded);
        assert_eq!(
            world.outcome(0),
            [exceeded, (2, Status::WorkRequestFlushed)]
        );
        assert_eq!(world.stats(0).rnr_received, u64::from(rnr_retry) + 1);
        // Code 12 is 0.64 ms.
        assert!(world.now.since_ns(begin) >= u64::from(rnr_retry) * 640_000);
    }
}

#[test]
fn rnr_timer_changed_while_connected_is_the_one_that_counts() {
    let mut world = World::new(&Setup::default(), 1);
    let source = region(&mut world, 0, Rights::ALL);
    // Code 24 is 40.96 ms.
    world.conn(1).set_min_rnr_timer(24);
    world.post(0, 1, SendOp::Send, &[SimHost::sge(source, 0, 0)]);
    world.run_until(30 * MS, |_| false);
    assert_eq!(world.stats(0).rnr_received, 1);
}

#[test]
fn reads_of_a_peer_that_waits_for_a_receive_are_answered() {
    let mut world = World::new(&Setup::default(), 1);
    let memory = [
        region(&mut world, 0, Rights::ALL),
        region(&mut world, 1, Rights::ALL),
    ];
    world.post(0, 1, SendOp::Send, &[SimHost::sge(memory[0], 0, 64)]);
    world.run_until(10 * MS, |_| false);
    let source = SimHost::remote(memory[0], 0);
    world.post(
        1,
        2,
        SendOp::Read { remote: source },
        &[SimHost::sge(memory[1], 0, 4096)],
    );
    world.run_until(10 * MS, |_| false);
    assert_eq!(world.outcome(1), [(2, Status::Success)]);
    assert_eq!(world.outcome(0), []);
}

/// Budget of timeout 10 and 7 retries: 4 * 33.6 ms.
fn impatient(answers_reset: bool) -> Setup {
    Setup {
        timeout: 10,
        retry_cnt: 7,
        answers_reset,
        ..lossy(0)
    }
}

#[test]
fn blackout_shorter_than_the_budget_is_survived() {
    let mut world = World::new(&impatient(false), 1);
    let source = region(&mut world, 0, Rights::ALL);
    let target = region(&mut world, 1, Rights::ALL);
    let write = SendOp::Write {
        remote: SimHost::remote(target, 0),
    };
    world.blackout(120 * MS);
    for wr_id in 0..100 {
        world.post(0, wr_id, write, &[SimHost::sge(source, 0, 4096)]);
    }
    world.run(1_000 * MS);
    let done = world.outcome(0);
    assert_eq!(done.len(), 100);
    assert!(done.iter().all(|(_, status)| *status == Status::Success));
}

#[test]
fn blackout_longer_than_the_budget_fails_the_oldest_send() {
    let mut world = World::new(&impatient(false), 1);
    let source = region(&mut world, 0, Rights::ALL);
    world.blackout(1_000_000 * MS);
    let begin = world.now;
    world.post(0, 1, SendOp::Send, &[SimHost::sge(source, 0, 64)]);
    world.post(0, 2, SendOp::Send, &[SimHost::sge(source, 0, 64)]);
    world.run(5_000 * MS);
    let exceeded = (1, Status::RetryExceeded);
    assert_eq!(
        world.outcome(0),
        [exceeded, (2, Status::WorkRequestFlushed)]
    );
    let waited = world.now.since_ns(begin);
    assert!((134 * MS..2_000 * MS).contains(&waited), "{waited}");
    assert!(world.stats(0).probe_timeouts >= 8);
}

#[test]
fn killed_peer_is_noticed_by_reset() {
    for_each_seed(10, |seed| {
        let mut world = World::new(&lossy(100_000), seed);
        let source = region(&mut world, 0, Rights::ALL);
        world.post_recv(0, 100, &[]);
        world.kill(1);
        let begin = world.now;
        world.post(0, 1, SendOp::Send, &[SimHost::sge(source, 0, 64)]);
        world.post(0, 2, SendOp::Send, &[SimHost::sge(source, 0, 64)]);
        world.run(1_000 * MS);
        let flushed = Status::WorkRequestFlushed;
        let wanted = [(1, Status::RetryExceeded), (2, flushed), (100, flushed)];
        assert_eq!(world.outcome(0), wanted);
        assert_eq!(world.events(0), [Event::PeerGone]);
        assert!(world.now.since_ns(begin) < 200 * MS);
    });
}

#[test]
fn killed_peer_of_idle_connection_is_noticed_by_keep_alive() {
    for answers_reset in [true, false] {
        let setup = Setup {
            keepalive_ns: 100 * MS,
            answers_reset,
            ..Setup::default()
        };
        let mut world = World::new(&setup, 1);
        world.post_recv(0, 100, &[]);
        world.run_until(2_000 * MS, |_| false);
        assert_eq!(world.events(0), []);
        assert!(world.stats(0).tx_datagrams > 5, "no keep-alive");
        world.kill(1);
        world.run_until(2_000 * MS, |_| false);
        assert_eq!(world.events(0), [Event::PeerGone]);
        assert_eq!(world.outcome(0), []);
    }
}

#[test]
fn closed_peer_leaves_receives_and_fails_later_sends() {
    let mut world = World::new(&Setup::default(), 1);
    let source = region(&mut world, 0, Rights::ALL);
    world.post_recv(0, 100, &[]);
    world.conn(1).close();
    world.flush(1);
    world.kill(1);
    world.run(100 * MS);
    assert_eq!(world.events(0), [Event::PeerClosed]);
    assert_eq!(world.outcome(0), []);
    world.post(0, 1, SendOp::Send, &[SimHost::sge(source, 0, 64)]);
    world.run(10_000 * MS);
    let wanted = [
        (1, Status::RetryExceeded),
        (100, Status::WorkRequestFlushed),
    ];
    assert_eq!(world.outcome(0), wanted);
}

#[test]
fn data_before_the_peer_is_ready_arrives_later() {
    let mut world = World::unconnected(&Setup::default(), 1);
    world.connect(0);
    let source = region(&mut world, 0, Rights::ALL);
    let target = region(&mut world, 1, Rights::ALL);
    world.post_recv(1, 100, &[SimHost::sge(target, 0, 64)]);
    world.post(0, 1, SendOp::Send, &[SimHost::sge(source, 0, 64)]);
    world.run_until(3 * MS, |_| false);
    world.connect(1);
    world.run(1_000 * MS);
    assert_eq!(world.outcome(0), [(1, Status::Success)]);
    assert_eq!(world.outcome(1), [(100, Status::Success)]);
    assert!(world.stats(1).rx_wrong_state > 0);
}

#[test]
fn read_of_a_peer_that_stays_in_rtr_is_answered() {
    for_each_seed(10, |seed| {
        let setup = lossy(50_000);
        let mut world = World::unconnected(&setup, seed);
        world.connect(0);
        world.to_rtr(1, &setup);
        let memory = [0, 1].map(|end| region(&mut world, end, Rights::ALL));
        let read = SendOp::Read {
            remote: SimHost::remote(memory[1], 0),
        };
        world.post(0, 1, read, &[SimHost::sge(memory[0], 0, 4096)]);
        world.run(1_000 * MS);
        assert_eq!(world.outcome(0), [(1, Status::Success)]);
        assert_eq!(world.events(1), [Event::Established]);
        // Later it does go to RTS, and both directions work.
        world.to_rts(1, &setup);
        world.post(0, 2, read, &[SimHost::sge(memory[0], 0, 4096)]);
        let write = SendOp::Write {
            remote: SimHost::remote(memory[0], 0),
        };
        world.post(1, 3, write, &[SimHost::sge(memory[1], 0, 4096)]);
        world.run(1_000 * MS);
        assert_eq!(world.outcome(0), [(2, Status::Success)]);
        assert_eq!(world.outcome(1), [(3, Status::Success)]);
    });
}

#[test]
fn forged_and_damaged_datagrams_are_counted_and_dropped() {
    let mut world = World::new(&Setup::default(), 1);
    let source = region(&mut world, 0, Rights::ALL);
    world.post(0, 1, SendOp::Send, &[SimHost::sge(source, 0, 64)]);
    let now = world.now;
    let mut frame = vec![0; 1472];
    let (conn, host) = world.split(0);
    let sent = conn.poll_transmit(now, &mut frame, host).unwrap();
    frame.truncate(sent.len);
    let other_version = {
        let mut octets = frame.clone();
        octets[0] = 0x20 | (octets[0] & 0xf);
        octets
    };
    let forged = {
        let mut octets = frame.clone();
        octets[5] ^= 1;
        octets
    };
    for len in 0..16 {
        world.deliver(1, &frame[..len], false);
    }
    world.deliver(1, &other_version, false);
    assert_eq!(world.stats(1).rx_malformed, 17);
    world.deliver(1, &forged, false);
    assert_eq!(world.stats(1).rx_wrong_id, 1);
    assert_eq!(world.conn(1).state(), QpState::Rts);
    assert_eq!(world.outcome(1), []);
}

#[test]
fn post_beyond_the_queue_is_refused() {
    let mut world = World::new(&Setup::default(), 1);
    world.blackout(MS);
    for wr_id in 0..128 {
        world.post(0, wr_id, SendOp::Send, &[]);
        world.post_recv(0, wr_id, &[]);
    }
    let now = world.now;
    let (conn, host) = world.split(0);
    let wr = SendWr {
        wr_id: 128,
        op: SendOp::Send,
        imm: None,
        flags: SIGNALED,
        shared_queue: 0,
        payload: Payload::Sges(&[]),
    };
    assert_eq!(conn.post_send(|| now, &wr, host), Err(PostError::QueueFull));
    let recv = RecvWr {
        wr_id: 128,
        sges: &[],
    };
    assert_eq!(conn.post_recv(&recv, host), Err(PostError::QueueFull));
    let long = [Sge {
        addr: 0,
        length: 1 << 31,
        lkey: 0,
    }; 2];
    let (conn, host) = world.split(1);
    let wr = SendWr {
        payload: Payload::Sges(&long),
        ..wr
    };
    assert_eq!(
        conn.post_send(|| now, &wr, host),
        Err(PostError::MessageTooLong)
    );
    let wr = SendWr {
        payload: Payload::Inline(&[&[0; 200], &[0; 57]]),
        ..wr
    };
    assert_eq!(
        conn.post_send(|| now, &wr, host),
        Err(PostError::InlineTooLong)
    );
}

#[test]
fn moved_to_error_flushes_everything_without_a_word() {
    let mut world = World::new(&Setup::default(), 1);
    let source = region(&mut world, 0, Rights::ALL);
    world.post_recv(0, 100, &[]);
    world.post_recv(1, 101, &[]);
    world.post(0, 1, SendOp::Send, &[SimHost::sge(source, 0, 64)]);
    let (conn, host) = world.split(0);
    conn.to_error(host);
    let flushed = Status::WorkRequestFlushed;
    assert_eq!(world.outcome(0), [(1, flushed), (100, flushed)]);
    world.run(100 * MS);
    assert_eq!(world.outcome(1), []);
    let all: Vec<Completion> = world.ends[1].host.completions.drain(..).collect();
    assert!(all.is_empty());
}

#[test]
fn drained_send_queue_is_announced_and_resumes() {
    let mut world = World::new(&Setup::default(), 1);
    let source = region(&mut world, 0, Rights::ALL);
    let target = region(&mut world, 1, Rights::ALL);
    let write = SendOp::Write {
        remote: SimHost::remote(target, 0),
    };
    world.post(0, 1, write, &[SimHost::sge(source, 0, 4096)]);
    world.flush(0);
    let (conn, host) = world.split(0);
    conn.to_sqd(host).unwrap();
    world.post(0, 2, write, &[SimHost::sge(source, 0, 64)]);
    world.run(100 * MS);
    assert_eq!(world.outcome(0), [(1, Status::Success)]);
    assert_eq!(world.events(0), [Event::SqDrained]);
    world.conn(0).resume().unwrap();
    world.run(100 * MS);
    assert_eq!(world.outcome(0), [(2, Status::Success)]);
}

#[test]
fn shared_receive_queue_feeds_messages_in_order() {
    for_each_seed(10, |seed| {
        let mut setup = lossy(50_000);
        setup.config.shared_recv = true;
        let mut world = World::new(&setup, seed);
        let source = region(&mut world, 0, Rights::ALL);
        let target = region(&mut world, 1, Rights::ALL);
        for wr_id in 0..20 {
            let list = vec![SimHost::sge(target, 0, 4096)];
            world.ends[1].host.shared_recvs.push_back((wr_id, list));
        }
        for wr_id in 0..20 {
            world.post(0, wr_id, SendOp::Send, &[SimHost::sge(source, 0, 2000)]);
        }
        world.run(1_000 * MS);
        let wanted: Vec<_> = (0..20).map(|wr_id| (wr_id, Status::Success)).collect();
        assert_eq!(world.outcome(1), wanted);
        assert_eq!(world.outcome(0), wanted);
    });
}

#[test]
fn named_shared_receive_queue_takes_every_kind_of_message() {
    for_each_seed(10, |seed| {
        let mut setup = lossy(50_000);
        setup.config.shared_recv = true;
        setup.config.names_shared_queue = true;
        setup.config.rq_depth = 1;
        let mut world = World::new(&setup, seed);
        let source = region(&mut world, 0, Rights::ALL);
        let target = region(&mut world, 1, Rights::ALL);
        world.ends[1].host.shared_queue = 7;
        for wr_id in 0..20 {
            let list = vec![SimHost::sge(target, 0, 4096)];
            world.ends[1].host.shared_recvs.push_back((wr_id, list));
        }
        let remote = RemoteAddr {
            stag: target,
            to: SimHost::base(target),
        };
        // The longest that fits a datagram is among them.
        for (wr_id, length) in (0..20).zip((1400..).step_by(100)) {
            let (op, imm) = match wr_id % 3 {
                0 => (SendOp::Send, None),
                1 => (SendOp::Send, Some(5)),
                _ => (SendOp::Write { remote }, Some(6)),
            };
            let wr = SendWr {
                wr_id,
                op,
                imm,
                flags: SIGNALED,
                shared_queue: 7,
                payload: Payload::Sges(&[SimHost::sge(source, 0, length)]),
            };
            let now = world.now;
            let (conn, host) = world.split(0);
            conn.post_send(|| now, &wr, host).unwrap();
        }
        world.run(5_000 * MS);
        let wanted: Vec<_> = (0..20).map(|wr_id| (wr_id, Status::Success)).collect();
        assert_eq!(world.outcome(1), wanted);
        assert_eq!(world.outcome(0), wanted);
    });
}

#[test]
fn message_for_a_shared_receive_queue_that_does_not_exist_is_an_invalid_request() {
    let mut setup = Setup::default();
    setup.config.shared_recv = true;
    let mut world = World::new(&setup, 1);
    // A peer that names no queue uses number 0.
    world.ends[1].host.shared_queue = 9;
    world.post(0, 1, SendOp::Send, &[]);
    world.run(100 * MS);
    assert_eq!(world.outcome(0), [(1, Status::RemoteInvalidRequestError)]);
}

#[test]
fn send_with_invalidate_invalidates_and_says_so() {
    let mut world = World::new(&Setup::default(), 1);
    let target = region(&mut world, 1, Rights::ALL);
    world.post_recv(1, 100, &[]);
    world.post(0, 1, SendOp::SendInvalidate { stag: target }, &[]);
    world.run(100 * MS);
    assert_eq!(world.ends[1].host.invalidated, [target]);
    let completion = world.ends[1].host.completions.pop_front().unwrap();
    assert_eq!(completion.invalidated, Some(target));
}
