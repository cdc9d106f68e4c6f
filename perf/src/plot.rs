//! Pictures of the medians: bars of urdma next to limits and peers, as SVG.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use urdma_harness::Failure;

use crate::axis::{Axis, Scale};
use crate::picture::{
    failed, label_style, paint, pixels, text, width, Canvas, BLACK_TEXT, GREY_TEXT, GRID, HEAD,
    MARGIN,
};
use crate::probes;
use crate::samples::{Probe, Samples};
use crate::{connections, elastic, links, pool, shares, store_load};

/// Of the part of a picture between the names and the values of the bars.
const BARS_WIDTH: i32 = 400;
const BAR_STEP: i32 = 26;
/// The part of a step that the bar takes, in the middle.
const BAR: (f64, f64) = (0.12, 0.88);
const TITLE_HEIGHT: i32 = 34;
const X_LABELS_HEIGHT: i32 = 30;
const GAP: i32 = 8;
/// Squares of the legend.
const SAMPLE: i32 = 12;
const LEGEND: [Entry; 2] = [
    Entry {
        name: "urdma",
        is_ours: true,
    },
    Entry {
        name: "limit or peer",
        is_ours: false,
    },
];
const OURS: RGBColor = RGBColor(0x25, 0x63, 0xa8);
const OTHERS: RGBColor = RGBColor(0xb6, 0xbc, 0xc6);
const NOT_AVAILABLE: &str = "not available";

/// One colour of the legend.
struct Entry {
    name: &'static str,
    is_ours: bool,
}

impl Entry {
    fn width(&self) -> i32 {
        SAMPLE + GAP + width([self.name].into_iter()) + GAP
    }
}

const fn colour(is_ours: bool) -> RGBColor {
    if is_ours {
        OURS
    } else {
        OTHERS
    }
}

#[derive(Clone, Copy)]
struct Bar {
    probe: Probe,
    is_ours: bool,
}

const fn ours(probe: Probe) -> Bar {
    Bar {
        probe,
        is_ours: true,
    }
}

const fn other(probe: Probe) -> Bar {
    Bar {
        probe,
        is_ours: false,
    }
}

/// Bars with one axis.
struct Panel {
    title: &'static str,
    bars: &'static [Bar],
}

/// A file with panels below one another.
pub struct Picture {
    /// Its name, without the directory.
    pub file: &'static str,
    panels: &'static [Panel],
}

