//! net_memif without a protocol: the two ends are processes of `urdma-perf-memif`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use urdma_harness::process::Process;

use super::Mode;
use crate::samples::{text, Sample};

/// Octets of Ethernet, IPv4 and UDP headers, which each frame of urdma has, too.
pub const HEADERS_OCTETS: usize = 14 + 20 + 8;
/// Start of the line with the result.
pub const RESULT: &str = "result";

const LIMIT: Duration = Duration::from_secs(30);

/// The pages of the packet buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// 4 KB.
    Plain,
    /// 2 MB, as for leased queues.
    Huge,
}

/// Measures frames that carry `payload_octets` each.
///
/// # Errors
/// An end did not start, or the link did not come up.
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
