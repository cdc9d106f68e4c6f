//! Axes of charts: where a value lies, and round ticks (1, 2 or 5 times a power of ten).

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use serde::Serialize;

/// Ticks of a linear axis at most, beside zero.
const TICKS_MAX: f64 = 6.0;
/// A logarithmic axis has ticks at 1, 2 and 5 up to this many decades, and at 1 beyond.
const FINE_DECADES: f64 = 3.5;
/// Rounding errors of logarithms and quotients are smaller.
const EPSILON: f64 = 1e-9;

/// How values are laid along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Scale {
    /// All values that occur are the same distance apart.
    Evenly,
    /// Linear, from zero to the first tick above the greatest value.
    FromZero,
    /// Logarithmic, between the ticks around the least and the greatest value.
    Logarithmic,
}

/// One axis of a chart, a coordinate of plotters.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    scale: Scale,
    /// Value and label of each tick, in ascending order.
    ticks: Vec<(f64, String)>,
}

impl Axis {
    /// An axis on which all of `values` have a place.
    pub(crate) fn new(scale: Scale, values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        let ticks = match scale {
            Scale::Evenly => evenly(&values),
            Scale::FromZero => linear(values.last().copied().unwrap_or(1.0)),
            Scale::Logarithmic => logarithmic(values.iter().copied().filter(|value| *value > 0.0)),
        };
        Self { scale, ticks }
    }

    /// Where a value lies on a linear axis that looks like this one.
    fn position(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Evenly => self.ticks.partition_point(|(tick, _)| *tick < value) as f64,
            Scale::FromZero => value,
            Scale::Logarithmic => value.max(f64::MIN_POSITIVE).log10(),
        }
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    #[allow(
        clippy::cast_possible_truncation,
        reason = "pixels of a picture, whatever the values"
    )]
    fn map(&self, value: &f64, (first, last): (i32, i32)) -> i32 {
        let ends = self.range();
        let (from, to) = (self.position(ends.start), self.position(ends.end));
        let share = if to > from {
            (self.position(*value) - from) / (to - from)
        } else {
            0.5
        };
        first + (f64::from(last - first) * share).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() {
            return Vec::new();
        }
        self.ticks.iter().map(|(value, _)| *value).collect()
    }

    fn range(&self) -> Range<f64> {
        let ends = self.ticks.first().zip(self.ticks.last());
        ends.map_or(0.0..1.0, |(first, last)| first.0..last.0)
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        let tick = self.ticks.iter().find(|(tick, _)| tick == value);
        tick.map_or_else(|| value.to_string(), |(_, label)| label.clone())
    }
}

/// A tick for each value; multiples of 1024 by their prefix.
fn evenly(values: &[f64]) -> Vec<(f64, String)> {
    let label = |value: f64| {
        let multiple = |unit: f64| value >= unit && (value / unit).fract() == 0.0;
        if multiple(1_048_576.0) {
            format!("{}M", value / 1_048_576.0)
        } else if multiple(1024.0) {
            format!("{}K", value / 1024.0)
        } else {
            value.to_string()
        }
    };
    values.iter().map(|value| (*value, label(*value))).collect()
}

/// Ticks from zero to the first one that is not below `most`.
fn linear(most: f64) -> Vec<(f64, String)> {
    let most = if most > 0.0 { most } else { 1.0 };
    let step = round_up(most / TICKS_MAX);
    let mut ticks = vec![(0.0, number(0.0, step))];
    for count in 1_u32.. {
        let value = f64::from(count) * step;
        ticks.push((value, number(value, step)));
        if value >= most * (1.0 - EPSILON) {
            break;
        }
    }
    ticks
}

/// Ticks around and between the least and the greatest of `values`, which are positive and sorted.
fn logarithmic(values: impl Iterator<Item = f64>) -> Vec<(f64, String)> {
    let values: Vec<f64> = values.collect();
    let (least, most) = values.first().zip(values.last()).unwrap_or((&1.0, &1.0));
    let factors: &[f64] = if (most / least).log10() > FINE_DECADES {
        &[1.0]
    } else {
        &[1.0, 2.0, 5.0]
    };
    let (from, to) = (exponent(*least), exponent(*most) + 1);
    let all: Vec<f64> = (from..=to)
        .flat_map(|exponent| factors.iter().map(move |f| f * 10_f64.powi(exponent)))
        .collect();
    let first = all
        .iter()
        .rposition(|tick| *tick <= least * (1.0 + EPSILON));
    let last = all.iter().position(|tick| *tick >= most * (1.0 - EPSILON));
    all[first.unwrap_or(0)..=last.unwrap_or(all.len() - 1)]
        .iter()
        .map(|tick| (*tick, number(*tick, *tick)))
        .collect()
}