/// All pictures.
pub const PICTURES: &[Picture] = &[
    Picture {
        file: "latency.svg",
        panels: &[
            Panel {
                title: "64 octets, one host, both ends poll: latency one way (us, less is better)",
                bars: &[
                    other(probes::RAW_RING),
                    ours(probes::CHANNEL),
                    other(probes::UCX_LATENCY),
                    ours(probes::SEND_ONE_HOST),
                    ours(probes::WRITE_LAT_ONE_HOST),
                ],
            },
            Panel {
                title: "64 octets, two hosts, both ends poll: latency one way (us)",
                bars: &[
                    other(probes::MEMIF_LATENCY),
                    ours(probes::SEND_LEASED),
                    ours(probes::SEND_FORWARDED),
                ],
            },
            Panel {
                title: "64 octets, both ends sleep: latency one way; two wake-ups (us)",
                bars: &[
                    other(probes::TCP_LATENCY),
                    other(probes::RAW_WAKE_UPS),
                    ours(probes::EVENTS_ONE_HOST),
                    ours(probes::EVENTS_FORWARDED),
                ],
            },
        ],
    },
    Picture {
        file: "rate.svg",
        panels: &[
            Panel {
                title: "64 octets, one host: messages a second (millions, more is better)",
                bars: &[
                    other(probes::RAW_RING_RATE),
                    other(probes::UCX_RATE),
                    ours(probes::SEND_RATE_ONE_HOST),
                    ours(probes::WRITE_RATE_ONE_HOST),
                ],
            },
            Panel {
                title: "64 octets, two hosts, leased: messages a second (millions)",
                bars: &[
                    other(probes::MEMIF_RATE),
                    ours(probes::SEND_RATE_LEASED),
                    ours(probes::WRITE_RATE_LEASED),
                ],
            },
            Panel {
                title: "64 octets over several queue pairs, one host: writes a second (millions)",
                bars: &[
                    ours(probes::QPS_1),
                    ours(probes::QPS_10),
                    ours(probes::QPS_100),
                    ours(probes::QPS_1000),
                    ours(probes::QPS_4000),
                ],
            },
            Panel {
                title: "64 octets from threads of one process: writes a second (millions)",
                bars: &[
                    ours(probes::ONE_THREAD),
                    ours(probes::TWO_THREADS),
                    ours(probes::TWO_THREADS_SHARED),
                ],
            },
        ],
    },
    Picture {
        file: "bandwidth.svg",
        panels: &[
            Panel {
                title: "64 KB and 1 MB, one host: bandwidth (GB/s, more is better)",
                bars: &[
                    other(probes::RAW_STREAM),
                    other(probes::UCX_PUT),
                    other(probes::UCX_STREAM),
                    ours(probes::WRITE_ONE_HOST),
                    other(probes::UCX_STREAM_1M),
                    ours(probes::WRITE_1M_ONE_HOST),
                    other(probes::TCP_STREAM),
                ],
            },
            Panel {
                title: "64 KB and 1 MB, two hosts over net_memif, MTU 9000: bandwidth (GB/s)",
                bars: &[
                    other(probes::MEMIF_STREAM),
                    ours(probes::WRITE_LEASED),
                    ours(probes::WRITE_1M_LEASED),
                    ours(probes::READ_LEASED),
                    ours(probes::READ_1M_LEASED),
                    ours(probes::SEND_BW_LEASED),
                    ours(probes::SEND_BW_1M_LEASED),
                    ours(probes::WRITE_FORWARDED),
                ],
            },
            Panel {
                title: "64 KB and 1 MB, two hosts over net_memif, MTU 1500: bandwidth (GB/s)",
                bars: &[
                    other(probes::MEMIF_STREAM_1500),
                    ours(probes::WRITE_1500),
                    ours(probes::WRITE_1M_1500),
                    ours(probes::READ_1500),
                    ours(probes::SEND_BW_1500),
                ],
            },
        ],
    },
    Picture {
        file: "connection-steps.svg",
        panels: &[
            Panel {
                title: "Steps of a connection, one at a time, one host: time at the client (us)",
                bars: &[
                    ours(connections::STEP_TIMES[0]),
                    ours(connections::STEP_TIMES[1]),
                    ours(connections::STEP_TIMES[2]),
                    ours(connections::STEP_TIMES[3]),
                    ours(connections::STEP_TIMES[4]),
                    ours(connections::STEP_TIMES[5]),
                ],
            },
            Panel {
                title: "What tracing costs, one host: thousand connections a second",
                bars: &[
                    other(connections::TRACED[0].off),
                    ours(connections::TRACED[0].recorded),
                    ours(connections::TRACED[0].probed),
                    other(connections::TRACED[1].off),
                    ours(connections::TRACED[1].recorded),
                    ours(connections::TRACED[1].probed),
                ],
            },
        ],
    },
    Picture {
        file: "pool.svg",
        panels: &[
            Panel {
                title: "To reach a node: time (us). KRCORE: 7; verbs there: 22,000; LITE: 8,000",
                bars: &[
                    ours(pool::OPEN),
                    ours(pool::LEARN),
                    ours(pool::ASK),
                    other(pool::CONNECT),
                ],
            },
            Panel {
                title: "Nodes reached a second, one thread (millions). KRCORE, 20 threads: 2.3",
                bars: &[ours(pool::OPENED)],
            },
            Panel {
                title: "64 octets, one at a time (us). KRCORE: 20 to 27 % slower than an own QP",
                bars: &[
                    other(pool::READ_OWN),
                    ours(pool::READ_RC),
                    ours(pool::READ_DC),
                    ours(pool::SEND_RC),
                    ours(pool::SEND_DC),
                ],
            },
            Panel {
                title: "A process starts, reads 4 KB from three nodes and ends: median (us)",
                bars: &[
                    ours(elastic::MEDIANS[0]),
                    ours(elastic::MEDIANS[1]),
                    other(elastic::MEDIANS[2]),
                    other(elastic::MEDIANS[3]),
                    other(elastic::MEDIANS[4]),
                ],
            },
            Panel {
                title: "A new worker of a store starts: time until its full rate (us)",
                bars: &[
                    other(store_load::FULL_RATE[0]),
                    ours(store_load::FULL_RATE[1]),
                    ours(store_load::FULL_RATE[2]),
                ],
            },
        ],
    },
    Picture {
        file: "links.svg",
        panels: &[
            Panel {
                title: "One queue pair over a link made by the daemon: share of the link's rate",
                bars: &{
                    let mut bars = [ours(links::LINKS[0].probe); links::LINKS.len()];
                    let mut index = 0;
                    while index < bars.len() {
                        bars[index] = ours(links::LINKS[index].probe);
                        index += 1;
                    }
                    bars
                },
            },
            Panel {
                title: "Eight queue pairs over one link: share of the rate, and Jain's index",
                bars: &[
                    ours(shares::SHARED[0].line),
                    ours(shares::SHARED[0].fairness),
                    ours(shares::SHARED[1].line),
                    ours(shares::SHARED[1].fairness),
                    ours(shares::SHARED[2].line),
                    ours(shares::SHARED[2].fairness),
                ],
            },
        ],
    },
];

