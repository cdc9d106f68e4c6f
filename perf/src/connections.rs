//! Connections of rdma_cm in one host: their rate over the number that are made at a time and over
//! the number of pairs of processes, beside TCP; the time of each step; and what tracing
//! ([tracing.md](../../doc/tracing.md)) costs of the rate.

use std::path::Path as FilePath;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use urdma_harness::instance::{Instance, LeasePolicy};
use urdma_harness::process::Process;
use urdma_harness::Failure;

use crate::asleep::{run, run_pairs, steps, Ends, Work, STEPS};
use crate::goals;
use crate::lines::{Chart, Scale, Series, Stroke};
use crate::samples::{text, Probe, Sample, Samples, Unit};
use crate::spec::{Compare, Goal, Spec};

/// Time of a measurement.
const WATCH_MS: u32 = 1_000;
/// What is compared is measured in turn, this number of times: the rates of a machine vary.
const TURNS: u32 = 4;
const TRACER_LIMIT: Duration = Duration::from_secs(30);
/// What the tracer prints when it traces.
const TRACING: &str = "tracing";
/// The probes of the tracer, which a connection passes once at each end.
const PROBES: [&str; 4] = ["cm_req", "cm_rep", "cm_rtu", "cm_dreq"];

const fn rate(name: &'static str) -> Probe {
    Probe {
        name,
        unit: Unit::ThousandsPerSecond,
    }
}

const fn time(name: &'static str) -> Probe {
    Probe {
        name,
        unit: Unit::Microseconds,
    }
}

/// A rate, and that of TCP.
struct Rate {
    at_once: u32,
    pairs: u32,
    /// Threads of each client.
    threads: u32,
    urdma: Probe,
    tcp: Probe,
}

macro_rules! rates {
    ($($pairs:literal x $at_once:literal,)*) => {
        [$(Rate {
            at_once: $at_once,
            pairs: $pairs,
            threads: 1,
            urdma: rate(concat!("connections, ", $pairs, " x ", $at_once)),
            tcp: rate(concat!("connections, ", $pairs, " x ", $at_once, ", over TCP")),
        }),*]
    };
}

/// Pairs of processes, and connections that each has at a time. Those of one pair first.
const RATES: [Rate; 10] = rates![
    1 x 1, 1 x 2, 1 x 4, 1 x 16, 1 x 64, 1 x 256, 1 x 1000,
    2 x 16, 4 x 16, 10 x 16,
];
/// Ten listeners, and ten processes of four threads, of which each has connections of its own.
const MANY: Rate = Rate {
    at_once: 16,
    pairs: 10,
    threads: 4,
    urdma: rate("connections, 10 listeners, 10 x 4 threads x 16"),
    tcp: rate("connections, 10 listeners, 10 x 4 threads x 16, over TCP"),
};
/// What [`ESTABLISHED_COUNT`] connections take in the end that has grown more, for each.
const ESTABLISHED: Probe = Probe {
    name: "10,000 established connections, memory of each",
    unit: Unit::Kilobytes,
};
const ESTABLISHED_COUNT: u32 = 10_000;
/// The number of them that each pair has at a time, where there are several pairs.
const AT_ONCE_OF_PAIRS: u32 = 16;

/// The probes of [`STEPS`].
pub(crate) const STEP_TIMES: [Probe; STEPS.len()] = [
    time("connection: address"),
    time("connection: route"),
    time("connection: queue pair"),
    time("connection: connect"),
    time("connection: disconnect"),
    time("connection: destroy"),
];

