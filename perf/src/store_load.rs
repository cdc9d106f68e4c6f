//! A key-value store whose load doubles and halves ([pool.md](../../doc/pool.md#load-of-a-store)):
//! the time until a new worker, a process, serves at its full rate, and what it costs the others.

use std::path::Path;
use std::time::Duration;

use urdma_harness::instance::Instance;

use crate::pool::{figures_of_all, Run, Way};
use crate::samples::{Probe, Sample, Unit};
use crate::spec::{Compare, Goal, Spec};
use crate::store;

/// Start of the line with the time from the start of a worker until it serves at its full rate, in
/// microseconds: the median.
pub const FULL: &str = "full ";
/// Start of the line with the rate of the older workers alone, in thousands of gets a second.
pub const BEFORE: &str = "before ";
/// Start of the line with their rate until the new workers serve at full rate.
pub const MEANWHILE: &str = "meanwhile ";
/// Start of the line with their rate beside new workers that serve at full rate.
pub const BESIDE: &str = "beside ";
/// Start of the line with the windows that a worker has served.
pub const SERVED: &str = "served ";
/// Windows that a worker serves at least, also if it is told to end before: where all processors
/// are busy, it may begin later than that.
pub const WINDOWS_MIN: usize = 8;
const PROGRAM: &str = "urdma-perf-store-load";
const FIRST_PORT: u16 = 18_904;
const LIMIT: Duration = Duration::from_secs(120);

/// What the workers of a run print, each behind a word.
const fn figures_of(way: Way) -> &'static [(&'static str, Probe); 4] {
    match way {
        Way::Own => &OWN,
        Way::Connections => &CONNECTIONS,
        Way::Initiators => &INITIATORS,
    }
}

const fn probes(names: [&'static str; 4]) -> [(&'static str, Probe); 4] {
    const fn rate(name: &'static str) -> Probe {
        Probe {
            name,
            unit: Unit::ThousandsPerSecond,
        }
    }
    let [full, before, meanwhile, beside] = names;
    let full = Probe {
        name: full,
        unit: Unit::Microseconds,
    };
    [
        (FULL, full),
        (BEFORE, rate(before)),
        (MEANWHILE, rate(meanwhile)),
        (BESIDE, rate(beside)),
    ]
}

const OWN: [(&str, Probe); 4] = probes([
    "store over rdma_cm, new worker at full rate",
    "store over rdma_cm, gets of the older workers",
    "store over rdma_cm, the same while others start",
    "store over rdma_cm, the same beside twice as many",
]);
const CONNECTIONS: [(&str, Probe); 4] = probes([
    "store over RC, new worker at full rate",
    "store over RC, gets of the older workers",
    "store over RC, the same while others start",
    "store over RC, the same beside twice as many",
]);
const INITIATORS: [(&str, Probe); 4] = probes([
    "store over DC, new worker at full rate",
    "store over DC, gets of the older workers",
    "store over DC, the same while others start",
    "store over DC, the same beside twice as many",
]);

/// The time of a new worker without a pool, over connections and over initiators.
pub(crate) const FULL_RATE: [Probe; 3] = [OWN[0].1, CONNECTIONS[0].1, INITIATORS[0].1];

/// Rows of the report.
pub(crate) fn specs() -> impl Iterator<Item = Spec> {
    let [(_, own_full), (_, own_before), ..] = OWN;
    let full = |name, kind: &[(&str, Probe); 4]| {
        Spec::new(name, kind[0].1, Compare::With(own_full), Goal::None)
    };
    let rate = |name, kind: &[(&str, Probe); 4]| {
        Spec::new(name, kind[1].1, Compare::With(own_before), Goal::None)
    };
    let of_before = |name, kind: &[(&str, Probe); 4], at: usize| {
        Spec::new(name, kind[at].1, Compare::With(kind[1].1), Goal::None)
    };
    [
        full(
            "new worker at full rate, pool over RC / rdma_cm",
            &CONNECTIONS,
        ),
        full(
            "new worker at full rate, pool over DC / rdma_cm",
            &INITIATORS,
        ),
        rate("gets of workers, pool over RC / rdma_cm", &CONNECTIONS),
        rate("gets of workers, pool over DC / rdma_cm", &INITIATORS),
        of_before("gets while others start / before, rdma_cm", &OWN, 2),
        of_before("gets while others start / before, RC", &CONNECTIONS, 2),
        of_before("gets while others start / before, DC", &INITIATORS, 2),
        of_before("gets beside twice as many / before, rdma_cm", &OWN, 3),
        of_before("gets beside twice as many / before, RC", &CONNECTIONS, 3),
        of_before("gets beside twice as many / before, DC", &INITIATORS, 3),
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
    let runs = Way::ALL.into_iter().zip(FIRST_PORT..);
    let runs = runs.map(|(way, port)| (&figures_of(way)[..], (way, port)));
    figures_of_all(&run, runs, |run, (way, port)| {
        store::output(run, [PROGRAM, "load"], (way, port), LIMIT)
    })
}

/// The windows that a worker serves which is told to end when it is started.
///
/// # Errors
/// If a program cannot be run, or the worker has no rate.
pub fn served_by_late_worker(
    host: &Instance,
    programs: &Path,
    scratch: &Path,
) -> Result<usize, String> {
    let run = Run::new(host, programs, scratch)?;
    let way = (Way::Connections, FIRST_PORT);
    let output = store::output(&run, [PROGRAM, "late"], way, LIMIT)?;
    let served = output.strip_prefix(SERVED).map(str::trim_end);
    let served = served.and_then(|served| served.parse().ok());
    served.ok_or_else(|| format!("there is no {SERVED}in: {output}"))
}