impl Picture {
    fn bars(&self) -> impl Iterator<Item = &'static Bar> {
        self.panels.iter().flat_map(|panel| panel.bars)
    }

    /// The number of rounds in which its values of urdma were measured: 0 if it has none.
    pub fn rounds(&self, samples: &Samples) -> usize {
        let ours = self.bars().filter(|bar| bar.is_ours);
        samples.rounds(ours.map(|bar| bar.probe))
    }

    /// The picture as SVG: `subtitle` and a legend, then the panels.
    ///
    /// # Errors
    /// plotters refuses an element.
    pub fn svg(&self, samples: &Samples, subtitle: &str) -> Result<String, Failure> {
        let values: Vec<String> = self.bars().map(|bar| value_label(bar, samples)).collect();
        let columns = Columns {
            names: width(self.bars().map(|bar| bar.probe.name)) + GAP,
            values: width(values.iter().map(String::as_str)) + GAP,
        };
        let is_used = |is_ours| self.bars().any(|bar| bar.is_ours == is_ours);
        let entries: Vec<Entry> = LEGEND
            .into_iter()
            .filter(|entry| is_used(entry.is_ours))
            .collect();
        let legend_width: i32 = entries.iter().map(Entry::width).sum();
        let title = width(self.panels.iter().map(|panel| panel.title));
        let full_width = (columns.names + BARS_WIDTH + columns.values)
            .max(title)
            .max(width([subtitle].into_iter()) + legend_width)
            + 2 * MARGIN;
        let high: i32 = self.panels.iter().map(height).sum();
        let size = (pixels(full_width), pixels(HEAD + high + MARGIN));
        paint(size, subtitle, |canvas| {
            legend(canvas, full_width - MARGIN - legend_width, &entries)?;
            let mut top = HEAD;
            for panel in self.panels {
                let part = canvas
                    .clone()
                    .shrink((0, top), (size.0, pixels(height(panel))));
                draw(&part, panel, samples, &columns)?;
                top += height(panel);
            }
            Ok(())
        })
    }
}

/// Widths of the columns beside the bars.
struct Columns {
    names: i32,
    values: i32,
}

fn height(panel: &Panel) -> i32 {
    let bars = i32::try_from(panel.bars.len()).unwrap_or(i32::MAX);
    TITLE_HEIGHT + BAR_STEP.saturating_mul(bars) + X_LABELS_HEIGHT
}

fn value_label(bar: &Bar, samples: &Samples) -> String {
    match samples.median(bar.probe) {
        Ok(value) => format!("{value:.2} {}", bar.probe.unit.sign()),
        Err(_) => NOT_AVAILABLE.to_owned(),
    }
}

/// The colours of these bars and what they mean, from `left` on.
fn legend(canvas: &Canvas<'_>, mut left: i32, entries: &[Entry]) -> Result<(), Failure> {
    let middle = HEAD / 2;
    for entry in entries {
        let corners = [
            (left, middle - SAMPLE / 2),
            (left + SAMPLE, middle + SAMPLE / 2),
        ];
        let square = Rectangle::new(corners, colour(entry.is_ours).filled());
        canvas.draw(&square).map_err(failed)?;
        text(
            canvas,
            entry.name,
            (left + SAMPLE + GAP, middle),
            HPos::Left,
            GREY_TEXT,
        )?;
        left += entry.width();
    }
    Ok(())
}

