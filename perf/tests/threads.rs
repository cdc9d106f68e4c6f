//! Threads with thread domains have lanes of the engine of their own.
#![allow(clippy::unwrap_used)]

use urdma_harness::instance::{binary_dir, Instance, Scratch};
use urdma_perf::threads::{run, Sharing};

#[test]
fn threads_with_domains_of_their_own_have_slots_of_their_own() {
    let scratch = Scratch::new("perf-threads").unwrap();
    let host = Instance::up(scratch.path(), "threads", "127.0.0.1", "").unwrap();
    let programs = binary_dir().unwrap();
    let with = |sharing| run(&host, &programs, 3, sharing);
    let (apart, together) = (with(Sharing::Domains), with(Sharing::Shared));
    host.down().unwrap();
    let (mut apart, together) = (apart.unwrap(), together.unwrap());
    assert!(apart.rate > 0.0 && together.rate > 0.0);
    assert_eq!(together.slots, [together.slots[0]; 3]);
    apart.slots.sort_unstable();
    apart.slots.dedup();
    assert_eq!(apart.slots.len(), 3);
}
