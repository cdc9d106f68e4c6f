//! A key-value store in a node's memory ([pool.md](../../doc/pool.md#key-value-store)): one worker
//! over virtual queue pairs of connections and of initiators, and the time until a new one serves.

use std::path::Path;
use std::time::Duration;

use urdma_harness::instance::Instance;

use crate::pool::{figures, printed, text, Run};
use crate::samples::{Probe, Sample, Unit};
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
const FIRST_PORT: u16 = 18_900;
const LIMIT: Duration = Duration::from_secs(60);

const fn probes(names: [&'static str; 4]) -> [(&'static str, Probe); 4] {
    const fn probe(name: &'static str) -> Probe {
        Probe {
            name,
            unit: Unit::Microseconds,
        }
    }
    let [get, replace, insert, first] = names;
    [
        (GET, probe(get)),
        (REPLACE, probe(replace)),
        (INSERT, probe(insert)),
        (FIRST, probe(first)),
    ]
}

/// What the queue pairs are on the command line, and what a run prints.
const RUNS: [(&str, [(&str, Probe); 4]); 2] = [
    (
        "connections",
        probes([
            "store over RC, get",
            "store over RC, put of a key that has a value",
            "store over RC, put of a new key",
            "store over RC, first answer of a new worker",
        ]),
    ),
    (
        "initiators",
        probes([
            "store over DC, get",
            "store over DC, put of a key that has a value",
            "store over DC, put of a new key",
            "store over DC, first answer of a new worker",
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
    let taken = RUNS.iter().zip(FIRST_PORT..).flat_map(|(run_of, port)| {
        let (over, words) = run_of;
        let run = run.as_ref().map_err(Clone::clone);
        figures(words, run.and_then(|run| output(run, over, port)))
    });
    taken.collect()
}

fn output(run: &Run, over: &str, port: u16) -> Result<String, String> {
    let address = format!("127.0.0.1:{port}");
    let mut node = run.start(PROGRAM, &["node", &address])?;
    node.wait_for_text(LISTENING, LIMIT).map_err(text)?;
    let worker = run.start(PROGRAM, &["work", over, &address])?;
    printed(worker, vec![node], LIMIT)
}