/// The least of 1, 2 and 5 times a power of ten that is not below `value`, which is positive.
pub(crate) fn round_up(value: f64) -> f64 {
    let decade = 10_f64.powi(exponent(value));
    let factors = [1.0, 2.0, 5.0, 10.0];
    let enough = |factor: &&f64| **factor * decade >= value * (1.0 - EPSILON);
    factors.iter().find(enough).unwrap_or(&10.0) * decade
}

/// The power of ten at or below `value`.
#[allow(
    clippy::cast_possible_truncation,
    reason = "an exponent of a double is below 309"
)]
fn exponent(value: f64) -> i32 {
    (value.log10() + EPSILON).floor() as i32
}

/// `value` with as many decimals as `step` needs.
fn number(value: f64, step: f64) -> String {
    let decimals = usize::try_from(-exponent(step)).unwrap_or(0);
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use plotters::coord::ranged1d::BoldPoints;

    use super::*;

    /// Pixels of the axis in these tests.
    const LIMIT: (i32, i32) = (0, 1000);

    fn axis(scale: Scale, values: &[f64]) -> Axis {
        Axis::new(scale, values.iter().copied())
    }

    fn ticks(axis: &Axis) -> Vec<f64> {
        axis.key_points(BoldPoints(0))
    }

    fn labels(scale: Scale, values: &[f64]) -> Vec<String> {
        let axis = axis(scale, values);
        let ticks = ticks(&axis);
        ticks.iter().map(|tick| axis.format_ext(tick)).collect()
    }

    /// Whether `value` is 1, 2 or 5 times a power of ten.
    fn is_round(value: f64) -> bool {
        (round_up(value) / value - 1.0).abs() < 1e-6
    }

    #[test]
    fn linear_ticks_are_multiples_of_a_round_step_and_end_above_the_greatest_value() {
        for most in [
            0.003, 0.363, 1.0, 1.089, 2.178, 7.0, 19.9, 20.01, 48.86, 114.1, 20_574.0,
        ] {
            let axis = axis(Scale::FromZero, &[most]);
            let ticks = ticks(&axis);
            let step = ticks[1];
            assert!(is_round(step), "{most}: {step}");
            assert!((3..=8).contains(&ticks.len()), "{most}: {ticks:?}");
            for (count, tick) in ticks.iter().enumerate() {
                assert!(
                    (tick / step - count as f64).abs() < 1e-6,
                    "{most}: {ticks:?}"
                );
                let label: f64 = axis.format_ext(tick).parse().unwrap_or(f64::NAN);
                assert!(
                    (label - tick).abs() < step / 1e6,
                    "{most}: {label} for {tick}"
                );
            }
            let end = axis.range().end;
            assert!(
                end >= most * (1.0 - 1e-6) && end < most + step,
                "{most}: {end}"
            );
            assert_eq!((axis.map(&0.0, LIMIT), axis.map(&end, LIMIT)), LIMIT);
        }
        assert_eq!(
            labels(Scale::FromZero, &[1.089]),
            ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0", "1.2"]
        );
    }

    #[test]
    fn logarithmic_ticks_are_round_and_enclose_the_values() {
        assert_eq!(
            labels(Scale::Logarithmic, &[0.3, 17.0]),
            ["0.2", "0.5", "1", "2", "5", "10", "20"]
        );
        assert_eq!(
            labels(Scale::Logarithmic, &[0.3, 4_000.0]),
            ["0.1", "1", "10", "100", "1000", "10000"]
        );
        for (least, most) in [(0.25, 0.25), (0.9999, 1.0001), (1e-4, 3.0), (7.0, 123.0)] {
            let axis = axis(Scale::Logarithmic, &[least, most]);
            let (from, to) = (axis.map(&least, LIMIT), axis.map(&most, LIMIT));
            assert!(
                LIMIT.0 <= from && from <= to && to <= LIMIT.1,
                "{from} to {to}"
            );
            assert!(ticks(&axis).iter().all(|tick| is_round(*tick)));
        }
    }

    #[test]
    fn even_ticks_are_the_values_at_the_same_distance() {
        let values = [65_536.0, 2.0, 64.0, 1_048_576.0, 2.0];
        assert_eq!(labels(Scale::Evenly, &values), ["2", "64", "64K", "1M"]);
        assert_eq!(labels(Scale::Evenly, &[0.01, 0.0, 5.0]), ["0", "0.01", "5"]);
        let axis = axis(Scale::Evenly, &values);
        assert_eq!(
            [2.0, 64.0, 65_536.0].map(|value| axis.map(&value, LIMIT)),
            [0, 333, 667]
        );
    }

    #[test]
    fn values_of_an_axis_without_extent_lie_in_its_middle() {
        for scale in [Scale::Evenly, Scale::Logarithmic] {
            assert_eq!(axis(scale, &[1.0]).map(&1.0, LIMIT), 500, "{scale:?}");
        }
        assert_eq!(axis(Scale::FromZero, &[]).map(&0.5, LIMIT), 500);
        assert_eq!(axis(Scale::Evenly, &[]).map(&0.5, LIMIT), 500);
    }
}
