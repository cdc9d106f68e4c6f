//! What a user sees of a copy: a bar on a terminal, and a line for each file.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::octets::Sum;
use crate::pattern::hex;

const BAR: &str = "{msg} [{bar:30}] {percent:>3} %  {bytes} of {total_bytes}  \
                   {bytes_per_sec}  {eta} left";

/// The progress of one file.
#[derive(Debug)]
pub(super) struct Progress {
    bar: ProgressBar,
    name: String,
    kept: u64,
    since: Instant,
}

impl Progress {
    /// Of a file with this name and length, of which the receiver has `kept` octets.
    pub(super) fn begin(name: String, octets: u64, kept: u64) -> Self {
        let bar = if io::stderr().is_terminal() {
            let style =
                ProgressStyle::with_template(BAR).unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(octets)
                .with_style(style)
                .with_message(name.clone())
                .with_position(kept)
        } else {
            ProgressBar::hidden()
        };
        bar.reset_eta();
        Self {
            bar,
            name,
            kept,
            since: Instant::now(),
        }
    }

    /// So many octets have been transferred.
    pub(super) fn set(&self, octets: u64) {
        self.bar.set_position(octets);
    }

    /// The file is complete: prints its line.
    #[allow(clippy::cast_precision_loss)] // Figures for people.
    pub(super) fn finish(self, octets: u64, sum: &Sum) {
        self.bar.finish_and_clear();
        let seconds = self
            .since
            .elapsed()
            .max(Duration::from_micros(1))
            .as_secs_f64();
        let moved = octets.saturating_sub(self.kept);
        let resumed = match self.kept {
            0 => String::new(),
            kept => format!(", resumed at {kept}"),
        };
        println!(
            "{}: {octets} octets{resumed}, {:.3} s, {:.1} MB/s, sha256 {}",
            self.name,
            seconds,
            moved as f64 / seconds / 1e6,
            hex(sum)
        );
    }
}
