//! Goodput of perftest's writes between two hosts over a link that loses packets, relative to the
//! goodput without loss, next to go-back-N in the simulator.
//!
//! The link has a rate that the processors carry in any case, so that a ratio shows what loss costs
//! the protocol and not how the scheduler assigns processors. Each point is followed by a run over
//! the same link without loss.

use urdma_harness::instance::{Instance, LeasePolicy};
use urdma_harness::process::Ended;
use urdma_harness::{pair, programs, Failure};

use crate::goals;
use crate::lines::{Chart, Scale, Series, Stroke};
use crate::samples::{Probe, Sample, Samples, Unit};
use crate::simulator::{self, LossRow, SWEEP_OCTETS};
use crate::spec::{Compare, Spec};

/// perftest's MB.
pub(crate) const MIB: f64 = 1_048_576.0;
/// Octets of a run.
const OCTETS: u32 = 1 << 28;
/// The link: its bandwidth-delay product is that of the simulator's, 125 KB, at a fifth of its
/// rate. The queue takes four round trips, so that a burst is not dropped.
const LINK: [&str; 6] = ["--rate", "2Gbit/s", "--delay", "250us", "--queue", "500kB"];
/// As in the simulator: one packet in a hundred is late, by at most half a round trip.
const REORDERING: [&str; 4] = ["--reorder", "1%", "--reorder-by", "250us"];

/// One point of the sweep.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// Goodput with loss.
    pub probe: Probe,
    /// Goodput of the same run without loss and reordering, directly after it.
    pub beside: Probe,
    /// Octets of a write.
    pub length: u32,
    /// Share of packets lost in each direction, in parts per million.
    pub loss_ppm: u32,
    /// Whether packets are reordered.
    pub reorders: bool,
}

macro_rules! point {
    ($name:literal, $length:expr, $loss_ppm:literal, $reorders:literal) => {
        Point {
            probe: goodput($name),
            beside: goodput(concat!($name, ": the same lossless")),
            length: $length,
            loss_ppm: $loss_ppm,
            reorders: $reorders,
        }
    };
}

const fn goodput(name: &'static str) -> Probe {
    Probe {
        name,
        unit: Unit::GigabytesPerSecond,
    }
}

const KB_64: u32 = SWEEP_OCTETS[0];
const MB_1: u32 = SWEEP_OCTETS[1];

/// The sweep, in the order in which it is measured.
pub const POINTS: [Point; 22] = [
    point!("64 KB write, 0.01 % lost", KB_64, 100, false),
    point!("64 KB write, 0.1 % lost", KB_64, 1_000, false),
    point!("64 KB write, 1 % lost", KB_64, 10_000, false),
    point!("64 KB write, 3 % lost", KB_64, 30_000, false),
    point!("64 KB write, 5 % lost", KB_64, 50_000, false),
    point!("64 KB write, reordered", KB_64, 0, true),
    point!("64 KB write, reordered, 0.01 % lost", KB_64, 100, true),
    point!("64 KB write, reordered, 0.1 % lost", KB_64, 1_000, true),
    point!("64 KB write, reordered, 1 % lost", KB_64, 10_000, true),
    point!("64 KB write, reordered, 3 % lost", KB_64, 30_000, true),
    point!("64 KB write, reordered, 5 % lost", KB_64, 50_000, true),
    point!("1 MB write, 0.01 % lost", MB_1, 100, false),
    point!("1 MB write, 0.1 % lost", MB_1, 1_000, false),
    point!("1 MB write, 1 % lost", MB_1, 10_000, false),
    point!("1 MB write, 3 % lost", MB_1, 30_000, false),
    point!("1 MB write, 5 % lost", MB_1, 50_000, false),
    point!("1 MB write, reordered", MB_1, 0, true),
    point!("1 MB write, reordered, 0.01 % lost", MB_1, 100, true),
    point!("1 MB write, reordered, 0.1 % lost", MB_1, 1_000, true),
    point!("1 MB write, reordered, 1 % lost", MB_1, 10_000, true),
    point!("1 MB write, reordered, 3 % lost", MB_1, 30_000, true),
    point!("1 MB write, reordered, 5 % lost", MB_1, 50_000, true),
];

impl Point {
    /// The same point without loss and reordering.
    #[must_use]
    pub fn lossless(&self) -> Self {
        Self {
            probe: self.beside,
            loss_ppm: 0,
            reorders: false,
            ..*self
        }
    }

    /// Goodput in GB/s of writes of `client` to `server`, at whose port packets of both directions
    /// are lost.
    ///
    /// # Errors
    /// `urdma fault` or perftest failed.
    pub fn measure(&self, server: &Instance, client: &Instance, port: u16) -> Sample {
        let loss = format!("{}%", percent(self.loss_ppm));
        let seed = port.to_string();
        let mut options = LINK.to_vec();
        options.extend(["--loss", &loss, "--seed", &seed]);
        if self.reorders {
            options.extend(REORDERING);
        }
        said_ok(server.fault(&options))?;
        let job = programs::perftest("ib_write_bw", self.length, false, port, server.address())
            .with_iterations(OCTETS / self.length);
        let figure = pair::run(&job, server, client, LeasePolicy::Never)
            .map_err(|error| error.to_string())?;
        let figure = figure.ok_or("ib_write_bw printed no figure")?;
        Ok(figure.value * MIB / 1e9)
    }
}

