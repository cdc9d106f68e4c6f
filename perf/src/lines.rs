//! Line charts below one another, as SVG.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use serde::Serialize;
use urdma_harness::Failure;

use crate::axis::Axis;
pub use crate::axis::Scale;
use crate::picture::{
    failed, label_style, paint, pixels, text, width, Canvas, BLACK_TEXT, GREY_TEXT, GRID, HEAD,
    MARGIN,
};

/// Of the part of a picture between its margin and the legend.
const CHART_WIDTH: i32 = 580;
const CHART_HEIGHT: i32 = 300;
const TITLE_HEIGHT: i32 = 32;
const X_LABELS_HEIGHT: i32 = 32;
const Y_LABELS_WIDTH: i32 = 56;
/// Between the ends of lines and the legend, where half of the last label lies.
const GAP: i32 = 28;
/// Of the piece of line before each text of the legend.
const SAMPLE_WIDTH: i32 = 26;
const SAMPLE_GAP: i32 = 8;
const LEGEND_LINE: i32 = 20;
const STROKE: u32 = 2;
const DOT: i32 = 3;
/// Length of the dashes and of the gaps between them.
const DASHES: (i32, i32) = (6, 4);
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x25, 0x63, 0xa8),
    RGBColor(0xc2, 0x41, 0x0c),
    RGBColor(0x15, 0x80, 0x3d),
    RGBColor(0x7e, 0x22, 0xce),
    RGBColor(0x64, 0x74, 0x8b),
    RGBColor(0xb4, 0x53, 0x09),
];

/// How a line is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Stroke {
    /// Measured values: a line with a dot at each value.
    Measured,
    /// Computed values: a dashed line.
    Computed,
}

/// One line of a chart.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// How it is drawn.
    pub stroke: Stroke,
    /// Its points, by x.
    pub points: Vec<(f64, f64)>,
}

/// One chart.
#[derive(Clone, Debug, Serialize)]
pub struct Chart {
    /// Its heading, with units.
    pub title: String,
    /// Scale of the horizontal axis.
    pub x_scale: Scale,
    /// Scale of the vertical axis.
    pub y_scale: Scale,
    /// Its lines.
    pub series: Vec<Series>,
}

/// The picture: `subtitle`, then the charts below one another.
///
/// # Errors
/// plotters refuses an element.
pub fn svg(charts: &[Chart], subtitle: &str) -> Result<String, Failure> {
    let names = charts.iter().flat_map(|chart| &chart.series);
    let names = width(names.map(|line| line.name.as_str()));
    let legend_left = MARGIN + CHART_WIDTH;
    let full_width = legend_left + SAMPLE_WIDTH + SAMPLE_GAP + names + MARGIN;
    let heights: Vec<i32> = charts.iter().map(height).collect();
    let size = (
        pixels(full_width),
        pixels(HEAD + heights.iter().sum::<i32>()),
    );
    paint(size, subtitle, |canvas| {
        let mut top = HEAD;
        for (chart, high) in charts.iter().zip(heights) {
            let part = canvas.clone().shrink((0, top), (size.0, pixels(high)));
            draw(&part, chart)?;
            legend(&part, chart, legend_left)?;
            top += high;
        }
        Ok(())
    })
}

/// The height of a chart, whose legend fits beside it.
fn height(chart: &Chart) -> i32 {
    let lines = i32::try_from(chart.series.len()).unwrap_or(i32::MAX);
    CHART_HEIGHT.max(TITLE_HEIGHT + LEGEND_LINE.saturating_mul(lines))
}

fn draw(part: &Canvas<'_>, chart: &Chart) -> Result<(), Failure> {
    let points = || chart.series.iter().flat_map(|line| line.points.iter());
    let x = Axis::new(chart.x_scale, points().map(|(x, _)| *x));
    let y = Axis::new(chart.y_scale, points().map(|(_, y)| *y));
    text(
        part,
        &chart.title,
        (MARGIN, TITLE_HEIGHT / 2),
        HPos::Left,
        BLACK_TEXT,
    )?;
    let area = part.clone().shrink(
        (MARGIN, TITLE_HEIGHT),
        (
            pixels(CHART_WIDTH - GAP),
            pixels(CHART_HEIGHT - TITLE_HEIGHT),
        ),
    );
    let mut plot = ChartBuilder::on(&area)
        .x_label_area_size(X_LABELS_HEIGHT)
        .y_label_area_size(Y_LABELS_WIDTH)
        .build_cartesian_2d(x, y)
        .map_err(failed)?;
    plot.configure_mesh()
        .disable_x_mesh()
        .bold_line_style(GRID)
        .axis_style(GRID)
        .label_style(label_style(GREY_TEXT))
        .draw()
        .map_err(failed)?;
    for (line, colour) in chart.series.iter().zip(COLOURS.iter().cycle()) {
        let points = line.points.iter().copied();
        let style = colour.stroke_width(STROKE);
        match line.stroke {
            Stroke::Measured => {
                plot.draw_series(LineSeries::new(points.clone(), style))
                    .map_err(failed)?;
                let dots = points.map(|at| Circle::new(at, DOT, colour.filled()));
                plot.draw_series(dots).map_err(failed)?;
            }
            Stroke::Computed => {
                let dashes = DashedLineSeries::new(points, DASHES.0, DASHES.1, style);
                plot.draw_series(dashes).map_err(failed)?;
            }
        }
    }
    Ok(())
}

