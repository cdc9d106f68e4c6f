//! The protocol alone, in `proto-trp`'s simulator and its virtual time: what loss costs, and whether a lossy link is ever taken for dead.

use proto_trp::conn::{Payload, PostError, RemoteAddr, SendFlags, SendOp, SendWr, Sge, Status};
use proto_trp::sim::{LinkModel, Rights, Rng, Setup, SimHost, World};

use crate::samples::Sample;

const LENGTH: u32 = 65_536;
const GOODPUT_NS: u32 = 100_000_000;
const OUTSTANDING: u32 = 64;
/// Link seeds of the lossy run, whose median counts.
const LOSSY_SEEDS: u64 = 5;
const LOSSY_PPM: u32 = 10_000;

/// Seeds of the search for spurious failures.
pub const RETRY_SEEDS: u64 = 10_000;
const RETRY_LOSS_MAX_PPM: u64 = 50_000;
const RETRY_WRITES: u64 = 8;
const RETRY_LENGTH: u32 = 8_192;
const RETRY_LIMIT_NS: u64 = 60_000_000_000;

/// One end writes from its memory into the other's.
struct Writer {
    world: World,
    source: u32,
    target: u32,
    length: u32,
}

impl Writer {
    fn new(setup: &Setup, seed: u64, length: u32) -> Self {
        let mut world = World::new(setup, seed);
        let memory = vec![0x55; length as usize];
        let source = world.ends[0].host.register(memory.clone(), Rights::ALL);
        let target = world.ends[1].host.register(memory, Rights::ALL);
        Self {
            world,
            source,
            target,
            length,
        }
    }

    /// Posts writes until `outstanding` are; `most` bounds how many in this call.
    fn post(&mut self, outstanding: u32, most: u64) -> Result<u64, PostError> {
        let sges = [Sge {
            addr: SimHost::base(self.source),
            length: self.length,
            lkey: self.source,
        }];
        let remote = RemoteAddr {
            stag: self.target,
            to: SimHost::base(self.target),
        };
        let wr = SendWr {
            wr_id: 0,
            op: SendOp::Write { remote },
            imm: None,
            flags: SendFlags {
                signaled: true,
                ..SendFlags::default()
            },
            payload: Payload::Sges(&sges),
        };
        let now = self.world.now;
        let (connection, host) = self.world.split(0);
        let mut posted = 0;
        while connection.sends_outstanding() < outstanding && posted < most {
            connection.post_send(now, &wr, host)?;
            posted += 1;
        }
        Ok(posted)
    }
}

/// 10 Gb/s, round trip 100 us, MTU 1500.
fn link(loss_ppm: u32) -> Setup {
    Setup {
        link: LinkModel {
            bits_per_second: 10_000_000_000,
            delay_ns: 50_000,
            loss_ppm,
            queue_octets: 1_000_000,
            ..LinkModel::default()
        },
        ..Setup::default()
    }
}

/// GB/s of writes that completed in virtual time with the send queue kept full.
fn goodput(setup: &Setup, seed: u64) -> Sample {
    let mut writer = Writer::new(setup, seed, LENGTH);
    let mut octets = 0.0;
    let end = writer.world.now.plus_ns(GOODPUT_NS.into());
    while writer.world.now < end {
        writer
            .post(OUTSTANDING, u64::MAX)
            .map_err(|error| format!("the simulated queue refuses: {error:?}"))?;
        if !writer.world.step() {
            return Err("the simulation stands still".into());
        }
        for completion in writer.world.ends[0].host.completions.drain(..) {
            if completion.status != Status::Success {
                return Err(format!("seed {seed}: {:?}", completion.status));
            }
            octets += f64::from(LENGTH);
        }
    }
    Ok(octets / f64::from(GOODPUT_NS))
}

/// GB/s over a link that loses nothing.
///
/// # Errors
/// The simulation failed.
pub fn lossless() -> Sample {
    goodput(&link(0), 1)
}

/// GB/s over the same link with 1 % loss, the middle of several seeds.
///
/// # Errors
/// The simulation failed.
pub fn lossy() -> Sample {
    let mut seen = (1..=LOSSY_SEEDS)
        .map(|seed| goodput(&link(LOSSY_PPM), seed))
        .collect::<Result<Vec<f64>, String>>()?;
    seen.sort_by(f64::total_cmp);
    seen.get(seen.len() / 2)
        .copied()
        .ok_or_else(|| "no seed".into())
}

/// In how many of [`RETRY_SEEDS`] runs with up to 5 % loss and reordering a living peer was given up.
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
    let mut writer = Writer::new(&setup, seed, RETRY_LENGTH);
    let posted = writer
        .post(OUTSTANDING, RETRY_WRITES)
        .map_err(|error| format!("the simulated queue refuses: {error:?}"))?;
    let done = |world: &mut World| world.ends[0].host.completions.len() as u64 >= posted;
    if !writer.world.run_until(RETRY_LIMIT_NS, done) {
        return Err(format!(
            "seed {seed}: not done after a minute of virtual time"
        ));
    }
    Ok(writer.world.ends[0]
        .host
        .completions
        .iter()
        .any(|completion| completion.status != Status::Success))
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
    fn living_peer_is_not_given_up() {
        assert!((0..20).all(|seed| gives_up(seed) == Ok(false)));
    }
}
