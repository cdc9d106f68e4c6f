//! Random operations in both directions over links with every kind of fault: memory and completions
//! must equal the model's.

#![allow(clippy::unwrap_used)]

use trp_sim::{for_each_seed, Exchange, ExchangePlan, LinkModel, Setup, World};
use urdma_types::Rng;

/// A link whose faults are drawn from the seed: up to 5 % loss, with everything else.
fn bad_link(rng: &mut Rng) -> LinkModel {
    let up_to = |bound: u64, rng: &mut Rng| u32::try_from(rng.below(bound)).unwrap();
    LinkModel {
        bits_per_second: [0, 100_000_000, 10_000_000_000][rng.below_len(3)],
        delay_ns: 1_000 + rng.below(200_000),
        jitter_ns: [0, 1_000, 50_000][rng.below_len(3)],
        loss_ppm: up_to(50_000, rng),
        duplicate_ppm: up_to(20_000, rng),
        reorder_ppm: up_to(50_000, rng),
        reorder_ns: 300_000,
        corrupt_ppm: up_to(10_000, rng),
        queue_octets: [0, 200_000][rng.below_len(2)],
        mark_octets: [0, 50_000][rng.below_len(2)],
    }
}

fn exchange(seed: u64, setup: &Setup, plan: &ExchangePlan) {
    let mut world = World::new(setup, seed);
    let mut exchange = Exchange::new(&mut world, plan, true, seed);
    exchange.run(&mut world, 60_000_000_000);
}

#[test]
fn exchange_over_clean_link_matches_model() {
    for_each_seed(20, |seed| {
        let plan = ExchangePlan {
            operations: 60,
            max_len: 20_000,
            late_receives: false,
        };
        exchange(seed, &Setup::default(), &plan);
    });
}

#[test]
fn exchange_over_bad_link_matches_model() {
    for_each_seed(150, |seed| {
        let mut rng = Rng::new(seed);
        let setup = Setup {
            link: bad_link(&mut rng),
            max_datagram_octets: [256, 600, 1472, 8972][rng.below_len(4)],
            psn: [rng.bits32() & 0xff_ffff, 0xff_ffff - rng.bits32() % 100],
            ..Setup::default()
        };
        let plan = ExchangePlan {
            operations: 40,
            max_len: 30_000,
            late_receives: rng.below(3) == 0,
        };
        exchange(seed, &setup, &plan);
    });
}

#[test]
fn exchange_in_the_largest_datagrams_matches_model() {
    for_each_seed(30, |seed| {
        let mut setup = Setup {
            max_datagram_octets: 65_507,
            ..Setup::default()
        };
        setup.config.window_packets = 64;
        let plan = ExchangePlan {
            operations: 60,
            max_len: 400_000,
            late_receives: seed % 3 == 0,
        };
        exchange(seed, &setup, &plan);
    });
}
