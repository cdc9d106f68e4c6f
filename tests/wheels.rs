//! Packages of PyPI that transfer memory by RDMA, on one host; `scripts/wheels.sh` installs them.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::Duration;

use urdma_harness::instance::LeasePolicy;
use urdma_tests::{alone, expect_said, OneHost};

const LIMIT: Duration = Duration::from_secs(120);
/// The directory in which `make test-all` installs the packages.
const PYTHON: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/wheels/bin/python");

/// Runs a program of `tests/wheels` with additional environment variables and checks that it
/// transferred its memory over urdma.
fn run(program: &str, environment: &[(&str, &str)]) {
    assert!(
        Path::new(PYTHON).exists(),
        "{PYTHON} is missing: scripts/wheels.sh target/wheels"
    );
    let _alone = alone();
    let one = OneHost::up();
    let source = format!("{}/wheels/{program}", env!("CARGO_MANIFEST_DIR"));
    let mut command = one
        .host
        .run(LeasePolicy::Never, &[PYTHON, "-B", &source])
        .unwrap();
    command.envs(environment.iter().copied());
    expect_said(&mut command, LIMIT, "read and written");
    one.down();
}

#[test]
#[ignore = "make test-all"]
fn nixl_over_its_own_libibverbs_reads_and_writes() {
    // Only urdma's device, so that the test cannot pass over TCP or shared memory.
    run(
        "nixl_check.py",
        &[("UCX_TLS", "rc_verbs,ud_verbs:aux,self")],
    );
}

#[test]
#[ignore = "make test-all"]
fn mooncake_reads_and_writes() {
    run("mooncake_check.py", &[]);
}

#[test]
#[ignore = "make test-all"]
fn peercache_reads_and_writes() {
    run("peercache_check.py", &[]);
}

#[test]
#[ignore = "make test-all"]
fn dlslime_reads_and_writes() {
    run("dlslime_check.py", &[]);
}

/// Regression: the server never slept, since a completion channel was always writable.
#[test]
#[ignore = "make test-all"]
fn infinistore_stores_blocks_and_sleeps() {
    run("infinistore_check.py", &[]);
}