/// Ends all faults at the port of `server`.
///
/// # Errors
/// `urdma fault` failed.
pub fn end(server: &Instance) -> Result<(), String> {
    said_ok(server.fault(&["--off"]))
}

/// Turns the end of an `urdma fault` command into a result.
pub(crate) fn said_ok(said: Result<Ended, Failure>) -> Result<(), String> {
    let said = said.map_err(|error| error.to_string())?;
    if said.succeeded() {
        Ok(())
    } else {
        Err(format!("urdma fault: {}", said.describe()))
    }
}

fn percent(ppm: u32) -> f64 {
    f64::from(ppm) / 1e4
}

/// A row of the report for each point.
pub(crate) fn specs() -> impl Iterator<Item = Spec> {
    POINTS.iter().map(|point| Spec {
        name: point.probe.name,
        ours: point.probe,
        compare: Compare::With(point.beside),
        goal: goals::goodput(point.loss_ppm),
    })
}

/// Charts of the share of the lossless goodput over loss, one for each length with a measured
/// point: TRP as measured, TRP and go-back-N as simulated.
pub fn charts(samples: &Samples) -> Vec<Chart> {
    let lengths: Vec<u32> = SWEEP_OCTETS
        .into_iter()
        .filter(|length| {
            let measured = |point: &Point| samples.median(point.probe).is_ok();
            POINTS
                .iter()
                .any(|point| point.length == *length && measured(point))
        })
        .collect();
    if lengths.is_empty() {
        return Vec::new();
    }
    let simulated = simulator::loss_sweep(&lengths);
    let chart = |length: u32| {
        let mut series = Vec::new();
        for (reorders, order) in [(false, ""), (true, ", reordered")] {
            let rows = simulated
                .iter()
                .filter(|row| row.case.length == length && row.case.reorders == reorders);
            let of = |kept: fn(&LossRow) -> f64| -> Vec<(f64, f64)> {
                let at = |row: &LossRow| (percent(row.case.loss_ppm), kept(row));
                rows.clone().map(at).collect()
            };
            let kept = measured(samples, length, reorders);
            for (name, stroke, points) in [
                ("TRP", Stroke::Measured, kept),
                ("TRP, simulated", Stroke::Computed, of(|row| row.trp_kept)),
                (
                    "go-back-N, simulated",
                    Stroke::Computed,
                    of(|row| row.go_back_n_kept),
                ),
            ] {
                series.push(Series {
                    name: format!("{name}{order}"),
                    stroke,
                    points,
                });
            }
        }
        Chart {
            title: format!(
                "{} writes: share of the lossless goodput over % lost",
                if length < MB_1 { "64 KB" } else { "1 MB" }
            ),
            x_scale: Scale::Evenly,
            y_scale: Scale::FromZero,
            series,
        }
    };
    lengths.into_iter().map(chart).collect()
}

/// The number of rounds in which the sweep was measured.
pub fn rounds(samples: &Samples) -> usize {
    samples.rounds(POINTS.iter().map(|point| point.probe))
}

/// Per cent of packets lost and share of the goodput that remains.
fn measured(samples: &Samples, length: u32, reorders: bool) -> Vec<(f64, f64)> {
    let points = POINTS
        .iter()
        .filter(|point| (point.length, point.reorders) == (length, reorders));
    let kept = points.filter_map(|point| {
        let (ours, all) = (samples.median(point.probe), samples.median(point.beside));
        Some((percent(point.loss_ppm), ours.ok()? / all.ok()?))
    });
    kept.collect()
}

/// The values of the charts as text.
pub fn table(charts: &[Chart]) -> String {
    let mut text = String::new();
    for chart in charts {
        text += &format!("\n{}\n", chart.title);
        for line in &chart.series {
            text += &format!("{:34}", line.name);
            for (at, kept) in &line.points {
                text += &format!("  {at} %: {kept:.2}");
            }
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::spec::Goal;

    #[test]
    fn each_point_is_compared_with_the_same_without_loss() {
        for (point, spec) in POINTS.iter().zip(specs()) {
            let lossless = point.lossless();
            assert_eq!((lossless.length, lossless.loss_ppm), (point.length, 0));
            assert!(!lossless.reorders);
            assert!(matches!(spec.compare, Compare::With(probe) if probe == lossless.probe));
        }
        let with_goal = specs().filter(|spec| spec.goal != Goal::None).count();
        assert_eq!(with_goal, 16);
    }

    #[test]
    fn chart_shows_measured_and_simulated_shares() {
        assert!(charts(&Samples::default()).is_empty());
        let mut samples = Samples::default();
        samples.add(POINTS[2].beside, Ok(0.5));
        samples.add(POINTS[2].probe, Ok(0.4));
        let charts = charts(&samples);
        assert_eq!(charts.len(), 1);
        let names: Vec<&str> = charts[0]
            .series
            .iter()
            .map(|line| line.name.as_str())
            .collect();
        assert_eq!(names.len(), 6);
        assert_eq!(charts[0].series[0].points, [(1.0, 0.8)]);
        let text = table(&charts);
        assert!(
            text.contains("1 %: 0.80") && text.contains("go-back-N"),
            "{text}"
        );
        // The difference between the protocols is visible at 1 % loss.
        assert!(charts[0].series[2].points[3].1 < 0.5, "{text}");
    }
}
