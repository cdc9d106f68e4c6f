//! Processes that sleep while they wait, over urdma and over TCP: connections that are made and
//! ended, and a ping-pong. That over leased queues is compared with the same forwarded.
//!
//! `urdma-perf-asleep` runs both ends, with the same loops over either transport. Some runs are
//! repeated while another program keeps each processor busy.

use std::net::Ipv4Addr;
use std::path::Path as FilePath;
use std::process::Command;
use std::time::Duration;

use urdma_harness::instance::{Instance, LeasePolicy, Scratch};
use urdma_harness::namespace::Namespaces;
use urdma_harness::process::Process;
use urdma_harness::Failure;

use crate::goals;
use crate::part::Part;
use crate::probes::RAW_RING;
use crate::samples::{text, Probe, Sample, Unit};
use crate::spec::{pair, Compare, Goal, Pair, Spec};
use crate::workloads::Path;

/// What the server prints when it can be reached by the client.
pub const LISTENING: &str = "listening";
/// What a busy process prints before its loop.
pub const BUSY: &str = "busy";
/// Start of the client's line with the time of a step of a connection, before the step's number.
pub const STEP_US: &str = "step_us ";
/// Start of the client's line with the processor time of both ends for a connection or a message.
pub const PROCESSOR_US: &str = "processor_us ";
/// The steps of a connection at its client, in their order.
pub const STEPS: [&str; 6] = [
    "address",
    "route",
    "queue pair",
    "connect",
    "disconnect",
    "destroy",
];
const PROGRAM: &str = "urdma-perf-asleep";
/// Time of a measurement.
const WATCH_MS: u32 = 1_000;
const START_LIMIT: Duration = Duration::from_secs(10);
const LIMIT: Duration = Duration::from_secs(30);
/// Addresses of the two ends of a veth pair.
const VETH: [&str; 2] = ["192.0.2.1", "192.0.2.2"];

/// What the octets go over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A queue pair.
    Rdma,
    /// A socket.
    Tcp,
}

impl Transport {
    /// The value with this name on the command line.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Rdma, Self::Tcp]
            .into_iter()
            .find(|transport| transport.name() == name)
    }

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rdma => "rdma",
            Self::Tcp => "tcp",
        }
    }
}

/// How the ends of a ping-pong wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Both sleep.
    Sleep,
    /// Both poll.
    Poll,
    /// Both sleep in epoll_wait(2), on a set of the connection and this many idle
    /// descriptors.
    Set(u32),
}

/// What both ends do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A ping-pong of 64 octets.
    PingPong(Wait),
    /// Clients connect and disconnect.
    Connections {
        /// The number of connections that are in progress or exist at a time, in one thread.
        at_once: u32,
        /// Threads of the client.
        threads: u32,
    },
    /// A client makes connections that stay, at the end of which each end has that much memory
    /// more.
    Established {
        /// Their number.
        count: u32,
    },
    /// A client connects and disconnects, and takes the time of each step.
    Steps,
}

impl Work {
    /// The work with these words on the command line.
    pub fn from_words(words: &[&str]) -> Option<Self> {
        match *words {
            ["sleep"] => Some(Self::PingPong(Wait::Sleep)),
            ["poll"] => Some(Self::PingPong(Wait::Poll)),
            ["set", idle] => Some(Self::PingPong(Wait::Set(idle.parse().ok()?))),
            ["steps"] => Some(Self::Steps),
            ["connections", at_once, threads] => Some(Self::Connections {
                at_once: at_once.parse().ok()?,
                threads: threads.parse().ok()?,
            }),
            ["established", count] => Some(Self::Established {
                count: count.parse().ok()?,
            }),
            _ => None,
        }
    }

    /// Start of the client's line with the result.
    pub const fn result(self) -> &'static str {
        match self {
            Self::PingPong(_) => "latency_us ",
            Self::Steps => "connection_us ",
            Self::Connections { .. } => "connections_per_second ",
            Self::Established { .. } => "octets_per_connection ",
        }
    }

    /// Its words on the command line.
    pub fn words(self) -> Vec<String> {
        match self {
            Self::PingPong(Wait::Sleep) => vec!["sleep".into()],
            Self::PingPong(Wait::Poll) => vec!["poll".into()],
            Self::PingPong(Wait::Set(idle)) => vec!["set".into(), idle.to_string()],
            Self::Steps => vec!["steps".into()],
            Self::Connections { at_once, threads } => vec![
                "connections".into(),
                at_once.to_string(),
                threads.to_string(),
            ],
            Self::Established { count } => vec!["established".into(), count.to_string()],
        }
    }
}

