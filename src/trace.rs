//! `urdma trace`: the last events of connections, of processes that run and of some that have
//! ended (doc/tracing.md).

mod line;
mod read;
mod select;
mod words;

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::time::Duration;

use clap::Args;
use urdma_ipc::{ControlClient, ControlError, RecordingInfo};
use urdma_trace::Event;

use self::line::Clocks;
use self::select::Selection;
use crate::error::Error;
use crate::target::Target;

/// Options of `urdma trace`.
#[derive(Debug, Args)]
pub(crate) struct TraceArgs {
    #[command(flatten)]
    target: Target,
    /// Show events as they occur, until Ctrl-C; those of the last minutes first
    #[arg(long)]
    follow: bool,
    /// Only connections with this queue pair number or connection id (hexadecimal with 0x), or with
    /// this address of the peer
    #[arg(long, value_name = "CONNECTION")]
    conn: Option<Selection>,
    /// Only this process
    #[arg(long)]
    pid: Option<i32>,
    /// Only connections that failed
    #[arg(long)]
    failed: bool,
}

/// How often `--follow` looks for new events.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(200);
/// `--follow` shows an event when it is so old, so that those of all threads come in order.
const SETTLE_NS: u64 = 5_000_000;

/// Shows the recordings.
pub(crate) fn trace(args: &TraceArgs) -> Result<(), Error> {
    let client = args.target.connect()?;
    let shown = if args.follow {
        follow(&client, args)
    } else {
        show(&client, args)
    };
    match shown {
        // `urdma trace | head`.
        Err(Failure::Output(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(Failure::Output(error)) => Err(Error::sentence(error.to_string())),
        Err(Failure::Control(error)) => Err(error.into()),
        Ok(()) => Ok(()),
    }
}

enum Failure {
    Control(ControlError),
    Output(io::Error),
}

impl From<ControlError> for Failure {
    fn from(error: ControlError) -> Self {
        Self::Control(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// The processes that are asked for, with their events in order of time.
fn recordings(
    client: &ControlClient,
    args: &TraceArgs,
) -> Result<Vec<(RecordingInfo, Vec<Event>)>, ControlError> {
    let mut found = Vec::new();
    for info in client.recordings()? {
        if args.pid.is_some_and(|pid| pid != info.pid) {
            continue;
        }
        let memory = match client.recording(info.number) {
            Ok(memory) => memory,
            // It was given up meanwhile.
            Err(ControlError::Refused(_)) => continue,
            Err(error) => return Err(error),
        };
        match read::read(&File::from(memory)) {
            Ok(events) => found.push((info, events)),
            Err(error) => eprintln!("urdma: process {} is left out: {error}", info.pid),
        }
    }
    Ok(found)
}

fn show(client: &ControlClient, args: &TraceArgs) -> Result<(), Failure> {
    let recordings = recordings(client, args)?;
    let clocks = Clocks::now();
    let mut out = io::stdout().lock();
    for (info, events) in recordings {
        let mut shown = select::shown(&events, args.failed, args.conn).peekable();
        if shown.peek().is_some() {
            out.write_all(line::process(&info).as_bytes())?;
        }
        for connection in shown {
            out.write_all(line::connection(&connection, &clocks).as_bytes())?;
        }
    }
    Ok(())
}

fn follow(client: &ControlClient, args: &TraceArgs) -> Result<(), Failure> {
    let mut until_ns = 0;
    loop {
        let recordings = recordings(client, args)?;
        let clocks = Clocks::now();
        let from_ns = until_ns;
        until_ns = clocks.monotonic_ns.saturating_sub(SETTLE_NS);
        let mut lines = Vec::new();
        for (info, events) in recordings {
            for connection in select::shown(&events, args.failed, args.conn) {
                let is_new = |event: &&Event| (from_ns..until_ns).contains(&event.time_ns);
                let new = connection.events.iter().filter(is_new);
                let line = |event| line::event(&info, &connection, event, &clocks);
                lines.extend(new.map(|event| (event.time_ns, line(event))));
            }
        }
        lines.sort_by_key(|(time_ns, _)| *time_ns);
        let mut out = io::stdout().lock();
        for (_, line) in lines {
            out.write_all(line.as_bytes())?;
        }
        out.flush()?;
        drop(out);
        std::thread::sleep(FOLLOW_INTERVAL);
    }
}
