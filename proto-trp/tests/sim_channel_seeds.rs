//! Random exchanges over a channel: several connections, every operation in both directions, small
//! rings, few frames, late receives, processes that stop, and counters shortly before their wrap;
//! one in four is broken in the middle.
#![allow(clippy::unwrap_used)]

use trp_sim::{for_each_seed, ChannelSetup, ChannelWorld, Ends, Exchange, ExchangePlan, Setup};
use urdma_types::Rng;

/// Steps after which an exchange is stuck.
const STEPS_MAX: u32 = 3_000_000;
/// Steps after which both ends of a broken connection have noticed.
const BROKEN_STEPS: u32 = 20_000;
/// Steps after which applications look at their completions, on average.
const STEPS_PER_POLL: u64 = 6;

fn one_of<T: Copy>(rng: &mut Rng, choices: &[T]) -> T {
    choices[rng.below_len(choices.len())]
}

fn setup(rng: &mut Rng) -> ChannelSetup {
    let mut ends = Setup {
        psn: [rng.bits32() & 0xff_ffff, rng.bits32() & 0xff_ffff],
        rd_atomic: one_of(rng, &[1, 2, 4, 16]),
        min_rnr_timer: one_of(rng, &[1, 5, 12]),
        ..Setup::default()
    };
    ends.config.sq_depth = one_of(rng, &[2, 8, 128]);
    ends.config.rq_depth = one_of(rng, &[1, 2, 16, 128]);
    ChannelSetup {
        cells: one_of(rng, &[17, 18, 32, 64]),
        frames: [1 + rng.below_len(8), 1 + rng.below_len(3)],
        connections: one_of(rng, &[1, 2, 5]),
        ends,
        stop_ppm: one_of(rng, &[0, 0, 1_000]),
        staggered: rng.below(3) == 0,
        first: one_of(rng, &[0, 0xff_fff0, 0xffff_fff0]),
    }
}

/// Whether the steps of this seed make applications poll now.
fn polls(world: &mut ChannelWorld) -> bool {
    world.rng.below(STEPS_PER_POLL) == 0
}

fn run(world: &mut ChannelWorld, exchanges: &mut [Exchange]) {
    for _ in 0..STEPS_MAX {
        world.step();
        if polls(world) {
            let mut done = true;
            for (number, exchange) in exchanges.iter_mut().enumerate() {
                let mut pair = world.pair(number);
                exchange.pump(&mut pair);
                done &= exchange.is_done(&mut pair);
            }
            if done {
                return;
            }
        }
    }
    let progress: Vec<_> = exchanges.iter().map(Exchange::progress).collect();
    panic!("not done: {progress:?}\n{}", world.summary());
}

/// Breaks one connection, or kills a process, and looks at what is left.
fn run_and_break(world: &mut ChannelWorld, exchanges: &mut [Exchange]) {
    let before = world.rng.below(3_000);
    let steps = |world: &mut ChannelWorld, exchanges: &mut [Exchange], count: u64| {
        for _ in 0..count {
            world.step();
            if polls(world) {
                for (number, exchange) in exchanges.iter_mut().enumerate() {
                    exchange.pump(&mut world.pair(number));
                }
            }
        }
    };
    steps(world, exchanges, before);
    let (end, number) = (world.rng.below_len(2), world.rng.below_len(exchanges.len()));
    let mut broken = number..number + 1;
    match world.rng.below(4) {
        0 => {
            let mut pair = world.pair(number);
            let (conn, host) = pair.alive(end).unwrap();
            conn.to_error(host);
        }
        1 => {
            broken = 0..exchanges.len();
            world.kill(end);
        }
        2 => world.conn(end, number).close(),
        _ => world.destroy(end, number),
    }
    for exchange in &mut exchanges[broken.clone()] {
        exchange.expect_failures();
    }
    steps(world, exchanges, u64::from(BROKEN_STEPS));
    for number in broken.clone() {
        exchanges[number].check_broken(&mut world.pair(number));
    }
    if broken.len() < exchanges.len() {
        // The others go on.
        for _ in 0..STEPS_MAX {
            let mut done = true;
            world.step();
            for (number, exchange) in exchanges.iter_mut().enumerate() {
                if !broken.contains(&number) {
                    let mut pair = world.pair(number);
                    exchange.pump(&mut pair);
                    done &= exchange.is_done(&mut pair);
                }
            }
            if done {
                return;
            }
        }
        panic!("a connection stopped with another: {}", world.summary());
    }
}

#[test]
fn random_exchanges_over_a_channel_match_their_models() {
    for_each_seed(3_000, |seed| {
        let mut rng = Rng::new(seed ^ 0xc4a7);
        let setup = setup(&mut rng);
        let plan = ExchangePlan {
            operations: 30,
            max_len: one_of(&mut rng, &[100, 3_000, 150_000]),
            late_receives: rng.below(3) == 0,
        };
        let mut world = ChannelWorld::new(&setup, seed);
        let mut exchanges: Vec<_> = (0..setup.connections)
            .map(|number| Exchange::new(&mut world.pair(number), &plan, true, seed ^ number as u64))
            .collect();
        if rng.below(4) == 0 {
            run_and_break(&mut world, &mut exchanges);
        } else {
            run(&mut world, &mut exchanges);
            for (number, exchange) in exchanges.iter_mut().enumerate() {
                exchange.check_memory(&world.pair(number));
            }
        }
    });
}
