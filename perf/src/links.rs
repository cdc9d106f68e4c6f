//! One queue pair over links of limited rate and delay, which the daemon makes at its port (`urdma
//! fault`): the share of the rate that perftest's writes use.
//!
//! The simulator covers more links (`proto-trp/tests/sim_links.rs`), without the limits of the
//! processors.

use urdma_harness::instance::{Instance, LeasePolicy};
use urdma_harness::{pair, programs};

use crate::goals;
use crate::lossy::{end, said_ok, MIB};
use crate::samples::{Probe, Sample, Unit};
use crate::spec::{Compare, Spec};

const LENGTH: u32 = 1 << 20;
/// Octets of a full Ethernet frame at an MTU of 9000, which the link counts, and of its payload.
const FRAME_OCTETS: f64 = 9_014.0;
const PAYLOAD_OCTETS: f64 = 8_942.0;
/// A link is measured for two seconds and this many round trips, so that slow start matters little.
const WATCH_US: u64 = 2_000_000;
const WATCH_ROUND_TRIPS: u64 = 200;
const OCTETS_MAX: u64 = 10_000_000_000;

/// One link.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Share of its rate that is used.
    pub probe: Probe,
    mbps: u64,
    rtt_us: u64,
    marks: bool,
}

/// The links that are measured: 1 and 10 Gbit/s with round trips of 0.1 to 48 ms, and two that set
/// ECN marks.
pub const LINKS: [Link; 10] = [
    Link::new("1 Gbit/s, 0.1 ms", 1_000, 100, false),
    Link::new("1 Gbit/s, 1 ms", 1_000, 1_000, false),
    Link::new("1 Gbit/s, 10 ms", 1_000, 10_000, false),
    Link::new("1 Gbit/s, 48 ms", 1_000, 48_000, false),
    Link::new("10 Gbit/s, 0.1 ms", 10_000, 100, false),
    Link::new("10 Gbit/s, 1 ms", 10_000, 1_000, false),
    Link::new("10 Gbit/s, 10 ms", 10_000, 10_000, false),
    Link::new("10 Gbit/s, 48 ms", 10_000, 48_000, false),
    Link::new("1 Gbit/s, 1 ms, marks", 1_000, 1_000, true),
    Link::new("1 Gbit/s, 10 ms, marks", 1_000, 10_000, true),
];

impl Link {
    /// A link of `mbps` Mbit/s with a round trip of `rtt_us`, whose queue sets ECN marks or does
    /// not.
    pub const fn new(name: &'static str, mbps: u64, rtt_us: u64, marks: bool) -> Self {
        Self {
            probe: Probe {
                name,
                unit: Unit::Share,
            },
            mbps,
            rtt_us,
            marks,
        }
    }

    /// Bandwidth-delay product in octets.
    const fn held(&self) -> u64 {
        self.mbps * self.rtt_us / 8
    }

    /// Options of `urdma fault`, which apply to both directions of one port; queue and marks as in
    /// the simulator.
    fn options(&self) -> Vec<String> {
        let mut options = vec![
            "--rate".to_owned(),
            format!("{}Mbit/s", self.mbps),
            "--delay".to_owned(),
            format!("{}us", self.rtt_us / 2),
            "--queue".to_owned(),
            format!("{}B", (3 * self.held()).max(400_000)),
        ];
        if self.marks {
            let from = (self.held() / 4).max(20_000);
            options.extend(["--mark".to_owned(), format!("{from}B")]);
        }
        options
    }

    fn iterations(&self) -> u32 {
        let us = WATCH_US + WATCH_ROUND_TRIPS * self.rtt_us;
        let octets = (self.mbps * us / 8).min(OCTETS_MAX);
        u32::try_from(octets / u64::from(LENGTH)).unwrap_or(u32::MAX)
    }

    /// Makes the link at the port of `server` and sets its counters to zero.
    ///
    /// # Errors
    /// `urdma fault` failed.
    pub(crate) fn make(&self, server: &Instance) -> Result<(), String> {
        end(server)?;
        said_ok(server.fault(&self.options()))
    }

    /// Share of the link's rate that `octets_s` octets of payload a second use, headers included.
    pub(crate) fn share(&self, octets_s: f64) -> f64 {
        octets_s * FRAME_OCTETS / PAYLOAD_OCTETS * 8.0 / (self.mbps as f64 * 1e6)
    }

    /// A time in round trips of the link without a queue.
    pub(crate) fn round_trips(&self, ns: f64) -> f64 {
        ns / (self.rtt_us as f64 * 1e3)
    }

    /// Share of the link's rate that writes of `client` to `server` use, headers included.
    ///
    /// # Errors
    /// `urdma fault` or perftest failed, or a link that should mark has not marked any packet.
    pub fn measure(&self, server: &Instance, client: &Instance, port: u16) -> Sample {
        self.make(server)?;
        let job = programs::perftest("ib_write_bw", LENGTH, false, port, server.address())
            .with_iterations(self.iterations());
        let figure = pair::run(&job, server, client, LeasePolicy::Never)
            .map_err(|error| error.to_string())?;
        let figure = figure.ok_or("ib_write_bw printed no figure")?;
        if self.marks {
            let status = server.status().map_err(|error| error.to_string())?;
            let marked = status["faults"]["inbound"]["counts"]["marked"].as_u64();
            if marked.unwrap_or(0) == 0 {
                return Err("the link's queue stayed too short to mark a packet".into());
            }
        }
        Ok(self.share(figure.value * MIB))
    }
}

/// A row of the report for each link.
pub(crate) fn specs() -> impl Iterator<Item = Spec> {
    LINKS.iter().map(|link| Spec {
        name: link.probe.name,
        ours: link.probe,
        compare: Compare::Alone,
        goal: goals::LINK,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_watched_long_enough_and_not_too_long() {
        for link in LINKS {
            let octets = u64::from(link.iterations()) * u64::from(LENGTH);
            assert!(octets > 4 * link.held(), "{}", link.probe.name);
            assert!(octets <= OCTETS_MAX, "{}", link.probe.name);
        }
    }

    #[test]
    fn link_is_asked_for_by_rate_delay_and_queue() {
        let options = LINKS[8].options().join(" ");
        assert_eq!(
            options,
            "--rate 1000Mbit/s --delay 500us --queue 400000B --mark 31250B"
        );
    }
}
