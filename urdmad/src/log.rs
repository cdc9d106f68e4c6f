//! urdmad's log: a file of limited size, with a rate limit for each call site.
//!
//! The file is in memory on most systems (`/run`), and clients cause log lines, so they must
//! control neither its size nor the work for it. A full file is copied to `urdmad.log.1` and
//! truncated in place, since standard error and DPDK append to it too.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::Metadata;
use tracing_subscriber::fmt::MakeWriter;

/// The file is truncated when it is longer.
const FILE_OCTETS_MAX: u64 = 1 << 20;
/// Burst of lines of one call site, and the silence after it.
const BURST_LINES: u32 = 20;
const BURST_INTERVAL: Duration = Duration::from_secs(5);

/// Lines that could not be written since the start.
static LINES_LOST: AtomicU64 = AtomicU64::new(0);

/// Lines that could not be written, because the disk is full for example.
pub(crate) fn lines_lost() -> u64 {
    LINES_LOST.load(Ordering::Relaxed)
}

/// The writer for tracing.
#[derive(Debug)]
pub(crate) struct Log {
    output: Mutex<Output>,
    limits: Mutex<HashMap<Identifier, Limit>>,
}

/// A destination, and how many lines it has not taken since the last one that it took.
#[derive(Debug)]
struct Output {
    sink: Sink,
    lost: u64,
}

/// The destination of lines.
#[derive(Debug)]
enum Sink {
    Stderr,
    File { file: File, path: PathBuf },
}

/// A line to write.
#[derive(Debug)]
pub(crate) struct Line<'a> {
    log: &'a Log,
    passes: Passes,
}

impl Log {
    /// To standard error.
    pub(crate) fn stderr() -> Self {
        Self::new(Sink::Stderr)
    }

    /// To a file, opened by [`open`].
    pub(crate) fn file(file: File, path: &Path) -> Self {
        let path = path.to_owned();
        Self::new(Sink::File { file, path })
    }

    fn new(sink: Sink) -> Self {
        Self {
            output: Mutex::new(Output { sink, lost: 0 }),
            limits: Mutex::default(),
        }
    }
}

/// Opens a log file for appending; members of the file's group may read it.
///
/// # Errors
/// It cannot be created.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(0o640).open(path)
}

/// The copy of a full log.
pub(crate) fn rotated(path: &Path) -> PathBuf {
    path.with_extension("log.1")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        let passes = Passes::Yes { left_out: 0 };
        Line { log: self, passes }
    }

    fn make_writer_for(&'a self, place: &Metadata<'_>) -> Line<'a> {
        let passes = lock(&self.limits)
            .entry(place.callsite())
            .or_insert_with(|| Limit::new(Instant::now()))
            .pass(Instant::now());
        Line { log: self, passes }
    }
}

impl Write for Line<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if let Passes::Yes { left_out } = self.passes {
            let mut output = lock(&self.log.output);
            if left_out > 0 {
                let left_out = format!("{left_out} lines like the next one were left out\n");
                output.append(left_out.as_bytes());
                self.passes = Passes::Yes { left_out: 0 };
            }
            output.append(line);
        }
        // The subscriber would report an error on standard error, and panic if that is full too.
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Output {
    /// Writes a line, or counts it.
    fn append(&mut self, line: &[u8]) {
        let mut octets = Vec::new();
        if self.lost > 0 {
            // The last one may have been written in part.
            octets = format!("\n{} lines could not be written\n", self.lost).into_bytes();
        }
        octets.extend(line);
        match self.sink.append(&octets) {
            Ok(()) => self.lost = 0,
            Err(_) => {
                self.lost += 1;
                LINES_LOST.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl Sink {
    fn append(&mut self, octets: &[u8]) -> io::Result<()> {
        match self {
            Self::Stderr => io::stderr().write_all(octets),
            Self::File { file, path } => {
                if file.metadata()?.len() > FILE_OCTETS_MAX {
                    // Without the copy only old lines are lost.
                    let _ = fs::copy(&*path, rotated(path));
                    file.set_len(0)?;
                }
                file.write_all(octets)
            }
        }
    }
}

/// The rate limit of a call site.
#[derive(Debug)]
struct Limit {
    since: Instant,
    lines: u32,
    left_out: u64,
}

/// Whether to write a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Passes {
    /// Write it after the number of suppressed lines.
    Yes {
        left_out: u64,
    },
    No,
}

impl Limit {
    fn new(now: Instant) -> Self {
        Self {
            since: now,
            lines: 0,
            left_out: 0,
        }
    }

    fn pass(&mut self, now: Instant) -> Passes {
        if now.duration_since(self.since) >= BURST_INTERVAL {
            let left_out = self.left_out;
            *self = Self::new(now);
            self.lines = 1;
            return Passes::Yes { left_out };
        }
        if self.lines == BURST_LINES {
            self.left_out += 1;
            return Passes::No;
        }
        self.lines += 1;
        Passes::Yes { left_out: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flood_of_a_place_passes_a_burst_and_is_counted() {
        let start = Instant::now();
        let mut limit = Limit::new(start);
        let passed = (0..1000)
            .filter(|_| limit.pass(start) == Passes::Yes { left_out: 0 })
            .count();
        assert_eq!(passed, 20);
        let later = start + BURST_INTERVAL;
        assert_eq!(limit.pass(later), Passes::Yes { left_out: 980 });
        assert_eq!(limit.pass(later), Passes::Yes { left_out: 0 });
    }

    #[test]
    fn full_file_is_kept_once_and_emptied_for_all_who_append() {
        let template = std::env::temp_dir().join("urdmad-log-XXXXXX");
        let dir = nix::unistd::mkdtemp(&template).unwrap();
        let path = dir.join("urdmad.log");
        let mut other = open(&path).unwrap();
        let log = Log::file(open(&path).unwrap(), &path);
        let half = vec![b'a'; usize::try_from(FILE_OCTETS_MAX / 2 + 1).unwrap()];
        for _ in 0..5 {
            log.make_writer().write_all(&half).unwrap();
        }
        other.write_all(b"end").unwrap();
        let length = |path: &Path| fs::metadata(path).unwrap().len();
        let half = half.len() as u64;
        assert_eq!(length(&path), half + 3);
        assert_eq!(length(&rotated(&path)), 2 * half);
        fs::remove_dir_all(dir).unwrap();
    }
}
