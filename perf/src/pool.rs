//! The pool of virtual queue pairs ([pool.md](../../doc/pool.md)): opening one to a node that is
//! known, and to one that is not; reads over it next to a connection of its own; messages; and the
//! memory that a known node takes.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;
use urdma_harness::instance::{Instance, LeasePolicy, Scratch};
use urdma_harness::process::Process;
use urdma_pool_verbs::{Config, Transport};

use crate::goals;
use crate::samples::{text, Probe, Sample, Unit};
use crate::spec::{Compare, Goal, Spec};

pub(crate) const PROGRAM: &str = "urdma-perf-pool";
/// What a metadata service prints when it listens, and the nodes of `urdma-perf-pool` once they are
/// registered, too.
pub const LISTENING: &str = "listens";
/// Start of the line with a median, in microseconds.
pub const MEDIAN: &str = "median ";
/// Start of the line with the median of what is above the time of a READ, in microseconds.
pub const ABOVE: &str = "above ";
/// Start of the line with a rate, in millions a second.
pub const RATE: &str = "rate ";
/// Start of the line with octets of the heap for each further node.
pub const HEAP: &str = "heap ";
/// Start of the line with octets of the heap for each node, the tables of the process included.
pub const HEAP_ALL: &str = "all heap ";
/// Start of the line with the median time until the first answer of a service, in microseconds.
pub const FIRST: &str = "first ";
/// Start of the role of a pool that sends messages back, before its way.
pub const ANSWERS: &str = "answers-";
/// Octets of a message.
pub const MESSAGE_OCTETS: u32 = 64;
/// Argument for a pool that may switch, as by default.
pub const SWITCHING: &str = "switching";
/// Octets of a read.
pub const READ_OCTETS: u32 = 64;
/// Nodes that are learned.
const LEARNED: u16 = 256;
const LEARNED_TEXT: &str = "256";
/// Nodes of which the memory is measured.
const KNOWN: u16 = 1024;
const KNOWN_TEXT: &str = "1024";
/// malloc keeps no freed memory for a thread, which it counts as in use.
const NO_CACHE: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0");
const FIRST_PORT: u16 = 20_000;
/// READs of a new pool.
const USED: &str = "10000";
/// Nodes that poll.
const POLLING: &str = "nodes";
/// Nodes that sleep, as a metadata service does.
const SLEEPING: &str = "sleepers";
/// The metadata service.
const SERVICE: &str = "127.0.0.1:19999";
const LIMIT: Duration = Duration::from_secs(60);

/// Over what a client of a node works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A connection of its own, without a pool.
    Own,
    /// A pool, over a connection.
    Connections,
    /// A pool, over an initiator.
    Initiators,
}

impl Way {
    pub(crate) const ALL: [Self; 3] = [Self::Own, Self::Connections, Self::Initiators];

    /// The value with this name on the command line.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|way| way.name() == name)
    }

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Connections => "connections",
            Self::Initiators => "initiators",
        }
    }

    /// The transport of the pool, if it has one.
    pub const fn transport(self) -> Option<Transport> {
        match self {
            Self::Own => None,
            Self::Connections => Some(Transport::Connections { per_node: 1 }),
            Self::Initiators => Some(Transport::Initiators { count: 1 }),
        }
    }
}

/// A pool with this transport, and defaults.
pub fn config(transport: Transport) -> Config {
    Config {
        transport,
        ..Config::default()
    }
}

const fn probe(name: &'static str, unit: Unit) -> Probe {
    Probe { name, unit }
}

