//! A receiver that is not ready: its peer waits, its own requests continue, and nothing is executed
//! twice or out of order.

#![allow(clippy::unwrap_used)]

use proto_trp::conn::{Payload, SendOp, SendWr, Status};
use trp_sim::{
    for_each_seed, Exchange, ExchangePlan, LinkModel, Rights, Setup, SimHost, World, SIGNALED,
};

const SECOND: u64 = 1_000_000_000;

fn lossy(loss_ppm: u32) -> Setup {
    let mut setup = Setup {
        link: LinkModel {
            delay_ns: 20_000,
            loss_ppm,
            reorder_ppm: loss_ppm,
            reorder_ns: 100_000,
            ..LinkModel::default()
        },
        ..Setup::default()
    };
    setup.config.window_packets = 256;
    setup
}

fn region(world: &mut World, end: usize, len: usize) -> u32 {
    world.ends[end].host.register(vec![7; len], Rights::ALL)
}

/// The receiver posts its receive only after it has read several windows of the peer's memory,
/// while a Send of the peer is refused.
#[test]
fn reads_of_many_windows_pass_a_refused_send() {
    for loss_ppm in [0, 20_000] {
        for_each_seed(20, |seed| {
            const LENGTH: u32 = 1_000_000;
            let mut world = World::new(&lossy(loss_ppm), seed);
            let memory = [0, 1].map(|end| region(&mut world, end, LENGTH as usize));
            world.post(0, 1, SendOp::Send, &[SimHost::sge(memory[0], 0, 5000)]);
            let write = SendOp::Write {
                remote: SimHost::remote(memory[1], 0),
            };
            world.post(0, 2, write, &[SimHost::sge(memory[0], 0, 5000)]);
            for wr_id in 10..14 {
                let read = SendOp::Read {
                    remote: SimHost::remote(memory[0], 0),
                };
                world.post(1, wr_id, read, &[SimHost::sge(memory[1], 0, LENGTH)]);
                let done = |world: &mut World| !world.ends[1].host.completions.is_empty();
                assert!(world.run_until(20 * SECOND, done), "{}", world.summary());
                assert_eq!(world.outcome(1), [(wr_id, Status::Success)]);
            }
            assert_eq!(world.outcome(0), []);
            assert!(world.stats(0).rnr_received > 0);
            world.post_recv(1, 20, &[SimHost::sge(memory[1], 0, 5000)]);
            let done = |world: &mut World| world.ends[0].host.completions.len() == 2;
            assert!(world.run_until(20 * SECOND, done), "{}", world.summary());
            let sent = [(1, Status::Success), (2, Status::Success)];
            assert_eq!(world.outcome(0), sent);
            assert_eq!(world.outcome(1), [(20, Status::Success)]);
        });
    }
}

/// Requests after a refused Send have no effect before it: an atomic is executed once, and only
/// after the Send was received.
#[test]
fn requests_behind_a_refused_send_wait_for_it() {
    for_each_seed(200, |seed| {
        let mut world = World::new(&lossy(50_000), seed);
        let memory = [0, 1].map(|end| region(&mut world, end, 8192));
        world.ends[1].host.octets_mut(memory[1])[..8].fill(0);
        let target = SimHost::remote(memory[1], 0);
        let local = |at| SimHost::sge(memory[0], at, 8);
        let immediate = SendWr {
            wr_id: 1,
            op: SendOp::Write {
                remote: SimHost::remote(memory[1], 4096),
            },
            imm: Some(9),
            flags: SIGNALED,
            shared_queue: 0,
            payload: Payload::Sges(&[SimHost::sge(memory[0], 4096, 3000)]),
        };
        world.post_send(0, &immediate);
        let add = SendOp::FetchAdd {
            remote: target,
            add: 1,
        };
        world.post(0, 2, add, &[local(0)]);
        world.post(0, 3, SendOp::Send, &[SimHost::sge(memory[0], 0, 4000)]);
        world.post(0, 4, SendOp::Read { remote: target }, &[local(8)]);
        world.run_until(SECOND / 5, |_| false);
        assert_eq!(world.ends[1].host.atomics.len(), 0);
        for (recv, atomics) in [(20, 1), (21, 1)] {
            world.post_recv(1, recv, &[SimHost::sge(memory[1], 4096, 4096)]);
            let done = |world: &mut World| !world.ends[1].host.completions.is_empty();
            assert!(world.run_until(20 * SECOND, done), "{}", world.summary());
            assert_eq!(world.outcome(1), [(recv, Status::Success)]);
            world.run_until(SECOND / 5, |_| false);
            assert_eq!(world.ends[1].host.atomics.len(), atomics);
        }
        let done = |world: &mut World| world.ends[0].host.completions.len() == 4;
        assert!(world.run_until(20 * SECOND, done), "{}", world.summary());
        let wanted = [1, 2, 3, 4].map(|wr_id| (wr_id, Status::Success));
        assert_eq!(world.outcome(0), wanted);
        let read = &world.ends[0].host.octets(memory[0])[8..16];
        assert_eq!(read, 1u64.to_ne_bytes());
    });
}

#[test]
fn exchange_with_late_receives_matches_model() {
    for_each_seed(300, |seed| {
        let setup = lossy([0, 10_000, 50_000][(seed % 3) as usize]);
        let plan = ExchangePlan {
            operations: 40,
            max_len: 20_000,
            late_receives: true,
        };
        let mut world = World::new(&setup, seed);
        Exchange::new(&mut world, &plan, true, seed).run(&mut world, 60 * SECOND);
    });
}
