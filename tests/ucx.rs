//! UCX's own tests of its transports over verbs, on one host; `scripts/ucx.sh` builds them.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use urdma_harness::instance::LeasePolicy;
use urdma_harness::process::Process;
use urdma_tests::{alone, OneHost};

const LIMIT: Duration = Duration::from_secs(600);
/// In the directory in which `make test-all` builds it.
const GTEST: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../target/ucx/test/gtest/gtest"
);

/// Tests that compare a measured time, which are left out.
const TIMED: [&str; 2] = ["test_uct_perf.*", "test_uct_loopback.*"];

/// Connections through rdma_cm; workers that sleep; the failure of a peer.
const OF_WORKERS: [&str; 9] = [
    "rdmacm/*",
    "rc/test_ucp_wakeup.*",
    "rc/test_ucp_wakeup_external_epollfd.*",
    "rc/test_ucp_sockaddr_with_wakeup.*",
    "rc/test_ucp_peer_failure*",
    "ud/test_ucp_wakeup.*",
    "ud/test_ucp_wakeup_external_epollfd.*",
    "ud/test_ucp_sockaddr_with_wakeup.*",
    "ud/test_ucp_peer_failure*",
];

/// All tests of a transport, but those that compare a measured time.
fn run_transport(transport: &str, tests: usize, not_skipped: &str) {
    let timed = TIMED.map(|test| format!("{transport}/{test}"));
    let filter = format!("{transport}/*:-{}", timed.join(":"));
    run(&filter, tests, not_skipped);
}

/// Runs the tests of a filter, of which the named one must not be skipped.
fn run(filter: &str, tests: usize, not_skipped: &str) {
    let _alone = alone();
    let one = OneHost::up();
    let filter = format!("--gtest_filter={filter}");
    let argv = [GTEST, &filter];
    let mut command = one.host.run(LeasePolicy::Never, &argv).unwrap();
    let ended = Process::run(&mut command, LIMIT).unwrap();
    assert!(ended.succeeded(), "{}", ended.describe());
    let passed = format!("[  PASSED  ] {tests} tests.");
    assert!(ended.output.contains(&passed), "{}", ended.output);
    let report = ended.output.split("[ RUN      ] ");
    let mut reports = report.filter(|report| report.contains(not_skipped));
    let reported = reports.next().unwrap();
    assert!(reported.contains("[       OK ]"), "{reported}");
    assert!(!reported.contains("[     SKIP ]"), "{reported}");
    one.down();
}

#[test]
#[ignore = "make test-all"]
fn ucx_passes_its_own_tests_over_connections() {
    run_transport("rc_verbs", 230, "uct_flush_test.am_pending_flush_nb/0");
}

#[test]
#[ignore = "make test-all"]
fn ucx_passes_its_own_tests_over_datagrams() {
    run_transport("ud_verbs", 229, "test_uct_peer_failure_multiple.test/0");
}

#[test]
#[ignore = "make test-all"]
fn ucx_passes_its_own_tests_of_workers() {
    run(&OF_WORKERS.join(":"), 224, "rc/test_ucp_wakeup.efd/0");
}
