//! Queue pairs that share a link of limited rate, which the daemon makes at its port: the fairness
//! of their shares, and the time that packets wait for the link.

use std::path::Path;
use std::time::Duration;

use urdma_harness::instance::{Instance, LeasePolicy};
use urdma_harness::process::Process;

use crate::goals;
use crate::links::Link;
use crate::samples::{text, Probe, Sample, Unit};
use crate::spec::{Compare, Spec};

/// The line that the server of `urdma-perf-shares` prints when it listens.
pub const LISTENING: &str = "listening";
/// The line that its client prints at the end of the warm-up.
pub const WATCHING: &str = "watching";
/// Start of the line with the octets a second of each queue pair.
pub const OCTETS: &str = "octets a second ";
const QUEUE_PAIRS: usize = 8;
/// Time in which the queue pairs converge to their shares.
const WARM_UP: Duration = Duration::from_secs(2);
const WATCH: Duration = Duration::from_secs(3);
const LIMIT: Duration = Duration::from_secs(60);

/// A link that eight queue pairs share, and its probes.
#[derive(Clone, Copy, Debug)]
pub struct Shared {
    /// The link.
    pub link: Link,
    /// Share of its rate that all queue pairs use.
    pub line: Probe,
    /// Jain's index of their goodput.
    pub fairness: Probe,
    /// The mean wait of a packet for the link, in round trips.
    pub wait: Probe,
}

macro_rules! shared {
    ($name:literal, $mbps:literal, $rtt_us:literal, $marks:literal) => {
        Shared {
            link: Link::new($name, $mbps, $rtt_us, $marks),
            line: probe(concat!($name, ", 8 QPs"), Unit::Share),
            fairness: probe(concat!($name, ", 8 QPs, Jain's index"), Unit::Index),
            wait: probe(concat!($name, ", 8 QPs, mean wait"), Unit::RoundTrips),
        }
    };
}

const fn probe(name: &'static str, unit: Unit) -> Probe {
    Probe { name, unit }
}

/// The shared links that are measured.
pub const SHARED: [Shared; 3] = [
    shared!("1 Gbit/s, 1 ms", 1_000, 1_000, false),
    shared!("1 Gbit/s, 10 ms", 1_000, 10_000, false),
    shared!("1 Gbit/s, 10 ms, marks", 1_000, 10_000, true),
];

impl Shared {
    /// Measures the link while the queue pairs of one process of the second host write to one
    /// process of the first; gives each probe with its value.
    pub fn measure(
        &self,
        ends: Result<(&Instance, &Instance), String>,
        programs: &Path,
        scratch: &Path,
    ) -> [(Probe, Sample); 3] {
        let seen = ends.and_then(|(server, client)| self.run(server, client, programs, scratch));
        let seen_as = |value: fn(&Seen) -> f64| seen.as_ref().map(value).map_err(Clone::clone);
        [
            (self.line, seen_as(|seen| seen.line)),
            (self.fairness, seen_as(|seen| seen.fairness)),
            (self.wait, seen_as(|seen| seen.wait)),
        ]
    }

    fn run(
        &self,
        server: &Instance,
        client: &Instance,
        programs: &Path,
        scratch: &Path,
    ) -> Result<Seen, String> {
        self.link.make(server)?;
        let socket = scratch.join("shares.sock");
        // A failed run may have left its socket.
        let _ = std::fs::remove_file(&socket);
        let program = programs.join("urdma-perf-shares");
        let arguments = |role: &str| {
            let (program, socket) = (program.display(), socket.display());
            [
                program.to_string(),
                role.to_owned(),
                socket.to_string(),
                QUEUE_PAIRS.to_string(),
            ]
        };
        let times = [WARM_UP, WATCH].map(|time| time.as_millis().to_string());
        let writer = [arguments("client").as_slice(), &times].concat();
        let start = |host: &Instance, argv: &[String]| {
            Process::start(&mut host.run(LeasePolicy::Never, argv)?)
        };
        let mut serving = start(server, &arguments("server")).map_err(text)?;
        serving.wait_for_text(LISTENING, LIMIT).map_err(text)?;
        let mut writing = start(client, &writer).map_err(text)?;
        writing.wait_for_text(WATCHING, LIMIT).map_err(text)?;
        let before = Waits::of(server)?;
        writing.wait_for_text(OCTETS, LIMIT).map_err(text)?;
        let after = Waits::of(server)?;
        let ended = writing.wait(LIMIT).map_err(text)?;
        let octets_s = ended
            .output
            .lines()
            .find_map(|line| line.strip_prefix(OCTETS));
        let octets_s: Vec<f64> = match (ended.succeeded(), octets_s) {
            (true, Some(octets_s)) => octets_s.split(' ').flat_map(str::parse).collect(),
            _ => return Err(ended.describe()),
        };
        // The server ends with its client; its exit status carries no result.
        serving.wait(LIMIT).map_err(text)?;
        if octets_s.len() != QUEUE_PAIRS {
            return Err(ended.describe());
        }
        Ok(Seen {
            line: self.link.share(octets_s.iter().sum()),
            fairness: jain(&octets_s),
            wait: self.link.round_trips(after.mean_ns_since(&before)),
        })
    }
}

struct Seen {
    line: f64,
    fairness: f64,
    wait: f64,
}

/// Sums over the packets that have passed the link.
struct Waits {
    packets: f64,
    ns: f64,
}

impl Waits {
    /// Reads the counters of the packets that arrive at the port of `host`.
    ///
    /// # Errors
    /// urdmad does not answer, or its port has no link.
    fn of(host: &Instance) -> Result<Self, String> {
        let status = host.status().map_err(|failure| failure.to_string())?;
        let counts = &status["faults"]["inbound"]["counts"];
        let count = |name: &str| counts[name].as_f64().ok_or("the port has no link");
        Ok(Self {
            packets: count("offered")? - count("queue_full")?,
            ns: count("waited_ns")?,
        })
    }

    fn mean_ns_since(&self, before: &Self) -> f64 {
        (self.ns - before.ns) / (self.packets - before.packets).max(1.0)
    }
}

/// Jain's index of fairness: 1 when all shares are equal, 1/n when one has everything.
fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}

/// Rows of the report.
pub(crate) fn specs() -> impl Iterator<Item = Spec> {
    let row = |ours: Probe, goal| Spec {
        name: ours.name,
        ours,
        compare: Compare::Alone,
        goal,
    };
    SHARED.iter().flat_map(move |shared| {
        [
            row(shared.line, goals::LINK),
            row(shared.fairness, goals::FAIRNESS),
            row(shared.wait, goals::QUEUEING),
        ]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_is_one_when_all_have_the_same_and_an_nth_when_one_has_all() {
        assert!((jain(&[3.0; 8]) - 1.0).abs() < 1e-9);
        assert!((jain(&[0.0, 0.0, 5.0, 0.0]) - 0.25).abs() < 1e-9);
    }

    #[test]
    fn wait_is_that_of_the_packets_in_between() {
        let before = Waits {
            packets: 10.0,
            ns: 1_000.0,
        };
        let after = Waits {
            packets: 14.0,
            ns: 9_000.0,
        };
        assert!((after.mean_ns_since(&before) - 2_000.0).abs() < 1e-9);
    }
}
