//! Byte streams beside rsockets (`rstream`, through the same provider), beside TCP over loopback,
//! and over a long link.
//!
//! The programs of TCP (qperf) sleep while they wait. Those of rsockets poll for 10 microseconds
//! before they sleep, which is the default of the library, and so do those of a stream, except in
//! the rows of streams asleep.

use std::path::Path as FilePath;

use urdma_harness::instance::Instance;
use urdma_harness::Failure;

use crate::asleep::Wait;
use crate::goals;
use crate::lines::{Chart, Scale, Series, Stroke};
use crate::links::Link;
use crate::peers;
use crate::probes::{
    EVENTS_64K_STREAMS, RAW_STREAM_IN_TURN, SEND_1K_STREAMS, SEND_64_STREAMS, WRITES_IN_TURN,
    WRITE_1M_STREAMS, WRITE_1M_STREAMS_8,
};
use crate::samples::{Probe, Sample, Samples, Unit};
use crate::spec::Compare::{Alone, With};
use crate::spec::{pair, Goal, Pair, Spec};
use crate::stream_programs::{ping, rstream, Blast, Transfers};
use crate::writes;

/// Octets and messages of a rate at most.
const RATE_OCTETS: u64 = 1_000_000_000;
const RATE_MESSAGES: u64 = 300_000;
/// Octets and messages of a latency at most, and messages at least.
const LATENCY_OCTETS: u32 = 200_000_000;
const LATENCY_MESSAGES: (u32, u32) = (40, 10_000);
/// A stream is measured beside rsockets this number of times in a round, in turn: runs of either
/// differ by more than the two do.
pub const TURNS: usize = 7;
const RING_OCTETS: u32 = 4 << 20;
const MB_1: u32 = 1 << 20;

/// Messages of one length: rate and latency, beside both peers.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    octets: u32,
    /// Sends in progress; receives are twice as many.
    sends: u32,
    /// Beside rsockets and TCP.
    rate: [Pair; 2],
    latency: [Pair; 2],
    /// Rate and latency beside TCP, both ends asleep while they wait.
    asleep: [Pair; 2],
}

macro_rules! sizes {
    ($($name:literal: $octets:expr, $sends:literal;)*) => {
        [$(Size {
            octets: $octets,
            sends: $sends,
            rate: [
                pair!(GigabytesPerSecond, "rstream", "stream rate, ", $name),
                pair!(GigabytesPerSecond, "TCP", "stream rate, ", $name),
            ],
            latency: [
                pair!(Microseconds, "rstream", "stream latency, ", $name),
                pair!(Microseconds, "TCP", "stream latency, ", $name),
            ],
            asleep: [
                pair!(GigabytesPerSecond, "TCP", "stream rate, asleep, ", $name),
                pair!(Microseconds, "TCP", "stream latency, asleep, ", $name),
            ],
        }),*]
    };
}

/// All lengths.
pub const SIZES: [Size; 6] = sizes! {
    "64 B": 64, 64;
    "1 KB": 1024, 64;
    "4 KB": 4096, 64;
    "64 KB": 65_536, 16;
    "1 MB": MB_1, 8;
    "16 MB": 16 << 20, 4;
};

impl Size {
    fn blast(&self, wait: Wait) -> Blast {
        Blast {
            transfers: Transfers::Dynamic,
            sends: self.sends,
            recvs: 2 * self.sends,
            max_octets: self.octets,
            is_fixed: true,
            ring_octets: RING_OCTETS,
            octets: self.messages() * u64::from(self.octets),
            wait,
        }
    }

    /// Messages of a rate.
    fn messages(&self) -> u64 {
        (RATE_OCTETS / u64::from(self.octets)).min(RATE_MESSAGES)
    }

    /// Messages of a latency.
    fn round_trips(&self) -> u32 {
        let (least, most) = LATENCY_MESSAGES;
        (LATENCY_OCTETS / self.octets).clamp(least, most)
    }

    /// Rate of a stream.
    fn measure_rate(
        &self,
        host: &Result<&Instance, String>,
        programs: &FilePath,
        port: u16,
        wait: Wait,
    ) -> Sample {
        on(host, |host| {
            let figures = self.blast(wait).run([host, host], programs, port);
            figures.map(|figures| figures.gigabytes_s)
        })
    }