pub(crate) const OPEN: Probe = probe("virtual QP opened, node known", Unit::Microseconds);
pub(crate) const OPENED: Probe = probe("virtual QPs opened a second", Unit::MillionsPerSecond);
pub(crate) const CONNECT: Probe = probe(
    "connection of its own by rdma_cm, with queue and memory",
    Unit::Microseconds,
);
pub(crate) const READ_OWN: Probe = probe("64 B READ, own QP", Unit::Microseconds);
pub(crate) const READ_RC: Probe = probe("64 B READ, virtual QP over RC", Unit::Microseconds);
pub(crate) const READ_DC: Probe = probe("64 B READ, virtual QP over DC", Unit::Microseconds);
const LEARN_ABOVE: Probe = probe(
    "virtual QP opened by a table - 64 B READ of the service",
    Unit::Microseconds,
);
pub(crate) const LEARN: Probe = probe("virtual QP opened by a table", Unit::Microseconds);
pub(crate) const ASK: Probe = probe("virtual QP opened by asking the node", Unit::Microseconds);
const NODE: Probe = probe("further known node over DC", Unit::Octets);
const NODE_ALL: Probe = probe("known node over DC, of 1,024", Unit::Octets);
pub(crate) const SEND_RC: Probe = probe(
    "64 B Send, half of a round trip, over RC",
    Unit::Microseconds,
);
pub(crate) const SEND_DC: Probe = probe(
    "64 B Send, half of a round trip, over DC",
    Unit::Microseconds,
);
const FIRST_RC: Probe = probe("a new pool's first answer, over RC", Unit::Microseconds);
const FIRST_DC: Probe = probe("a new pool's first answer, over DC", Unit::Microseconds);
const USE_RC: Probe = probe("a new pool's 10,000 READs, over RC", Unit::Microseconds);
const USE_DC: Probe = probe("a new pool's 10,000 READs, over DC", Unit::Microseconds);
const USE_SWITCH: Probe = probe(
    "a new pool's 10,000 READs, with a switch",
    Unit::Microseconds,
);

/// Rows of the report.
pub(crate) fn specs() -> impl Iterator<Item = Spec> {
    let alone = |ours: Probe, goal: Goal| Spec::new(ours.name, ours, Compare::Alone, goal);
    let used = |name, by| Spec::new(name, USE_SWITCH, Compare::With(by), Goal::None);
    let beside = |name, ours, by| Spec::new(name, ours, Compare::With(by), Goal::None);
    let read = |name, ours| Spec::new(name, ours, Compare::With(READ_OWN), goals::POOL_READ);
    [
        alone(OPEN, goals::POOL_OPEN),
        alone(OPENED, goals::POOL_OPENED),
        Spec::new(
            "virtual QP opened / connection by rdma_cm",
            OPEN,
            Compare::With(CONNECT),
            goals::POOL_WARM,
        ),
        read("64 B READ, virtual QP over RC / own QP", READ_RC),
        read("64 B READ, virtual QP over DC / own QP", READ_DC),
        alone(LEARN, Goal::None),
        alone(LEARN_ABOVE, goals::POOL_LEARN),
        alone(ASK, Goal::None),
        alone(NODE, goals::POOL_NODE),
        alone(NODE_ALL, Goal::None),
        alone(SEND_RC, Goal::None),
        beside("64 B Send over DC / over RC", SEND_DC, SEND_RC),
        alone(FIRST_DC, Goal::None),
        beside(
            "a new pool's first answer over DC / over RC",
            FIRST_DC,
            FIRST_RC,
        ),
        used("a new pool's READs, with a switch / over DC", USE_DC),
        used("a new pool's READs, with a switch / over RC", USE_RC),
    ]
    .into_iter()
}

/// A run of a client.
struct Client {
    role: &'static str,
    /// The arguments behind the address.
    rest: &'static [&'static str],
    /// The metadata service of nodes and client.
    service: Option<&'static str>,
    /// Nodes that there are.
    nodes: u16,
    /// What the process of the nodes does.
    serving: &'static str,
    /// Variables of its environment.
    variables: &'static [(&'static str, &'static str)],
    /// What it prints, each behind a word.
    figures: &'static [(&'static str, Probe)],
}

/// Works with one node, of which it knows nothing.
const fn one(
    [role, serving]: [&'static str; 2],
    rest: &'static [&'static str],
    figures: &'static [(&'static str, Probe)],
) -> Client {
    Client {
        role,
        rest,
        service: None,
        nodes: 1,
        serving,
        variables: &[],
        figures,
    }
}

/// Opens a virtual queue pair to each of the nodes, which are not known.
const fn opening(
    service: Option<&'static str>,
    serving: &'static str,
    figures: &'static [(&'static str, Probe)],
) -> Client {
    Client {
        role: "learn",
        rest: &[LEARNED_TEXT],
        service,
        nodes: LEARNED,
        serving,
        variables: &[],
        figures,
    }
}

