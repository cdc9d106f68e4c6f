//! Repeated measurements: values, or why there are none.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use urdma_harness::Failure;

/// One measurement: the value in the probe's unit, or a sentence that says why there is none.
pub type Sample = Result<f64, String>;

/// Why there is no value, if a program or an instance has failed.
pub(crate) fn text(failure: Failure) -> String {
    failure.to_string()
}

/// Why a probe that was not requested has no value.
pub const NOT_MEASURED: &str = "not measured";

/// A measured quantity. Its name is the key in the JSON report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Probe {
    /// Name, stable between versions.
    pub name: &'static str,
    /// Unit of its values.
    #[serde(skip)]
    pub unit: Unit,
}

/// Units of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unit {
    /// Microseconds; a latency is one way.
    Microseconds,
    /// 10^9 octets a second.
    GigabytesPerSecond,
    /// 10^6 messages a second.
    MillionsPerSecond,
    /// 10^3 requests a second.
    ThousandsPerSecond,
    /// Milliseconds.
    Milliseconds,
    /// 10^6 octets.
    Megabytes,
    /// Octets.
    Octets,
    /// 10^3 octets.
    Kilobytes,
    /// Per cent of one core.
    PercentOfCore,
    /// Share of a link's rate.
    Share,
    /// Jain's index of fairness.
    Index,
    /// Round trips of a link.
    RoundTrips,
    /// Share of the transfers of a stream.
    Transfers,
    /// Microseconds of processor time for 10^6 octets.
    MicrosecondsPerMegabyte,
    /// Runs of the simulator.
    Runs,
    /// Instructions, both ends together.
    Instructions,
    /// System calls.
    Calls,
    /// Page faults that need no reading.
    Faults,
}

impl Unit {
    /// The symbol of the unit.
    pub const fn sign(self) -> &'static str {
        match self {
            Self::Microseconds => "us",
            Self::GigabytesPerSecond => "GB/s",
            Self::MillionsPerSecond => "M/s",
            Self::ThousandsPerSecond => "k/s",
            Self::Milliseconds => "ms",
            Self::Megabytes => "MB",
            Self::Octets => "octets",
            Self::Kilobytes => "KB",
            Self::PercentOfCore => "% of a core",
            Self::Share => "of the rate",
            Self::Index => "of 1",
            Self::RoundTrips => "round trips",
            Self::Transfers => "of the transfers",
            Self::MicrosecondsPerMegabyte => "us/MB",
            Self::Runs => "runs",
            Self::Instructions => "instr.",
            Self::Calls => "calls",
            Self::Faults => "faults",
        }
    }
}

/// All measurements of one probe.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Series {
    /// Values, in the order of the rounds.
    pub values: Vec<f64>,
    /// The reason of the last failed measurement.
    pub failure: Option<String>,
}

impl Series {
    /// The median, or why there is none.
    ///
    /// # Errors
    /// No measurement succeeded.
    pub fn median(&self) -> Result<f64, String> {
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        match sorted.get(sorted.len() / 2) {
            None => Err(self.failure.clone().unwrap_or_else(|| NOT_MEASURED.into())),
            Some(_) if sorted.len().is_multiple_of(2) => {
                let upper = sorted.len() / 2;
                Ok((sorted[upper - 1] + sorted[upper]) / 2.0)
            }
            Some(middle) => Ok(*middle),
        }
    }
}

/// All probes of one call.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Samples(BTreeMap<String, Series>);

impl Samples {
    /// Adds one measurement.
    pub fn add(&mut self, probe: Probe, sample: Sample) {
        let series = self.0.entry(probe.name.to_owned()).or_default();
        match sample {
            Ok(value) => series.values.push(value),
            Err(reason) => series.failure = Some(reason),
        }
    }

    /// The probe's median, or why there is none.
    ///
    /// # Errors
    /// No measurement succeeded.
    pub fn median(&self, probe: Probe) -> Result<f64, String> {
        self.0
            .get(probe.name)
            .ok_or_else(|| NOT_MEASURED.to_owned())
            .and_then(Series::median)
    }

    /// The probe's values in the order of the rounds; empty if there are none.
    pub fn values(&self, probe: Probe) -> &[f64] {
        self.0.get(probe.name).map_or(&[], |series| &series.values)
    }

    /// The number of rounds in which these probes were measured: that of the one with most values.
    pub fn rounds(&self, probes: impl Iterator<Item = Probe>) -> usize {
        let series = probes.filter_map(|probe| self.0.get(probe.name));
        series.map(|series| series.values.len()).max().unwrap_or(0)
    }

    /// Probes with failed measurements, and the reasons.
    pub fn failures(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.0.iter();
        all.filter_map(|(name, series)| Some((name.as_str(), series.failure.as_deref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROBE: Probe = Probe {
        name: "p",
        unit: Unit::Microseconds,
    };

    fn of(values: &[f64]) -> Samples {
        let mut samples = Samples::default();
        for value in values {
            samples.add(PROBE, Ok(*value));
        }
        samples
    }

    #[test]
    fn median_of_odd_and_even_counts_is_the_middle() {
        assert_eq!(of(&[3.0, 1.0, 2.0]).median(PROBE), Ok(2.0));
        let even = of(&[4.0, 1.0, 2.0, 3.0]);
        assert_eq!(even.median(PROBE), Ok(2.5));
        assert_eq!(even.rounds([PROBE].into_iter()), 4);
    }

    #[test]
    fn median_without_values_is_the_reason() {
        let mut samples = Samples::default();
        assert!(samples.median(PROBE).is_err());
        samples.add(PROBE, Err("no such program".into()));
        assert_eq!(samples.median(PROBE), Err("no such program".into()));
        samples.add(PROBE, Ok(1.0));
        assert_eq!(samples.median(PROBE), Ok(1.0));
        assert_eq!(samples.failures().count(), 1);
    }
}
