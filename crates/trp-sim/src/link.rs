//! One direction of a link.

use proto_trp::conn::Time;
use urdma_types::Rng;

/// The model of a link. Rates are in parts per million.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkModel {
    /// Bits per second; 0 for no limit.
    pub bits_per_second: u64,
    /// Propagation delay.
    pub delay_ns: u64,
    /// Every datagram is delayed by up to this in addition, so that they overtake one another.
    pub jitter_ns: u64,
    /// Lost, after serialisation.
    pub loss_ppm: u32,
    /// Delivered twice.
    pub duplicate_ppm: u32,
    /// Delayed by up to `reorder_ns`.
    pub reorder_ppm: u32,
    /// Maximum delay of those.
    pub reorder_ns: u64,
    /// A bit is flipped, which the checksum finds.
    pub corrupt_ppm: u32,
    /// Octets that may wait for the line; the rest is dropped. 0 for no limit.
    pub queue_octets: u64,
    /// Octets waiting from which on datagrams are marked (ECN CE). 0 for never.
    pub mark_octets: u64,
}

/// One direction of a link, and when its line is free again.
#[derive(Clone, Debug)]
pub struct Link {
    /// Its model.
    pub model: LinkModel,
    /// Nothing passes until then.
    pub down_until: Time,
    line_free: Time,
    /// Datagrams dropped, for whatever reason.
    pub dropped: u64,
    /// Octets that reached the other end.
    pub delivered_octets: u64,
    /// Queueing delays.
    pub waits: Waits,
}

/// Queueing delays of datagrams.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    /// Of each, in microseconds.
    us: Vec<u32>,
}

impl Waits {
    fn note(&mut self, ns: u64) {
        self.us.push(u32::try_from(ns / 1_000).unwrap_or(u32::MAX));
    }

    /// Clears them.
    pub fn clear(&mut self) {
        self.us.clear();
    }

    /// The wait in nanoseconds that `share` in 1000 of the datagrams did not exceed; 0 when there
    /// were none.
    pub fn quantile_ns(&self, share: usize) -> u64 {
        let mut us = self.us.clone();
        let at = (us.len() * share / 1000).min(us.len().saturating_sub(1));
        if us.is_empty() {
            return 0;
        }
        let (_, &mut wait, _) = us.select_nth_unstable(at);
        u64::from(wait) * 1_000
    }
}

/// A datagram on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Flight {
    pub(super) arrives: Time,
    pub(super) octets: Vec<u8>,
    pub(super) marked: bool,
}

/// Octets of Ethernet, IP and UDP that a datagram costs on the line.
pub(super) const FRAMING_OCTETS: u64 = 66;

impl Link {
    /// A link that follows a model.
    pub fn new(model: LinkModel) -> Self {
        Self {
            model,
            down_until: Time::ZERO,
            line_free: Time::ZERO,
            dropped: 0,
            delivered_octets: 0,
            waits: Waits::default(),
        }
    }

    /// What arrives of a datagram, and when.
    pub(super) fn carry(&mut self, now: Time, octets: &[u8], rng: &mut Rng) -> Vec<Flight> {
        let model = self.model;
        let waiting_ns = self.line_free.since_ns(now);
        let waiting = octets_in(waiting_ns, model.bits_per_second);
        if now < self.down_until || (model.queue_octets != 0 && waiting > model.queue_octets) {
            self.dropped += 1;
            return Vec::new();
        }
        if model.bits_per_second != 0 {
            self.waits.note(waiting_ns);
        }
        let marked = model.mark_octets != 0 && waiting > model.mark_octets;
        let start = if waiting_ns > 0 { self.line_free } else { now };
        let length = octets.len() as u64 + FRAMING_OCTETS;
        self.line_free = start.plus_ns(ns_for(length, model.bits_per_second));
        if rng.happens(model.loss_ppm) {
            self.dropped += 1;
            return Vec::new();
        }
        let copies = 1 + usize::from(rng.happens(model.duplicate_ppm));
        let mut flights = Vec::with_capacity(copies);
        for _ in 0..copies {
            let mut octets = octets.to_vec();
            if rng.happens(model.corrupt_ppm) && !survives_flip(&mut octets, rng) {
                self.dropped += 1;
                continue;
            }
            let mut late_ns = rng.below(model.jitter_ns);
            if rng.happens(model.reorder_ppm) {
                late_ns += rng.below(model.reorder_ns);
            }
            self.delivered_octets += octets.len() as u64;
            flights.push(Flight {
                arrives: self.line_free.plus_ns(model.delay_ns + late_ns),
                octets,
                marked,
            });
        }
        flights
    }
}

fn ns_for(octets: u64, bits_per_second: u64) -> u64 {
    (octets * 8_000_000_000)
        .checked_div(bits_per_second)
        .unwrap_or(0)
}

fn octets_in(ns: u64, bits_per_second: u64) -> u64 {
    let octets = u128::from(ns) * u128::from(bits_per_second) / 8_000_000_000;
    u64::try_from(octets).unwrap_or(u64::MAX)
}

/// Flips one bit and returns whether the Internet checksum misses it.
fn survives_flip(octets: &mut [u8], rng: &mut Rng) -> bool {
    let before = checksum(octets);
    let at = rng.below_len(octets.len());
    octets[at] ^= 1 << rng.below(8);
    before == checksum(octets)
}

fn checksum(octets: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in octets.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum & 0xffff).unwrap_or(0)
}
