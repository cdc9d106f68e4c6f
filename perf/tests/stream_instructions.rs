//! The number of instructions of a round trip through a byte stream, and of a send in a flow,
//! counted by valgrind. The tests fail when a count grows by more than a tenth. A change that makes
//! the way shorter, or longer for a reason, enters the new figure; doc/streams.md says what they
//! are spent on.
#![allow(clippy::unwrap_used)]

use urdma_harness::instance::{binary_dir, Instance, Scratch};
use urdma_perf::stream_instructions::{per_round_trip, per_send, End};

/// Octets of a message and instructions of a round trip: one that goes through the ring, and one
/// into an advertised buffer.
const FIGURES: [(u32, f64); 2] = [(64, 1170.0), (65_536, 3650.0)];
/// Octets of a send in a flow.
const SEND_OCTETS: u32 = 64;
/// Instructions of such a send at either end.
const FLOW_FIGURES: [(End, f64); 2] = [(End::Sender, 375.0), (End::Receiver, 385.0)];
/// Completions that are found by one poll cost less than by two.
const TOLERANCE: f64 = 0.1;

fn expect(what: &str, counted: f64, figure: f64) {
    println!("{what}: {counted:.0} instructions, figure {figure}");
    assert!(
        counted <= figure * (1.0 + TOLERANCE),
        "{what}: {counted:.0} instead of {figure}"
    );
}

#[test]
fn instructions_of_a_round_trip_are_within_their_limits() {
    let scratch = Scratch::new("perf-stream").unwrap();
    let host = Instance::up(scratch.path(), "stream", "127.0.0.1", "").unwrap();
    let programs = binary_dir().unwrap();
    let counts = FIGURES.map(|(octets, _)| per_round_trip(&host, &programs, 7471, octets));
    host.down().unwrap();
    for ((octets, figure), counted) in FIGURES.into_iter().zip(counts) {
        expect(&format!("{octets} octets"), counted.unwrap(), figure);
    }
}

#[test]
fn instructions_of_a_send_in_a_flow_are_within_their_limits() {
    let scratch = Scratch::new("perf-flow").unwrap();
    let host = Instance::up(scratch.path(), "flow", "127.0.0.1", "").unwrap();
    let programs = binary_dir().unwrap();
    let counts = FLOW_FIGURES.map(|(end, _)| per_send(&host, &programs, 7473, SEND_OCTETS, end));
    host.down().unwrap();
    for ((end, figure), counted) in FLOW_FIGURES.into_iter().zip(counts) {
        expect(&format!("{end:?}"), counted.unwrap(), figure);
    }
}
