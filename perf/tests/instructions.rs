//! The number of instructions that the engine executes for one message, both ends together, counted
//! by valgrind. The test fails when a count grows by more than 5 %.
//!
//! Only instructions of this project's code count, since the C library's copies differ from
//! processor to processor. The engines have no threads and no time is measured, so the load of the
//! machine does not matter. A change that makes the path shorter, or longer for a reason, enters
//! the new figures in the table below; doc/performance-log.md says which part of the path takes how
//! many.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use urdma_harness::instance::{binary_dir, Scratch};
use urdma_harness::process::Process;

const PROGRAM: &str = "urdma-perf-engine";
/// Instructions of one message over a channel: operation, octets, count.
const FIGURES: [(&str, u32, f64); 5] = [
    ("send", 64, 2360.0),
    ("stream", 64, 2110.0),
    ("write", 64, 2620.0),
    ("send", 65_536, 2410.0),
    ("write", 65_536, 2680.0),
];
const TOLERANCE: f64 = 0.05;
/// Numbers of messages of two runs, whose difference is free of the start-up. Multiples of the
/// batch of a stream.
const MESSAGES: [u32; 2] = [512, 1_536];
const LIMIT: Duration = Duration::from_secs(120);

/// Instructions of `PROGRAM` itself in a file that callgrind has written.
fn own_instructions(file: &str) -> u64 {
    let mut objects = HashMap::new();
    let mut is_own = false;
    let mut is_call = false;
    let mut own = 0;
    for line in file.lines() {
        if let Some(object) = line.strip_prefix("ob=") {
            // "(2) /path" at the first occurrence, "(2)" afterwards.
            let (id, name) = object.split_once(' ').unwrap_or((object, ""));
            let named = objects
                .entry(id.to_owned())
                .or_insert_with(|| name.ends_with(PROGRAM));
            is_own = *named;
        } else if let Some(object) = line.strip_prefix("cob=") {
            let (id, name) = object.split_once(' ').unwrap_or((object, ""));
            objects
                .entry(id.to_owned())
                .or_insert_with(|| name.ends_with(PROGRAM));
        } else if line.starts_with("calls=") {
            // The cost in the next line is that of the callee.
            is_call = true;
        } else if line.starts_with(|first: char| "+-*0123456789".contains(first)) {
            let cost = line
                .split(' ')
                .nth(1)
                .map_or(0, |cost| cost.parse().unwrap());
            own += if is_own && !is_call { cost } else { 0u64 };
            is_call = false;
        }
    }
    own
}

fn count(scratch: &Path, operation: &str, octets: u32, messages: u32) -> u64 {
    let out = scratch.join("callgrind.out");
    let mut command = Command::new("valgrind");
    command
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(binary_dir().unwrap().join(PROGRAM))
        .args([operation, &octets.to_string(), &messages.to_string()]);
    let ended = Process::run(&mut command, LIMIT).unwrap();
    assert!(ended.succeeded(), "{}", ended.describe());
    own_instructions(&fs::read_to_string(out).unwrap())
}

fn per_message(operation: &str, octets: u32) -> f64 {
    let scratch = Scratch::new("instructions").unwrap();
    let [few, many] = MESSAGES.map(|messages| count(scratch.path(), operation, octets, messages));
    many.saturating_sub(few) as f64 / f64::from(MESSAGES[1] - MESSAGES[0])
}

#[test]
fn instructions_per_message_are_within_their_limits() {
    let mut longer = Vec::new();
    for (operation, octets, figure) in FIGURES {
        let limit = figure * (1.0 + TOLERANCE);
        let counted = per_message(operation, octets);
        println!("{operation} {octets}: {counted:.0} instructions, figure {figure}");
        if counted > limit {
            longer.push(format!(
                "{operation} of {octets} octets: {counted:.0} instead of {figure}"
            ));
        }
    }
    assert!(longer.is_empty(), "{longer:?}");
}

#[test]
fn own_instructions_leaves_out_calls_and_other_objects() {
    let file = "ob=(1) /lib/libc.so\nfn=(1) memcpy\n1 100\n\
                ob=(2) /bin/urdma-perf-engine\nfn=(2) main\n5 7\n+3 2\n\
                cob=(1)\ncfn=(1)\ncalls=1 1\n* 100\n* 4\nob=(1)\n9 1000\n";
    assert_eq!(own_instructions(file), 13);
}
