//! Processes attached to one instance that are all connected to one more, the target: latency and
//! rate of one of them while the others are idle, and the rate of all in turn.

use std::path::Path;
use std::time::Duration;

use urdma_harness::instance::{Instance, LeasePolicy};
use urdma_harness::process::Process;

use crate::goals;
use crate::samples::{text, Probe, Sample, Unit};
use crate::spec::{Compare, Goal, Spec};

/// Start of the line that `urdma-perf-processes` prints for a number of processes. The number and
/// the figures in the order of [`Point::probes`] follow.
pub const RESULT: &str = "processes ";
/// Number of figures.
pub const FIGURES: usize = 5;
const LIMIT: Duration = Duration::from_secs(120);

/// A number of processes, without the target.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// The number.
    pub count: u32,
    /// Of one pair: latency of sends and of writes, rate of sends and of writes. Of all processes
    /// in turn: rate of sends.
    pub probes: [Probe; FIGURES],
    /// Names of the rows that compare them with one process.
    rows: [&'static str; FIGURES],
}

macro_rules! point {
    ($count:literal, $($name:literal: $unit:ident),*) => {
        Point {
            count: $count,
            probes: [$(Probe {
                name: concat!($name, ", processes: ", $count),
                unit: Unit::$unit,
            }),*],
            rows: [$(concat!($name, ", processes: ", $count, " / 1")),*],
        }
    };
    ($count:literal) => {
        point!(
            $count,
            "64 B send latency": Microseconds,
            "64 B write latency": Microseconds,
            "64 B send rate": MillionsPerSecond,
            "64 B write rate": MillionsPerSecond,
            "64 B send rate, in turn": MillionsPerSecond
        )
    };
}

/// The numbers that are measured. The greatest and the target take all slots of an instance.
pub const POINTS: [Point; 4] = [point!(1), point!(8), point!(64), point!(252)];

/// Measures all points on `host`; gives each probe with its value.
pub fn measure(
    host: Result<&Instance, String>,
    programs: &Path,
    points: &[Point],
) -> Vec<(Probe, Sample)> {
    let printed = host.and_then(|host| run(host, programs, points));
    let of_point = |point: &Point| {
        let figures = match &printed {
            Ok((output, how)) => figures(output, point.count).ok_or_else(|| how.clone()),
            Err(reason) => Err(reason.clone()),
        };
        let sample = |index: usize| figures.clone().map(|figures| figures[index]);
        let probes = point.probes.into_iter().enumerate();
        probes
            .map(|(index, probe)| (probe, sample(index)))
            .collect::<Vec<_>>()
    };
    points.iter().flat_map(of_point).collect()
}

/// The output of `urdma-perf-processes`, and how it ended.
fn run(host: &Instance, programs: &Path, points: &[Point]) -> Result<(String, String), String> {
    let program = programs.join("urdma-perf-processes").display().to_string();
    let mut argv = vec![program];
    argv.extend(points.iter().map(|point| point.count.to_string()));
    let mut command = host.run(LeasePolicy::Never, &argv).map_err(text)?;
    let ended = Process::run(&mut command, LIMIT).map_err(text)?;
    let how = ended.describe();
    Ok((ended.output, how))
}

/// The figures of `count` processes in the output of `urdma-perf-processes`.
fn figures(output: &str, count: u32) -> Option<[f64; FIGURES]> {
    let mut lines = output.lines().filter_map(|line| line.strip_prefix(RESULT));
    lines.find_map(|line| {
        let (of, figures) = line.split_once(' ')?;
        let figures: Vec<f64> = figures.split(' ').flat_map(str::parse).collect();
        figures.try_into().ok().filter(|_| of.parse() == Ok(count))
    })
}

/// Rows of the report.
pub(crate) fn specs() -> impl Iterator<Item = Spec> {
    (0..FIGURES).flat_map(|index| {
        let one = POINTS[0].probes[index];
        let more = POINTS[1..].iter().map(move |point| Spec {
            name: point.rows[index],
            ours: point.probes[index],
            compare: Compare::With(one),
            goal: goals::flat(one.unit),
        });
        let alone = Spec {
            name: one.name,
            ours: one,
            compare: Compare::Alone,
            goal: Goal::None,
        };
        std::iter::once(alone).chain(more)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_number_of_processes() {
        let output = "processes 1 0.2 0.1 8 9 7\nprocesses 8 0.3 0.2 7 8 6\nprocesses 64 0.3 0.2\n";
        assert_eq!(figures(output, 8), Some([0.3, 0.2, 7.0, 8.0, 6.0]));
        assert_eq!(figures(output, 64), None);
        assert_eq!(figures(output, 252), None);
    }

    #[test]
    fn rows_compare_each_number_with_one_process() {
        let rows: Vec<Spec> = specs().collect();
        assert_eq!(rows.len(), POINTS.len() * FIGURES);
        assert_eq!(rows[1].name, "64 B send latency, processes: 8 / 1");
        assert!(matches!(rows[1].compare, Compare::With(one) if one == rows[0].ours));
    }
}
