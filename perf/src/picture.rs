//! What all pictures share: the canvas, which becomes SVG text, texts on it, and colours.

use std::fmt::Display;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use urdma_harness::Failure;

/// A drawing area of a picture.
pub(crate) type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Height of letters in pixels.
const LETTERS: f64 = 12.0;
/// plotters writes a font of this size into the file as one of `LETTERS` pixels.
const FONT: (&str, f64) = ("sans-serif", LETTERS * 1.24);
/// Width of a letter in heights, on average and rather too much: how wide a text becomes is
/// decided by the viewer's font.
const LETTER_WIDTH: f64 = 0.62;
/// Room for the line above the charts.
pub(crate) const HEAD: i32 = 36;
/// Margin at the sides.
pub(crate) const MARGIN: i32 = 10;

/// Texts that matter most.
pub(crate) const BLACK_TEXT: RGBColor = RGBColor(0x11, 0x11, 0x11);
/// All other texts.
pub(crate) const GREY_TEXT: RGBColor = RGBColor(0x55, 0x55, 0x55);
/// Lines of ticks.
pub(crate) const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);

/// Anything that plotters reports, as a failure.
pub(crate) fn failed(error: impl Display) -> Failure {
    Failure::new(format!("cannot draw the plot: {error}"))
}

/// Paints a picture of this size with `subtitle` in its first line.
///
/// # Errors
/// plotters refuses an element.
pub(crate) fn paint(
    size: (u32, u32),
    subtitle: &str,
    charts: impl FnOnce(&Canvas<'_>) -> Result<(), Failure>,
) -> Result<String, Failure> {
    let mut svg = String::new();
    {
        let canvas = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        canvas.fill(&WHITE).map_err(failed)?;
        text(&canvas, subtitle, (MARGIN, HEAD / 2), HPos::Left, GREY_TEXT)?;
        charts(&canvas)?;
        canvas.present().map_err(failed)?;
    }
    Ok(svg)
}

/// The style of labels.
pub(crate) fn label_style(colour: RGBColor) -> TextStyle<'static> {
    FONT.into_font().color(&colour)
}

/// Writes a text whose left end, middle or right end is at `at`, vertically centred.
///
/// # Errors
/// plotters refuses it.
pub(crate) fn text(
    area: &Canvas<'_>,
    text: &str,
    at: (i32, i32),
    anchor: HPos,
    colour: RGBColor,
) -> Result<(), Failure> {
    let style = label_style(colour).pos(Pos::new(anchor, VPos::Center));
    let text = Text::new(text.to_owned(), at, style);
    area.draw(&text).map_err(failed)
}

/// Pixels that the widest of these texts takes at most.
#[allow(
    clippy::cast_possible_truncation,
    reason = "texts are a few dozen letters long"
)]
pub(crate) fn width<'a>(texts: impl Iterator<Item = &'a str>) -> i32 {
    let letters = texts.map(|text| text.chars().count()).max().unwrap_or(0);
    (letters as f64 * LETTERS * LETTER_WIDTH).ceil() as i32
}

/// Pixels as plotters wants them for sizes.
pub(crate) fn pixels(length: i32) -> u32 {
    u32::try_from(length).unwrap_or(0)
}

/// Reads pictures back, for tests.
#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod read {
    use super::width;

    /// A text of a picture and where it is.
    #[derive(Debug)]
    pub(crate) struct Placed {
        pub(crate) text: String,
        /// Left and right end at most, in pixels.
        pub(crate) ends: (f64, f64),
        pub(crate) y: f64,
    }

    fn attribute(tag: &str, name: &str) -> Option<String> {
        let value = tag.split_once(&format!(" {name}=\""))?.1;
        Some(value.split_once('"')?.0.to_owned())
    }

    /// Width and height of a picture.
    pub(crate) fn size(svg: &str) -> (f64, f64) {
        let number = |name| attribute(svg, name).unwrap().parse().unwrap();
        (number("width"), number("height"))
    }

    /// All texts of a picture.
    pub(crate) fn texts(svg: &str) -> Vec<Placed> {
        let mut placed = Vec::new();
        for element in svg.split("<text").skip(1) {
            let (tag, rest) = element.split_once('>').unwrap();
            let escaped = rest.split_once("</text>").unwrap().0.trim();
            let text = [
                ("&lt;", "<"),
                ("&gt;", ">"),
                ("&apos;", "'"),
                ("&amp;", "&"),
            ]
            .iter()
            .fold(escaped.to_owned(), |text, (from, to)| {
                text.replace(from, to)
            });
            let number = |name| -> f64 { attribute(tag, name).unwrap().parse().unwrap() };
            let (x, wide) = (number("x"), f64::from(width([text.as_str()].into_iter())));
            let left = match attribute(tag, "text-anchor").as_deref() {
                Some("end") => x - wide,
                Some("middle") => x - wide / 2.0,
                _ => x,
            };
            placed.push(Placed {
                text,
                ends: (left, left + wide),
                y: number("y"),
            });
        }
        placed
    }

    /// Asserts that all texts are whole within the picture.
    pub(crate) fn assert_texts_are_inside(svg: &str) {
        let (wide, high) = size(svg);
        for text in texts(svg) {
            let (left, right) = text.ends;
            assert!(left >= 0.0 && right <= wide, "{text:?} of {wide} pixels");
            assert!(
                text.y >= 6.0 && text.y <= high - 6.0,
                "{text:?} of {high} pixels"
            );
        }
    }
}
