//! The number of instructions that one end of a byte stream executes for a round trip, or for a
//! send of a flow, counted by valgrind.
//!
//! Both ends are processes and poll, so the load of the machine decides how many polls find
//! nothing. These are left out, as are the provider, the clock, and what the program prints.

use std::fs;
use std::path::Path;

use urdma_harness::instance::{Instance, Scratch};
use urdma_harness::Failure;

use crate::instructions::own_instructions;
use crate::samples::Sample;
use crate::stream_programs::{flow_under, ping_under, PROGRAM};

/// Round trips of two runs, whose difference is free of the start. Each run has many of those in
/// which slots are returned.
const ROUND_TRIPS: [u32; 2] = [512, 2_560];
/// Sends of two runs of a flow, likewise.
const SENDS: [u32; 2] = [4_096, 20_480];
/// What the names of functions end with that polls without a result execute.
const POLLS: [&str; 3] = [
    "driver::Driver::wait",
    "driver::Driver::wait_for_event",
    "driver::Driver::advance",
];
/// Parts of the names of functions of the clock, and of those that sort and print the times once
/// all round trips are made.
const OTHERS: [&str; 4] = [
    "time::Timespec",
    "time::Instant",
    "print_times",
    "slice::sort",
];

/// Instructions of `urdma-stream` in the directory `programs` for one round trip of messages of
/// this length, at the end that begins it.
///
/// # Errors
/// valgrind is not installed, or a run failed.
pub fn per_round_trip(host: &Instance, programs: &Path, port: u16, octets: u32) -> Sample {
    per_operation(ROUND_TRIPS, |round_trips, under| {
        ping_under(host, programs, port, [octets, round_trips], under)
    })
}

/// An end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// `urdma-stream blast`.
    Sender,
    /// `urdma-stream server`.
    Receiver,
}

/// The same for one send of this length in a flow, at one of its ends.
///
/// # Errors
/// valgrind is not installed, or a run failed.
pub fn per_send(host: &Instance, programs: &Path, port: u16, octets: u32, end: End) -> Sample {
    per_operation(SENDS, |sends, under| {
        let under = match end {
            End::Sender => [&[], under],
            End::Receiver => [under, &[]],
        };
        flow_under(host, programs, port, [octets, sends], under)
    })
}

/// Instructions of an operation: the difference of two runs with these numbers of operations, each
/// behind a command line of valgrind.
fn per_operation(
    [few, many]: [u32; 2],
    run: impl Fn(u32, &[String]) -> Result<(), Failure>,
) -> Sample {
    let scratch = Scratch::new("stream-instructions").map_err(|failure| failure.to_string())?;
    let out = scratch.path().join("callgrind.out");
    let under = [
        "valgrind".to_owned(),
        "--tool=callgrind".to_owned(),
        format!("--callgrind-out-file={}", out.display()),
    ];
    let count = |operations| {
        run(operations, &under).map_err(|failure| failure.to_string())?;
        let file = fs::read_to_string(&out).map_err(|e| format!("{}: {e}", out.display()))?;
        own_instructions(&file, PROGRAM, |function| {
            POLLS.iter().any(|poll| function.ends_with(poll))
                || OTHERS.iter().any(|other| function.contains(other))
        })
    };
    let counted = [count(few)?, count(many)?];
    Ok(counted[1].saturating_sub(counted[0]) as f64 / f64::from(many - few))
}
