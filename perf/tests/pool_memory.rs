//! The octets of the heap that a client of a pool takes for each further node that it knows. They
//! do not depend on the machine.
#![allow(clippy::unwrap_used)]

use urdma_harness::instance::{binary_dir, Instance, Scratch};
use urdma_perf::pool::octets_of_a_node;

/// The goal. A record has 31, and its array grows by a 256th.
const MOST: f64 = 32.0;

#[test]
fn octets_of_a_further_known_node_are_within_their_limit() {
    let scratch = Scratch::new("perf-pool-memory").unwrap();
    let host = Instance::up(scratch.path(), "pool", "127.0.0.1", "").unwrap();
    let octets = octets_of_a_node(&host, &binary_dir().unwrap());
    host.down().unwrap();
    let octets = octets.unwrap();
    println!("a further known node: {octets} octets of the heap");
    assert!(octets <= MOST, "{octets} octets instead of {MOST}");
}