    /// Measures over a stream and rsockets, and messages of 1 MB over verbs alone; gives each probe
    /// with its value.
    pub fn measure_beside_rstream(
        &self,
        host: Result<&Instance, String>,
        programs: &FilePath,
        port: u16,
    ) -> Vec<(Probe, Sample)> {
        let (octets, round_trips) = (self.octets, self.round_trips());
        let rstream_rate = |host: &Instance| {
            let us = rstream(host, port, octets, 1, self.messages())?;
            Ok(f64::from(octets) / 1e3 / us)
        };
        let mut samples = vec![
            (
                self.rate[0].ours,
                self.measure_rate(&host, programs, port, Wait::Poll),
            ),
            (self.rate[0].peer, on(&host, rstream_rate)),
            (
                self.latency[0].ours,
                on(&host, |host| {
                    ping(host, programs, port, [octets, round_trips], Wait::Poll)
                }),
            ),
            (
                self.latency[0].peer,
                on(&host, |host| rstream(host, port, octets, round_trips, 1)),
            ),
        ];
        if octets == MB_1 {
            let memory = [self.sends, 2 * self.sends];
            let rate = on(&host, |host| writes::rate(host, programs, memory));
            samples.push((WRITES_IN_TURN, rate));
        }
        samples
    }

    /// Measures over a stream that sleeps, and over TCP; gives each probe with its value.
    pub fn measure_beside_tcp(
        &self,
        host: Result<&Instance, String>,
        programs: &FilePath,
        port: u16,
    ) -> Vec<(Probe, Sample)> {
        let sizes = [self.octets, self.round_trips()];
        let length = self.octets as usize;
        let [tcp_rate, tcp_latency] = [peers::tcp_stream(length), peers::tcp_latency(length)];
        vec![
            (
                self.asleep[0].ours,
                self.measure_rate(&host, programs, port, Wait::Sleep),
            ),
            (self.rate[1].peer, tcp_rate.clone()),
            (self.asleep[0].peer, tcp_rate),
            (
                self.asleep[1].ours,
                on(&host, |host| ping(host, programs, port, sizes, Wait::Sleep)),
            ),
            (self.latency[1].peer, tcp_latency.clone()),
            (self.asleep[1].peer, tcp_latency),
        ]
    }
}

/// Measures on a host, if there is one.
fn on(
    host: &Result<&Instance, String>,
    measure: impl FnOnce(&Instance) -> Result<f64, Failure>,
) -> Sample {
    let host = host.clone()?;
    measure(host).map_err(|failure| failure.to_string())
}

/// A link that holds 6 MB.
const DISTANCE: Link = Link::new("stream, 1 Gbit/s, 48 ms, 64 sends", 1_000, 48_000, false);
const DISTANCE_DIRECT: Probe = Probe {
    name: "stream, 1 Gbit/s, 48 ms, 64 sends, direct only",
    unit: Unit::Share,
};
/// 24 seconds of the link. Connection, slow start and the end of the stream take one second more,
/// whatever its length.
const DISTANCE_OCTETS: u64 = 3_000_000_000;

/// Share of the link that a stream of 64 sends against 32 receives of 128 KB uses, with dynamic and
/// with direct transfers; connection and slow start are included.
pub fn distance(
    ends: Result<(&Instance, &Instance), String>,
    programs: &FilePath,
    port: u16,
) -> Vec<(Probe, Sample)> {
    let share = |transfers| -> Sample {
        let (server, client) = ends.clone()?;
        DISTANCE.make(server)?;
        let blast = Blast {
            transfers,
            sends: 64,
            recvs: 32,
            max_octets: 128 << 10,
            is_fixed: true,
            ring_octets: 2 * RING_OCTETS,
            octets: DISTANCE_OCTETS,
            wait: Wait::Poll,
        };
        let figures = blast.run([server, client], programs, port);
        let figures = figures.map_err(|failure| failure.to_string())?;
        Ok(DISTANCE.share(figures.gigabytes_s * 1e9))
    };
    vec![
        (DISTANCE.probe, share(Transfers::Dynamic)),
        (DISTANCE_DIRECT, share(Transfers::Direct)),
    ]
}

