//! The idle application that `make perf` measures reaches the state in which it waits.
#![allow(clippy::unwrap_used)]

use urdma_harness::instance::{binary_dir, Instance, LeasePolicy, Scratch};
use urdma_perf::idle::{attached_memory, queue_pair_memory};

// This failed when the package linked the provider: the program then contained a second driver,
// which did not know the stand-in's channels.
#[test]
fn idle_application_with_a_completion_channel_reaches_its_wait() {
    let scratch = Scratch::new("perf-idle").unwrap();
    let host = Instance::up(scratch.path(), "idle", "127.0.0.1", "").unwrap();
    let resident = attached_memory(&host, LeasePolicy::Never, &binary_dir().unwrap());
    host.down().unwrap();
    assert!(resident.unwrap() > 0.1, "megabytes are resident");
}

// A queue pair took 27 KB when each had a table for the most reads that any peer may have
// outstanding, whatever its own limit was.
#[test]
fn queue_pair_takes_little_memory() {
    let scratch = Scratch::new("perf-qps").unwrap();
    let host = Instance::up(scratch.path(), "qps", "127.0.0.1", "").unwrap();
    let kilobytes = queue_pair_memory(&host, &binary_dir().unwrap());
    host.down().unwrap();
    let kilobytes = kilobytes.unwrap();
    assert!(kilobytes < 16.0, "{kilobytes} KB");
}