fn draw(
    part: &Canvas<'_>,
    panel: &Panel,
    samples: &Samples,
    columns: &Columns,
) -> Result<(), Failure> {
    let values = panel.bars.iter().flat_map(|bar| samples.median(bar.probe));
    let axis = Axis::new(Scale::FromZero, values);
    text(
        part,
        panel.title,
        (MARGIN, TITLE_HEIGHT / 2),
        HPos::Left,
        BLACK_TEXT,
    )?;
    let left = MARGIN + columns.names;
    let area = part.clone().shrink(
        (left, TITLE_HEIGHT),
        (pixels(BARS_WIDTH), pixels(height(panel) - TITLE_HEIGHT)),
    );
    let count = panel.bars.len() as f64;
    let mut plot = ChartBuilder::on(&area)
        .x_label_area_size(X_LABELS_HEIGHT)
        .build_cartesian_2d(axis, count..0.0)
        .map_err(failed)?;
    plot.configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .bold_line_style(GRID)
        .axis_style(GRID)
        .label_style(label_style(GREY_TEXT))
        .draw()
        .map_err(failed)?;
    for (index, bar) in panel.bars.iter().enumerate() {
        let (top, value) = (index as f64, samples.median(bar.probe).unwrap_or(0.0));
        let corners = [(0.0, top + BAR.0), (value, top + BAR.1)];
        plot.draw_series([Rectangle::new(corners, colour(bar.is_ours).filled())])
            .map_err(failed)?;
        let row = i32::try_from(index).unwrap_or(0);
        let y = TITLE_HEIGHT + BAR_STEP * row + BAR_STEP / 2;
        text(
            part,
            bar.probe.name,
            (left - GAP, y),
            HPos::Right,
            BLACK_TEXT,
        )?;
        let label = value_label(bar, samples);
        let x = left + plot.backend_coord(&(value, top)).0 - plot.backend_coord(&(0.0, top)).0;
        text(part, &label, (x + GAP, y), HPos::Left, GREY_TEXT)?;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::picture::read::{assert_texts_are_inside, texts};

    /// Samples with a value for each bar, all different.
    fn samples(values: &[f64]) -> Samples {
        let mut samples = Samples::default();
        let panels = PICTURES.iter().flat_map(|picture| picture.panels);
        for (bar, value) in panels
            .flat_map(|panel| panel.bars)
            .zip(values.iter().cycle())
        {
            samples.add(bar.probe, Ok(*value));
        }
        samples
    }

    #[test]
    fn pictures_have_a_bar_for_each_value_and_say_what_is_missing() {
        let mut samples = Samples::default();
        let picture = &PICTURES[0];
        // The ring is measured in every call.
        samples.add(probes::RAW_RING, Ok(0.2));
        assert_eq!(picture.rounds(&samples), 0);
        samples.add(probes::SEND_ONE_HOST, Ok(0.4));
        assert_eq!(
            (picture.rounds(&samples), PICTURES[1].rounds(&samples)),
            (1, 0)
        );
        let svg = picture.svg(&samples, "a < b").unwrap();
        assert!(svg.contains("0.40 us") && svg.contains("a &lt; b"), "{svg}");
        let bars: usize = picture.panels.iter().map(|panel| panel.bars.len()).sum();
        assert_eq!(svg.matches(NOT_AVAILABLE).count(), bars - 2);
        assert_texts_are_inside(&svg);
    }

    #[test]
    fn texts_and_legends_are_whole_whatever_the_values() {
        for values in [&[0.0001, 0.363][..], &[1.089, 125.0, 20_574.0]] {
            for picture in PICTURES {
                let svg = picture.svg(&samples(values), "AMD EPYC, 2 cores").unwrap();
                assert_texts_are_inside(&svg);
                let texts = texts(&svg);
                for entry in LEGEND {
                    let is_there = texts.iter().any(|text| text.text == entry.name);
                    let is_used = picture.bars().any(|bar| bar.is_ours == entry.is_ours);
                    assert_eq!(is_there, is_used, "{} in {}", entry.name, picture.file);
                }
            }
        }
    }

    #[test]
    fn files_have_names_of_their_own() {
        let mut files: Vec<&str> = PICTURES.iter().map(|picture| picture.file).collect();
        files.sort_unstable();
        files.dedup();
        assert_eq!(files.len(), PICTURES.len());
    }
}
