//! `urdma capture`: writes the frames that pass the daemon into a pcapng file.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::SignalFd;

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
    /// The file to write; it must not exist
    file: PathBuf,
}

/// Captures for the given time.
pub(crate) fn capture(args: &CaptureArgs) -> Result<(), Error> {
    let file = std::path::absolute(&args.file)
        .map_err(|error| Error::sentence(format!("{}: {error}", args.file.display())))?;
    let signals = end_signals().map_err(|error| Error::sentence(error.desc()))?;
    let client = args.target.connect()?;
    client.capture_start(file.clone())?;
    eprintln!("capturing for {} s into {}", args.seconds, file.display());
    wait(&signals, Duration::from_secs(args.seconds.into()));
    let frames = client.capture_stop()?;
    println!("{frames} frames in {}", file.display());
    Ok(())
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
