//! Processes that are connected to one: each number of them has all figures.
#![allow(clippy::unwrap_used)]

use urdma_harness::instance::{binary_dir, Instance, Scratch};
use urdma_perf::processes::{measure, FIGURES, POINTS};

#[test]
fn processes_connected_to_one_have_all_figures() {
    let scratch = Scratch::new("perf-processes").unwrap();
    let host = Instance::up(scratch.path(), "processes", "127.0.0.1", "").unwrap();
    let seen = measure(Ok(&host), &binary_dir().unwrap(), &POINTS[..2]);
    host.down().unwrap();
    assert_eq!(seen.len(), 2 * FIGURES);
    for (probe, sample) in seen {
        assert!(sample.unwrap() > 0.0, "{}", probe.name);
    }
}
