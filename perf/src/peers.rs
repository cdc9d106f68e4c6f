//! Other transports on the same machine: TCP over loopback through qperf, UCX over shared memory.

use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use urdma_harness::process::Process;
use urdma_harness::Failure;

use crate::samples::{text, Sample};
use crate::workloads::{STREAM_MESSAGES, STREAM_OCTETS};

const QPERF_PORT: u16 = 18_901;
const UCX_PORT: u16 = 18_902;
const LIMIT: Duration = Duration::from_secs(30);
/// Limit until a UCX server listens.
const UCX_START_LIMIT: Duration = Duration::from_secs(5);
/// Shared memory and the kernel's copies between processes, no network.
const UCX_TRANSPORTS: &str = "posix,sysv,cma,self";

/// The value that qperf prints as `name = value unit`, over loopback.
fn qperf(test: &str, octets: usize, name: &str) -> Sample {
    qperf_between(&[vec![], vec![]], "127.0.0.1", test, octets, name)
}

/// The same between a server at `address` and a client, which are started with these words in front
/// of them.
fn qperf_between(
    [server, client]: &[Vec<String>; 2],
    address: &str,
    test: &str,
    octets: usize,
    name: &str,
) -> Sample {
    let port = QPERF_PORT.to_string();
    let command = |words: &[String]| {
        let program = ["qperf", "-lp", &port].map(str::to_owned);
        let mut words = words.iter().cloned().chain(program);
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words);
        command
    };
    let _server = Process::start(&mut command(server)).map_err(text)?;
    let message = octets.to_string();
    let options = ["-t", "1", "-uu", "-m", &message, address, test];
    let client = Process::run(command(client).args(options), LIMIT).map_err(text)?;
    if !client.succeeded() {
        return Err(format!("qperf: {}", client.describe()));
    }
    qperf_value(&client.output, name).ok_or_else(|| format!("qperf printed no {name}"))
}

/// The value in nanoseconds or octets a second, whatever prefix qperf prints.
fn qperf_value(output: &str, name: &str) -> Option<f64> {
    let line = output
        .lines()
        .map(str::trim)
        .find(|line| line.starts_with(name))?;
    let (_, value) = line.split_once('=')?;
    let mut fields = value.split_whitespace();
    let number: f64 = fields.next()?.replace(',', "").parse().ok()?;
    let scale = match fields.next()? {
        "ns" | "bytes/sec" => 1.0,
        "us" | "KB/sec" => 1e3,
        "ms" | "MB/sec" => 1e6,
        "sec" | "GB/sec" => 1e9,
        _ => return None,
    };
    Some(number * scale)
}

/// TCP latency one way, in microseconds.
///
/// # Errors
/// qperf is not installed or failed.
pub fn tcp_latency(octets: usize) -> Sample {
    qperf("tcp_lat", octets, "latency").map(|ns| ns / 1e3)
}

/// TCP bandwidth, GB/s.
///
/// # Errors
/// qperf is not installed or failed.
pub fn tcp_stream(octets: usize) -> Sample {
    qperf("tcp_bw", octets, "bw").map(|octets| octets / 1e9)
}

/// TCP bandwidth between a server at `address` and a client, GB/s. Both are started with the words
/// in front of them.
///
/// # Errors
/// qperf is not installed or failed.
pub fn tcp_stream_between(ends: [Vec<String>; 2], address: &str, octets: usize) -> Sample {
    qperf_between(&ends, address, "tcp_bw", octets, "bw").map(|octets| octets / 1e9)
}

/// A column of the last line that `ucx_perftest -f -v` prints, which is comma-separated.
fn ucx(test: &str, octets: usize, iterations: usize, column: usize) -> Sample {
    let command = |arguments: &[&str]| {
        let mut command = Command::new("ucx_perftest");
        command
            .env("UCX_TLS", UCX_TRANSPORTS)
            .env("UCX_WARN_UNUSED_ENV_VARS", "n")
            .args(["-p", &UCX_PORT.to_string()])
            .args(arguments);
        Ok(command)
    };
    ucx_between(
        command,
        [test, &octets.to_string(), &iterations.to_string()],
        column,
    )
}

/// The same between two ends, each of which is `command` with further arguments.
pub(crate) fn ucx_between(
    command: impl Fn(&[&str]) -> Result<Command, Failure>,
    [test, octets, iterations]: [&str; 3],
    column: usize,
) -> Sample {
    let mut server = Process::start(&mut command(&[]).map_err(text)?).map_err(text)?;
    let arguments = [
        "127.0.0.1",
        "-f",
        "-v",
        "-t",
        test,
        "-s",
        octets,
        "-n",
        iterations,
    ];
    let start = Instant::now();
    loop {
        let client = Process::run(&mut command(&arguments).map_err(text)?, LIMIT).map_err(text)?;
        if let Some(value) = ucx_value(&client.output, column).filter(|_| client.succeeded()) {
            return Ok(value);
        }
        if start.elapsed() > UCX_START_LIMIT || !server.is_running() {
            return Err(format!("ucx_perftest: {}", client.describe()));
        }
        sleep(Duration::from_millis(50));
    }
}

fn ucx_value(output: &str, column: usize) -> Option<f64> {
    let line = output
        .lines()
        .rev()
        .find(|line| line.starts_with(|c: char| c.is_ascii_digit()))?;
    line.split(',').nth(column)?.trim().parse().ok()
}

/// UCX's latency one way over shared memory with tag matching, in microseconds.
///
/// # Errors
/// UCX is not installed or failed.
pub fn ucx_latency(octets: usize) -> Sample {
    ucx("tag_lat", octets, 200_000, 1)
}

/// UCX's bandwidth over shared memory, GB/s; `test` is `tag_bw`, or `ucp_put_bw` (one copy, by one
/// side).
///
/// # Errors
/// UCX is not installed or failed.
pub fn ucx_stream(test: &str, octets: usize) -> Sample {
    // UCX's MB are 2^20 octets.
    ucx(test, octets, STREAM_OCTETS / octets, 4).map(|mebioctets| mebioctets * 1_048_576.0 / 1e9)
}

/// UCX's message rate over shared memory with tag matching, millions a second.
///
/// # Errors
/// UCX is not installed or failed.
pub fn ucx_rate(octets: usize) -> Sample {
    ucx("tag_bw", octets, STREAM_MESSAGES as usize, 6).map(|messages| messages / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qperf_output_is_read_in_any_unit() {
        assert_eq!(
            qperf_value("tcp_lat:\n    latency  =  4.52 us\n", "latency"),
            Some(4520.0)
        );
        assert_eq!(
            qperf_value("tcp_bw:\n    bw  =  4,455,268,352 bytes/sec\n", "bw"),
            Some(4_455_268_352.0)
        );
        assert_eq!(
            qperf_value("tcp_bw:\n    bw  =  4.3 GB/sec\n", "bw"),
            Some(4.3e9)
        );
        assert_eq!(qperf_value("failed to connect\n", "bw"), None);
    }

    #[test]
    fn ucx_output_is_read_by_column() {
        let output = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw\n\
                      50000,1.838,1.893,1.9,33020.19\n";
        assert_eq!(ucx_value(output, 1), Some(1.838));
        assert_eq!(ucx_value(output, 4), Some(33020.19));
        assert_eq!(ucx_value("error", 1), None);
    }
}