/// Whether another program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// None of ours.
    Quiet,
    /// One on each processor, which never waits.
    Busy,
}

impl Load {
    /// Starts the other program, which runs until the result is dropped.
    pub(crate) fn start(self, programs: &FilePath) -> Result<Vec<Process>, Failure> {
        let processors = match self {
            Self::Quiet => 0,
            Self::Busy => std::thread::available_parallelism()?.get(),
        };
        let start = |processor: usize| {
            let mut command = Command::new(programs.join(PROGRAM));
            let mut process = Process::start(command.args(["busy", &processor.to_string()]))?;
            process.wait_for_text(BUSY, START_LIMIT)?;
            Ok(process)
        };
        (0..processors).map(start).collect()
    }
}

/// The hosts of server and client.
#[derive(Clone, Copy, Debug)]
pub enum Ends<'a> {
    /// Instances of urdma, which may be one, and whether their programs lease queues.
    Urdma(&'a Instance, &'a Instance, LeasePolicy),
    /// An instance of urdma, whose programs record no events.
    Unrecorded(&'a Instance),
    /// An instance that moves the octets of TCP connections to rings.
    Rings(&'a Instance),
    /// This machine without urdma.
    Loopback,
    /// Network namespaces.
    Veth(&'a Namespaces),
}

impl Ends<'_> {
    const fn transport(&self) -> Transport {
        match self {
            Self::Urdma(..) | Self::Unrecorded(_) => Transport::Rdma,
            Self::Rings(_) | Self::Loopback | Self::Veth(_) => Transport::Tcp,
        }
    }

    /// The address of the server.
    fn address(&self) -> String {
        match self {
            Self::Urdma(server, ..) | Self::Unrecorded(server) => server.address().to_owned(),
            Self::Rings(_) | Self::Loopback => Ipv4Addr::LOCALHOST.to_string(),
            Self::Veth(_) => VETH[0].to_owned(),
        }
    }

    /// Runs `argv` as the server (0) or the client (1).
    fn command(&self, end: usize, argv: &[String]) -> Result<Command, Failure> {
        let prefix: &[&str] = match self {
            Self::Urdma(server, client, lease) => {
                return [server, client][end].run(*lease, argv);
            }
            Self::Unrecorded(host) => {
                let mut command = host.run(LeasePolicy::Never, argv)?;
                command.env("URDMA_RECORDER", "off");
                return Ok(command);
            }
            Self::Rings(host) => return host.run_over_rings(argv),
            Self::Loopback => &[],
            Self::Veth(namespaces) => &["ip", "netns", "exec", namespaces.name(end)],
        };
        let mut words = prefix
            .iter()
            .copied()
            .chain(argv.iter().map(String::as_str));
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words);
        Ok(command)
    }
}

/// Two network namespaces with addresses.
fn veth() -> Result<Namespaces, Failure> {
    let namespaces = Namespaces::new()?;
    for (end, address) in VETH.iter().enumerate() {
        let address = format!("{address}/24");
        namespaces.ip(
            end,
            &["addr", "add", &address, "dev", namespaces.netdev(end)],
        )?;
    }
    Ok(namespaces)
}

/// The figures of a run.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Connections a second, octets of a connection, or microseconds of a message one way, on
    /// average.
    pub value: f64,
    /// Processor time of both ends for a connection or a message, in microseconds.
    pub processor_us: f64,
}

/// The value of the line with this beginning.
fn figure(output: &str, prefix: &str) -> Result<f64, Failure> {
    let found = output.lines().find_map(|line| line.strip_prefix(prefix));
    let value = found.and_then(|value| value.parse().ok());
    value.ok_or_else(|| Failure::new(format!("there is no {prefix}in: {output}")))
}

/// Runs `work` for `watch_ms` milliseconds and a warm-up.
///
/// # Errors
/// A program failed or hung.
pub fn run(
    ends: Ends<'_>,
    work: Work,
    watch_ms: u32,
    programs: &FilePath,
) -> Result<Figures, Failure> {
    let output = output(ends, work, watch_ms, programs)?;
    Ok(Figures {
        value: figure(&output, work.result())?,
        processor_us: figure(&output, PROCESSOR_US)?,
    })
}

