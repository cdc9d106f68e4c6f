//! A key-value store in a node's memory ([pool.md](../../doc/pool.md#key-value-store)): one worker
//! over virtual queue pairs of connections and of initiators, and the time until a new one serves.

use std::path::Path;
use std::time::Duration;

use urdma_harness::instance::Instance;
use urdma_pool_verbs::UserId;

use crate::pool::{figures_of_all, printed, Run, Way};
use crate::samples::{text, Probe, Sample, Unit};
use crate::spec::{Compare, Goal, Spec};

pub use crate::pool::LISTENING;
/// Start of the line with the median of a get, in microseconds.
pub const GET: &str = "get ";
/// Start of the line with the median of a put of a key that has a value, in microseconds.
pub const REPLACE: &str = "replace ";
/// Start of the line with the median of a put of a new key, in microseconds.
pub const INSERT: &str = "insert ";
/// Start of the line with the time from the start of a worker to its first answer, in microseconds.
pub const FIRST: &str = "first ";
const PROGRAM: &str = "urdma-perf-store";
/// The user of the pool.
pub const USER: UserId = UserId(1);
/// Keys of the store.
pub const KEYS: u32 = 16_384;
/// Octets of a value.
const VALUE_OCTETS: usize = 64;
/// Start of the line with the median time in which one more user of a worker's pool opens the
/// store, has an answer and closes it, in microseconds.
pub const NEW_USER: &str = "user ";
const FIRST_PORT: u16 = 18_900;
const LIMIT: Duration = Duration::from_secs(60);

/// What a key has after it was put so often before.
pub fn value(n: u32, round: u32) -> [u8; VALUE_OCTETS] {
    let mut value = [0; VALUE_OCTETS];
    value[..4].copy_from_slice(&n.to_ne_bytes());
    value[VALUE_OCTETS - 4..].copy_from_slice(&round.to_ne_bytes());
    value
}

const fn probes(names: [&'static str; 5]) -> [(&'static str, Probe); 5] {
    const fn probe(name: &'static str) -> Probe {
        Probe {
            name,
            unit: Unit::Microseconds,
        }
    }
    let [get, replace, insert, first, new_user] = names;
    [
        (GET, probe(get)),
        (REPLACE, probe(replace)),
        (INSERT, probe(insert)),
        (FIRST, probe(first)),
        (NEW_USER, probe(new_user)),
    ]
}

/// Over what a worker works, and what it prints.
const RUNS: [(Way, [(&str, Probe); 5]); 2] = [
    (
        Way::Connections,
        probes([
            "store over RC, get",
            "store over RC, put of a key that has a value",
            "store over RC, put of a new key",
            "store over RC, first answer of a new worker",
            "store over RC, one more user: open, get, close",
        ]),
    ),
    (
        Way::Initiators,
        probes([
            "store over DC, get",
            "store over DC, put of a key that has a value",
            "store over DC, put of a new key",
            "store over DC, first answer of a new worker",
            "store over DC, one more user: open, get, close",
        ]),
    ),
];

/// Rows of the report.
pub(crate) fn specs() -> impl Iterator<Item = Spec> {
    let probes = RUNS.into_iter().flat_map(|(_, figures)| figures);
    probes.map(|(_, probe)| Spec::new(probe.name, probe, Compare::Alone, Goal::None))
}

/// Measures everything on one host.
pub fn measure(
    host: Result<&Instance, String>,
    programs: &Path,
    scratch: &Path,
) -> Vec<(Probe, Sample)> {
    let run = host.and_then(|host| Run::new(host, programs, scratch));
    let runs = RUNS.iter().zip(FIRST_PORT..);
    let runs = runs.map(|((way, words), port)| (&words[..], (*way, port)));
    figures_of_all(&run, runs, |run, (way, port)| {
        output(run, [PROGRAM, "work"], (way, port), LIMIT)
    })
}

/// What a client of a node with a new store prints; the client's program and role.
pub(crate) fn output(
    run: &Run,
    [client, role]: [&str; 2],
    (way, port): (Way, u16),
    limit: Duration,
) -> Result<String, String> {
    let address = format!("127.0.0.1:{port}");
    let mut node = run.start(PROGRAM, &["node", &address])?;
    node.wait_for_text(LISTENING, limit).map_err(text)?;
    let client = run.start(client, &[role, way.name(), &address])?;
    printed(client, vec![node], limit)
}
