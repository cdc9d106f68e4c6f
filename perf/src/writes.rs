//! RDMA Writes with Immediate of one length between two processes, out of some messages in turn and
//! into others in turn: the memory of a byte stream, without its protocol.

use std::path::Path;
use std::time::Duration;

use urdma_harness::instance::{Instance, LeasePolicy};
use urdma_harness::process::Process;
use urdma_harness::Failure;

/// Start of the line of `urdma-perf-writes` with its rate, in 10^9 octets a second.
pub const RATE: &str = "rate ";
/// Octets of a message.
pub const OCTETS: usize = 1 << 20;
const PROGRAM: &str = "urdma-perf-writes";
const LIMIT: Duration = Duration::from_secs(60);

/// The rate of Writes out of as many messages in turn, all of which are in progress, into as many
/// others in 10^9 octets a second.
///
/// # Errors
/// The program failed, hung, or printed no figure.
pub fn rate(host: &Instance, programs: &Path, [sources, sinks]: [u32; 2]) -> Result<f64, Failure> {
    let program = programs.join(PROGRAM).display().to_string();
    let argv = [program, sources.to_string(), sinks.to_string()];
    let ended = Process::run(&mut host.run(LeasePolicy::Never, &argv)?, LIMIT)?;
    let mut lines = ended.output.lines();
    let rate = lines.find_map(|line| line.strip_prefix(RATE)?.parse().ok());
    rate.ok_or_else(|| Failure::new(ended.describe()))
}
