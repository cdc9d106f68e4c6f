//! A picture of the medians: latencies and bandwidths as bars, ours beside limits and peers, as SVG.

use std::fmt::Write as _;

use crate::probes;
use crate::samples::{Probe, Samples};

const WIDTH: f64 = 860.0;
const LABEL_WIDTH: f64 = 300.0;
const VALUE_WIDTH: f64 = 110.0;
const BAR: f64 = 20.0;
const STEP: f64 = 28.0;
const TITLE: f64 = 40.0;
const OURS: &str = "#2563a8";
const OTHERS: &str = "#b6bcc6";

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

struct Panel {
    title: &'static str,
    bars: &'static [Bar],
}

const PANELS: &[Panel] = &[
    Panel {
        title: "64-octet messages, one host: latency one way (us, shorter is better)",
        bars: &[
            other(probes::RAW_RING),
            ours(probes::ARENA),
            other(probes::UCX_LATENCY),
            ours(probes::SEND_ONE_HOST),
            ours(probes::WRITE_LAT_ONE_HOST),
            other(probes::TCP_LATENCY),
            other(probes::RAW_WAKE_UPS),
            ours(probes::EVENTS_ONE_HOST),
        ],
    },
    Panel {
        title: "64-octet messages, two hosts over net_memif: latency one way (us)",
        bars: &[
            other(probes::MEMIF_LATENCY),
            ours(probes::SEND_LEASED),
            ours(probes::SEND_FORWARDED),
            ours(probes::EVENTS_FORWARDED),
        ],
    },
    Panel {
        title: "64-octet messages: millions a second, longer is better",
        bars: &[
            other(probes::RAW_RING_RATE),
            other(probes::UCX_RATE),
            ours(probes::SEND_RATE_ONE_HOST),
            ours(probes::WRITE_RATE_ONE_HOST),
            other(probes::MEMIF_RATE),
            ours(probes::SEND_RATE_LEASED),
            ours(probes::WRITE_RATE_LEASED),
        ],
    },
    Panel {
        title: "64-octet writes over several queue pairs, one host: millions a second",
        bars: &[
            ours(probes::QPS_1),
            ours(probes::QPS_10),
            ours(probes::QPS_100),
            ours(probes::QPS_1000),
            ours(probes::QPS_4000),
        ],
    },
    Panel {
        title: "64 KB and 1 MB, one host: bandwidth (GB/s)",
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
];

/// The picture.
pub fn svg(samples: &Samples, subtitle: &str) -> String {
    let height: f64 = TITLE
        + PANELS
            .iter()
            .map(|panel| TITLE + STEP * panel.bars.len() as f64)
            .sum::<f64>();
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    text(&mut out, 10.0, 22.0, "start", "#555555", subtitle);
    let mut y = TITLE;
    for panel in PANELS {
        text(&mut out, 10.0, y + 24.0, "start", "#111111", panel.title);
        y += TITLE;
        draw(&mut out, panel, samples, y);
        y += STEP * panel.bars.len() as f64;
    }
    out.push_str("</svg>\n");
    out
}

fn draw(out: &mut String, panel: &Panel, samples: &Samples, top: f64) {
    let medians: Vec<_> = panel
        .bars
        .iter()
        .map(|bar| samples.median(bar.probe))
        .collect();
    let longest = medians
        .iter()
        .flatten()
        .copied()
        .fold(f64::MIN_POSITIVE, f64::max);
    let room = WIDTH - LABEL_WIDTH - VALUE_WIDTH;
    for (index, (bar, median)) in panel.bars.iter().zip(&medians).enumerate() {
        let y = top + STEP * index as f64;
        text(
            out,
            LABEL_WIDTH - 8.0,
            y + 15.0,
            "end",
            "#111111",
            bar.probe.name,
        );
        let (length, label) = match median {
            Ok(value) => (
                room * value / longest,
                format!("{value:.2} {}", bar.probe.unit.sign()),
            ),
            Err(_) => (0.0, "not available".to_owned()),
        };
        let colour = if bar.is_ours { OURS } else { OTHERS };
        let _ = writeln!(
            out,
            "<rect x=\"{LABEL_WIDTH}\" y=\"{y:.1}\" width=\"{length:.1}\" height=\"{BAR}\" fill=\"{colour}\"/>"
        );
        text(
            out,
            LABEL_WIDTH + length + 6.0,
            y + 15.0,
            "start",
            "#333333",
            &label,
        );
    }
}

/// Adds a line of text.
pub(crate) fn text(out: &mut String, x: f64, y: f64, anchor: &str, colour: &str, text: &str) {
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{colour}\">{escaped}</text>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plot_has_a_bar_for_each_value_and_says_what_is_missing() {
        let mut samples = Samples::default();
        samples.add(probes::RAW_RING, Ok(0.2));
        samples.add(probes::SEND_ONE_HOST, Ok(0.4));
        let svg = svg(&samples, "a < b");
        assert!(svg.contains("0.40 us") && svg.contains("a &lt; b"));
        let bars: usize = PANELS.iter().map(|panel| panel.bars.len()).sum();
        assert_eq!(svg.matches("not available").count(), bars - 2);
        assert_eq!(svg.matches("<svg").count(), svg.matches("</svg>").count());
    }
}
