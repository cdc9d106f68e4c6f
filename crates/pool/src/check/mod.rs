//! The checker: a pool with users and a device under random schedules, against a plain model.
//!
//! `device` has the queue pairs: it executes work requests, loses answers, refuses, breaks.
//! `model` knows what each request may still become; `work` checks each work request by it. `world`
//! carries out the pool's actions between the two and watches every step; `schedules` runs it with
//! random configurations and asserts that it finds each deliberate fault; `shares` has a user that
//! takes what it gets. A failing seed is printed; `URDMA_SEED` runs it alone.

mod device;
mod model;
mod schedules;
mod shares;
mod work;
mod world;

use urdma_types::{seeds, Rng};

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
