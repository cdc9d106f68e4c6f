//! Short processes ([pool.md](../../doc/pool.md#short-processes)): each starts, connects to three
//! nodes, reads 4 KB from each and ends, over a pool of its own, over one of another process, over
//! connections of its own, and over TCP.

use std::path::Path;
use std::time::Duration;

use urdma_harness::instance::Instance;
use urdma_harness::process::Process;

use crate::goals;
use crate::pool::{figures_of_all, printed, Run, OPEN};
use crate::samples::{text, Probe, Sample, Unit};
use crate::spec::{Compare, Goal, Spec};

pub use crate::pool::{LISTENING, MEDIAN, RATE};
/// Start of the line with the 99th percentile, in microseconds.
pub const TAIL: &str = "p99 ";
/// Start of the line with the processor time of a process, in microseconds.
pub const PROCESSOR: &str = "processor ";
/// Nodes from which each process reads.
pub const NODES: u16 = 3;
const NODES_TEXT: &str = "3";
/// Octets of a read.
pub const READ_OCTETS: u32 = 4096;
/// Processes of a run.
const WORKERS: &str = "1000";
const FIRST_PORT: u16 = 19_000;
const LIMIT: Duration = Duration::from_secs(120);

/// How a process reaches the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worker {
    /// A pool of its own, over an initiator.
    Pool,
    /// A pool of another process of the host, over an initiator: a message each way over a Unix
    /// socket for the read.
    HostPool,
    /// A reliable connection to each, by librdmacm.
    Connections,
    /// A connection of TCP to each, a message each way for the read.
    Tcp,
    /// Not at all: the same program starts and ends, which bounds what any of them can take.
    Nothing,
}

impl Worker {
    const ALL: [Self; 5] = [
        Self::Pool,
        Self::HostPool,
        Self::Connections,
        Self::Tcp,
        Self::Nothing,
    ];

    /// The value with this name on the command line.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::HostPool => "host-pool",
            Self::Connections => "connections",
            Self::Tcp => "tcp",
            Self::Nothing => "nothing",
        }
    }

    /// What a run prints, each behind a word.
    const fn figures(self) -> &'static [(&'static str, Probe); 4] {
        match self {
            Self::Pool => &POOL,
            Self::HostPool => &HOST_POOL,
            Self::Connections => &CONNECTIONS,
            Self::Tcp => &TCP,
            Self::Nothing => &NOTHING,
        }
    }
}

const fn probes(names: [&'static str; 4]) -> [(&'static str, Probe); 4] {
    const fn probe(name: &'static str, unit: Unit) -> Probe {
        Probe { name, unit }
    }
    let [median, tail, rate, processor] = names;
    [
        (MEDIAN, probe(median, Unit::Microseconds)),
        (TAIL, probe(tail, Unit::Microseconds)),
        (RATE, probe(rate, Unit::ThousandsPerSecond)),
        (PROCESSOR, probe(processor, Unit::Microseconds)),
    ]
}

const POOL: [(&str, Probe); 4] = probes([
    "short process over the pool, p50",
    "short process over the pool, p99",
    "short processes over the pool",
    "short process over the pool, processor time",
]);
const HOST_POOL: [(&str, Probe); 4] = probes([
    "short process over a pool of the host, p50",
    "short process over a pool of the host, p99",
    "short processes over a pool of the host",
    "short process over a pool of the host, processor time",
]);
const CONNECTIONS: [(&str, Probe); 4] = probes([
    "short process over rdma_cm, p50",
    "short process over rdma_cm, p99",
    "short processes over rdma_cm",
    "short process over rdma_cm, processor time",
]);
const TCP: [(&str, Probe); 4] = probes([
    "short process over TCP, p50",
    "short process over TCP, p99",
    "short processes over TCP",
    "short process over TCP, processor time",
]);
const NOTHING: [(&str, Probe); 4] = probes([
    "short process that does nothing, p50",
    "short process that does nothing, p99",
    "short processes that do nothing",
    "short process that does nothing, processor time",
]);

