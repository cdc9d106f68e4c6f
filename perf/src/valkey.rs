//! Valkey's server and its benchmark, which sleep while they wait, over urdma, over TCP, and over
//! rings in its place: rate, processor time and system calls of a GET request.
//!
//! `scripts/valkey.sh` builds them where [`built`] finds them. Rates are measured quiet and while
//! another program keeps each processor busy; system calls depend little on the machine, and are
//! counted once.

use std::path::Path as FilePath;

use urdma_harness::calls::Calls;
use urdma_harness::instance::{Instance, Scratch};
use urdma_harness::over::Over;
use urdma_harness::valkey::{Figures, Load, Run, Valkey};
use urdma_harness::Failure;

use crate::asleep::Load as Others;
use crate::goals;
use crate::part::Part;
use crate::samples::{text, Probe, Sample, Unit};
use crate::spec::{pair, Goal, Pair, Spec};

/// Valkey as built for the programs in this directory, which is below `target`.
///
/// # Errors
/// It has not been built.
pub fn built(programs: &FilePath) -> Result<Valkey, String> {
    let target = programs.parent().unwrap_or(programs);
    Valkey::built_in(&target.join("valkey")).map_err(text)
}

/// What the benchmark does, and the probes.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// `Valkey`, or `Rings` for its TCP connections over rings.
    pub part: Part,
    load: Load,
    rate: Pair,
    busy: Pair,
    processor: Pair,
    calls: [Pair; 2],
}

/// Points: start of the rows' names, name; part, clients, requests that a client sends at once,
/// requests of all clients.
macro_rules! points {
    ($($what:literal, $name:literal: $part:ident, $clients:literal, $in_a_row:literal,
        $requests:literal;)*) => {
        [$(Point {
            part: Part::$part,
            load: Load { clients: $clients, in_a_row: $in_a_row, requests: $requests },
            rate: pair!(ThousandsPerSecond, "TCP", $what, $name),
            busy: pair!(ThousandsPerSecond, "TCP", $what, $name, ", busy"),
            processor: pair!(Microseconds, "TCP", "CPU, ", $what, $name),
            calls: [
                pair!(Calls, "TCP", "calls, ", $what, $name, ", server"),
                pair!(Calls, "TCP", "calls, ", $what, $name, ", client"),
            ],
        }),*]
    };
}

/// All points. The numbers of requests take about a second each.
pub const POINTS: [Point; 6] = points! {
    "Valkey GET, ", "1 client": Valkey, 1, 1, 40_000;
    "Valkey GET, ", "1 client, 16 in a row": Valkey, 1, 16, 400_000;
    "Valkey GET, ", "50 clients": Valkey, 50, 1, 90_000;
    "Valkey GET, ", "50 clients, 16 in a row": Valkey, 50, 16, 900_000;
    "Valkey GET over rings, ", "1 client": Rings, 1, 1, 40_000;
    "Valkey GET over rings, ", "50 clients": Rings, 50, 1, 90_000;
};

