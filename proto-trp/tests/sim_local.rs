//! Requests that are done, or fail, without the peer: in the order of the queue, each once, and an
//! error of one ends the connection.

#![allow(clippy::unwrap_used)]

use proto_trp::conn::{
    CompletionOp, Payload, PostError, QpState, RemoteAddr, SendOp, SendWr, Status, WindowBind,
};
use trp_sim::{for_each_seed, LinkModel, Rights, Setup, SimHost, World, SIGNALED};

const SECOND: u64 = 1_000_000_000;

fn lossy() -> Setup {
    Setup {
        link: LinkModel {
            delay_ns: 20_000,
            loss_ppm: 50_000,
            ..LinkModel::default()
        },
        ..Setup::default()
    }
}

fn bind(key: u32) -> SendOp {
    SendOp::BindWindow(WindowBind {
        key,
        ..WindowBind::default()
    })
}

/// The Sends are refused until receives are posted, so that the send queue is rewound over the
/// local requests between them.
#[test]
fn local_requests_between_refused_sends_are_done_once() {
    for_each_seed(50, |seed| {
        let mut world = World::new(&lossy(), seed);
        let memory = [0, 1].map(|end| {
            let host = &mut world.ends[end].host;
            host.register(vec![7; 8192], Rights::ALL)
        });
        let payload = [SimHost::sge(memory[0], 0, 3000)];
        world.post(0, 1, SendOp::Send, &payload);
        world.post(0, 2, bind(11), &[]);
        world.post(0, 3, SendOp::Send, &payload);
        world.post(0, 4, SendOp::LocalInvalidate { stag: 12 }, &[]);
        world.run_until(SECOND / 5, |_| false);
        assert_eq!(world.outcome(0), []);
        for wr_id in 20..22 {
            world.post_recv(1, wr_id, &[SimHost::sge(memory[1], 0, 4096)]);
            world.run_until(SECOND / 5, |_| false);
        }
        let done = |world: &mut World| world.ends[0].host.completions.len() == 4;
        assert!(world.run_until(20 * SECOND, done), "{}", world.summary());
        let host = &world.ends[0].host;
        let ops: Vec<_> = host.completions.iter().map(|done| done.op).collect();
        let expected = [
            CompletionOp::Send,
            CompletionOp::BindWindow,
            CompletionOp::Send,
            CompletionOp::LocalInvalidate,
        ];
        assert_eq!(ops, expected);
        assert_eq!(
            (&host.bound[..], &host.invalidated_here[..]),
            (&[11][..], &[12][..])
        );
    });
}

#[test]
fn local_request_that_fails_ends_the_connection_after_those_before_it() {
    for op in [bind(0), SendOp::LocalInvalidate { stag: 0 }] {
        let mut world = World::new(&lossy(), 3);
        let memory = [0, 1].map(|end| {
            let host = &mut world.ends[end].host;
            host.register(vec![7; 8192], Rights::ALL)
        });
        let write = SendOp::Write {
            remote: SimHost::remote(memory[1], 0),
        };
        world.post(0, 1, write, &[SimHost::sge(memory[0], 0, 8192)]);
        world.post(0, 2, op, &[]);
        world.post(0, 3, write, &[SimHost::sge(memory[0], 0, 8)]);
        let done = |world: &mut World| world.ends[0].host.completions.len() == 3;
        assert!(world.run_until(20 * SECOND, done), "{}", world.summary());
        let expected = [
            (1, Status::Success),
            (2, Status::WindowBindError),
            (3, Status::WorkRequestFlushed),
        ];
        assert_eq!(world.outcome(0), expected);
        assert_eq!(world.conn(0).state(), QpState::Error);
    }
}

