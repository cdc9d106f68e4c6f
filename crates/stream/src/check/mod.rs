//! The checker: two ends under random schedules, their octets against a model of a byte stream.
//!
//! `world` carries what the ends transmit and watches every octet; `schedules` runs it with random
//! configurations and asserts that it finds each deliberate fault; `ends` loses the last
//! completions of an end; `waits` lets a sender run out of adverts; `short` has short sends and
//! receives; `rings` has rings that grow and shrink; `hostile` feeds an end what no correct peer
//! sends; `timed` measures both ends over links of a rate and a delay. A failing seed is printed;
//! `URDMA_SEED` runs it alone.

mod ends;
mod hostile;
mod rings;
mod schedules;
mod short;
mod timed;
mod waits;
mod world;

use urdma_types::{seeds, Rng};

/// Runs `test` on the seed of `URDMA_SEED`, or on as many seeds as `URDMA_SIM_SEEDS` says, or
/// `usual`.
fn for_each_seed(usual: u64, test: impl Fn(u64) + std::panic::RefUnwindSafe) {
    for seed in seeds(usual) {
        if let Err(panic) = std::panic::catch_unwind(|| test(seed)) {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or("").to_owned();
            eprintln!(
                "to see this again: URDMA_SEED={seed} cargo test -p urdma-stream --lib {name}"
            );
            std::panic::resume_unwind(panic);
        }
    }
}