/// Microseconds of each of [`STEPS`], on average.
///
/// # Errors
/// As for [`run`].
pub fn steps(
    host: &Instance,
    watch_ms: u32,
    programs: &FilePath,
) -> Result<[f64; STEPS.len()], Failure> {
    let ends = Ends::Urdma(host, host, LeasePolicy::Never);
    let output = output(ends, Work::Steps, watch_ms, programs)?;
    let mut times = [0.0; STEPS.len()];
    for (step, time) in times.iter_mut().enumerate() {
        *time = figure(&output, &format!("{STEP_US}{step} "))?;
    }
    Ok(times)
}

/// What the client prints.
fn output(
    ends: Ends<'_>,
    work: Work,
    watch_ms: u32,
    programs: &FilePath,
) -> Result<String, Failure> {
    let scratch = Scratch::new("asleep")?;
    let socket = scratch.path().join("socket").display().to_string();
    let program = programs.join(PROGRAM).display().to_string();
    let argv = [program.clone(), "server".into(), socket.clone()];
    let mut server = Process::start(&mut ends.command(0, &argv)?)?;
    server.wait_for_text(LISTENING, START_LIMIT)?;
    let transport = ends.transport().name().into();
    let mut argv = vec![program, "client".into(), socket, transport];
    argv.extend([ends.address(), watch_ms.to_string()]);
    argv.extend(work.words());
    let client = Process::run(&mut ends.command(1, &argv)?, LIMIT)?;
    if !client.succeeded() {
        let printed = server.printed().trim().replace(LISTENING, "");
        let how = client.describe();
        return Err(Failure::new(format!("client {how}; server: {printed}")));
    }
    let ended = server.wait(LIMIT)?;
    match ended.succeeded() {
        true => Ok(client.output),
        false => Err(Failure::new(format!("server {}", ended.describe()))),
    }
}

/// Runs `work` in `pairs` pairs of processes at a time: the sum of their values, and the average of
/// their processor time.
pub(crate) fn run_pairs(
    pairs: u32,
    ends: Ends<'_>,
    work: Work,
    programs: &FilePath,
) -> Result<Figures, Failure> {
    std::thread::scope(|scope| {
        let start = |_| scope.spawn(|| run(ends, work, WATCH_MS, programs));
        let threads: Vec<_> = (0..pairs).map(start).collect();
        let mut sum = Figures {
            value: 0.0,
            processor_us: 0.0,
        };
        for thread in threads {
            let ended = thread.join();
            let figures = ended.map_err(|_| Failure::new("a thread has panicked"))??;
            sum.value += figures.value;
            sum.processor_us += figures.processor_us / f64::from(pairs);
        }
        Ok(sum)
    })
}

/// A measurement over urdma and over its peer: TCP, urdma without leases, or one pair of processes.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// `Asleep`, or `Rings` for a TCP program.
    pub part: Part,
    work: Work,
    load: Load,
    /// Pairs of processes. More than one are compared with one.
    pairs: u32,
    /// The path over urdma.
    pub path: Path,
    value: Pair,
    processor: Pair,
}

