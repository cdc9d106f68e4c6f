//! The number of instructions of a READ over a virtual queue pair, counted by valgrind. The test
//! fails when the count grows by more than a twentieth. A change that makes the way shorter, or
//! longer for a reason, enters the new figure.
#![allow(clippy::unwrap_used)]

use urdma_harness::instance::{binary_dir, Instance, Scratch};
use urdma_perf::pool_instructions::per_read;

/// Instructions of a READ of 64 octets.
const FIGURE: f64 = 314.0;
const TOLERANCE: f64 = 0.05;

#[test]
fn instructions_of_a_read_are_within_their_limit() {
    let scratch = Scratch::new("perf-pool").unwrap();
    let host = Instance::up(scratch.path(), "pool", "127.0.0.1", "").unwrap();
    let counted = per_read(&host, &binary_dir().unwrap(), "127.0.0.1:7472");
    host.down().unwrap();
    let counted = counted.unwrap();
    println!("a READ of 64 octets: {counted:.0} instructions, figure {FIGURE}");
    assert!(
        counted <= FIGURE * (1.0 + TOLERANCE),
        "{counted:.0} instead of {FIGURE}"
    );
}