/// The rate with the recorder off, with it on as always, and with [`PROBES`] traced too.
pub(crate) struct Traced {
    at_once: u32,
    pub(crate) off: Probe,
    pub(crate) recorded: Probe,
    pub(crate) probed: Probe,
    rows: [&'static str; 2],
}

macro_rules! traced {
    ($($at_once:literal),*) => {
        [$(Traced {
            at_once: $at_once,
            off: rate(concat!("connections, ", $at_once, " at a time, no recorder")),
            recorded: rate(concat!("connections, ", $at_once, " at a time, recorder")),
            probed: rate(concat!("connections, ", $at_once, " at a time, four probes")),
            rows: [
                concat!("connections, ", $at_once, " at a time, recorder / without"),
                concat!("connections, ", $at_once, " at a time, four probes / none"),
            ],
        }),*]
    };
}

/// One and several connections at a time.
pub(crate) const TRACED: [Traced; 2] = traced![1, 16];

/// Rows of the report.
pub(crate) fn specs() -> impl Iterator<Item = Spec> {
    let steps = STEP_TIMES
        .into_iter()
        .map(|step| Spec::new(step.name, step, Compare::Alone, Goal::None));
    let traced = TRACED.iter().flat_map(|traced| {
        let [recorded, probed] = traced.rows;
        let without = Compare::With(traced.off);
        let none = Compare::With(traced.recorded);
        [
            Spec::new(recorded, traced.recorded, without, goals::RECORDED),
            Spec::new(probed, traced.probed, none, goals::PROBED),
        ]
    });
    let many = Spec::new(
        "connections, 10 listeners, 10 x 4 threads x 16 / TCP",
        MANY.urdma,
        Compare::With(MANY.tcp),
        Goal::None,
    );
    let memory = Spec::new(
        ESTABLISHED.name,
        ESTABLISHED,
        Compare::Alone,
        goals::ESTABLISHED,
    );
    steps.chain(traced).chain([many, memory])
}

const fn connections(at_once: u32, threads: u32) -> Work {
    Work::Connections { at_once, threads }
}

impl Rate {
    fn measure(&self, host: &Result<&Instance, String>, programs: &FilePath) -> [Sample; 2] {
        let ends = |host| Ends::Urdma(host, host, LeasePolicy::Never);
        [host.clone().map(ends), Ok(Ends::Loopback)].map(|ends| {
            let figures = run_pairs(
                self.pairs,
                ends?,
                connections(self.at_once, self.threads),
                programs,
            );
            figures.map(|sum| sum.value / 1e3).map_err(text)
        })
    }
}

/// A tracer that counts how often [`PROBES`] are passed.
struct Tracer(Process);

impl Tracer {
    fn start(programs: &FilePath) -> Result<Self, Failure> {
        let library = programs.join("liburdma_provider.so").canonicalize()?;
        let probes = PROBES.map(|probe| format!("usdt:{}:urdma:{probe}", library.display()));
        let script = format!(
            "BEGIN {{ printf(\"{TRACING}\\n\"); }} {} {{ @[probe] = count(); }}",
            probes.join(",")
        );
        let mut command = Command::new("bpftrace");
        command.args(["--usdt-file-activation", "-e", &script]);
        let mut process = Process::start(&mut command)?;
        process.wait_for_text(TRACING, TRACER_LIMIT)?;
        Ok(Self(process))
    }

    /// Ends it; it fails if a probe was not traced.
    fn end(self) -> Result<(), Failure> {
        self.0.signal(Signal::SIGINT)?;
        let ended = self.0.wait(TRACER_LIMIT)?;
        let is_missing = |probe: &&&str| !ended.output.contains(&format!(":{probe}]"));
        match PROBES.iter().find(is_missing) {
            None => Ok(()),
            Some(probe) => Err(Failure::new(format!(
                "{probe} was not traced: {}",
                ended.output
            ))),
        }
    }
}

impl Traced {
    /// The rate, with a tracer if `is_probed`.
    fn rate(&self, ends: Ends<'_>, is_probed: bool, programs: &FilePath) -> Result<f64, Failure> {
        let tracer = is_probed.then(|| Tracer::start(programs)).transpose()?;
        let figures = run(ends, connections(self.at_once, 1), WATCH_MS, programs)?;
        tracer.map_or(Ok(()), Tracer::end)?;
        Ok(figures.value / 1e3)
    }

