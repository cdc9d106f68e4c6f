//! The number of instructions that the engine executes for one message, both ends together, and
//! that each part of the way executes for one packet, counted by valgrind. A test fails when a
//! count grows by more than 5 %.
//!
//! A change that makes the path shorter, or longer for a reason, enters the new figures in the
//! table below; doc/performance-log.md says which part of the path takes how many.
#![allow(clippy::unwrap_used)]

use urdma_harness::instance::binary_dir;
use urdma_perf::instructions::{per_event, per_message, per_packet, Operation, Side, Way};

/// Instructions of one message over a channel: operation, octets, count.
const FIGURES: [(Operation, u32, f64); 9] = [
    (Operation::Send, 64, 1190.0),
    (Operation::SendImm, 64, 1291.0),
    (Operation::Stream, 64, 1075.0),
    (Operation::Write, 64, 1299.0),
    (Operation::WriteImm, 64, 1375.0),
    (Operation::Read, 64, 2069.0),
    (Operation::FetchAdd, 8, 2205.0),
    (Operation::Send, 65_536, 1949.0),
    (Operation::Write, 65_536, 1997.0),
];
/// Instructions of one packet of a stream of RDMA Writes of 64 KB: way, part of it, and counts with
/// MTUs of 1500 and 9000. A count of leased packets ends at the functions of the lease table.
const PACKET_FIGURES: [(Way, Side, [f64; 2]); 8] = [
    (Way::Connections, Side::Sender, [203.0, 231.0]),
    (Way::Connections, Side::Receiver, [192.0, 192.0]),
    (Way::Leased, Side::Sender, [293.0, 373.0]),
    (Way::Leased, Side::Receiver, [276.0, 276.0]),
    (Way::Forwarded, Side::Sender, [292.0, 466.0]),
    (Way::Forwarded, Side::Receiver, [284.0, 371.0]),
    (Way::Forwarded, Side::DaemonOfSender, [281.0, 372.0]),
    (Way::Forwarded, Side::DaemonOfReceiver, [283.0, 376.0]),
];
/// Instructions of one event in the flight recorder.
const EVENT_FIGURE: f64 = 82.0;
const MTUS: [u32; 2] = [1_500, 9_000];
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
    let all = PACKET_FIGURES.iter().flat_map(|(way, side, figures)| {
        let figures = MTUS.iter().zip(figures);
        figures.map(move |(mtu, figure)| (*way, *side, *mtu, *figure))
    });
    for (way, side, mtu, figure) in all {
        let counted = per_packet(&binary_dir().unwrap(), way, side, mtu).unwrap();
        let name = format!("{} {}, MTU {mtu}", way.name(), side.name());
        println!("{name}: {counted:.0} instructions, figure {figure}");
        if counted > figure * (1.0 + TOLERANCE) {
            longer.push(format!("{name}: {counted:.0} instead of {figure}"));
        }
    }
    assert!(longer.is_empty(), "{longer:?}");
}

#[test]
fn instructions_per_recorded_event_are_within_their_limit() {
    let counted = per_event(&binary_dir().unwrap()).unwrap();
    println!("an event: {counted:.0} instructions, figure {EVENT_FIGURE}");
    assert!(
        counted <= EVENT_FIGURE * (1.0 + TOLERANCE),
        "{counted:.0} instead of {EVENT_FIGURE}"
    );
}
