//! The number of instructions that a pool of virtual queue pairs executes for a READ, counted by
//! valgrind.
//!
//! Node and reader are processes that poll, so the load of the machine decides how many polls find
//! nothing. These are left out, as are the provider and the program that reads.

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;
use urdma_harness::instance::{Instance, Scratch};

use crate::instructions::own_instructions;
use crate::pool::{Run, Way, PROGRAM};
use crate::samples::{text, Sample};

/// READs of two runs, whose difference is free of the start.
const READS: [u32; 2] = [500, 4_500];
/// A run has as many READs more before those that it times.
const WARM_UP: f64 = 1.1;
/// What the names of functions end with that only waiting executes, or polls without a result: one
/// in so many looks for events, as the opening of the connection does, which takes longer if the
/// node has no processor.
const WAITS: [&str; 5] = [
    "client::Client>::poll",
    "client::Client>::turn",
    "client::Client>::follow",
    "client::Client>::open",
    "ffi::Id::next_event",
];
/// Parts of the names of functions of the program and of the clock.
const OTHERS: [&str; 4] = [
    "urdma_perf_pool::",
    "slice::sort",
    "time::Timespec",
    "time::Instant",
];

/// Instructions of a pool over connections for a READ of 64 octets, one at a time; `programs` is
/// the directory of `urdma-perf-pool`.
///
/// # Errors
/// valgrind is not installed, or a run failed.
pub fn per_read(host: &Instance, programs: &Path, address: &str) -> Sample {
    let scratch = Scratch::new("pool-instructions").map_err(text)?;
    let run = Run::new(host, programs, scratch.path())?;
    let out = scratch.path().join("callgrind.out");
    let file = format!("--callgrind-out-file={}", out.display());
    let reader = programs.join(PROGRAM).display().to_string();
    let nodes = run.nodes(address, "1")?;
    let count = |reads: u32| {
        let reads = reads.to_string();
        let way = Way::Connections.name();
        let argv = [
            "--tool=callgrind",
            &file,
            &reader,
            "read",
            address,
            way,
            &reads,
        ];
        run.under("valgrind", &argv)?;
        let file = fs::read_to_string(&out).map_err(|e| format!("{}: {e}", out.display()))?;
        own_instructions(&file, PROGRAM, |function| {
            WAITS.iter().any(|wait| function.ends_with(wait))
                || OTHERS.iter().any(|other| function.contains(other))
        })
    };
    let counted = READS.map(count);
    nodes.signal(Signal::SIGKILL).map_err(text)?;
    let [few, many] = counted;
    let more = f64::from(READS[1] - READS[0]) * WARM_UP;
    Ok(many?.saturating_sub(few?) as f64 / more)
}
