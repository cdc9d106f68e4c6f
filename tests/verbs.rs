//! Verbs beyond the main programs, on one host: third-party programs with the flags that use them,
//! and `verbs-check`.
#![allow(clippy::unwrap_used)]

use urdma_harness::instance::LeasePolicy;
use urdma_harness::programs::{perftest, pingpong, Job};
use urdma_tests::{alone, ports, run_all, OneHost};

/// Returns a job for a port and the server's address.
type MakeJob<'a> = &'a dyn Fn(u16, &str) -> Job;

/// Runs jobs on one host, each with a port of its own.
fn run_jobs(jobs: &[MakeJob<'_>]) {
    let _alone = alone();
    let one = OneHost::up();
    let jobs: Vec<Job> = (ports()..)
        .zip(jobs)
        .map(|(port, job)| job(port, one.host.address()))
        .collect();
    run_all(&jobs, &one.host, &one.host, LeasePolicy::Never);
    one.down();
}

#[test]
fn shared_receive_queue_serves_many_queue_pairs() {
    run_jobs(&[
        &|port, server| pingpong("ibv_uc_pingpong", false, port, server),
        &|port, server| pingpong("ibv_uc_pingpong", true, port, server),
        &|port, server| pingpong("ibv_srq_pingpong", false, port, server),
        &|port, server| pingpong("ibv_srq_pingpong", true, port, server).with(&["-q", "20"]),
        &|port, server| perftest("ib_send_lat", 64, false, port, server).with(&["--use-srq"]),
        &|port, server| {
            perftest("ib_send_bw", 65536, false, port, server).with(&["--use-srq", "-q", "4"])
        },
    ]);
}
