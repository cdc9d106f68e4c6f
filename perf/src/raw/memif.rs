//! net_memif with nothing above it: the two ends are processes of `urdma-perf-memif`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use urdma_harness::process::Process;

use crate::samples::Sample;

/// Octets of Ethernet, IPv4 and UDP headers, which every frame of ours has too.
pub const HEADERS_OCTETS: usize = 14 + 20 + 8;
/// The line that ends a run begins with this.
pub const RESULT: &str = "result";

const LIMIT: Duration = Duration::from_secs(30);

/// What is measured between the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Half the round trip, in microseconds.
    Latency,
    /// Octets of payload one way, GB/s.
    Stream,
}

impl Mode {
    /// As on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Stream => "stream",
        }
    }
}

/// In which pages the packet buffers lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// 4 KB.
    Plain,
    /// 2 MB, as those of leased queues.
    Huge,
}

/// Measures frames that carry `payload_octets` each.
///
/// # Errors
/// An end did not start, or they found no link.
pub fn measure(
    programs: &Path,
    socket: &Path,
    mode: Mode,
    payload_octets: usize,
    pages: Pages,
) -> Sample {
    let end = |role: &str| {
        let mut command = Command::new(programs.join("urdma-perf-memif"));
        command
            .arg(role)
            .arg(mode.name())
            .arg(socket)
            .arg(payload_octets.to_string())
            .arg(match pages {
                Pages::Plain => "plain",
                Pages::Huge => "huge",
            });
        command
    };
    let text = |failure: urdma_harness::Failure| failure.to_string();
    let server = Process::start(&mut end("server")).map_err(text)?;
    let client = Process::run(&mut end("client"), LIMIT).map_err(text)?;
    let server = server.wait(LIMIT).map_err(text)?;
    for ended in [&client, &server] {
        if !ended.succeeded() {
            return Err(format!("raw net_memif: {}", ended.describe()));
        }
    }
    read_result(&client.output).ok_or_else(|| "raw net_memif printed no result".to_owned())
}

fn read_result(output: &str) -> Option<f64> {
    output
        .lines()
        .find_map(|line| line.strip_prefix(RESULT))
        .and_then(|value| value.trim().parse().ok())
}
