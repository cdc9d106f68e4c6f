//! Connections and ping-pongs over urdma and over TCP: each run has its figures.
#![allow(clippy::unwrap_used)]

use urdma_harness::instance::{binary_dir, Instance, LeasePolicy, Scratch};
use urdma_perf::asleep::{run, steps, Ends, Wait, Work};

/// Enough for a few hundred messages.
const WATCH_MS: u32 = 100;
const WORKS: [Work; 4] = [
    Work::Connections {
        at_once: 4,
        threads: 1,
    },
    Work::Connections {
        at_once: 4,
        threads: 3,
    },
    Work::PingPong(Wait::Sleep),
    Work::PingPong(Wait::Poll),
];

fn expect_figures(ends: Ends<'_>) {
    let programs = binary_dir().unwrap();
    for work in WORKS {
        let figures = run(ends, work, WATCH_MS, &programs).unwrap();
        assert!(figures.value > 0.0, "{work:?}");
        assert!(figures.processor_us > 0.0, "{work:?}");
    }
}

#[test]
fn sleepers_over_urdma_have_figures() {
    let scratch = Scratch::new("perf-asleep").unwrap();
    let host = Instance::up(scratch.path(), "asleep", "127.0.0.1", "").unwrap();
    expect_figures(Ends::Urdma(&host, &host, LeasePolicy::Never));
    host.down().unwrap();
}

#[test]
fn each_step_of_a_connection_has_a_time() {
    let scratch = Scratch::new("perf-asleep").unwrap();
    let host = Instance::up(scratch.path(), "steps", "127.0.0.1", "").unwrap();
    let programs = binary_dir().unwrap();
    let times_us = steps(&host, WATCH_MS, &programs).unwrap();
    assert!(
        times_us.iter().all(|time_us| *time_us > 0.0),
        "{times_us:?}"
    );
    host.down().unwrap();
}

#[test]
fn connections_that_stay_have_memory_at_both_ends() {
    let scratch = Scratch::new("perf-asleep").unwrap();
    let host = Instance::up(scratch.path(), "established", "127.0.0.1", "").unwrap();
    let programs = binary_dir().unwrap();
    let ends = Ends::Urdma(&host, &host, LeasePolicy::Never);
    let work = Work::Established { count: 500 };
    let figures = run(ends, work, WATCH_MS, &programs).unwrap();
    // A queue pair and an identifier; a leak, or a figure of the whole process, has more.
    assert!(
        (1024.0..64.0 * 1024.0).contains(&figures.value),
        "{figures:?}"
    );
    host.down().unwrap();
}

#[test]
fn sleepers_over_tcp_have_figures() {
    expect_figures(Ends::Loopback);
}
