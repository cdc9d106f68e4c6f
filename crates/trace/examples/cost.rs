//! The cost of one event: `cargo run --release -p urdma-trace --example cost`.
//!
//! Prints nanoseconds per event of a recorder that is on, with each clock that could be used, and
//! of one that is off, where only the probe is passed. With the name of a case and a number of
//! events, it does only that, to count instructions
//! (`valgrind --tool=callgrind target/release/examples/cost monotonic 100000`).
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::time::Instant;

use urdma_channel::OwnRecording;
use urdma_trace::{CmState, Link, Recorder};

const EVENTS: u32 = 2_000_000;
/// Queue pairs that have events in turn.
const QUEUE_PAIRS: u32 = 64;

fn no_clock() -> u64 {
    1
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is writable; both clocks always exist.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

fn monotonic() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

fn coarse() -> u64 {
    read(libc::CLOCK_MONOTONIC_COARSE)
}

#[cfg(target_arch = "x86_64")]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> u64 {
    monotonic()
}

type Clock = fn() -> u64;
const CLOCKS: [(&str, Clock); 4] = [
    ("none", no_clock),
    ("counter", counter),
    ("coarse", coarse),
    ("monotonic", monotonic),
];

fn record(recorder: &Recorder, events: u32) {
    for number in 0..events {
        let link = Link {
            conn: number,
            qpn: 0x1_0000 + 1 + number % QUEUE_PAIRS,
        };
        recorder.cm_state(link, CmState::RtuGated, CmState::Established);
    }
}

fn recorder_with(clock: Clock) -> Recorder {
    Recorder::new(OwnRecording::create().unwrap().0, clock)
}

fn main() {
    let cases = CLOCKS.map(|(name, clock)| (name, recorder_with(clock)));
    let cases = cases.into_iter().chain([("off", Recorder::default())]);
    let mut arguments = std::env::args().skip(1);
    let only = arguments.next();
    let events = arguments
        .next()
        .map_or(EVENTS, |count| count.parse().unwrap());
    for (name, recorder) in cases.filter(|(name, _)| only.as_ref().is_none_or(|only| only == name))
    {
        record(&recorder, QUEUE_PAIRS);
        let begin = Instant::now();
        record(&recorder, events);
        let ns = begin.elapsed().as_secs_f64() * 1e9 / f64::from(events);
        println!("{name:<10} {ns:6.1} ns");
    }
}
