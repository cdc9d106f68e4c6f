//! Workers of a store that begin later than they are told to end.
#![allow(clippy::unwrap_used)]

use urdma_harness::instance::{binary_dir, Instance, Scratch};
use urdma_perf::store_load::{served_by_late_worker, WINDOWS_MIN};

#[test]
fn worker_that_is_told_to_end_at_once_has_a_rate() {
    let scratch = Scratch::new("perf-store-load").unwrap();
    let host = Instance::up(scratch.path(), "load", "127.0.0.1", "").unwrap();
    let served = served_by_late_worker(&host, &binary_dir().unwrap(), scratch.path());
    host.down().unwrap();
    assert!(served.unwrap() >= WINDOWS_MIN);
}