/// The median time of each kind of process: a pool of its own, one of the host, connections, TCP
/// and nothing.
pub(crate) const MEDIANS: [Probe; 5] = [
    POOL[0].1,
    HOST_POOL[0].1,
    CONNECTIONS[0].1,
    TCP[0].1,
    NOTHING[0].1,
];

/// Rows of the report.
pub(crate) fn specs() -> impl Iterator<Item = Spec> {
    let row = |name, at: usize, peer: &[(&str, Probe); 4], goal| {
        Spec::new(name, POOL[at].1, Compare::With(peer[at].1), goal)
    };
    let bound =
        |name, at: usize| Spec::new(name, NOTHING[at].1, Compare::With(TCP[at].1), Goal::None);
    let by_host =
        |name, at: usize| Spec::new(name, HOST_POOL[at].1, Compare::With(TCP[at].1), Goal::None);
    [
        row("short process, p50, pool / TCP", 0, &TCP, Goal::None),
        row(
            "short process, p99, pool / TCP",
            1,
            &TCP,
            goals::SHORT_PROCESS,
        ),
        row("short processes a second, pool / TCP", 2, &TCP, Goal::None),
        row(
            "short process, processor time, pool / TCP",
            3,
            &TCP,
            Goal::None,
        ),
        row(
            "short process, p50, pool / rdma_cm",
            0,
            &CONNECTIONS,
            Goal::None,
        ),
        row(
            "short process, p99, pool / rdma_cm",
            1,
            &CONNECTIONS,
            Goal::None,
        ),
        Spec::new(
            "virtual QP opened / short process over rdma_cm, p50",
            OPEN,
            Compare::With(CONNECTIONS[0].1),
            goals::POOL_COLD,
        ),
        by_host("short process, p50, pool of the host / TCP", 0),
        by_host("short process, p99, pool of the host / TCP", 1),
        bound("short process, p50, nothing / TCP", 0),
        bound("short process, p99, nothing / TCP", 1),
    ]
    .into_iter()
}

/// Measures everything on one host.
pub fn measure(
    host: Result<&Instance, String>,
    programs: &Path,
    scratch: &Path,
) -> Vec<(Probe, Sample)> {
    let run = host.and_then(|host| Run::new(host, programs, scratch));
    let ports = (FIRST_PORT..).step_by(usize::from(NODES));
    let kinds = Worker::ALL.into_iter().zip(ports);
    let kinds = kinds.map(|(kind, port)| (&kind.figures()[..], (kind, port)));
    figures_of_all(&run, kinds, |run, (kind, port)| {
        output(run, programs, kind, port)
    })
}

/// What a run of one kind prints, of nodes at this port and the next ones.
fn output(run: &Run, programs: &Path, kind: Worker, port: u16) -> Result<String, String> {
    const PROGRAM: &str = "urdma-perf-elastic";
    let address = format!("127.0.0.1:{port}");
    let start = |arguments: &[&str]| match kind {
        Worker::Tcp | Worker::Nothing | Worker::HostPool => {
            let mut command = std::process::Command::new(programs.join(PROGRAM));
            Process::start(command.args(arguments)).map_err(text)
        }
        Worker::Pool | Worker::Connections => run.start(PROGRAM, arguments),
    };
    let serving = match kind {
        Worker::Nothing => Vec::new(),
        Worker::Tcp => {
            let mut nodes = start(&["tcp-nodes", &address])?;
            nodes.wait_for_text(LISTENING, LIMIT).map_err(text)?;
            vec![nodes]
        }
        Worker::HostPool => {
            let nodes = run.nodes(&address, NODES_TEXT)?;
            let mut pool = run.start(PROGRAM, &["host-pool", &address])?;
            pool.wait_for_text(LISTENING, LIMIT).map_err(text)?;
            vec![pool, nodes]
        }
        Worker::Pool | Worker::Connections => vec![run.nodes(&address, NODES_TEXT)?],
    };
    let workers = start(&["workers", kind.name(), &address, WORKERS])?;
    printed(workers, serving, LIMIT)
}
