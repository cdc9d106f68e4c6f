//! The table that is printed and the JSON report.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

use crate::lines::Chart;
use crate::lossy;
use crate::processors::{Kind, Processors};
use crate::rows::Row;
use crate::samples::Samples;
use crate::spec::Goal;

/// The result of one call.
#[derive(Debug, Serialize)]
pub struct Report<'a> {
    /// Processor model and number of cores.
    pub machine: String,
    /// Whether its processors are near each other, if the raw ring could be measured.
    pub processors: Option<Processors>,
    /// Number of rounds.
    pub rounds: usize,
    /// The comparisons.
    pub rows: &'a [Row],
    /// Goodput over loss, next to go-back-N.
    pub loss: &'a [Chart],
    /// All values.
    pub samples: &'a Samples,
}

/// What is read of a report that was written as JSON.
#[derive(Debug, Deserialize)]
pub struct Saved {
    /// Processor model and number of cores.
    pub machine: String,
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
        let what = match self.processors {
            Some(processors) => {
                writeln!(f, "{processors}")?;
                if processors.kind == Kind::Mixed {
                    writeln!(f, "the processors changed between rounds: measure again")?;
                }
                format!("what, {}", processors.kind)
            }
            None => "what".to_owned(),
        };
        writeln!(
            f,
            "{what:46} {:>18} {:>18} {:>10} {:>8}  verdict",
            "urdma", "limit or peer", "result", "goal"
        )?;
        for row in self.rows {
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
        f.write_str(&lossy::table(self.loss))?;
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
    use crate::rows::evaluate;

    #[test]
    fn report_shows_values_verdicts_and_reasons() {
        let mut samples = Samples::default();
        samples.add(probes::SEND_ONE_HOST, Ok(0.5));
        samples.add(probes::RAW_RING, Ok(0.2));
        samples.add(probes::MEMIF_LATENCY, Err("no DPDK here".into()));
        let rows = evaluate(&samples);
        let report = Report {
            machine: "m".into(),
            processors: Processors::of(&samples),
            rounds: 1,
            loss: &[],
            rows: &rows,
            samples: &samples,
        };
        let text = report.to_string();
        assert!(text.contains("2.50 x") && text.contains("MISSED"));
        assert!(text.contains("not available: no DPDK here"));
        assert!(text.contains("\nfar processors: raw ring 0.200 to 0.200 us\nwhat, far"));
        let json = serde_json::to_value(&report).unwrap_or_default();
        assert_eq!(json["rows"][0]["met"], false);
        assert_eq!(json["processors"]["kind"], "far");
        assert_eq!(json["samples"][probes::RAW_RING.name]["values"][0], 0.2);
        let saved: Saved = serde_json::from_value(json).unwrap();
        assert_eq!(saved.machine, "m");
        assert_eq!(saved.samples.median(probes::SEND_ONE_HOST), Ok(0.5));
    }
}
