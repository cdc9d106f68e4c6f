//! Programs that sleep, many times over: a lost wake-up is rare, and ends a test by its limit.
//!
//! UCX polls its queues, arms them and sleeps in poll(2) on a set of descriptors, while a thread of
//! its own waits for the same completion channels in another set.
#![allow(clippy::unwrap_used)]

use std::process::{Child, Command, Stdio};

use urdma_harness::instance::LeasePolicy;
use urdma_harness::programs::{words, Job, Ready};
use urdma_tests::{alone, ports, run_all, OneHost};

/// Runs of tag_lat over each transport on a quiet machine, and as many beside busy programs.
const RUNS: usize = 100;
/// Runs of each other test. `URDMA_UCX_RUNS` overrides both numbers.
const RUNS_OF_ANOTHER: usize = 5;
/// The only devices that UCX may use are urdma's, so that a test cannot pass over TCP or shared
/// memory.
const TRANSPORTS: [&str; 3] = [
    "UCX_TLS=rc_verbs,ud_verbs",
    "UCX_TLS=rc_verbs,ud_verbs:aux",
    "UCX_TLS=ud_verbs",
];

/// All other tests of ucx_perftest that exchange messages. The target of the one-sided ones sleeps
/// until a message comes, which may never be: they hang over TCP too.
const OTHERS: [&str; 7] = [
    "tag_bw",
    "tag_sync_lat",
    "tag_sync_bw",
    "ucp_am_lat",
    "ucp_am_bw",
    "stream_bw",
    "stream_lat",
];

/// Programs that want both processors.
struct Busy(Vec<Child>);

impl Busy {
    fn begin() -> Self {
        let spin = |_| {
            let mut command = Command::new("sh");
            command.args(["-c", "while :; do :; done"]);
            command.stdin(Stdio::null()).spawn().unwrap()
        };
        Self((0..2).map(spin).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn runs_or(default: usize) -> usize {
    let given = std::env::var("URDMA_UCX_RUNS");
    given.map_or(default, |runs| runs.parse().unwrap())
}

/// Debian's ucx_perftest, or the build that `URDMA_UCX_PERFTEST` names.
fn perftest() -> String {
    std::env::var("URDMA_UCX_PERFTEST").unwrap_or_else(|_| "ucx_perftest".into())
}

/// 500 messages forth and back between two ends that sleep, after 1,000 that do not count.
fn sleeping(transport: &str, test: &str) -> Job {
    let port = ports();
    let program = perftest();
    let common = format!("env {transport} UCX_NET_DEVICES=urdma0:1 {program} -p {port}");
    let client = format!("{common} 127.0.0.1 -t {test} -n 500 -w 1000 -s 8 -E sleep");
    let label = format!("ucx_perftest {transport} {test} -E sleep");
    Job::saying(
        &label,
        words(&common),
        words(&client),
        Ready::Tcp(port),
        "Final:",
    )
}

fn run_many() {
    let one = OneHost::up();
    for transport in TRANSPORTS {
        let often = std::iter::repeat_n("tag_lat", runs_or(RUNS));
        let others = OTHERS.repeat(runs_or(RUNS_OF_ANOTHER));
        let jobs: Vec<_> = often
            .chain(others)
            .map(|test| sleeping(transport, test))
            .collect();
        run_all(&jobs, &one.host, &one.host, LeasePolicy::Never);
    }
    one.down();
}

#[test]
#[ignore = "make test-all"]
fn ucx_that_sleeps_never_hangs() {
    let _alone = alone();
    run_many();
}

#[test]
#[ignore = "make test-all"]
fn ucx_that_sleeps_beside_busy_programs_never_hangs() {
    let _alone = alone();
    let _busy = Busy::begin();
    run_many();
}
