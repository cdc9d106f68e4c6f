//! One host whose connections use channels: Debian's programs and `verbs-check`.
#![allow(clippy::unwrap_used)]

use urdma_harness::instance::LeasePolicy;
use urdma_harness::process::Process;
use urdma_harness::programs;
use urdma_tests::{
    alone, check, expect_all_taken_back, leave_in_every_way, ports, run_all, Busy, OneHost,
    CHECK_LIMIT, VERBS_CHECK,
};

fn up() -> OneHost {
    OneHost::up_with(&["127.0.0.1"], "channels = true\n")
}

/// Checks of `verbs-check` with a client and a server.
fn check_all(scenarios: &[&str]) {
    let _alone = alone();
    let one = up();
    for scenario in scenarios {
        let scratch = one.scratch.path();
        check(scenario, &one.host, &one.host, LeasePolicy::Never, scratch);
    }
    one.down();
}

#[test]
fn programs_pass() {
    let _alone = alone();
    let one = up();
    let jobs = programs::main_job(ports(), one.host.address());
    run_all(&jobs, &one.host, &one.host, LeasePolicy::Never);
    one.down();
}

#[test]
fn random_operations_move_every_octet() {
    check_all(&["data", "mix"]);
}

#[test]
fn forbidden_access_fails_both_ends_and_writes_nothing() {
    check_all(&[
        "wrong-rkey",
        "bounds",
        "wrap",
        "foreign-pd",
        "no-remote-write",
        "no-remote-read",
        "no-remote-atomic",
        "wrong-lkey",
    ]);
}

#[test]
fn receive_queue_short_or_empty_ends_as_verbs_say() {
    check_all(&[
        "long-message",
        "slow-receiver",
        "rnr-late",
        "rnr-never",
        "full",
    ]);
}

#[test]
fn receiver_that_leaves_with_a_completion_fails_neither_its_sender_nor_an_idle_peer() {
    let _alone = alone();
    let one = up();
    let _busy = Busy::start();
    leave_in_every_way(&one.host, &one.host, LeasePolicy::Never, one.scratch.path());
    expect_all_taken_back(&one.host);
    one.down();
}

#[test]
fn single_process_checks_pass() {
    let _alone = alone();
    let one = up();
    for scenario in ["events", "requests", "services", "departures"] {
        let mut command = one
            .host
            .run(LeasePolicy::Never, &[VERBS_CHECK, scenario])
            .unwrap();
        let ended = Process::run(&mut command, CHECK_LIMIT).unwrap();
        assert!(ended.succeeded(), "{scenario}: {}", ended.describe());
    }
    one.down();
}
