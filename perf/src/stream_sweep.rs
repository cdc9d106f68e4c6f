//! Streams with random lengths over the operations in progress: rate, processor time of the
//! receiver and share of direct transfers, for each way of transfer. These are the figures of
//! MacArthur and Russell, *An Efficient Method for Stream Semantics over RDMA* (IPDPS 2014).

use std::path::Path as FilePath;

use urdma_harness::instance::Instance;

use crate::asleep::Wait;
use crate::goals;
use crate::lines::{Chart, Scale, Series, Stroke};
use crate::samples::{Probe, Sample, Samples, Unit};
use crate::spec::Compare::{Alone, With};
use crate::spec::Spec;
use crate::stream_programs::{Blast, Figures, Transfers};
use crate::streams;

const RING_OCTETS: u32 = 4 << 20;
const MAX_OCTETS: u32 = 256 << 10;
const OCTETS: u64 = 1_000_000_000;
/// Receives of the sweep in which they stay the same.
const RECVS: u32 = 32;

/// One run of the sweep.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    transfers: Transfers,
    sends: u32,
    recvs: u32,
    rate: Probe,
    processor: Probe,
    direct: Probe,
}

macro_rules! probe {
    ($unit:ident, $($word:literal)*) => {
        Probe {
            name: concat!($($word),*, " receives"),
            unit: Unit::$unit,
        }
    };
}

macro_rules! point {
    ($transfers:ident, $name:literal, $sends:literal, $recvs:literal) => {
        Point {
            transfers: Transfers::$transfers,
            sends: $sends,
            recvs: $recvs,
            rate: probe!(GigabytesPerSecond, "stream, " $name ", " $sends " sends, " $recvs),
            processor: probe!(
                MicrosecondsPerMegabyte,
                "receiver CPU, " $name ", " $sends " sends, " $recvs
            ),
            direct: probe!(Transfers, "direct, " $name ", " $sends " sends, " $recvs),
        }
    };
}

/// Points: for each pair of sends and receives one of each way of transfer.
macro_rules! points {
    ($(($sends:literal, $recvs:literal)),* $(,)?) => {
        [$(
            point!(Dynamic, "dynamic", $sends, $recvs),
            point!(Direct, "direct", $sends, $recvs),
            point!(Indirect, "indirect", $sends, $recvs),
        )*]
    };
}

/// All points: half as many sends as receives, then 32 receives.
pub const POINTS: [Point; 10 * WAYS] = points![
    (1, 2),
    (4, 8),
    (8, 16),
    (16, 32),
    (32, 64),
    (1, 32),
    (4, 32),
    (8, 32),
    (32, 32),
    (64, 32),
];
/// The points of 16 sends and 32 receives: dynamic, direct, indirect.
const OF_THE_GOALS: usize = 9;
/// How many points a pair of sends and receives has.
pub const WAYS: usize = 3;
/// The points of the goals are measured this number of times in a round, in turn: a run takes 70
/// ms, and runs of one point differ by a factor of four.
const TURNS: usize = 15;

/// How many times these points, the ways of a pair, are measured in a round, in turn.
pub fn turns(ways: &[Point]) -> usize {
    match ways.iter().all(Point::is_of_the_goals) {
        true => TURNS,
        false => 1,
    }
}

impl Point {
    fn is_of_the_goals(&self) -> bool {
        (self.sends, self.recvs) == (16, 32)
    }

    /// Runs the stream; gives each probe with its value.
    pub fn measure(
        &self,
        host: Result<&Instance, String>,
        programs: &FilePath,
        port: u16,
    ) -> Vec<(Probe, Sample)> {
        let blast = Blast {
            transfers: self.transfers,
            sends: self.sends,
            recvs: self.recvs,
            max_octets: MAX_OCTETS,
            is_fixed: false,
            ring_octets: RING_OCTETS,
            octets: OCTETS,
            wait: Wait::Poll,
        };
        let figures = host.and_then(|host| {
            let figures = blast.run([host, host], programs, port);
            figures.map_err(|failure| failure.to_string())
        });
        let of = |value: fn(&Figures) -> f64| figures.as_ref().map(value).map_err(Clone::clone);
        vec![
            (self.rate, of(|figures| figures.gigabytes_s)),
            (self.processor, of(|figures| figures.receiver_us)),
            (self.direct, of(|figures| figures.direct)),
        ]
    }
}