    fn measure(
        &self,
        host: &Result<&Instance, String>,
        programs: &FilePath,
    ) -> [(Probe, Sample); 3] {
        let host = host.clone();
        let ways = host.map(|host| {
            let as_always = Ends::Urdma(host, host, LeasePolicy::Never);
            [
                (Ends::Unrecorded(host), false),
                (as_always, false),
                (as_always, true),
            ]
        });
        let turn = |_| -> [Sample; 3] {
            std::array::from_fn(|way| {
                let (ends, is_probed) = ways.clone()?[way];
                self.rate(ends, is_probed, programs).map_err(text)
            })
        };
        let turns: Vec<[Sample; 3]> = (0..TURNS).map(turn).collect();
        let probes = [self.off, self.recorded, self.probed];
        std::array::from_fn(|way| {
            let sum: Sample = turns.iter().map(|turn| turn[way].clone()).sum();
            (probes[way], sum.map(|sum| sum / f64::from(TURNS)))
        })
    }
}

/// The time of each step.
fn measure_steps(host: Result<&Instance, String>, programs: &FilePath) -> Vec<(Probe, Sample)> {
    let times = host.and_then(|host| steps(host, WATCH_MS, programs).map_err(text));
    let of = |step: usize| {
        times
            .as_ref()
            .map(|times| times[step])
            .map_err(Clone::clone)
    };
    let all = STEP_TIMES.into_iter().enumerate();
    all.map(|(step, probe)| (probe, of(step))).collect()
}

/// The memory of a connection that stays.
fn established(host: Result<&Instance, String>, programs: &FilePath) -> Sample {
    let host = host?;
    let ends = Ends::Urdma(host, host, LeasePolicy::Never);
    let work = Work::Established {
        count: ESTABLISHED_COUNT,
    };
    let figures = run(ends, work, WATCH_MS, programs).map_err(text)?;
    Ok(figures.value / 1e3)
}

/// Measures everything on one host.
pub fn measure(host: Result<&Instance, String>, programs: &FilePath) -> Vec<(Probe, Sample)> {
    let rates = RATES.iter().chain([&MANY]).flat_map(|rate| {
        let [urdma, tcp] = rate.measure(&host, programs);
        [(rate.urdma, urdma), (rate.tcp, tcp)]
    });
    let mut samples: Vec<_> = rates.collect();
    samples.push((ESTABLISHED, established(host.clone(), programs)));
    samples.extend(measure_steps(host.clone(), programs));
    samples.extend(
        TRACED
            .iter()
            .flat_map(|traced| traced.measure(&host, programs)),
    );
    samples
}

/// The charts of the rates that were measured.
pub fn charts(samples: &Samples) -> Vec<Chart> {
    type IsShown = fn(&Rate) -> bool;
    type X = fn(&Rate) -> u32;
    let charts: [(&str, IsShown, X); 2] = [
        (
            "One pair of processes, one host: thousand connections a second, \
             by how many are made at a time",
            |rate| rate.pairs == 1,
            |rate| rate.at_once,
        ),
        (
            "Pairs of processes, one host, 16 at a time each: thousand connections a second, \
             by pairs",
            |rate| rate.at_once == AT_ONCE_OF_PAIRS,
            |rate| rate.pairs,
        ),
    ];
    let charts = charts.into_iter().filter_map(|(title, is_shown, x)| {
        let series = |name: &str, probe: fn(&Rate) -> Probe| {
            let shown = RATES.iter().filter(|rate| is_shown(rate));
            let point = |rate| Some((f64::from(x(rate)), samples.median(probe(rate)).ok()?));
            Series {
                name: name.to_owned(),
                stroke: Stroke::Measured,
                points: shown.filter_map(point).collect(),
            }
        };
        let series = vec![
            series("urdma", |rate| rate.urdma),
            series("TCP over loopback", |rate| rate.tcp),
        ];
        series
            .iter()
            .all(|line| !line.points.is_empty())
            .then(|| Chart {
                title: title.to_owned(),
                x_scale: Scale::Evenly,
                y_scale: Scale::FromZero,
                series,
            })
    });
    charts.collect()
}

/// The number of rounds in which the rates were measured.
pub fn rounds(samples: &Samples) -> usize {
    samples.rounds(RATES.iter().map(|rate| rate.urdma))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn charts_have_urdma_and_tcp_by_number_and_by_pairs() {
        let mut samples = Samples::default();
        assert!(charts(&samples).is_empty());
        for rate in &RATES {
            samples.add(rate.urdma, Ok(2.0));
            samples.add(rate.tcp, Ok(1.0));
        }
        let charts = charts(&samples);
        let xs = |chart: &Chart| -> Vec<f64> {
            let points = &chart.series[0].points;
            points.iter().map(|(x, _)| *x).collect()
        };
        assert_eq!(xs(&charts[0]), [1.0, 2.0, 4.0, 16.0, 64.0, 256.0, 1000.0]);
        assert_eq!(xs(&charts[1]), [1.0, 2.0, 4.0, 10.0]);
        assert_eq!((charts.len(), charts[0].series.len()), (2, 2));
        assert_eq!(rounds(&samples), 1);
    }

    #[test]
    fn steps_have_a_probe_each() {
        let names = STEPS.map(|step| format!("connection: {step}"));
        assert_eq!(STEP_TIMES.map(|probe| probe.name.to_owned()), names);
    }
}
