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

/// What is run for each transport, where it has it. `doc/conformance.md` says what is left out.
const TESTS: [&str; 20] = [
    "test_many2one_am.*",
    "test_rc.*",
    "test_rc_*",
    "test_uct_event.*",
    "test_uct_event_ib.*",
    "test_uct_peer_failure.*",
    "test_uct_peer_failure_keepalive.*",
    "test_uct_peer_failure_multiple.*",
    "test_uct_pending.*",
    "uct_amo_*",
    "uct_cancel_test.*",
    "uct_fence_test.*",
    "uct_flush_test.*",
    "uct_p2p_am_*",
    "uct_p2p_mix_test.*",
    "uct_p2p_rma_test.get_bcopy*",
    "uct_p2p_rma_test.get_short*",
    "uct_p2p_rma_test.put_bcopy*",
    "uct_p2p_rma_test.put_short*",
    "uct_qp_test_event.*",
];

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

/// The tests of a transport.
fn run_transport(transport: &str, tests: usize, not_skipped: &str) {
    let filters = TESTS.map(|test| format!("{transport}/{test}"));
    run(&filters.join(":"), tests, not_skipped);
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
    run_transport("rc_verbs", 150, "uct_flush_test.am_pending_flush_nb/0");
}

#[test]
#[ignore = "make test-all"]
fn ucx_passes_its_own_tests_over_datagrams() {
    run_transport("ud_verbs", 126, "test_uct_peer_failure_multiple.test/0");
}

#[test]
#[ignore = "make test-all"]
fn ucx_passes_its_own_tests_of_workers() {
    run(&OF_WORKERS.join(":"), 224, "rc/test_ucp_wakeup.efd/0");
}
