//! A peer that is slow, stopped or unreachable for a while: the connection continues or ends as
//! verbs specify, without a wrong octet.

#![allow(clippy::unwrap_used)]

use proto_trp::conn::{SendOp, Status};
use trp_sim::{for_each_seed, Exchange, ExchangePlan, LinkModel, Rights, Setup, SimHost, World};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// The budget is 8 timeouts of code 17, 4.3 s.
fn patient() -> Setup {
    Setup {
        timeout: 17,
        link: LinkModel {
            delay_ns: 20_000,
            loss_ppm: 10_000,
            ..LinkModel::default()
        },
        ..Setup::default()
    }
}

const PLAN: ExchangePlan = ExchangePlan {
    operations: 60,
    max_len: 20_000,
    late_receives: false,
};

/// Both ends are in the middle of an exchange; one is stopped, or the path is cut, for `pause_ns`.
fn interrupted(cut: bool, pause_ns: u64, seed: u64) {
    let mut world = World::new(&patient(), seed);
    let mut exchange = Exchange::new(&mut world, &PLAN, true, seed);
    for _ in 0..10 {
        exchange.pump(&mut world);
        world.step();
    }
    if cut {
        world.blackout(pause_ns);
    } else {
        world.freeze(1);
        world.run_until(pause_ns, |_| false);
        world.thaw(1);
    }
    exchange.run(&mut world, 60 * SECOND);
}

#[test]
fn exchange_goes_on_after_a_second_without_the_peer() {
    for_each_seed(20, |seed| {
        interrupted(false, SECOND, seed);
        interrupted(true, SECOND, seed);
    });
}

#[test]
fn exchange_goes_on_after_repeated_short_cuts() {
    for_each_seed(20, |seed| {
        let mut world = World::new(&patient(), seed);
        let mut exchange = Exchange::new(&mut world, &PLAN, true, seed);
        for _ in 0..20 {
            world.blackout(10 * MS);
            let end = world.now.plus_ns(15 * MS);
            world.run_until(15 * MS, |world| {
                exchange.pump(world);
                world.now >= end
            });
        }
        exchange.run(&mut world, 60 * SECOND);
    });
}

/// The peer is stopped or unreachable for longer than the budget: the oldest send of each end that
/// runs fails, the others are flushed.
#[test]
fn peer_stopped_for_longer_than_the_budget_is_given_up() {
    for cut in [false, true] {
        let mut world = World::new(&patient(), 1);
        let memory = [0, 1].map(|end| world.ends[end].host.register(vec![7; 4096], Rights::ALL));
        for end in 0..2 {
            let write = SendOp::Write {
                remote: SimHost::remote(memory[1 - end], 0),
            };
            world.post(end, 1, write, &[SimHost::sge(memory[end], 0, 4096)]);
            world.post(end, 2, write, &[SimHost::sge(memory[end], 0, 4096)]);
            world.post_recv(end, 3, &[]);
        }
        if cut {
            world.blackout(60 * SECOND);
        } else {
            world.freeze(1);
        }
        world.run_until(30 * SECOND, |_| false);
        let flushed = Status::WorkRequestFlushed;
        let failed = [(1, Status::RetryExceeded), (2, flushed), (3, flushed)];
        assert_eq!(world.outcome(0), failed, "{cut}");
        if cut {
            assert_eq!(world.outcome(1), failed);
        } else {
            // Its peer no longer answers; it only accepts what had reached its queue.
            world.thaw(1);
            world.run_until(60 * SECOND, |_| false);
            let status = world.outcome(1).first().map(|&(_, status)| status);
            assert_eq!(status, Some(Status::RetryExceeded));
        }
    }
}

/// The application of the receiver posts a receive every 300 us, a sender posts as fast as it may.
#[test]
fn receiver_slower_than_its_sender_gets_everything() {
    for_each_seed(10, |seed| {
        let setup = Setup {
            min_rnr_timer: 5,
            ..patient()
        };
        let mut world = World::new(&setup, seed);
        let source = world.ends[0].host.register((0..200).collect(), Rights::ALL);
        let target = world.ends[1].host.register(vec![0; 200], Rights::ALL);
        let (mut sent, mut due) = (0, world.now);
        let mut received = Vec::new();
        let done = world.run_until(10 * SECOND, |world| {
            while sent < 200 && world.conn(0).sends_outstanding() < 128 {
                let sge = SimHost::sge(source, sent, 1);
                world.post(0, sent, SendOp::Send, &[sge]);
                sent += 1;
            }
            let posted = received.len() as u64 + u64::from(world.conn(1).recvs_outstanding());
            if world.now >= due && posted < 200 {
                let sge = SimHost::sge(target, posted, 1);
                world.post_recv(1, posted, &[sge]);
                due = world.now.plus_ns(300_000);
            }
            received.extend(world.outcome(1));
            received.len() == 200
        });
        assert!(done, "{} of 200\n{}", received.len(), world.summary());
        assert!(world.stats(0).rnr_received > 0);
        let wanted: Vec<_> = (0..200).map(|name| (name, Status::Success)).collect();
        assert_eq!(received, wanted);
        let octets: Vec<u8> = (0..200).collect();
        assert_eq!(world.ends[1].host.octets(target), octets);
    });
}
