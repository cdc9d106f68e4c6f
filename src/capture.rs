//! `urdma capture`: writes the frames that pass the daemon into a pcapng file.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::SignalFd;

use urdma_ipc::capture::{CaptureCounts, CaptureOptions};
use urdma_ipc::fault::parse_octets;

use crate::error::Error;
use crate::target::Target;

/// Options of `urdma capture`.
#[derive(Debug, Args)]
pub(crate) struct CaptureArgs {
    #[command(flatten)]
    target: Target,
    /// Duration in seconds; Ctrl-C ends the capture earlier
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=2_000_000))]
    seconds: u32,
    /// Only these frames; cm is connection management
    #[arg(long, value_enum)]
    only: Option<Only>,
    /// Only packets from or to this address
    #[arg(long)]
    host: Option<IpAddr>,
    /// Only packets from or to this slot, of either host
    #[arg(long)]
    slot: Option<u8>,
    /// Begin another file (FILE.1, FILE.2, ...) when one has this many octets, such as 100MB
    #[arg(long, value_parser = parse_octets)]
    file_size: Option<u64>,
    /// Keep this number of files, the last ones
    #[arg(long, requires = "file_size", value_parser = clap::value_parser!(u32).range(1..))]
    files: Option<u32>,
    /// The file to write; it must not exist
    file: PathBuf,
}

/// Kinds of frames.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Only {
    Cm,
}

/// Captures for the given time.
pub(crate) fn capture(args: &CaptureArgs) -> Result<(), Error> {
    let file = std::path::absolute(&args.file)
        .map_err(|error| Error::sentence(format!("{}: {error}", args.file.display())))?;
    let signals = end_signals().map_err(|error| Error::sentence(error.desc()))?;
    let client = args.target.connect()?;
    let options = CaptureOptions {
        only_cm: matches!(args.only, Some(Only::Cm)),
        host: args.host,
        slot: args.slot,
        file_octets: args.file_size,
        files: args.files,
    };
    client.capture_start(file.clone(), options)?;
    eprintln!("capturing for {} s into {}", args.seconds, file.display());
    wait(&signals, Duration::from_secs(args.seconds.into()));
    let counts = client.capture_stop()?;
    println!("{}", summary(&counts, &file));
    Ok(())
}

/// What became of the frames.
fn summary(counts: &CaptureCounts, file: &Path) -> String {
    let mut text = format!("{} frames in {}", counts.frames, file.display());
    if counts.files > 1 {
        text.push_str(&format!(
            " and those after it, {} files in all",
            counts.files
        ));
    }
    if counts.filtered > 0 {
        text.push_str(&format!(", {} left out by the filter", counts.filtered));
    }
    if counts.dropped > 0 {
        text.push_str(&format!(
            ", {} missing because the disk is too slow: use a filter or a faster disk",
            counts.dropped
        ));
    }
    text
}

/// Blocks SIGINT and SIGTERM and makes them readable.
fn end_signals() -> nix::Result<SignalFd> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    signals.thread_block()?;
    SignalFd::new(&signals)
}

/// Waits until the time is over or one of the signals arrives.
fn wait(signals: &SignalFd, limit: Duration) {
    let end = Instant::now() + limit;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let mut readable = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        if poll(&mut readable, timeout) != Err(Errno::EINTR) {
            return;
        }
    }
}