impl Point {
    const fn over<'a>(&self, host: &'a Instance) -> Over<'a> {
        match self.part {
            Part::Rings => Over::Rings(host),
            _ => Over::Urdma(host),
        }
    }

    const fn goals(&self) -> [Goal; 2] {
        let Load {
            clients, in_a_row, ..
        } = self.load;
        match self.part {
            Part::Rings => [goals::valkey_over_rings(clients), goals::RINGS_BUSY_RATE],
            _ => [
                goals::valkey(clients, in_a_row),
                goals::valkey_busy(clients, in_a_row),
            ],
        }
    }

    /// Rates and processor time over urdma, then over TCP, quiet or beside busy programs; gives
    /// each probe with its value.
    pub fn measure(
        &self,
        host: Result<&Instance, String>,
        others: Others,
        programs: &FilePath,
        port: u16,
    ) -> Vec<(Probe, Sample)> {
        let load = match others {
            Others::Quiet => self.load,
            Others::Busy => self.load.shortened(4),
        };
        let figures = |over: Over<'_>| -> Result<Figures, String> {
            let valkey = built(programs)?;
            let _others = others.start(programs).map_err(text)?;
            let run = |dir: &FilePath| {
                valkey.run(Run {
                    over,
                    port,
                    load,
                    dir,
                })
            };
            in_scratch(run)
        };
        let ours = host.and_then(|host| figures(self.over(host)));
        let tcp = figures(Over::Tcp);
        let rate = |figures: &Result<Figures, String>| figures.clone().map(|f| f.rate / 1e3);
        let processor = |figures: &Result<Figures, String>| {
            let of_each = |f: Figures| f.processor.as_secs_f64() * 1e6 / f64::from(load.requests);
            figures.clone().map(of_each)
        };
        match others {
            Others::Quiet => vec![
                (self.rate.ours, rate(&ours)),
                (self.rate.peer, rate(&tcp)),
                (self.processor.ours, processor(&ours)),
                (self.processor.peer, processor(&tcp)),
            ],
            Others::Busy => vec![(self.busy.ours, rate(&ours)), (self.busy.peer, rate(&tcp))],
        }
    }

    /// System calls of a request, without those of the start and without sched_yield(2); gives each
    /// probe with its value.
    pub fn count(
        &self,
        host: Result<&Instance, String>,
        programs: &FilePath,
        port: u16,
    ) -> Vec<(Probe, Sample)> {
        let load = self.load.shortened(2);
        let calls = |over: Over<'_>| -> Result<[Calls; 2], String> {
            let valkey = built(programs)?;
            in_scratch(|dir| {
                valkey.calls(Run {
                    over,
                    port,
                    load,
                    dir,
                })
            })
        };
        let ours = host.and_then(|host| calls(self.over(host)));
        let tcp = calls(Over::Tcp);
        let of = |end: usize, calls: &Result<[Calls; 2], String>| {
            calls
                .as_ref()
                .map(|calls| calls[end].without_yields())
                .map_err(Clone::clone)
        };
        let of_end =
            |(end, pair): (usize, &Pair)| [(pair.ours, of(end, &ours)), (pair.peer, of(end, &tcp))];
        self.calls.iter().enumerate().flat_map(of_end).collect()
    }
}

/// Calls `run` with a directory for the server's files.
fn in_scratch<T>(run: impl FnOnce(&FilePath) -> Result<T, Failure>) -> Result<T, String> {
    let scratch = Scratch::new("valkey").map_err(text)?;
    run(scratch.path()).map_err(text)
}

/// Rows of the report. Processor time is that of both programs, without urdmad.
pub(crate) fn specs() -> impl Iterator<Item = Spec> {
    POINTS.iter().flat_map(|point| {
        let Load {
            clients, in_a_row, ..
        } = point.load;
        let [quiet, busy] = point.goals();
        [
            point.rate.spec(quiet),
            point.busy.spec(busy),
            point.processor.spec(Goal::None),
            point.calls[0].spec(goals::calls(clients, in_a_row)),
            point.calls[1].spec(goals::calls(clients, in_a_row)),
        ]
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn rows_have_names_of_their_own_and_the_goals_of_their_load() {
        let rows: Vec<Spec> = specs().collect();
        let names: BTreeSet<&str> = rows.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), rows.len());
        let goal = |name| rows.iter().find(|row| row.name == name).unwrap().goal;
        assert_eq!(goal("Valkey GET, 50 clients / TCP"), Goal::AtLeast(1.5));
        assert_eq!(
            goal("Valkey GET, 50 clients, busy / TCP"),
            Goal::AtLeast(1.2)
        );
        assert_eq!(
            goal("Valkey GET over rings, 50 clients / TCP"),
            Goal::AtLeast(2.5)
        );
        assert_eq!(
            goal("calls, Valkey GET, 50 clients, client / TCP"),
            Goal::AtMost(1.0)
        );
        assert_eq!(
            goal("calls, Valkey GET, 1 client, client / TCP"),
            Goal::None
        );
    }

    #[test]
    fn missing_valkey_is_named_with_the_command_that_builds_it() {
        let nowhere = FilePath::new("/nonexistent/release");
        let measured = POINTS[0].measure(Err("no host".into()), Others::Quiet, nowhere, 1);
        let tcp = measured
            .iter()
            .find(|(probe, _)| *probe == POINTS[0].rate.peer)
            .unwrap();
        let reason = tcp.1.clone().unwrap_err();
        assert!(reason.contains("scripts/valkey.sh"), "{reason}");
    }
}
