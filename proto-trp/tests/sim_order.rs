//! Memory changes in the order in which writes were posted, whatever the order in which packets
//! arrive.

#![allow(clippy::unwrap_used)]

use proto_trp::conn::SendOp;
use trp_sim::{for_each_seed, LinkModel, Rights, Setup, SimHost, World};
use urdma_types::Rng;

const SECOND: u64 = 1_000_000_000;
const SEEDS: u64 = 100;
/// Fits in a send queue.
const WRITES: u8 = 60;
const OCTETS: u32 = 8_192;

/// A link that loses and reorders, and the keys of a source at end 0 and a target at end 1. The
/// source has octets of value n at n * `OCTETS`.
fn bad_link(seed: u64) -> (World, u32, u32) {
    let setup = Setup {
        link: LinkModel {
            delay_ns: 20_000,
            loss_ppm: 50_000,
            reorder_ppm: 100_000,
            reorder_ns: 100_000,
            ..LinkModel::default()
        },
        ..Setup::default()
    };
    let mut world = World::new(&setup, seed);
    let octets = (0..WRITES).flat_map(|value| vec![value; OCTETS as usize]);
    let source = world.ends[0].host.register(octets.collect(), Rights::ALL);
    let target = vec![0; 2 * OCTETS as usize];
    let target = world.ends[1].host.register(target, Rights::ALL);
    (world, source, target)
}

fn write(world: &mut World, (source, target): (u32, u32), value: u8, offset: u64, length: u32) {
    let op = SendOp::Write {
        remote: SimHost::remote(target, offset),
    };
    let from = u64::from(value) * u64::from(OCTETS);
    world.post(0, value.into(), op, &[SimHost::sge(source, from, length)]);
}

#[test]
fn later_writes_overwrite_earlier_ones() {
    for_each_seed(SEEDS, |seed| {
        let (mut world, source, target) = bad_link(seed);
        let mut rng = Rng::new(seed);
        let mut expected = vec![0; 2 * OCTETS as usize];
        for value in 0..WRITES {
            let offset = rng.below_len(OCTETS as usize);
            let length = 1 + rng.below_len(OCTETS as usize - 1);
            let octets = u32::try_from(length).unwrap();
            write(&mut world, (source, target), value, offset as u64, octets);
            expected[offset..offset + length].fill(value);
        }
        world.run(10 * SECOND);
        assert_eq!(world.outcome(0).len(), usize::from(WRITES));
        assert_eq!(world.ends[1].host.octets(target), expected);
    });
}

#[test]
fn a_write_is_seen_after_those_before_it() {
    const FLAG: usize = OCTETS as usize;
    for_each_seed(SEEDS, |seed| {
        let (mut world, source, target) = bad_link(seed);
        let keys = (source, target);
        for value in 1..WRITES / 2 {
            write(&mut world, keys, value, 0, OCTETS);
            write(&mut world, keys, value, FLAG as u64, 1);
        }
        world.run_until(10 * SECOND, |world| {
            let octets = world.ends[1].host.octets(target);
            let flag = octets[FLAG];
            assert!(octets[..FLAG].iter().all(|octet| *octet >= flag));
            flag == WRITES / 2 - 1
        });
        assert_eq!(world.ends[1].host.octets(target)[FLAG], WRITES / 2 - 1);
    });
}
