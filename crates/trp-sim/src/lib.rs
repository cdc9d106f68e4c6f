//! A deterministic simulator of [`proto_trp`]: two connections, a link that loses, repeats,
//! reorders, corrupts, delays and queues, and virtual time.
//!
//! A run is determined by one seed. A test that fails prints the command that runs
//! that one again; `URDMA_SIM_SEEDS=n` runs that many seeds instead of those of an ordinary test
//! run.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::cast_possible_truncation))]

mod channel;
mod ends;
mod flood;
mod fuzz;
mod fuzz_messages;
mod gobackn;
mod host;
mod link;
mod measure;
mod traffic;
mod verbs;
mod world;

pub use channel::{ChannelSetup, ChannelWorld, Pair};
pub use ends::Ends;
pub use flood::{Bottleneck, Flood};
pub use fuzz::fuzz_operations;
pub use fuzz_messages::fuzz_messages;
pub use gobackn::GoBackN;
pub use host::{Rights, SimHost};
pub use link::{Link, LinkModel, Waits};
pub use measure::{LinkCase, LinkResult, LossCase};
pub use traffic::{Breakage, Exchange, ExchangePlan};
pub use verbs::SIGNALED;
pub use world::{End, Setup, Sleep, World};

/// Runs `test` on each seed of this run: the one of `URDMA_SEED`, or as many as `URDMA_SIM_SEEDS`
/// says, or `usual`.
///
/// # Panics
/// When `test` does, after the seed was printed.
pub fn for_each_seed(usual: u64, test: impl Fn(u64) + std::panic::RefUnwindSafe) {
    for seed in urdma_types::seeds(usual) {
        if let Err(panic) = std::panic::catch_unwind(|| test(seed)) {
            eprintln!("to see this again: {}", replay_command(seed));
            std::panic::resume_unwind(panic);
        }
    }
}

/// What runs one seed of the present test again.
fn replay_command(seed: u64) -> String {
    let thread = std::thread::current();
    let test = thread.name().filter(|&name| name != "main").unwrap_or("");
    let program = std::env::current_exe().unwrap_or_default();
    let stem = program.file_stem().unwrap_or_default().to_string_lossy();
    let target = match stem.rsplit_once('-') {
        Some((name, _)) if name != "proto_trp" => format!("--test {name}"),
        _ => "--lib".to_owned(),
    };
    format!("URDMA_SEED={seed} cargo test -p proto-trp {target} {test}")
}
