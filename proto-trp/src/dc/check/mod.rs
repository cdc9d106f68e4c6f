//! The checker: initiators and targets under random schedules (`world`), and the proof that it
//! finds each deliberate fault.

mod world;

use super::fault::{Fault, Faults};
use super::DcTargetStats;
use crate::sim::for_each_seed;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Mutex;
use world::Sim;

/// Seeds in which a fault shows.
const SEEDS_OF_FAULT: u64 = 1_000;

/// Runs `count` seeds, and checks that contexts were evicted, refused and all in use.
fn run_seeds(count: u64) {
    let totals = Mutex::new((DcTargetStats::default(), 0));
    for_each_seed(count, |seed| {
        let (stats, failed) = Sim::new(seed, Faults::default()).run();
        let mut totals = totals.lock().unwrap();
        totals.0.evicted += stats.evicted;
        totals.0.expired += stats.expired;
        totals.0.refused += stats.refused;
        totals.0.busy += stats.busy;
        totals.1 += failed;
    });
    let (stats, failed) = totals.into_inner().unwrap();
    println!("{stats:?}, {failed} requests have failed");
    if std::env::var_os("URDMA_SEED").is_none() {
        assert!(stats.evicted > 0 && stats.refused > 0 && stats.busy > 0);
    }
}

#[test]
fn exchange_on_a_bad_network_runs_each_request_once() {
    run_seeds(400);
}

#[test]
#[ignore = "a minute; a part of make test-all"]
fn ten_thousand_exchanges_run_each_request_once() {
    run_seeds(10_000);
}

/// The first seed that finds a fault.
fn found_by(fault: Fault) -> Option<u64> {
    (0..SEEDS_OF_FAULT).find(|&seed| {
        let faults = Faults { only: Some(fault) };
        catch_unwind(AssertUnwindSafe(|| Sim::new(seed, faults).run())).is_err()
    })
}

#[test]
fn every_fault_is_found() {
    let faults = [
        Fault::NoFloor,
        Fault::FloorNotRaised,
        Fault::NoPin,
        Fault::EvictPinned,
        Fault::AllConfirmed,
        Fault::NoToken,
        Fault::ShortLease,
        Fault::NoBound,
        Fault::NoAddressBound,
        Fault::RepeatAfterRestart,
    ];
    std::panic::set_hook(Box::new(|_| {}));
    let found = faults.map(|fault| (fault, found_by(fault)));
    let _ = std::panic::take_hook();
    println!("{found:?}");
    let missed: Vec<_> = found.iter().filter(|(_, seed)| seed.is_none()).collect();
    assert!(missed.is_empty(), "{missed:?}");
}
