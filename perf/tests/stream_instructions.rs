//! The number of instructions of a round trip through a byte stream, counted by valgrind. The test
//! fails when a count grows by more than a tenth. A change that makes the way shorter, or longer
//! for a reason, enters the new figure; doc/streams.md says what they are spent on.
#![allow(clippy::unwrap_used)]

use urdma_harness::instance::{binary_dir, Instance, Scratch};
use urdma_perf::stream_instructions::per_round_trip;

/// Octets of a message and instructions of a round trip: one that goes through the ring, and one
/// into an advertised buffer.
const FIGURES: [(u32, f64); 2] = [(64, 1700.0), (65_536, 4030.0)];
/// Completions that are found by one poll cost less than by two.
const TOLERANCE: f64 = 0.1;

#[test]
fn instructions_of_a_round_trip_are_within_their_limits() {
    let scratch = Scratch::new("perf-stream").unwrap();
    let host = Instance::up(scratch.path(), "stream", "127.0.0.1", "").unwrap();
    let programs = binary_dir().unwrap();
    let counts = FIGURES.map(|(octets, _)| per_round_trip(&host, &programs, 7471, octets));
    host.down().unwrap();
    for ((octets, figure), counted) in FIGURES.into_iter().zip(counts) {
        let counted = counted.unwrap();
        println!("{octets} octets: {counted:.0} instructions, figure {figure}");
        assert!(
            counted <= figure * (1.0 + TOLERANCE),
            "{octets} octets: {counted:.0} instead of {figure}"
        );
    }
}
