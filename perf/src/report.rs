//! The table that is printed and the JSON report.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

use crate::lines::Chart;
use crate::lossy;
use crate::processors::{range, Kind};
use crate::rows::{self, Row};
use crate::samples::{Samples, NOT_MEASURED};
use crate::spec::Goal;

/// The result of one call.
#[derive(Debug, Serialize)]
pub struct Report<'a> {
    /// Processor model and number of cores.
    pub machine: String,
    /// Number of rounds.
    pub rounds: usize,
    /// What was measured with processors of each kind that was seen.
    pub sections: Vec<Section<'a>>,
}

/// What was measured with processors of one kind.
#[derive(Debug, Serialize)]
pub struct Section<'a> {
    /// The kind.
    pub kind: Kind,
    /// The comparisons.
    pub rows: Vec<Row>,
    /// Goodput over loss, next to go-back-N.
    pub loss: Vec<Chart>,
    /// All values.
    pub samples: &'a Samples,
}

impl<'a> Section<'a> {
    /// The section of a kind; without the rows of which nothing was measured, unless `is_whole`.
    pub fn new(kind: Kind, samples: &'a Samples, is_whole: bool) -> Self {
        let mut rows = rows::evaluate(samples);
        if !is_whole {
            rows.retain(|row| row.why_not() != Some(NOT_MEASURED));
        }
        Self {
            kind,
            rows,
            loss: lossy::charts(samples),
            samples,
        }
    }
}

/// What is read of a report that was written as JSON.
#[derive(Debug, Deserialize)]
pub struct Saved {
    /// Processor model and number of cores.
    pub machine: String,
    /// What was measured with processors of each kind.
    pub sections: Vec<SavedSection>,
}

/// What is read of a section.
#[derive(Debug, Deserialize)]
pub struct SavedSection {
    /// The kind.
    pub kind: Kind,
    /// All values.
    pub samples: Samples,
}

/// The processor's name and the number of cores.
pub fn machine() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .and_then(|rest| rest.split_once(':'))
        .map_or("unknown processor", |(_, name)| name.trim());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{model}, {cores} cores")
}

fn value(value: Option<&Result<f64, String>>, unit: &str) -> String {
    match value {
        Some(Ok(value)) => format!("{value:.2} {unit}"),
        Some(Err(_)) => "-".into(),
        None => String::new(),
    }
}

fn result(row: &Row) -> String {
    match (row.result, row.is_ratio) {
        (Some(result), true) => format!("{result:.2} x"),
        (Some(result), false) => format!("{result:.2}"),
        (None, _) => "-".into(),
    }
}

fn verdict(row: &Row) -> &'static str {
    match (row.met, row.goal) {
        (Some(true), _) => "met",
        (Some(false), _) => "MISSED",
        (None, Goal::None) => "",
        (None, _) => "not available",
    }
}

impl Display for Report<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}; medians of {} rounds", self.machine, self.rounds)?;
        if self.sections.len() > 1 {
            writeln!(f, "the processors were near each other and far apart")?;
        }
        self.sections.iter().try_for_each(|section| section.fmt(f))
    }
}

impl Display for Section<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some((least, most)) = range(self.samples) {
            writeln!(f, "{}: raw ring {least:.3} to {most:.3} us", self.kind)?;
        }
        let what = format!("what, {}", self.kind);
        writeln!(
            f,
            "{what:46} {:>18} {:>18} {:>10} {:>8}  verdict",
            "urdma", "limit or peer", "result", "goal"
        )?;
        for row in &self.rows {
            writeln!(
                f,
                "{:46} {:>18} {:>18} {:>10} {:>8}  {}",
                row.name,
                value(Some(&row.ours), row.unit),
                value(row.other.as_ref(), row.unit),
                result(row),
                row.goal.sign(),
                verdict(row)
            )?;
        }
        f.write_str(&lossy::table(&self.loss))?;
        let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (probe, reason) in self.samples.failures() {
            reasons.entry(reason.trim()).or_default().push(probe);
        }
        for (reason, probes) in reasons {
            writeln!(f, "not available: {reason}\n  ({})", probes.join("; "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::probes;

    #[test]
    fn report_shows_values_verdicts_and_reasons() {
        let mut samples = Samples::default();
        samples.add(probes::SEND_ONE_HOST, Ok(0.5));
        samples.add(probes::RAW_RING, Ok(0.2));
        samples.add(probes::MEMIF_LATENCY, Err("no DPDK here".into()));
        let report = Report {
            machine: "m".into(),
            rounds: 1,
            sections: vec![Section::new(Kind::Far, &samples, true)],
        };
        let text = report.to_string();
        assert!(text.contains("2.50 x") && text.contains("MISSED"));
        assert!(text.contains("not available: no DPDK here"));
        assert!(text.contains("\nfar processors: raw ring 0.200 to 0.200 us\nwhat, far"));
        let json = serde_json::to_value(&report).unwrap_or_default();
        let section = &json["sections"][0];
        assert_eq!(section["rows"][0]["met"], false);
        assert_eq!(section["kind"], "far");
        assert_eq!(section["samples"][probes::RAW_RING.name]["values"][0], 0.2);
        let saved: Saved = serde_json::from_value(json).unwrap();
        assert_eq!(saved.machine, "m");
        let samples = &saved.sections[0].samples;
        assert_eq!(samples.median(probes::SEND_ONE_HOST), Ok(0.5));
    }

    #[test]
    fn section_of_some_parts_has_only_what_was_measured() {
        let mut samples = Samples::default();
        samples.add(probes::RAW_RING, Ok(0.07));
        samples.add(probes::SEND_ONE_HOST, Ok(0.1));
        let section = Section::new(Kind::Near, &samples, false);
        let names: Vec<_> = section.rows.iter().map(|row| &row.name).collect();
        assert!(
            section.rows.len() < rows::evaluate(&samples).len(),
            "{names:?}"
        );
    }
}
