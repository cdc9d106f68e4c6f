//! `urdma bench`: sweeps of Debian's perftest on the user's machine, over an instance of their own.

use std::path::PathBuf;

use clap::Parser;
use serde::Serialize;
use urdma_harness::instance::{Instance, LeasePolicy};
use urdma_harness::pair;
use urdma_harness::programs;

use crate::lines::{Chart, Scale, Series, Stroke};
use crate::lossy;
use crate::samples::Samples;
use crate::simulator::SWEEP_OCTETS;

/// Sizes of messages in octets.
const SIZES: [u32; 8] = [2, 64, 512, 4096, 16_384, 65_536, 262_144, 1_048_576];
const QUEUE_PAIRS: [u32; 5] = [1, 10, 100, 1000, 4000];
const QP_OCTETS: u32 = 64;
const QP_MESSAGES: u32 = 200_000;
const QP_DEPTH: u32 = 50;
const LATENCIES: u32 = 5_000;
/// Octets that one measurement of bandwidth moves, and the least and greatest number of iterations.
const OCTETS: u32 = 1 << 28;
const ITERATIONS: (u32, u32) = (200, 50_000);
const FIRST_PORT: u16 = 18_800;
const PORTS: u16 = 100;

/// Measures latency, bandwidth, queue pairs and loss on this machine, over an instance of its own
#[derive(Debug, Parser)]
#[command(name = "urdma bench", bin_name = "urdma bench", version)]
pub struct Arguments {
    /// Sweeps to measure [default: all]
    #[arg(long, value_name = "SWEEP", value_delimiter = ',')]
    pub only: Vec<Sweep>,
    /// Directory for bench.json and bench.svg
    #[arg(long, default_value = ".")]
    pub out: PathBuf,
}

/// A sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Sweep {
    /// Latency over message sizes
    Latency,
    /// Bandwidth over message sizes
    Bandwidth,
    /// Rate of 64-octet writes over 1 to 4000 queue pairs
    Qps,
    /// Goodput over loss between two instances, next to go-back-N in the simulator
    Loss,
}

impl Sweep {
    /// All sweeps.
    pub const ALL: [Self; 4] = [Self::Latency, Self::Bandwidth, Self::Qps, Self::Loss];

    const fn tools(self) -> &'static [&'static str] {
        match self {
            Self::Latency => &["ib_send_lat", "ib_write_lat", "ib_read_lat"],
            Self::Bandwidth => &["ib_send_bw", "ib_write_bw", "ib_read_bw"],
            Self::Qps => &["ib_write_bw"],
            Self::Loss => &[],
        }
    }

    const fn axis(self) -> &'static [u32] {
        match self {
            Self::Latency | Self::Bandwidth => &SIZES,
            Self::Qps => &QUEUE_PAIRS,
            Self::Loss => &[],
        }
    }

    /// Title, unit of the horizontal axis, unit of the vertical axis.
    const fn texts(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Latency => ("Latency one way", "octets", "us"),
            Self::Bandwidth => ("Bandwidth", "octets", "GB/s"),
            Self::Qps => ("64-octet writes", "queue pairs", "M/s"),
            Self::Loss => (
                "64 KB writes, share of the lossless goodput",
                "% lost",
                "share",
            ),
        }
    }
}

/// One measured point.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// The sweep that it belongs to.
    pub sweep: Sweep,
    /// The program, or the protocol, that it is a value of.
    pub line: String,
    /// Whether it is measured or computed by the simulator.
    pub stroke: Stroke,
    /// Octets, queue pairs, or per cent of packets lost.
    pub at: f64,
    /// The value in the sweep's unit, or why there is none.
    pub value: Result<f64, String>,
}

/// One point of a sweep before it is measured.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    sweep: Sweep,
    tool: &'static str,
    at: u32,
}

impl Step {
    /// Program and position, such as "ib_send_lat 64".
    pub fn label(&self) -> String {
        format!("{} {}", self.tool, self.at)
    }

    /// Measures it on `host`.
    pub fn measure(&self, host: &Instance, port: u16) -> Point {
        Point {
            sweep: self.sweep,
            line: self.tool.to_owned(),
            stroke: Stroke::Measured,
            at: f64::from(self.at),
            value: self.run(host, port),
        }
    }

    fn run(&self, host: &Instance, port: u16) -> Result<f64, String> {
        let (octets, iterations) = match self.sweep {
            Sweep::Latency => (self.at, LATENCIES),
            Sweep::Qps => (QP_OCTETS, QP_MESSAGES / self.at),
            _ => (
                self.at,
                (OCTETS / self.at).clamp(ITERATIONS.0, ITERATIONS.1),
            ),
        };
        let mut job = programs::perftest(self.tool, octets, false, port, host.address())
            .with_iterations(iterations);
        if self.sweep == Sweep::Qps {
            let (count, depth) = (self.at.to_string(), QP_DEPTH.to_string());
            job = job.with(&["-q", &count, "-t", &depth]).as_message_rate();
        }
        let figure = pair::run(&job, host, host, LeasePolicy::Never)
            .map_err(|failure| failure.to_string())?
            .ok_or("it printed no figure")?;
        Ok(match self.sweep {
            // perftest's MB are 2^20 octets.
            Sweep::Bandwidth => figure.value * 1_048_576.0 / 1e9,
            _ => figure.value,
        })
    }
}

