//! Performance over a simulated link: for tests, and for `make perf` and its plots.

use proto_trp::wire::TAGGED_OVERHEAD;

use super::flood::{Bottleneck, Flood};
use super::gobackn::GoBackN;
use super::link::{LinkModel, FRAMING_OCTETS};
use super::world::{Setup, Sleep, World};

/// Octets of IP and UDP in front of a datagram.
const IP_UDP_OCTETS: u32 = 28;
/// Octets of writes that are posted at any time in a run over a link, of one queue pair: more than
/// two windows of the longest.
const OUTSTANDING_OCTETS: u32 = 128 << 20;

/// Time without a datagram after which an end sleeps.
const SPIN_NS: u64 = 20_000;

/// A link with a rate and a delay, and the flows that share it.
#[derive(Clone, Copy, Debug)]
pub struct LinkCase {
    /// Megabits per second.
    pub mbps: u64,
    /// Base RTT.
    pub rtt_us: u64,
    /// Octets of an IP datagram at most.
    pub mtu: u32,
    /// Queue pairs that write continuously, each between two hosts of its own.
    pub flows: usize,
    /// Time between the starts of two of them.
    pub stagger_ns: u64,
    /// The link marks datagrams (ECN CE) from a queue of a quarter of a round trip on, at least 20
    /// KB.
    pub marks: bool,
    /// Maximum wake-up delay of ends that sleep when nothing arrives.
    pub wake_us: u64,
    /// Seed of all randomness.
    pub seed: u64,
    /// Duration of the warm-up, and of the measurement after it.
    pub run_ns: u64,
}

/// The result of a [`LinkCase`].
#[derive(Clone, Copy, Debug)]
pub struct LinkResult {
    /// Share of the link's rate that carried completed writes, with their headers and framing.
    pub line: f64,
    /// Jain's index of fairness: 1 when all have the same, 1/n when one has everything.
    pub jain: f64,
    /// Queueing delay in base RTTs: median; the next field has the 99th percentile.
    pub wait_p50: f64,
    /// See `wait_p50`.
    pub wait_p99: f64,
    /// Datagrams that found the queue full.
    pub dropped: u64,
}

impl LinkCase {
    fn setup(&self) -> Setup {
        let held = self.mbps * self.rtt_us / 8;
        Setup {
            max_datagram_octets: self.mtu - IP_UDP_OCTETS,
            link: LinkModel {
                bits_per_second: self.mbps * 1_000_000,
                delay_ns: self.rtt_us * 500,
                queue_octets: (3 * held).max(400_000),
                mark_octets: if self.marks {
                    (held / 4).max(20_000)
                } else {
                    0
                },
                ..LinkModel::default()
            },
            sleep: Sleep {
                after_ns: SPIN_NS,
                wake_ns: self.wake_us * 1_000,
            },
            ..Setup::default()
        }
    }

    /// Runs the case.
    ///
    /// # Panics
    /// When a write fails.
    pub fn run(&self) -> LinkResult {
        const LENGTH: u32 = 1 << 20;
        let setup = self.setup();
        let flows = (0..self.flows as u64).map(|flow| {
            let mut world = World::new(&setup, self.seed + flow);
            let flood = Flood::new(&mut world, LENGTH, OUTSTANDING_OCTETS / LENGTH);
            (world, flood)
        });
        let mut shared = Bottleneck::new(flows.collect());
        for active in 1..self.flows {
            shared.active = active;
            shared.run(self.stagger_ns);
        }
        shared.active = self.flows;
        shared.run(self.run_ns);
        let dropped = shared.links[0].dropped;
        shared.links[0].waits.clear();
        let octets = shared.run(self.run_ns);
        let waits = &shared.links[0].waits;
        let datagram = u64::from(setup.max_datagram_octets);
        let on_line = ratio(datagram + FRAMING_OCTETS, datagram - TAGGED_OVERHEAD as u64);
        let line_octets = self.mbps * self.run_ns / 8_000;
        let rtt_ns = self.rtt_us * 1_000;
        LinkResult {
            line: ratio(octets.iter().sum(), line_octets) * on_line,
            jain: jain(&octets),
            wait_p50: ratio(waits.quantile_ns(500), rtt_ns),
            wait_p99: ratio(waits.quantile_ns(990), rtt_ns),
            dropped: shared.links[0].dropped - dropped,
        }
    }
}

/// Writes over a link of 10 Gb/s, with a round trip of 100 us and an MTU of 1500, that loses.
#[derive(Clone, Copy, Debug)]
pub struct LossCase {
    /// Octets of a write.
    pub length: u32,
    /// Lost, in parts per million.
    pub loss_ppm: u32,
    /// One datagram in a hundred is held back by up to half a round trip.
    pub reorders: bool,
    /// Virtual time.
    pub run_ns: u64,
}

impl LossCase {
    const DATAGRAM_OCTETS: u32 = 1_472;
    const RTT_NS: u64 = 100_000;

    const fn link(&self) -> LinkModel {
        LinkModel {
            bits_per_second: 10_000_000_000,
            delay_ns: Self::RTT_NS / 2,
            jitter_ns: 0,
            loss_ppm: self.loss_ppm,
            duplicate_ppm: 0,
            reorder_ppm: if self.reorders { 10_000 } else { 0 },
            reorder_ns: Self::RTT_NS / 2,
            corrupt_ppm: 0,
            queue_octets: 1_000_000,
            mark_octets: 0,
        }
    }

    /// Octets of writes that complete with 4 MB of them posted at any time.
    ///
    /// # Panics
    /// When a write fails.
    pub fn completed_octets(&self, seed: u64) -> u64 {
        let setup = Setup {
            max_datagram_octets: Self::DATAGRAM_OCTETS,
            link: self.link(),
            ..Setup::default()
        };
        let mut world = World::new(&setup, seed);
        let mut flood = Flood::new(&mut world, self.length, (4 << 20) / self.length);
        flood.run(&mut world, self.run_ns)
    }

    /// The same by go-back-N, with a window that fills the link when nothing is lost and the
    /// acknowledge timeout that perftest sets (code 14).
    pub fn completed_octets_go_back_n(&self, seed: u64) -> u64 {
        let header_octets = TAGGED_OVERHEAD as u64;
        let payload = u64::from(Self::DATAGRAM_OCTETS) - header_octets;
        let model = GoBackN {
            link: self.link(),
            payload_octets: payload,
            header_octets,
            window: 128,
            message_packets: u64::from(self.length).div_ceil(payload),
            timeout_ns: 4_096 << 14,
        };
        model.acknowledged_octets(seed, self.run_ns)
    }
}

fn ratio(numerator: u64, denominator: u64) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "a ratio")]
    let ratio = numerator as f64 / denominator as f64;
    ratio
}

/// Jain's index of fairness: 1 when all have the same, 1/n when one has everything.
fn jain(shares: &[u64]) -> f64 {
    let share = |&octets: &u64| ratio(octets, 1);
    let sum: f64 = shares.iter().map(share).sum();
    let squares: f64 = shares.iter().map(|octets| share(octets).powi(2)).sum();
    let count: f64 = shares.iter().map(|_| 1.0).sum();
    sum * sum / (count * squares)
}