/// The rows with goals.
pub(crate) fn specs() -> impl Iterator<Item = Spec> {
    let [dynamic, direct, indirect] = [0, 1, 2].map(|way| POINTS[OF_THE_GOALS + way]);
    [
        Spec::new(
            "stream, 16 sends, 32 receives: direct",
            dynamic.direct,
            Alone,
            goals::STREAM_DIRECT,
        ),
        Spec::new(
            "stream, 16 sends, 32 receives / direct only",
            dynamic.rate,
            With(direct.rate),
            goals::STREAM_DYNAMIC,
        ),
        Spec::new(
            "receiver CPU, direct / indirect",
            direct.processor,
            With(indirect.processor),
            goals::STREAM_PROCESSOR,
        ),
    ]
    .into_iter()
}

/// The number of rounds in which the sweep was measured.
pub fn rounds(samples: &Samples) -> usize {
    let once = POINTS.iter().filter(|point| !point.is_of_the_goals());
    samples.rounds(once.map(|point| point.rate))
}

/// The figures of the paper, and those over the length of a message; none if nothing was measured.
pub fn charts(samples: &Samples) -> Vec<Chart> {
    if rounds(samples) == 0 {
        return Vec::new();
    }
    let is_half = |point: &Point| point.recvs == 2 * point.sends;
    let has_32 = |point: &Point| point.recvs == RECVS;
    let mut charts = vec![
        chart(
            samples,
            "Rate over sends in progress, twice as many receives, GB/s",
            is_half,
            |point| point.rate,
        ),
        chart(
            samples,
            "Processor time of the receiver over the same, us/MB",
            is_half,
            |point| point.processor,
        ),
        chart(
            samples,
            "Rate over sends in progress, 32 receives, GB/s",
            has_32,
            |point| point.rate,
        ),
        chart(
            samples,
            "Share of direct transfers over the same",
            has_32,
            |point| point.direct,
        ),
    ];
    charts.extend(streams::charts(samples));
    charts
}

/// A line for each way of transfer.
fn chart(
    samples: &Samples,
    title: &str,
    is_in: impl Fn(&Point) -> bool,
    probe: impl Fn(&Point) -> Probe,
) -> Chart {
    let ways = [
        (Transfers::Dynamic, "dynamic"),
        (Transfers::Direct, "direct only"),
        (Transfers::Indirect, "indirect only"),
    ];
    let series = ways.map(|(transfers, name)| {
        let points = POINTS.iter().filter(|point| point.transfers == transfers);
        let value = |point: &Point| {
            let median = samples.median(probe(point)).ok()?;
            Some((f64::from(point.sends), median))
        };
        let mut points: Vec<_> = points
            .filter(|point| is_in(point))
            .filter_map(value)
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Series {
            name: name.to_owned(),
            stroke: Stroke::Measured,
            points,
        }
    });
    Chart {
        title: title.to_owned(),
        x_scale: Scale::Evenly,
        y_scale: Scale::FromZero,
        series: series.into(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn points_have_names_of_their_own_and_goals_are_those_of_16_sends() {
        let names = POINTS
            .iter()
            .flat_map(|point| [point.rate, point.processor, point.direct]);
        let names: BTreeSet<&str> = names.map(|probe| probe.name).collect();
        assert_eq!(names.len(), 3 * POINTS.len());
        let measured = POINTS.chunks(WAYS).map(turns);
        assert_eq!(
            measured.collect::<Vec<_>>(),
            [1, 1, 1, TURNS, 1, 1, 1, 1, 1, 1]
        );
        assert_eq!(turns(&POINTS[OF_THE_GOALS..OF_THE_GOALS + WAYS]), TURNS);
    }

    #[test]
    fn charts_have_a_line_for_each_way_in_the_order_of_sends() {
        assert!(charts(&Samples::default()).is_empty());
        let mut samples = Samples::default();
        for point in &POINTS {
            samples.add(point.rate, Ok(f64::from(point.sends)));
        }
        assert_eq!(rounds(&samples), 1);
        let charts = charts(&samples);
        let sends = |chart: &Chart| -> Vec<f64> {
            chart.series[0]
                .points
                .iter()
                .map(|(sends, _)| *sends)
                .collect()
        };
        assert_eq!(sends(&charts[0]), [1.0, 4.0, 8.0, 16.0, 32.0]);
        assert_eq!(sends(&charts[2]), [1.0, 4.0, 8.0, 16.0, 32.0, 64.0]);
        assert_eq!(charts[0].series.len(), 3);
    }
}
