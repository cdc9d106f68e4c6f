//! Evaluation of the comparisons of `goals.rs` and of the parts with specifications of their
//! own.

use serde::Serialize;

use crate::goals::SPECS;
use crate::samples::{Probe, Samples, NOT_MEASURED};
use crate::spec::{Compare, Goal, Spec};
use crate::{
    asleep, cold, connections, elastic, links, lossy, pool, processes, shares, sockets, store,
    store_load, stream_sweep, streams, tcp_programs, ucx, valkey,
};

/// One comparison, evaluated.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What is compared.
    pub name: &'static str,
    /// Name of urdma's probe.
    pub ours_name: &'static str,
    /// Median of urdma's probe, or why there is none.
    pub ours: Result<f64, String>,
    /// Unit of both values.
    pub unit: &'static str,
    /// Name of the limit's or peer's probe.
    pub other_name: Option<&'static str>,
    /// Median of the limit's or peer's probe.
    pub other: Option<Result<f64, String>>,
    /// The value that the goal applies to: a ratio, a difference, or urdma's median.
    pub result: Option<f64>,
    /// Whether the result is a ratio.
    pub is_ratio: bool,
    /// The goal.
    pub goal: Goal,
    /// Whether the goal is met; `None` without a goal or a result.
    pub met: Option<bool>,
}

impl Row {
    /// Why there is no result.
    pub fn why_not(&self) -> Option<&str> {
        let other = self.other.as_ref().and_then(|other| other.as_ref().err());
        self.ours.as_ref().err().or(other).map(String::as_str)
    }
}

/// All rows.
pub fn evaluate(samples: &Samples) -> Vec<Row> {
    SPECS
        .iter()
        .map(|spec| evaluate_one(spec, samples))
        .chain(asleep::specs().map(|spec| evaluate_one(&spec, samples)))
        .chain(connections::specs().map(|spec| evaluate_one(&spec, samples)))
        .chain(cold::specs().map(|spec| evaluate_one(&spec, samples)))
        .chain(ucx::specs().map(|spec| evaluate_one(&spec, samples)))
        .chain(valkey::specs().map(|spec| evaluate_one(&spec, samples)))
        .chain(tcp_programs::specs().map(|spec| evaluate_one(&spec, samples)))
        .chain(stream_sweep::specs().map(|spec| evaluate_one(&spec, samples)))
        .chain(streams::specs().map(|spec| evaluate_one(&spec, samples)))
        .chain(elastic::specs().map(|spec| evaluate_one(&spec, samples)))
        .chain(store::specs().map(|spec| evaluate_one(&spec, samples)))
        .chain(store_load::specs().map(|spec| evaluate_one(&spec, samples)))
        .chain(pool::specs().map(|spec| evaluate_one(&spec, samples)))
        .chain(processes::specs().map(|spec| evaluate_one(&spec, samples)))
        .chain(links::specs().map(|spec| evaluate_one(&spec, samples)))
        .chain(shares::specs().map(|spec| evaluate_one(&spec, samples)))
        .chain(sockets::specs().map(|spec| evaluate_one(&spec, samples)))
        .chain(lossy::specs().map(|spec| evaluate_one(&spec, samples)))
        .collect()
}

fn evaluate_one(spec: &Spec, samples: &Samples) -> Row {
    let ours = samples.median(spec.ours);
    let (other_name, other) = match spec.compare {
        Compare::With(other) | Compare::Above(other) => {
            (Some(other.name), Some(samples.median(other)))
        }
        Compare::BestOf(sweep) => (Some("the best"), Some(best_of(sweep, samples))),
        Compare::Alone => (None, None),
    };
    let is_ratio = matches!(spec.compare, Compare::With(_) | Compare::BestOf(_));
    let result = match (&ours, &other) {
        (Ok(ours), Some(Ok(other))) if is_ratio => Some(ours / other),
        (Ok(ours), Some(Ok(other))) => Some(ours - other),
        (Ok(ours), None) => Some(*ours),
        _ => None,
    };
    Row {
        name: spec.name,
        ours_name: spec.ours.name,
        ours,
        unit: spec.ours.unit.sign(),
        other_name,
        other,
        result,
        is_ratio,
        goal: spec.goal,
        met: result.and_then(|result| spec.goal.met(result)),
    }
}

fn best_of(sweep: &[(u32, Probe)], samples: &Samples) -> Result<f64, String> {
    sweep
        .iter()
        .filter_map(|(_, probe)| samples.median(*probe).ok())
        .reduce(f64::max)
        .ok_or_else(|| NOT_MEASURED.to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::probes;

    fn find<'a>(rows: &'a [Row], name: &str) -> &'a Row {
        rows.iter().find(|row| row.name == name).unwrap()
    }

    #[test]
    fn row_with_both_values_has_ratio_and_verdict() {
        let mut samples = Samples::default();
        samples.add(probes::SEND_ONE_HOST, Ok(0.6));
        samples.add(probes::RAW_RING, Ok(0.2));
        samples.add(probes::TCP_LATENCY, Ok(6.0));
        let rows = evaluate(&samples);
        let row = find(&rows, "64 B send, one host / raw ring");
        assert!((row.result.unwrap() - 3.0).abs() < 1e-9);
        assert_eq!(row.met, Some(false));
        let row = find(&rows, "64 B send, one host / TCP");
        assert_eq!((row.met, row.why_not()), (None, None));
    }

    #[test]
    fn sweep_is_compared_with_its_best() {
        let mut samples = Samples::default();
        samples.add(probes::QPS_1, Ok(2.0));
        samples.add(probes::QPS_1000, Ok(4.0));
        let rows = evaluate(&samples);
        let row = find(&rows, "64 B write rate, 1 QP / best of the sweep");
        assert_eq!((row.result, row.met), (Some(0.5), Some(false)));
        let row = find(&rows, "64 B write rate, 1000 QPs / best");
        assert_eq!((row.result, row.met), (Some(1.0), Some(true)));
    }

    #[test]
    fn row_of_a_missing_part_says_why() {
        let mut samples = Samples::default();
        samples.add(probes::DEVINFO_PLAIN, Ok(3.0));
        samples.add(probes::DEVINFO_URDMA, Err("no urdma".into()));
        samples.add(probes::DEVINFO_LEASED, Ok(13.0));
        let rows = evaluate(&samples);
        let row = find(&rows, "attach without a lease");
        assert_eq!(
            (row.result, row.met, row.why_not()),
            (None, None, Some("no urdma"))
        );
        let row = find(&rows, "attach with a lease");
        assert_eq!((row.result, row.met), (Some(10.0), Some(true)));
    }
}