impl Point {
    /// Measures over urdma, then over its peer; gives each probe with its value. The peer of rings
    /// beside idle descriptors is rings beside one. `hosts` are those of server and client.
    pub fn measure(
        &self,
        hosts: Result<(&Instance, &Instance), String>,
        programs: &FilePath,
    ) -> Vec<(Probe, Sample)> {
        let of_pairs = |pairs, ends: Result<Ends<'_>, String>, work| -> Result<Figures, String> {
            let _other = self.load.start(programs).map_err(text)?;
            run_pairs(pairs, ends?, work, programs).map_err(text)
        };
        let figures = |ends: Result<Ends<'_>, String>| of_pairs(1, ends, self.work);
        let rings = || hosts.clone().map(|(host, _)| Ends::Rings(host));
        let urdma = |lease| {
            let hosts = hosts.clone();
            figures(hosts.map(|(server, client)| Ends::Urdma(server, client, lease)))
        };
        let (ours, peer) = match self.path {
            Path::OneHost if matches!(self.work, Work::PingPong(Wait::Set(_))) => (
                figures(rings()),
                of_pairs(1, rings(), Work::PingPong(Wait::Set(1))),
            ),
            Path::OneHost if self.part == Part::Rings => {
                (figures(rings()), figures(Ok(Ends::Loopback)))
            }
            Path::OneHost if self.pairs > 1 => {
                let ends = |(server, client)| Ends::Urdma(server, client, LeasePolicy::Never);
                let together = of_pairs(self.pairs, hosts.clone().map(ends), self.work);
                (together, urdma(LeasePolicy::Never))
            }
            Path::OneHost => (urdma(LeasePolicy::Never), figures(Ok(Ends::Loopback))),
            Path::Leased | Path::Leased1500 => {
                (urdma(LeasePolicy::Require), urdma(LeasePolicy::Never))
            }
            Path::Forwarded => (
                urdma(LeasePolicy::Never),
                match veth() {
                    Ok(namespaces) => figures(Ok(Ends::Veth(&namespaces))),
                    Err(failure) => Err(failure.to_string()),
                },
            ),
        };
        let value = |figures: &Result<Figures, String>| {
            let per_thousand = match self.value.ours.unit {
                Unit::ThousandsPerSecond => 1e3,
                _ => 1.0,
            };
            figures.clone().map(|figures| figures.value / per_thousand)
        };
        let processor =
            |figures: &Result<Figures, String>| figures.clone().map(|figures| figures.processor_us);
        vec![
            (self.value.ours, value(&ours)),
            (self.value.peer, value(&peer)),
            (self.processor.ours, processor(&ours)),
            (self.processor.peer, processor(&peer)),
        ]
    }

    /// The goal of the value.
    const fn goal(&self) -> Goal {
        if let Part::Rings = self.part {
            return match (self.work, self.load) {
                (Work::PingPong(Wait::Sleep), Load::Quiet) => goals::RINGS_ASLEEP,
                (Work::PingPong(Wait::Poll), Load::Quiet) => goals::RINGS_POLLING,
                (Work::PingPong(Wait::Set(_)), _) => goals::RINGS_IDLE,
                _ => goals::RINGS_BUSY,
            };
        }
        match (self.work, self.load, self.path) {
            (Work::Connections { .. }, ..) if self.pairs > 1 => goals::PAIRS_TOGETHER,
            (Work::Connections { .. }, ..) => Goal::None,
            (Work::PingPong(Wait::Sleep), Load::Quiet, Path::OneHost) => goals::ASLEEP,
            (Work::PingPong(Wait::Sleep), Load::Busy, Path::OneHost) => goals::ASLEEP_BUSY,
            (Work::PingPong(Wait::Sleep), _, Path::Forwarded) => goals::ASLEEP_FORWARDED,
            (Work::PingPong(Wait::Sleep), ..) => goals::ASLEEP_LEASED,
            (Work::PingPong(Wait::Poll | Wait::Set(_)) | Work::Steps, ..)
            | (Work::Established { .. }, ..) => Goal::None,
        }
    }
}

const fn connections(at_once: u32) -> Work {
    Work::Connections {
        at_once,
        threads: 1,
    }
}

const SLEEP: Work = Work::PingPong(Wait::Sleep);
const POLL: Work = Work::PingPong(Wait::Poll);
const SET: Work = Work::PingPong(Wait::Set(10_000));

/// Points: name, the name of the peer; part, work, unit, load, pairs of processes, path.
macro_rules! points {
    ($($name:literal, $peer:literal: $part:ident, $work:expr, $unit:ident, $load:ident,
        $pairs:literal, $path:ident;)*) => {
        [$(Point {
            part: Part::$part,
            work: $work,
            load: Load::$load,
            pairs: $pairs,
            path: Path::$path,
            value: pair!($unit, $peer, $name),
            processor: pair!(Microseconds, $peer, "CPU, ", $name),
        }),*]
    };
}

