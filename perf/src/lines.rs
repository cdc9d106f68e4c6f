//! Line charts below one another, as SVG.

use std::fmt::Write as _;

use serde::Serialize;

use crate::plot::text;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 40.0;
const COLOURS: [&str; 6] = [
    "#2563a8", "#c2410c", "#15803d", "#7e22ce", "#64748b", "#b45309",
];
/// Horizontal lines beside the axis.
const GRID: u32 = 4;

/// How values are laid along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Scale {
    /// Each value that occurs has the same room.
    Evenly,
    /// From zero to the greatest.
    FromZero,
    /// By factors.
    Logarithmic,
}

/// One line.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    /// What the legend calls it.
    pub name: String,
    /// Its points, by x.
    pub points: Vec<(f64, f64)>,
}

/// One chart.
#[derive(Clone, Debug, Serialize)]
pub struct Chart {
    /// Its heading, with units.
    pub title: String,
    /// Of the horizontal axis.
    pub x_scale: Scale,
    /// Of the vertical axis.
    pub y_scale: Scale,
    /// Its lines.
    pub series: Vec<Series>,
}

/// Where a value lies between the ends of an axis, 0 to 1.
struct Axis {
    scale: Scale,
    /// Sorted, each once.
    values: Vec<f64>,
}

impl Axis {
    fn new(scale: Scale, values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        Self { scale, values }
    }

    fn ends(&self) -> (f64, f64) {
        let (least, most) = (self.values.first(), self.values.last());
        let most = most.copied().unwrap_or(1.0).max(f64::MIN_POSITIVE);
        match self.scale {
            Scale::Logarithmic => (
                least.copied().unwrap_or(most).max(most / 1e6).ln(),
                most.ln(),
            ),
            Scale::Evenly | Scale::FromZero => (0.0, most),
        }
    }

    fn share(&self, value: f64) -> f64 {
        let (from, to) = self.ends();
        match self.scale {
            Scale::Evenly => {
                let index = self.values.partition_point(|other| *other < value);
                index as f64 / (self.values.len().max(2) - 1) as f64
            }
            Scale::FromZero => value / to,
            Scale::Logarithmic if to > from => (value.ln() - from) / (to - from),
            Scale::Logarithmic => 1.0,
        }
    }

    /// The value at a share of the axis.
    fn at(&self, share: f64) -> f64 {
        let (from, to) = self.ends();
        let value = from + (to - from) * share;
        match self.scale {
            Scale::Logarithmic => value.exp(),
            Scale::Evenly | Scale::FromZero => value,
        }
    }
}

/// The picture.
pub fn svg(charts: &[Chart], subtitle: &str) -> String {
    let height = TOP + HEIGHT * charts.len() as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    text(&mut out, 10.0, 22.0, "start", "#555555", subtitle);
    for (index, chart) in charts.iter().enumerate() {
        draw(&mut out, chart, TOP + HEIGHT * index as f64);
    }
    out.push_str("</svg>\n");
    out
}

fn draw(out: &mut String, chart: &Chart, top: f64) {
    let points = || chart.series.iter().flat_map(|line| line.points.iter());
    let x_axis = Axis::new(chart.x_scale, points().map(|(x, _)| *x));
    let y_axis = Axis::new(chart.y_scale, points().map(|(_, y)| *y));
    let bottom = top + HEIGHT - BOTTOM;
    let x_of = |x: f64| LEFT + x_axis.share(x) * (WIDTH - LEFT - RIGHT);
    let y_at = |share: f64| bottom - share * (HEIGHT - TOP - BOTTOM);
    text(out, 10.0, top + 20.0, "start", "#111111", &chart.title);
    for step in 0..=GRID {
        let share = f64::from(step) / f64::from(GRID);
        let (y, right) = (y_at(share), WIDTH - RIGHT);
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"#dddddd\"/>"
        );
        let label = format!("{:.3}", y_axis.at(share));
        text(out, LEFT - 6.0, y + 4.0, "end", "#555555", &label);
    }
    for x in &x_axis.values {
        let label = x.to_string();
        text(out, x_of(*x), bottom + 18.0, "middle", "#555555", &label);
    }
    for (index, line) in chart.series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let path: Vec<String> = line
            .points
            .iter()
            .map(|(x, y)| format!("{:.1},{:.1}", x_of(*x), y_at(y_axis.share(*y))))
            .collect();
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        let (x, y) = (WIDTH - RIGHT + 12.0, top + TOP + 18.0 * index as f64);
        text(out, x, y, "start", colour, &line.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picture_has_a_line_for_each_series_within_its_frame() {
        let chart = |y_scale| Chart {
            title: "t".into(),
            x_scale: Scale::Evenly,
            y_scale,
            series: vec![
                Series {
                    name: "a".into(),
                    points: vec![(1.0, 1.0), (10.0, 100.0)],
                },
                Series {
                    name: "b < c".into(),
                    points: vec![(10.0, 5.0)],
                },
            ],
        };
        let svg = svg(&[chart(Scale::FromZero), chart(Scale::Logarithmic)], "s");
        assert_eq!(svg.matches("<polyline").count(), 4);
        assert!(svg.contains("b &lt; c") && !svg.contains("NaN"));
        // The greatest value is at the top of the frame, the first x at the left.
        assert!(svg.contains(&format!("{LEFT:.1},")));
        assert!(svg.contains(&format!("{:.1},{:.1}", WIDTH - RIGHT, TOP + TOP)));
    }
}