const OWN: &[&str] = &[Way::Own.name()];
const CONNECTIONS: &[&str] = &[Way::Connections.name()];
const INITIATORS: &[&str] = &[Way::Initiators.name()];
const USE_CONNECTION: &[&str] = &[USED, Way::Connections.name()];
const USE_INITIATOR: &[&str] = &[USED, Way::Initiators.name()];
const USE_SWITCHING: &[&str] = &[USED, Way::Initiators.name(), SWITCHING];

const ASKED: &[(&str, Probe)] = &[(MEDIAN, SEND_RC), (FIRST, FIRST_RC)];
const ASKED_MET: &[(&str, Probe)] = &[(MEDIAN, SEND_DC), (FIRST, FIRST_DC)];

const CLIENTS: [Client; 13] = [
    one(["open", POLLING], &[], &[(MEDIAN, OPEN), (RATE, OPENED)]),
    one(["connect", POLLING], &[], &[(MEDIAN, CONNECT)]),
    one(["read", POLLING], OWN, &[(MEDIAN, READ_OWN)]),
    one(["read", POLLING], CONNECTIONS, &[(MEDIAN, READ_RC)]),
    one(["read", POLLING], INITIATORS, &[(MEDIAN, READ_DC)]),
    one(["asks", "answers-connections"], CONNECTIONS, ASKED),
    one(["asks", "answers-initiators"], INITIATORS, ASKED_MET),
    one(["use", POLLING], USE_CONNECTION, &[(MEDIAN, USE_RC)]),
    one(["use", POLLING], USE_INITIATOR, &[(MEDIAN, USE_DC)]),
    one(["use", POLLING], USE_SWITCHING, &[(MEDIAN, USE_SWITCH)]),
    opening(
        Some(SERVICE),
        SLEEPING,
        &[(MEDIAN, LEARN), (ABOVE, LEARN_ABOVE)],
    ),
    opening(None, POLLING, &[(MEDIAN, ASK)]),
    MEMORY,
];

const MEMORY: Client = Client {
    role: "memory",
    rest: &[KNOWN_TEXT],
    service: None,
    nodes: KNOWN,
    serving: POLLING,
    variables: &[NO_CACHE],
    figures: &[(HEAP, NODE), (HEAP_ALL, NODE_ALL)],
};

/// Octets of the heap of a client for each further node that it knows; `programs` is the directory
/// of `urdma-perf-pool`.
///
/// # Errors
/// A run failed.
pub fn octets_of_a_node(host: &Instance, programs: &Path) -> Sample {
    let scratch = Scratch::new("pool-memory").map_err(text)?;
    let run = Run::new(host, programs, scratch.path())?;
    figure(&run.output(&MEMORY, FIRST_PORT)?, HEAP)
}

/// Measures everything on one host.
pub fn measure(
    host: Result<&Instance, String>,
    programs: &Path,
    scratch: &Path,
) -> Vec<(Probe, Sample)> {
    let run = host.and_then(|host| Run::new(host, programs, scratch));
    let ports = (FIRST_PORT..).step_by(usize::from(KNOWN));
    let clients = CLIENTS.iter().zip(ports);
    let clients = clients.map(|(client, port)| (client.figures, (client, port)));
    figures_of_all(&run, clients, |run, (client, port)| {
        run.output(client, port)
    })
}

/// The figures of several outputs; for each, its words and what it is the output of.
pub(crate) fn figures_of_all<'a, T>(
    run: &Result<Run, String>,
    all: impl Iterator<Item = (&'a [(&'a str, Probe)], T)>,
    output: impl Fn(&Run, T) -> Result<String, String>,
) -> Vec<(Probe, Sample)> {
    let taken = all.flat_map(|(words, of)| {
        let run = run.as_ref().map_err(Clone::clone);
        figures(words, run.and_then(|run| output(run, of)))
    });
    taken.collect()
}