/// All measurements.
pub const POINTS: [Point; 14] = points! {
    "connections, 1 at a time", "TCP":
        Asleep, connections(1), ThousandsPerSecond, Quiet, 1, OneHost;
    "connections, 16 at a time", "TCP":
        Asleep, connections(16), ThousandsPerSecond, Quiet, 1, OneHost;
    "connections, 1000 at a time", "TCP":
        Asleep, connections(1000), ThousandsPerSecond, Quiet, 1, OneHost;
    "64 B send, both ends sleep", "TCP": Asleep, SLEEP, Microseconds, Quiet, 1, OneHost;
    "64 B send, both ends sleep, busy", "TCP": Asleep, SLEEP, Microseconds, Busy, 1, OneHost;
    "64 B send, both ends poll", "TCP": Asleep, POLL, Microseconds, Quiet, 1, OneHost;
    "64 B send, both ends sleep, forwarded", "veth":
        Asleep, SLEEP, Microseconds, Quiet, 1, Forwarded;
    "64 B send, both ends sleep, leased", "forwarded":
        Asleep, SLEEP, Microseconds, Quiet, 1, Leased;
    "64 B over rings, both ends sleep", "TCP": Rings, SLEEP, Microseconds, Quiet, 1, OneHost;
    "64 B over rings, both ends sleep, busy", "TCP": Rings, SLEEP, Microseconds, Busy, 1, OneHost;
    "64 B over rings, both ends poll", "TCP": Rings, POLL, Microseconds, Quiet, 1, OneHost;
    "64 B over rings, both ends in epoll_wait on 10,000 idle", "on 1 idle":
        Rings, SET, Microseconds, Quiet, 1, OneHost;
    "connections, 10 pairs of 16 at a time", "1 pair":
        Asleep, connections(16), ThousandsPerSecond, Quiet, 10, OneHost;
    "connections, 10 pairs of 64 at a time", "1 pair":
        Asleep, connections(64), ThousandsPerSecond, Quiet, 10, OneHost;
};

/// Rows of the report. Processor time is that of both ends, without urdmad, and is compared where
/// nothing else runs.
pub(crate) fn specs() -> impl Iterator<Item = Spec> {
    let values = POINTS
        .iter()
        .filter(|point| point.part == Part::Rings || point.work != POLL)
        .map(|point| point.value.spec(point.goal()));
    let processors = POINTS
        .iter()
        .filter(|point| (point.load, point.pairs, point.path) == (Load::Quiet, 1, Path::OneHost))
        .map(|point| point.processor.spec(Goal::None));
    let alone = POINTS.iter().filter(|point| point.pairs == 1);
    let rates = alone.filter_map(|point| match point.work {
        Work::Connections { at_once, .. } => Some(Spec {
            name: point.value.ours.name,
            ours: point.value.ours,
            compare: Compare::Alone,
            goal: goals::connections(at_once),
        }),
        _ => None,
    });
    let raw = POINTS
        .iter()
        .filter(|point| point.part == Part::Rings && point.work == POLL)
        .map(|point| {
            let name = "64 B over rings, both ends poll / raw ring";
            let beside = Compare::With(RAW_RING);
            Spec::new(name, point.value.ours, beside, goals::RINGS_RAW)
        });
    values.chain(processors).chain(rates).chain(raw)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn words_of_work_are_read_back() {
        let works = POINTS.iter().map(|point| point.work);
        for work in works.chain([Work::Steps]) {
            let words = work.words();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            assert_eq!(Work::from_words(&words), Some(work));
        }
        assert_eq!(Work::from_words(&["connections"]), None);
    }

    #[test]
    fn rows_have_names_of_their_own_and_goals_of_their_load() {
        let rows: Vec<Spec> = specs().collect();
        let names: BTreeSet<&str> = rows.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), rows.len());
        let goal = |name| rows.iter().find(|row| row.name == name).unwrap().goal;
        assert_eq!(goal("connections, 1000 at a time"), Goal::AtLeast(40.0));
        assert_eq!(
            goal("64 B send, both ends sleep, busy / TCP"),
            Goal::AtMost(1.0)
        );
        let forwarded = "64 B send, both ends sleep, forwarded / veth";
        assert_eq!(goal(forwarded), Goal::AtMost(1.2));
        let together = "connections, 10 pairs of 16 at a time / 1 pair";
        assert_eq!(goal(together), Goal::AtLeast(0.8));
        let rings = "64 B over rings, both ends poll / TCP";
        assert_eq!(goal(rings), Goal::AtMost(0.07));
        let idle = "64 B over rings, both ends in epoll_wait on 10,000 idle / on 1 idle";
        assert_eq!(goal(idle), Goal::AtMost(1.1));
        let leased = "64 B send, both ends sleep, leased / forwarded";
        assert_eq!(goal(leased), Goal::AtMost(1.0));
    }
}
