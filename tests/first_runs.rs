//! The first program over a new instance, many times over: neither end may miss the first message.
#![allow(clippy::unwrap_used)]

use urdma_harness::instance::LeasePolicy;
use urdma_harness::programs::{perftest, Job};
use urdma_tests::{alone, ports, run_all, Busy, OneHost};

/// New instances of each test, which take turns with [`PATHS`]; `URDMA_FIRST_RUNS` overrides it.
const INSTANCES: usize = 150;
/// Whether `ib_send_lat` connects through rdma_cm, and its other flags: with `-e` it sleeps.
const PATHS: [(bool, &[&str]); 3] = [(false, &[]), (false, &["-e"]), (true, &[])];

fn instances() -> usize {
    let given = std::env::var("URDMA_FIRST_RUNS");
    given.map_or(INSTANCES, |instances| instances.parse().unwrap())
}

fn first_run(instance: usize) -> Job {
    let (rdma_cm, flags) = PATHS[instance % PATHS.len()];
    let mut job = perftest("ib_send_lat", 2, rdma_cm, ports(), "127.0.0.1").with(flags);
    job.label = format!("{} over instance {instance}", job.label);
    job
}

fn run_first() {
    for instance in 0..instances() {
        let one = OneHost::up();
        run_all(
            &[first_run(instance)],
            &one.host,
            &one.host,
            LeasePolicy::Never,
        );
        one.down();
    }
}

#[test]
#[ignore = "make test-all"]
fn first_ib_send_lat_over_a_new_instance_gets_its_answers() {
    let _alone = alone();
    run_first();
}

#[test]
#[ignore = "make test-all"]
fn first_ib_send_lat_beside_busy_programs_gets_its_answers() {
    let _alone = alone();
    let _busy = Busy::start();
    run_first();
}
