//! Requests that are done without the peer: in the order of the queue, each once, and an error of one ends the connection.

#![allow(clippy::unwrap_used)]

use proto_trp::conn::{CompletionOp, SendOp, State, Status, WindowBind};
use proto_trp::sim::{for_each_seed, LinkModel, Rights, Setup, SimHost, World};

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

/// The Sends are refused until receives are posted, so that the queue goes back over what was done between them.
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
    for (op, status) in [
        (bind(0), Status::WindowBindError),
        (
            SendOp::LocalInvalidate { stag: 0 },
            Status::LocalQpOperationError,
        ),
    ] {
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
            (2, status),
            (3, Status::WorkRequestFlushed),
        ];
        assert_eq!(world.outcome(0), expected);
        assert_eq!(world.conn(0).state(), State::Error);
    }
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
