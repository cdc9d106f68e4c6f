//! The waiting application that `make perf` measures comes so far that it waits.
#![allow(clippy::unwrap_used)]

use urdma_harness::instance::{binary_dir, Instance, Lease, Scratch};
use urdma_perf::idle::{attached_memory, queue_pair_memory};

// It failed when this package linked the provider: the program then had a second driver, which knew nothing of the stand-in's channels.
#[test]
fn idle_application_with_a_completion_channel_comes_to_wait() {
    let scratch = Scratch::new("perf-idle").unwrap();
    let host = Instance::up(scratch.path(), "idle", "127.0.0.1", "").unwrap();
    let resident = attached_memory(&host, Lease::Never, &binary_dir().unwrap());
    host.down().unwrap();
    assert!(resident.unwrap() > 0.1, "megabytes are resident");
}

// It took 27 KB: a table for the most reads that any peer may have outstanding came with each, whatever this one's may.
#[test]
fn queue_pair_takes_little_memory() {
    let scratch = Scratch::new("perf-qps").unwrap();
    let host = Instance::up(scratch.path(), "qps", "127.0.0.1", "").unwrap();
    let kilobytes = queue_pair_memory(&host, &binary_dir().unwrap());
    host.down().unwrap();
    let kilobytes = kilobytes.unwrap();
    assert!(kilobytes < 16.0, "{kilobytes} KB");
}