/// All runs of perftest that these sweeps need.
pub fn steps(sweeps: &[Sweep]) -> Vec<Step> {
    let mut steps = Vec::new();
    for sweep in sweeps {
        for tool in sweep.tools() {
            steps.extend(sweep.axis().iter().map(|at| Step {
                sweep: *sweep,
                tool,
                at: *at,
            }));
        }
    }
    steps
}

/// The TCP port of the `number`th step.
pub fn port(number: usize) -> u16 {
    FIRST_PORT + u16::try_from(number % usize::from(PORTS)).unwrap_or(0)
}

/// The measured points of the loss sweep, each followed by the same run without loss.
pub fn loss_sweep() -> Vec<lossy::Point> {
    let points = lossy::POINTS
        .iter()
        .filter(|point| point.length == SWEEP_OCTETS[0]);
    points
        .flat_map(|point| [*point, point.lossless()])
        .collect()
}

/// The loss sweep: TRP as measured, TRP and go-back-N as simulated, without and with reordering,
/// and a point with the reason for each measurement that failed.
pub fn loss_points(samples: &Samples) -> Vec<Point> {
    let point = |line: &str, stroke, at, value| Point {
        sweep: Sweep::Loss,
        line: line.to_owned(),
        stroke,
        at,
        value,
    };
    let mut points = Vec::new();
    for chart in lossy::charts(samples) {
        for line in chart.series {
            let kept = line.points.iter();
            points.extend(kept.map(|(at, kept)| point(&line.name, line.stroke, *at, Ok(*kept))));
        }
    }
    for (name, reason) in samples.failures() {
        points.push(point(name, Stroke::Measured, 0.0, Err(reason.to_owned())));
    }
    points
}

/// One chart for each sweep that has points.
pub fn charts(points: &[Point]) -> Vec<Chart> {
    let mut charts = Vec::new();
    for sweep in Sweep::ALL {
        let mut series: Vec<Series> = Vec::new();
        for point in points.iter().filter(|point| point.sweep == sweep) {
            let Ok(value) = point.value else { continue };
            match series.iter_mut().find(|line| line.name == point.line) {
                Some(line) => line.points.push((point.at, value)),
                None => series.push(Series {
                    name: point.line.clone(),
                    stroke: point.stroke,
                    points: vec![(point.at, value)],
                }),
            }
        }
        if series.is_empty() {
            continue;
        }
        let (title, x, y) = sweep.texts();
        charts.push(Chart {
            title: format!("{title} ({y}) over {x}"),
            x_scale: Scale::Evenly,
            y_scale: match sweep {
                Sweep::Latency => Scale::Logarithmic,
                _ => Scale::FromZero,
            },
            series,
        });
    }
    charts
}

/// The table that is printed.
pub fn table(points: &[Point]) -> String {
    let mut text = String::new();
    for sweep in Sweep::ALL {
        let (title, x, y) = sweep.texts();
        for (number, point) in points.iter().filter(|p| p.sweep == sweep).enumerate() {
            if number == 0 {
                text += &format!("\n{title}\n{:32} {x:>12} {y:>12}\n", "");
            }
            text += &match &point.value {
                Ok(value) => {
                    let decimals = if *value < 1.0 { 4 } else { 2 };
                    format!("{:32} {:>12} {value:>12.decimals$}\n", point.line, point.at)
                }
                Err(reason) => {
                    let line = reason.lines().next().unwrap_or("");
                    format!("{:32} {:>12} {:>12} {line}\n", point.line, point.at, "-")
                }
            };
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(sweep: Sweep, line: &str, at: f64, value: Result<f64, String>) -> Point {
        Point {
            sweep,
            line: line.into(),
            stroke: Stroke::Measured,
            at,
            value,
        }
    }

    #[test]
    fn steps_cover_what_was_asked_for() {
        assert_eq!(steps(&[Sweep::Qps]).len(), QUEUE_PAIRS.len());
        assert_eq!(steps(&[Sweep::Loss]).len(), 0);
        let all = steps(&Sweep::ALL);
        assert_eq!(all.len(), 6 * SIZES.len() + QUEUE_PAIRS.len());
        assert_eq!(all[1].label(), "ib_send_lat 64");
    }

    #[test]
    fn table_and_charts_show_values_and_why_there_are_none() {
        let points = [
            point(Sweep::Latency, "ib_send_lat", 2.0, Ok(0.5)),
            point(Sweep::Latency, "ib_send_lat", 64.0, Ok(0.75)),
            point(Sweep::Qps, "ib_write_bw", 10.0, Err("no device".into())),
        ];
        let text = table(&points);
        assert!(
            text.contains("0.7500") && text.contains("no device"),
            "{text}"
        );
        let charts = charts(&points);
        assert_eq!(charts.len(), 1);
        assert_eq!(charts[0].series[0].points, [(2.0, 0.5), (64.0, 0.75)]);
    }
}