/// Atomics with a list of another length than that of the returned word.
#[test]
fn atomic_into_a_list_of_another_length_fails_after_those_before_it_and_changes_nothing() {
    for lengths in [&[][..], &[0], &[7], &[9], &[16], &[4, 3], &[8, 8]] {
        for is_swap in [false, true] {
            let mut world = World::new(&lossy(), 5);
            let memory = [0, 1].map(|end| {
                let host = &mut world.ends[end].host;
                host.register(vec![7; 64], Rights::ALL)
            });
            let remote = SimHost::remote(memory[1], 0);
            let list: Vec<_> = lengths
                .iter()
                .map(|&length| SimHost::sge(memory[0], 0, length))
                .collect();
            let op = if is_swap {
                SendOp::CompareSwap {
                    remote,
                    compare: u64::from_ne_bytes([7; 8]),
                    swap: 1,
                }
            } else {
                SendOp::FetchAdd { remote, add: 1 }
            };
            let read = SendOp::Read { remote };
            world.post(0, 1, read, &[SimHost::sge(memory[0], 8, 8)]);
            world.post(0, 2, op, &list);
            world.post(0, 3, read, &[SimHost::sge(memory[0], 16, 8)]);
            let done = |world: &mut World| world.ends[0].host.completions.len() == 3;
            assert!(world.run_until(20 * SECOND, done), "{}", world.summary());
            let expected = [
                (1, Status::Success),
                (2, Status::LocalLengthError),
                (3, Status::WorkRequestFlushed),
            ];
            assert_eq!(world.outcome(0), expected, "{lengths:?}");
            assert_eq!(world.conn(0).state(), QpState::Error);
            assert_eq!(world.ends[1].host.octets(memory[1]), [7; 64]);
        }
    }
}

/// A request that cannot succeed waits in SQD as any other does.
#[test]
fn request_that_cannot_succeed_waits_until_the_drained_queue_goes_on() {
    let mut world = World::new(&Setup::default(), 7);
    let memory = world.ends[1].host.register(vec![7; 64], Rights::ALL);
    world.run(SECOND);
    let (conn, host) = world.split(0);
    conn.to_sqd(host).unwrap();
    let remote = SimHost::remote(memory, 0);
    world.post(0, 1, SendOp::FetchAdd { remote, add: 1 }, &[]);
    world.run(SECOND);
    assert_eq!(world.outcome(0), []);
    assert_eq!(world.conn(0).state(), QpState::Sqd);
    world.conn(0).resume().unwrap();
    world.run(SECOND);
    assert_eq!(world.outcome(0), [(1, Status::LocalLengthError)]);
}

/// The answer to a read cannot be stored when a request behind the read is already known to fail.
#[test]
fn request_that_fails_before_one_that_is_known_to_fail_ends_the_connection() {
    for_each_seed(20, |seed| {
        let mut world = World::new(&lossy(), seed);
        let host = &mut world.ends[0].host;
        let read_only = host.register(vec![7; 64], Rights::default());
        let source = world.ends[1].host.register(vec![7; 64], Rights::ALL);
        let read = SendOp::Read {
            remote: SimHost::remote(source, 0),
        };
        world.post(0, 1, read, &[SimHost::sge(read_only, 0, 64)]);
        world.post(0, 2, bind(0), &[]);
        let done = |world: &mut World| world.ends[0].host.completions.len() == 2;
        assert!(world.run_until(20 * SECOND, done), "{}", world.summary());
        let expected = [
            (1, Status::LocalProtectionError),
            (2, Status::WorkRequestFlushed),
        ];
        assert_eq!(world.outcome(0), expected);
    });
}

/// An initiator that allows no reads and atomics in progress has none that could be started.
#[test]
fn read_without_room_for_one_fails() {
    let setup = Setup {
        rd_atomic: 0,
        ..Setup::default()
    };
    let mut world = World::new(&setup, 3);
    let memory = [0, 1].map(|end| {
        let host = &mut world.ends[end].host;
        host.register(vec![7; 64], Rights::ALL)
    });
    let read = SendOp::Read {
        remote: SimHost::remote(memory[1], 0),
    };
    world.post(0, 1, read, &[SimHost::sge(memory[0], 0, 8)]);
    world.run(SECOND);
    assert_eq!(world.outcome(0), [(1, Status::LocalQpOperationError)]);
}

#[test]
fn inline_data_of_a_request_that_sends_none_is_refused() {
    let mut world = World::new(&Setup::default(), 1);
    let remote = RemoteAddr::default();
    let ops = [
        SendOp::Read { remote },
        SendOp::FetchAdd { remote, add: 1 },
        SendOp::AtomicWrite {
            remote,
            octets: [1; 8],
        },
        SendOp::LocalInvalidate { stag: 1 },
        bind(1),
    ];
    let now = world.now;
    let (conn, host) = world.split(0);
    for op in ops {
        let wr = SendWr {
            wr_id: 1,
            op,
            imm: None,
            flags: SIGNALED,
            shared_queue: 0,
            payload: Payload::Inline(&[]),
        };
        let posted = conn.post_send(|| now, &wr, host);
        assert_eq!(posted, Err(PostError::InvalidRequest));
    }
}