/// A piece of each line with its name, from `left` on.
fn legend(part: &Canvas<'_>, chart: &Chart, left: i32) -> Result<(), Failure> {
    let mut y = TITLE_HEIGHT + LEGEND_LINE / 2;
    for (line, colour) in chart.series.iter().zip(COLOURS.iter().cycle()) {
        let style = colour.stroke_width(STROKE);
        let piece = |from: i32, to: i32| {
            let path = PathElement::new([(left + from, y), (left + to, y)], style);
            part.draw(&path).map_err(failed)
        };
        match line.stroke {
            Stroke::Measured => {
                piece(0, SAMPLE_WIDTH)?;
                let dot = Circle::new((left + SAMPLE_WIDTH / 2, y), DOT, colour.filled());
                part.draw(&dot).map_err(failed)?;
            }
            Stroke::Computed => {
                let mut from = 0;
                while from < SAMPLE_WIDTH {
                    piece(from, SAMPLE_WIDTH.min(from + DASHES.0))?;
                    from += DASHES.0 + DASHES.1;
                }
            }
        }
        let at = (left + SAMPLE_WIDTH + SAMPLE_GAP, y);
        text(part, &line.name, at, HPos::Left, *colour)?;
        y += LEGEND_LINE;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::axis::round_up;
    use crate::picture::read::{assert_texts_are_inside, texts};

    fn line(name: &str, stroke: Stroke, points: &[(f64, f64)]) -> Series {
        Series {
            name: name.to_owned(),
            stroke,
            points: points.to_vec(),
        }
    }

    fn chart(y_scale: Scale, series: Vec<Series>) -> Chart {
        Chart {
            title: "t".into(),
            x_scale: Scale::Evenly,
            y_scale,
            series,
        }
    }

    #[test]
    fn picture_has_a_line_for_each_series() {
        let series = vec![
            line("a", Stroke::Measured, &[(1.0, 1.0), (10.0, 100.0)]),
            line("b < c", Stroke::Measured, &[(10.0, 5.0)]),
            line("d", Stroke::Computed, &[(1.0, 2.0), (10.0, 3.0)]),
        ];
        let both = [Scale::FromZero, Scale::Logarithmic].map(|scale| chart(scale, series.clone()));
        let svg = svg(&both, "s").unwrap();
        assert!(
            svg.starts_with("<svg") && svg.ends_with("</svg>\n"),
            "{svg}"
        );
        assert!(svg.contains("b &lt; c") && !svg.contains("NaN"), "{svg}");
        // A dot at each measured point of both charts, and one for each in the legends.
        assert_eq!(svg.matches("<circle").count(), 2 * (3 + 2));
        for colour in &COLOURS[..3] {
            let RGBColor(red, green, blue) = colour;
            let stroke = format!("stroke=\"#{red:02X}{green:02X}{blue:02X}\"");
            assert!(svg.contains(&stroke), "{stroke}");
        }
    }

    #[test]
    fn legend_is_whole_and_beside_the_charts_whatever_its_names() {
        let names = [
            "TRP",
            "go-back-N, simulated, reordered",
            "a name that is a good deal longer than any name that occurs in a real chart",
        ];
        let points = [(0.01, 0.363), (0.1, 1.089), (1_048_576.0, 0.726)];
        let lines = |count: usize| {
            let names = names.iter().cycle().take(count);
            names
                .map(|name| line(name, Stroke::Computed, &points))
                .collect()
        };
        let svg = svg(
            &[
                chart(Scale::FromZero, lines(3)),
                chart(Scale::Logarithmic, lines(20)),
            ],
            "AMD EPYC, 2 cores; medians of 5 rounds",
        )
        .unwrap();
        assert_texts_are_inside(&svg);
        let texts = texts(&svg);
        for name in names {
            let mut found = texts.iter().filter(|text| text.text == name).peekable();
            assert!(found.peek().is_some(), "{name}");
            assert!(
                found.all(|text| text.ends.0 > f64::from(CHART_WIDTH)),
                "{name}"
            );
        }
    }

    #[test]
    fn ticks_of_a_picture_are_round() {
        let points = [(0.01, 0.363), (5.0, 1.089)];
        let series = vec![line("a", Stroke::Measured, &points)];
        let svg = svg(&[chart(Scale::FromZero, series)], "s").unwrap();
        let numbers: Vec<f64> = texts(&svg)
            .iter()
            .filter(|text| text.ends.1 <= f64::from(MARGIN + Y_LABELS_WIDTH))
            .filter_map(|text| text.text.parse().ok())
            .collect();
        let greatest = numbers.iter().copied().fold(0.0, f64::max);
        assert!((greatest - 1.2).abs() < 1e-9, "{numbers:?}");
        let step = greatest / (numbers.len() - 1) as f64;
        assert!((round_up(step) - step).abs() < 1e-9, "{numbers:?}");
    }
}
