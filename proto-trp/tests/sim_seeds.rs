//! Ten thousand random exchanges: every operation in both directions, over links with every kind of
//! fault, with small queues, late receives, and every sequence number shortly
//! before its wrap; one in five connections is broken in the middle.

#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicU64, Ordering};

use trp_sim::{for_each_seed, Breakage, End, Exchange, ExchangePlan, LinkModel, Setup, World};
use urdma_types::Rng;
use urdma_types::{Qpn, SlotId};

const MS: u64 = 1_000_000;

fn one_of<T: Copy>(rng: &mut Rng, choices: &[T]) -> T {
    choices[rng.below_len(choices.len())]
}

/// A link whose faults are drawn from the seed: up to 5 % loss, with everything else; one in four
/// is good.
fn link(rng: &mut Rng) -> LinkModel {
    let clean = LinkModel {
        delay_ns: 1_000 + rng.below(200_000),
        bits_per_second: one_of(rng, &[0, 100_000_000, 10_000_000_000]),
        ..LinkModel::default()
    };
    if rng.below(4) == 0 {
        return clean;
    }
    let up_to = |bound: u64, rng: &mut Rng| u32::try_from(rng.below(bound)).unwrap();
    LinkModel {
        jitter_ns: one_of(rng, &[0, 1_000, 50_000]),
        loss_ppm: up_to(50_000, rng),
        duplicate_ppm: up_to(20_000, rng),
        reorder_ppm: up_to(50_000, rng),
        reorder_ns: 300_000,
        corrupt_ppm: up_to(10_000, rng),
        queue_octets: one_of(rng, &[0, 200_000]),
        mark_octets: one_of(rng, &[0, 50_000]),
        ..clean
    }
}

/// Each counter starts a few steps before its wrap, or anywhere.
fn setup(rng: &mut Rng) -> Setup {
    let near = |wrap: u32, rng: &mut Rng| match rng.below(3) {
        0 => rng.bits32() & wrap,
        _ => wrap - rng.bits32() % 40,
    };
    let is_fast = rng.below(6) == 0;
    let slots = [0, 1, 253].map(|slot| SlotId::new(slot).unwrap());
    let qpn = [0xffff, 1 + rng.bits32() % 0xffff]
        .map(|index| Qpn::new(one_of(rng, &slots), u16::try_from(index).unwrap()));
    let mut setup = Setup {
        link: if is_fast {
            LinkModel::default()
        } else {
            link(rng)
        },
        max_datagram_octets: if is_fast {
            65_507
        } else {
            one_of(rng, &[256, 600, 1472, 8972])
        },
        qpn,
        psn: [near(0xff_ffff, rng), near(0xff_ffff, rng)],
        count_from: near(u32::MAX, rng).max(2),
        rd_atomic: one_of(rng, &[1, 2, 4, 16]),
        min_rnr_timer: one_of(rng, &[1, 5, 12]),
        ..Setup::default()
    };
    setup.config.sq_depth = one_of(rng, &[2, 8, 128]);
    setup.config.rq_depth = one_of(rng, &[1, 2, 16, 128]);
    setup.config.window_packets = one_of(rng, &[256, 65_280]);
    setup
}

fn breakage(rng: &mut Rng) -> Breakage {
    let end = rng.below_len(2);
    one_of(
        rng,
        &[
            Breakage::Error(end),
            Breakage::Kill(end),
            Breakage::Close(end),
            Breakage::Cut,
        ],
    )
}

#[test]
fn ten_thousand_exchanges_match_their_models() {
    let (trains, seeds) = (AtomicU64::new(0), AtomicU64::new(0));
    for_each_seed(10_000, |seed| {
        let mut rng = Rng::new(seed);
        let setup = setup(&mut rng);
        let plan = ExchangePlan {
            operations: 30,
            max_len: one_of(&mut rng, &[100, 3_000, 20_000]),
            late_receives: rng.below(3) == 0,
        };
        let mut world = World::new(&setup, seed);
        let mut exchange = Exchange::new(&mut world, &plan, true, seed);
        if rng.below(5) == 0 {
            let after_ns = rng.below(3 * MS);
            exchange.run_and_break(&mut world, after_ns, breakage(&mut rng));
        } else {
            exchange.run(&mut world, 60_000 * MS);
        }
        let taken = |end: &End| end.conn.as_ref().map_or(0, |conn| conn.stats().rx_trains);
        trains.fetch_add(world.ends.iter().map(taken).sum(), Ordering::Relaxed);
        seeds.fetch_add(1, Ordering::Relaxed);
    });
    // One seed may have none.
    let (trains, seeds) = (trains.into_inner(), seeds.into_inner());
    println!("{trains} trains in {seeds} exchanges");
    assert!(seeds < 1_000 || trains > seeds, "{trains} trains");
}
