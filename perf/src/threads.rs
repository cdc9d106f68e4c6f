//! Threads of one process with a queue pair and a completion queue each: the rate with and without
//! shared locks.

use std::path::Path;
use std::time::Duration;

use urdma_harness::instance::{Instance, LeasePolicy};
use urdma_harness::process::Process;

use crate::samples::{text, Sample};

/// Start of the line of `urdma-perf-threads` with the slots of its queue pairs.
pub const SLOTS: &str = "slots ";
/// Start of the line with its rate, in millions a second.
pub const RATE: &str = "rate ";
const LIMIT: Duration = Duration::from_secs(60);

/// What the threads share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Each thread has a thread domain.
    Domains,
    /// The threads share everything but queue pair and completion queue.
    Shared,
}

impl Sharing {
    /// The value with this name on the command line.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Domains, Self::Shared]
            .into_iter()
            .find(|sharing| sharing.name() == name)
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Domains => "domains",
            Self::Shared => "shared",
        }
    }
}

/// The result of a run.
#[derive(Debug)]
pub struct Run {
    /// The slot of each thread's queue pair.
    pub slots: Vec<u32>,
    /// Rate of all threads, in millions of messages a second.
    pub rate: f64,
}

/// Runs `threads` threads of one process on `host`, whose queue pairs are connected to themselves.
///
/// # Errors
/// The program failed; the text has its output.
pub fn run(
    host: &Instance,
    programs: &Path,
    threads: u32,
    sharing: Sharing,
) -> Result<Run, String> {
    let program = programs.join("urdma-perf-threads").display().to_string();
    let arguments = [program, threads.to_string(), sharing.name().to_owned()];
    let mut command = host.run(LeasePolicy::Never, &arguments).map_err(text)?;
    let ended = Process::run(&mut command, LIMIT).map_err(text)?;
    let line = |prefix: &str| {
        ended
            .output
            .lines()
            .find_map(|line| line.strip_prefix(prefix))
    };
    match (ended.succeeded(), line(SLOTS), line(RATE)) {
        (true, Some(slots), Some(rate)) => Ok(Run {
            slots: slots.split(' ').flat_map(str::parse).collect(),
            rate: rate.parse().map_err(|_| ended.describe())?,
        }),
        _ => Err(ended.describe()),
    }
}

/// Rate of the threads, in millions of messages a second.
///
/// # Errors
/// As [`run`].
pub fn rate(host: &Instance, programs: &Path, threads: u32, sharing: Sharing) -> Sample {
    run(host, programs, threads, sharing).map(|run| run.rate)
}
