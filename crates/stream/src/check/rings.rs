//! Rings of another length: when a sender asks for one, and what both ends do then.

use super::world::{Plan, World};
use crate::Config;

const RING_OCTETS: u64 = 64;
const LONGEST: u64 = 1 << 20;
/// The time from a work request to its completion.
const LEAST_NS: u64 = 1000;

fn world(ring_max_octets: u64) -> World {
    let mut plan = Plan::quiet(RING_OCTETS, LONGEST);
    plan.configs = [Config {
        ring_max_octets,
        advert_min_octets: u64::MAX,
        ..Config::default()
    }; 2];
    World::new(&plan)
}

/// What each end transmits now takes effect and completes after [`LEAST_NS`].
fn pass(world: &mut World) {
    for end in &mut world.ends {
        end.drain().unwrap();
    }
    for index in 0..2 {
        world.ends[index].now_ns += LEAST_NS;
        while world.deliver(index).unwrap() {}
    }
    for end in &mut world.ends {
        while end.complete() {}
        end.events().unwrap();
    }
}

/// Sends octets, which are received after `late_ns`.
fn carry(world: &mut World, octets: u64, late_ns: u64) {
    world.ends[0].send(octets);
    let before = world.ends[1].received_octets();
    while world.ends[1].received_octets() - before < octets as usize {
        pass(world);
        for end in &mut world.ends {
            end.now_ns += late_ns;
        }
        world.ends[1].recv(LONGEST, false);
        pass(world);
    }
    world.ends[1].cancel_all();
}

fn peer_ring(world: &mut World) -> u64 {
    world.ends[0].stream.sender().ring().len_octets()
}

/// A message that is short enough not to be waited for, so that the least time is known.
fn begin(world: &mut World) {
    carry(world, 1, 0);
    assert_eq!(peer_ring(world), RING_OCTETS);
}

#[test]
fn full_ring_of_a_prompt_peer_is_doubled_up_to_the_bound() {
    let mut world = world(4 * RING_OCTETS + 1);
    begin(&mut world);
    let mut lengths = vec![RING_OCTETS];
    for _ in 0..20 {
        carry(&mut world, 20 * RING_OCTETS, 0);
        lengths.push(peer_ring(&mut world));
    }
    lengths.dedup();
    assert_eq!(lengths.last(), Some(&(4 * RING_OCTETS + 1)), "{lengths:?}");
    world.compare([false, true]).unwrap();
}

#[test]
fn full_ring_of_a_slow_peer_stays() {
    let mut world = world(LONGEST);
    begin(&mut world);
    for _ in 0..20 {
        carry(&mut world, 20 * RING_OCTETS, 20 * LEAST_NS);
    }
    assert_eq!(peer_ring(&mut world), RING_OCTETS);
    world.compare([false, true]).unwrap();
}

#[test]
fn ring_of_which_little_is_used_is_halved_to_its_first_length() {
    let mut world = world(8 * RING_OCTETS);
    begin(&mut world);
    while peer_ring(&mut world) < 8 * RING_OCTETS {
        carry(&mut world, 100 * RING_OCTETS, 0);
    }
    for _ in 0..64 * 16 * 16 {
        carry(&mut world, RING_OCTETS / 8, 0);
    }
    assert_eq!(peer_ring(&mut world), RING_OCTETS);
    world.compare([false, true]).unwrap();
}

#[test]
fn ring_that_is_refused_is_not_asked_for_again() {
    let mut world = world(RING_OCTETS);
    begin(&mut world);
    for _ in 0..20 {
        carry(&mut world, 20 * RING_OCTETS, 0);
    }
    assert_eq!(peer_ring(&mut world), RING_OCTETS);
    assert_eq!(world.stats()[0].rings_taken, 0);
    assert_eq!(world.ends[0].wants, 1);
}
