//! The protocol alone, in the virtual time of `proto-trp`'s simulator: the cost of loss, and
//! whether a lossy link is ever taken for a dead peer.

use proto_trp::conn::Status;
use trp_sim::{Flood, LinkCase, LinkModel, LinkResult, LossCase, Setup, World};
use urdma_types::Rng;

use crate::samples::Sample;

const GOODPUT_NS: u64 = 100_000_000;
/// Link seeds of a lossy run; the median counts.
const LOSSY_SEEDS: u64 = 5;
const LOSSY_PPM: u32 = 10_000;
/// The loss rates of the sweep, in parts per million.
const SWEEP_PPM: [u32; 6] = [0, 100, 1_000, 10_000, 30_000, 50_000];
/// The lengths of writes of the sweep, in octets.
pub const SWEEP_OCTETS: [u32; 2] = [65_536, 1 << 20];

/// Number of simulated runs that look for spurious failures.
pub const RETRY_SEEDS: u64 = 10_000;
const RETRY_LOSS_MAX_PPM: u64 = 50_000;
const RETRY_WRITES: u32 = 8;
const RETRY_LENGTH: u32 = 8_192;
const RETRY_LIMIT_NS: u64 = 60_000_000_000;

const fn loss_case(length: u32, loss_ppm: u32, reorders: bool) -> LossCase {
    LossCase {
        length,
        loss_ppm,
        reorders,
        run_ns: GOODPUT_NS,
    }
}

/// Goodput in GB/s: the median over several seeds.
fn goodput(octets: impl Fn(u64) -> u64) -> f64 {
    let mut seen: Vec<u64> = (1..=LOSSY_SEEDS).map(octets).collect();
    seen.sort_unstable();
    let middle = seen.get(seen.len() / 2).copied().unwrap_or(0);
    per_second(middle)
}

#[allow(clippy::cast_precision_loss, reason = "a rate for people")]
fn per_second(octets: u64) -> f64 {
    octets as f64 / GOODPUT_NS as f64
}

/// Goodput in GB/s over a link without loss.
///
/// # Errors
/// None; the signature is that of all measurements.
pub fn lossless() -> Sample {
    Ok(per_second(
        loss_case(SWEEP_OCTETS[0], 0, false).completed_octets(1),
    ))
}

/// Goodput in GB/s over the same link with 1 % loss, the median over several seeds.
///
/// # Errors
/// None; the signature is that of all measurements.
pub fn lossy() -> Sample {
    let case = loss_case(SWEEP_OCTETS[0], LOSSY_PPM, false);
    Ok(goodput(|seed| case.completed_octets(seed)))
}

/// One point of the loss sweep: goodput in GB/s over 10 Gbit/s and 100 us with an MTU of 1500, the
/// median over several seeds.
#[derive(Clone, Copy, Debug)]
pub struct LossRow {
    /// Length of the writes, loss and reordering.
    pub case: LossCase,
    /// Goodput of TRP.
    pub trp: f64,
    /// The same, relative to TRP without loss and reordering.
    pub trp_kept: f64,
    /// Goodput of go-back-N, as soft-RoCE does it.
    pub go_back_n: f64,
    /// The same, relative to go-back-N without loss and reordering.
    pub go_back_n_kept: f64,
}

/// Goodput at each rate of loss, for each of `lengths`, without and with reordering. Takes some
/// seconds of computation.
pub fn loss_sweep(lengths: &[u32]) -> Vec<LossRow> {
    let mut rows = Vec::new();
    for &length in lengths {
        let trp = |case: LossCase| goodput(|seed| case.completed_octets(seed));
        let beside = |case: LossCase| goodput(|seed| case.completed_octets_go_back_n(seed));
        let clean = loss_case(length, 0, false);
        let (all, all_beside) = (trp(clean), beside(clean));
        for reorders in [false, true] {
            for loss_ppm in SWEEP_PPM {
                let case = loss_case(length, loss_ppm, reorders);
                let (trp, go_back_n) = (trp(case), beside(case));
                rows.push(LossRow {
                    case,
                    trp,
                    trp_kept: trp / all,
                    go_back_n,
                    go_back_n_kept: go_back_n / all_beside,
                });
            }
        }
    }
    rows
}

/// Every link of the goals with this MTU: 1 and 10 Gbit/s, 0.1 to 48 ms, with one queue pair and
/// with eight that start together or one after another. Takes a minute of computation.
pub fn link_table(mtu: u32, marks: bool) -> Vec<(LinkCase, LinkResult)> {
    let mut rows = Vec::new();
    for mbps in [1_000, 10_000] {
        for rtt_us in [100, 1_000, 10_000, 48_000] {
            for (flows, stagger) in [(1, 0), (8, 0), (8, 50_000)] {
                let case = LinkCase {
                    mbps,
                    rtt_us,
                    mtu,
                    flows,
                    stagger_ns: rtt_us * stagger,
                    marks,
                    wake_us: 0,
                    seed: 0,
                    run_ns: 1_000_000_000.max(rtt_us * 250_000),
                };
                rows.push((case, case.run()));
            }
        }
    }
    rows
}

/// The number of [`RETRY_SEEDS`] runs, with up to 5 % loss and reordering, in which a live peer was
/// given up.
///
/// # Errors
/// A run did not end in time.
pub fn spurious_failures() -> Sample {
    let mut failures = 0.0;
    for seed in 0..RETRY_SEEDS {
        if gives_up(seed)? {
            failures += 1.0;
        }
    }
    Ok(failures)
}

fn gives_up(seed: u64) -> Result<bool, String> {
    let mut rng = Rng::new(seed);
    let setup = Setup {
        link: LinkModel {
            bits_per_second: 1_000_000_000,
            delay_ns: 1_000 + rng.below(200_000),
            jitter_ns: rng.below(50_000),
            loss_ppm: u32::try_from(rng.below(RETRY_LOSS_MAX_PPM + 1)).unwrap_or(0),
            reorder_ppm: u32::try_from(rng.below(50_000)).unwrap_or(0),
            reorder_ns: 300_000,
            ..LinkModel::default()
        },
        ..Setup::default()
    };
    let mut world = World::new(&setup, seed);
    Flood::new(&mut world, RETRY_LENGTH, RETRY_WRITES).refill(&mut world);
    let done = |world: &mut World| world.ends[0].host.completions.len() >= RETRY_WRITES as usize;
    if !world.run_until(RETRY_LIMIT_NS, done) {
        return Err(format!(
            "seed {seed}: not done after a minute of virtual time"
        ));
    }
    let mut completions = world.ends[0].host.completions.iter();
    Ok(completions.any(|completion| completion.status != Status::Success))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lossless_link_is_nearly_filled() {
        let rate = lossless().unwrap();
        assert!((1.0..=1.25).contains(&rate), "{rate} GB/s of 1.25");
    }

    #[test]
    fn loss_costs_little_and_go_back_n_more() {
        let case = loss_case(SWEEP_OCTETS[0], LOSSY_PPM, false);
        let (trp, beside) = (case.completed_octets(1), case.completed_octets_go_back_n(1));
        assert!(trp > 2 * beside, "{trp} and {beside}");
    }

    #[test]
    fn living_peer_is_not_given_up() {
        assert!((0..20).all(|seed| gives_up(seed) == Ok(false)));
    }
}