/// The rows of this part.
pub(crate) fn specs() -> impl Iterator<Item = Spec> {
    let of_size = |size: &'static Size| {
        [
            size.rate[0].spec(goals::rsockets_rate(size.octets)),
            size.rate[1].spec(goals::STREAM_TCP),
            size.latency[0].spec(goals::rsockets_latency(size.octets)),
            size.latency[1].spec(goals::STREAM_TCP_LATENCY),
            size.asleep[0].spec(goals::STREAM_TCP),
            size.asleep[1].spec(goals::STREAM_TCP_LATENCY),
        ]
    };
    let raw = SIZES
        .iter()
        .filter(|size| size.octets == MB_1)
        .flat_map(|size| {
            [
                Spec::new(
                    "stream rate, 1 MB / ib_write_bw",
                    size.rate[0].ours,
                    With(WRITE_1M_STREAMS),
                    goals::STREAM_RAW,
                ),
                Spec::new(
                    "stream rate, 1 MB / writes of as much memory",
                    size.rate[0].ours,
                    With(WRITES_IN_TURN),
                    goals::STREAM_RAW,
                ),
                // One queue pair sends the same octets again and again, which the second-level
                // cache holds; a stream of 8 sends reads 8 MB in turn.
                Spec::new(
                    "stream rate, 1 MB / ib_write_bw, 8 QPs in turn",
                    size.rate[0].ours,
                    With(WRITE_1M_STREAMS_8),
                    Goal::None,
                ),
                // Without verbs and protocol.
                Spec::new(
                    "stream rate, 1 MB / raw two copies of as much memory",
                    size.rate[0].ours,
                    With(RAW_STREAM_IN_TURN),
                    Goal::None,
                ),
            ]
        });
    // Without any stream.
    let [of_64, of_1k, _, of_64k, ..] = &SIZES;
    let verbs = [
        (
            "stream rate, 64 B / ib_send_bw",
            of_64.rate[0].ours,
            SEND_64_STREAMS,
        ),
        (
            "stream rate, 1 KB / ib_send_bw",
            of_1k.rate[0].ours,
            SEND_1K_STREAMS,
        ),
        (
            "stream latency, asleep, 64 KB / ib_send_lat -e",
            of_64k.asleep[1].ours,
            EVENTS_64K_STREAMS,
        ),
    ]
    .map(|(name, ours, verbs)| Spec::new(name, ours, With(verbs), Goal::None));
    let far = [
        Spec::new(
            DISTANCE.probe.name,
            DISTANCE.probe,
            Alone,
            goals::STREAM_DISTANCE,
        ),
        Spec::new(
            "stream, 1 Gbit/s, 48 ms, 64 sends / direct only",
            DISTANCE.probe,
            With(DISTANCE_DIRECT),
            Goal::None,
        ),
    ];
    let sizes = SIZES.iter().flat_map(of_size);
    sizes.chain(raw).chain(verbs).chain(far)
}

/// Rate and latency over the length of a message.
pub(crate) fn charts(samples: &Samples) -> Vec<Chart> {
    [
        (
            "Rate over the octets of a message, GB/s",
            Size::rates as fn(&Size) -> [Probe; 3],
        ),
        (
            "Half of a round trip over the octets of a message, us",
            Size::latencies,
        ),
    ]
    .map(|(title, probes)| {
        let series = ["stream", "rstream", "TCP"].iter().enumerate();
        let series = series.map(|(index, name)| {
            let value = |size: &Size| {
                let median = samples.median(probes(size)[index]).ok()?;
                Some((f64::from(size.octets), median))
            };
            Series {
                name: (*name).to_owned(),
                stroke: Stroke::Measured,
                points: SIZES.iter().filter_map(value).collect(),
            }
        });
        Chart {
            title: title.to_owned(),
            x_scale: Scale::Evenly,
            y_scale: Scale::Logarithmic,
            series: series.collect(),
        }
    })
    .into()
}

impl Size {
    /// Of a stream, of rsockets and of TCP.
    fn rates(&self) -> [Probe; 3] {
        [self.rate[0].ours, self.rate[0].peer, self.rate[1].peer]
    }

    fn latencies(&self) -> [Probe; 3] {
        [
            self.latency[0].ours,
            self.latency[0].peer,
            self.latency[1].peer,
        ]
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn rows_have_names_of_their_own_and_the_goals_of_their_length() {
        let rows: Vec<Spec> = specs().collect();
        let names: BTreeSet<&str> = rows.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), rows.len());
        let goal = |name| rows.iter().find(|row| row.name == name).unwrap().goal;
        assert_eq!(goal("stream rate, 1 MB / rstream"), Goal::AtLeast(1.5));
        assert_eq!(goal("stream rate, 4 KB / rstream"), Goal::AtLeast(1.0));
        assert_eq!(goal("stream latency, 64 B / TCP"), Goal::AtMost(0.33));
    }

    #[test]
    fn buffers_of_a_server_are_as_many_as_it_allows() {
        for size in &SIZES {
            let Blast {
                recvs, max_octets, ..
            } = size.blast(Wait::Poll);
            assert!(u64::from(recvs) * u64::from(max_octets) <= 1 << 30);
            assert!(size.messages() >= u64::from(recvs));
        }
    }
}