/// The figures of an output, each behind its word.
fn figures(words: &[(&str, Probe)], output: Result<String, String>) -> Vec<(Probe, Sample)> {
    let figures = words.iter().map(|(word, probe)| {
        let output = output.as_ref().map_err(Clone::clone);
        (*probe, output.and_then(|output| figure(output, word)))
    });
    figures.collect()
}

/// The figure behind a word.
fn figure(output: &str, word: &str) -> Sample {
    let found = output.lines().find_map(|line| line.strip_prefix(word));
    let value = found.and_then(|value| value.parse().ok());
    value.ok_or_else(|| format!("there is no {word}in: {output}"))
}

/// What the programs need.
pub(crate) struct Run<'a> {
    host: &'a Instance,
    programs: &'a Path,
    /// Where they find `liburdmadv.so`.
    libraries: String,
}

impl<'a> Run<'a> {
    pub(crate) fn new(
        host: &'a Instance,
        programs: &'a Path,
        scratch: &Path,
    ) -> Result<Self, String> {
        let link = scratch.join("liburdmadv.so.0");
        if !link.exists() {
            let library = programs.join("liburdma_dv.so");
            symlink(&library, &link).map_err(|error| format!("{}: {error}", link.display()))?;
        }
        Ok(Self {
            host,
            programs,
            libraries: scratch.display().to_string(),
        })
    }

    /// Runs a program of the machine, which runs one of these measurements.
    pub(crate) fn under(&self, program: &str, arguments: &[&str]) -> Result<(), String> {
        printed(self.start_any(program, arguments, &[])?, Vec::new(), LIMIT).map(drop)
    }

    /// Starts a program of these measurements.
    pub(crate) fn start(&self, program: &str, arguments: &[&str]) -> Result<Process, String> {
        self.start_any(&self.path_of(program), arguments, &[])
    }

    /// Starts a program with more variables in its environment.
    fn start_any(
        &self,
        program: &str,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Process, String> {
        let argv = [&[program], arguments].concat();
        let mut command = self.host.run(LeasePolicy::Never, &argv).map_err(text)?;
        command.env("LD_LIBRARY_PATH", &self.libraries);
        command.envs(variables.iter().copied());
        Process::start(&mut command).map_err(text)
    }

    fn path_of(&self, program: &str) -> String {
        self.programs.join(program).display().to_string()
    }

    /// Starts nodes, at this address and the next ports.
    pub(crate) fn nodes(&self, address: &str, count: &str) -> Result<Process, String> {
        let mut nodes = self.start(PROGRAM, &["nodes", address, count])?;
        nodes.wait_for_text(LISTENING, LIMIT).map_err(text)?;
        Ok(nodes)
    }

    /// What a client prints, of nodes at this port and the next ones.
    fn output(&self, client: &Client, port: u16) -> Result<String, String> {
        let address = format!("127.0.0.1:{port}");
        let nodes = client.nodes.to_string();
        let mut serving = Vec::new();
        if let Some(service) = client.service {
            serving.push(self.start("urdma-metad", &["--listen", service])?);
        }
        let arguments = [client.serving, &address, &nodes]
            .into_iter()
            .chain(client.service);
        let arguments: Vec<&str> = arguments.collect();
        serving.push(self.start(PROGRAM, &arguments)?);
        for serving in &mut serving {
            serving.wait_for_text(LISTENING, LIMIT).map_err(text)?;
        }
        let arguments = [client.role, &address].into_iter();
        let rest = client.rest.iter().copied();
        let arguments = arguments.chain(rest).chain(client.service);
        let arguments: Vec<&str> = arguments.collect();
        let client = self.start_any(&self.path_of(PROGRAM), &arguments, client.variables)?;
        printed(client, serving, LIMIT)
    }
}

/// What a client has printed when it ends, after which those that served it are killed.
pub(crate) fn printed(
    client: Process,
    serving: Vec<Process>,
    limit: Duration,
) -> Result<String, String> {
    let ended = client.wait(limit).map_err(text)?;
    for serving in serving {
        serving.signal(Signal::SIGKILL).map_err(text)?;
        serving.wait(limit).map_err(text)?;
    }
    match ended.succeeded() {
        true => Ok(ended.output),
        false => Err(ended.describe()),
    }
}
