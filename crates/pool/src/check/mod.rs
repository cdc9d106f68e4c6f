//! The checker: a pool with users and a device under random schedules, against a plain model.
//!
//! `device` has the queue pairs: it executes work requests, loses answers, refuses, breaks. `model`
//! knows what each request may still become; `work` checks each work request by it. `world` carries
//! out the pool's actions between the two and watches every step; `removals` has it remove nodes;
//! `schedules` runs it with random configurations and asserts that it finds each deliberate fault;
//! `at_once` compares requests that are posted at once with those that wait for a turn;
//! `attempts` knows when a node may be connected to; `shares` has a user that takes what it gets.
//! For Sends, `pools` has several pools with connections between them, or with initiators,
//! `connects` how the former are made, `questions` what precedes messages over the latter, `ends`
//! their users and what these may receive, and `exchanges` the schedules; `lost` loses messages by
//! which a node can go on. A failing seed is printed; `URDMA_SEED` runs it alone.

mod at_once;
mod attempts;
mod blocked;
mod connects;
mod device;
mod ends;
mod exchanges;
mod lost;
mod model;
mod pools;
mod questions;
mod removals;
mod schedules;
mod shares;
mod work;
mod world;

use std::panic::{catch_unwind, AssertUnwindSafe};

use urdma_types::{seeds, Rng};

use crate::fault::Fault;

/// What the pool did wrong.
type Finding = String;

/// Runs `test` on the seed of `URDMA_SEED`, or on as many seeds as `URDMA_SIM_SEEDS` says, or
/// `usual`.
fn for_each_seed(usual: u64, test: impl Fn(u64) -> Result<(), Finding>) {
    for seed in seeds(usual) {
        if let Err(finding) = test(seed) {
            panic!("{finding}; to see this again: URDMA_SEED={seed} cargo test -p urdma-pool");
        }
    }
}

/// The number of an action, of which each comes as often as its weight says.
fn choose(weights: &[u64], rng: &mut Rng) -> usize {
    let mut left = rng.below(weights.iter().sum());
    let chosen = weights.iter().position(|weight| {
        let is_it = left < *weight;
        left = left.saturating_sub(*weight);
        is_it
    });
    chosen.unwrap_or(0)
}

/// Whether a schedule of the first hundreds finds a fault.
fn expect_found(fault: Fault, run: impl Fn(u64) -> Result<(), Finding>) {
    // A fault may end in an assertion of the pool.
    let is_found = |seed: &u64| {
        let ended = catch_unwind(AssertUnwindSafe(|| run(*seed)));
        !matches!(ended, Ok(Ok(())))
    };
    let found = (0..500).find(is_found);
    assert!(found.is_some(), "no schedule finds {fault:?}");
}

/// Tests that schedules of `$run` find faults.
macro_rules! finds {
    ($run:ident: $($name:ident: $fault:ident,)*) => {
        $(#[test]
        fn $name() {
            let fault = crate::fault::Fault::$fault;
            super::expect_found(fault, |seed| $run(seed, Some(fault)).map(drop));
        })*
    };
}

use finds;
