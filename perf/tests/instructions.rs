//! The number of instructions that the engine executes for one message, both ends together, and
//! that each end of a connection executes for one packet, counted by valgrind. A test fails when a
//! count grows by more than 5 %.
//!
//! A change that makes the path shorter, or longer for a reason, enters the new figures in the
//! table below; doc/performance-log.md says which part of the path takes how many.
#![allow(clippy::unwrap_used)]

use urdma_harness::instance::binary_dir;
use urdma_perf::instructions::{per_message, per_packet, Operation, Side};

/// Instructions of one message over a channel: operation, octets, count.
const FIGURES: [(Operation, u32, f64); 5] = [
    (Operation::Send, 64, 1185.0),
    (Operation::Stream, 64, 1040.0),
    (Operation::Write, 64, 1261.0),
    (Operation::Send, 65_536, 1905.0),
    (Operation::Write, 65_536, 1930.0),
];
/// Instructions of one packet of a stream of RDMA Writes of 64 KB: end, MTU, count.
const PACKET_FIGURES: [(Side, u32, f64); 4] = [
    (Side::Sender, 1_500, 316.0),
    (Side::Receiver, 1_500, 205.0),
    (Side::Sender, 9_000, 330.0),
    (Side::Receiver, 9_000, 205.0),
];
const TOLERANCE: f64 = 0.05;

#[test]
fn instructions_per_message_are_within_their_limits() {
    let mut longer = Vec::new();
    for (operation, octets, figure) in FIGURES {
        let limit = figure * (1.0 + TOLERANCE);
        let counted = per_message(&binary_dir().unwrap(), operation, octets).unwrap();
        let name = operation.name();
        println!("{name} {octets}: {counted:.0} instructions, figure {figure}");
        if counted > limit {
            longer.push(format!(
                "{name} of {octets} octets: {counted:.0} instead of {figure}"
            ));
        }
    }
    assert!(longer.is_empty(), "{longer:?}");
}

#[test]
fn instructions_per_packet_are_within_their_limits() {
    let mut longer = Vec::new();
    for (side, mtu, figure) in PACKET_FIGURES {
        let counted = per_packet(&binary_dir().unwrap(), side, mtu).unwrap();
        let name = side.name();
        println!("{name}, MTU {mtu}: {counted:.0} instructions, figure {figure}");
        if counted > figure * (1.0 + TOLERANCE) {
            longer.push(format!(
                "{name} at an MTU of {mtu}: {counted:.0} instead of {figure}"
            ));
        }
    }
    assert!(longer.is_empty(), "{longer:?}");
}
