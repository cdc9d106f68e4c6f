//! The catalogue: Debian's verbs programs, with the command lines of server and client and the
//! output of a successful run.

mod ibverbs;
mod perftest;
mod qperf;
mod rdmacm;

use std::net::IpAddr;

use crate::process::Ended;
use crate::Failure;

pub use ibverbs::{pingpong, rc_pingpong};
pub use perftest::{perftest, perftest_matrix, Selection};
pub use qperf::qperf;
pub use rdmacm::{mckey, rdma_client, rdmacm_utils, rping, rstream, ucmatose, udaddy};

/// The condition on which a server is ready for its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ready {
    /// It listens on this TCP port (programs that exchange GID and QPN out of band).
    Tcp(u16),
    /// It listens on this port through rdma_cm.
    Cm(u16),
    /// It is a member of this multicast group.
    Group(IpAddr),
}

/// A figure that a program printed.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// The number.
    pub value: f64,
    /// The unit: `us` (typical or half round trip), `MB/s` (1 MB = 2^20 octets, as perftest) or
    /// `M/s` (millions of messages).
    pub unit: &'static str,
}

/// How the output of a program is evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    PerftestLatency,
    /// Latency, in the format with a given duration.
    PerftestAverage,
    PerftestBandwidth,
    PerftestRate,
    Pingpong,
    /// The client's output must contain this text.
    Says(&'static str),
}

/// One program as server and client.
#[derive(Debug, Clone)]
pub struct Job {
    /// Its name in the table.
    pub label: String,
    /// Message size in octets.
    pub size_octets: u32,
    /// The server's command line.
    pub server: Vec<String>,
    /// The client's command line.
    pub client: Vec<String>,
    /// The condition on which the client may start.
    pub ready: Ready,
    reading: Reading,
    serves_forever: bool,
}

impl Job {
    /// A program whose client prints `text` on success.
    pub fn saying(
        label: &str,
        server: Vec<String>,
        client: Vec<String>,
        ready: Ready,
        text: &'static str,
    ) -> Self {
        Self {
            label: label.to_owned(),
            size_octets: 0,
            server,
            client,
            ready,
            reading: Reading::Says(text),
            serves_forever: false,
        }
    }

    /// The same job with a server that does not end by itself.
    #[must_use]
    pub fn served_forever(mut self) -> Self {
        self.serves_forever = true;
        self
    }

    /// Whether the server must be ended after its client.
    pub(crate) fn serves_forever(&self) -> bool {
        self.serves_forever
    }

    /// The same job with more flags at both ends.
    #[must_use]
    pub fn with(mut self, flags: &[&str]) -> Self {
        for command in [&mut self.server, &mut self.client] {
            command.splice(1..1, flags.iter().map(ToString::to_string));
        }
        self.label = format!("{} {}", self.label, flags.join(" "));
        self
    }

    /// The same perftest job with another number of iterations.
    #[must_use]
    pub fn with_iterations(mut self, iterations: u32) -> Self {
        for argv in [&mut self.server, &mut self.client] {
            if let Some(at) = argv.iter().position(|argument| argument == "-n") {
                if let Some(value) = argv.get_mut(at + 1) {
                    *value = iterations.to_string();
                }
            }
        }
        self
    }

    /// A bandwidth job whose figure is the message rate, in millions per second.
    #[must_use]
    pub fn as_message_rate(mut self) -> Self {
        self.reading = Reading::PerftestRate;
        self
    }

    /// Whether server and client ended as they do after a successful run.
    pub(crate) fn is_content(&self, ended: &Ended) -> bool {
        ended.succeeded()
            || self.label.starts_with("rping") && ended.output.contains(rdmacm::RPING_RACE)
    }

    /// The figure in the client's output.
    ///
    /// # Errors
    /// The output is not that of a successful run.
    pub fn read(&self, client_output: &str) -> Result<Option<Figure>, Failure> {
        let figure = match self.reading {
            Reading::PerftestLatency => perftest_column(client_output, "#bytes", 4, "us"),
            Reading::PerftestAverage => perftest_column(client_output, "#bytes", 2, "us"),
            Reading::PerftestBandwidth => perftest_column(client_output, "#bytes", 3, "MB/s"),
            Reading::PerftestRate => perftest_column(client_output, "#bytes", 4, "M/s"),
            Reading::Pingpong => pingpong_half_round_trip(client_output),
            Reading::Says(text) => {
                return if client_output.contains(text) {
                    Ok(None)
                } else {
                    Err(Failure::new(format!("it did not print '{text}'")))
                }
            }
        };
        figure
            .map(Some)
            .ok_or_else(|| Failure::new("no result in what it printed"))
    }
}

/// A command line without quoting.
pub fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// Datagram programs with one message in flight, which succeed where bursts may be lost.
pub fn lossy_datagrams(first_port: u16, server: &str) -> Vec<Job> {
    vec![
        pingpong("ibv_ud_pingpong", false, first_port, server).with(&["-s", "1024"]),
        pingpong("ibv_ud_pingpong", true, first_port + 1, server).with(&["-s", "1024"]),
        perftest("ib_send_lat", 64, false, first_port + 2, server).with(&["-c", "UD"]),
        perftest("ib_send_lat", 64, true, first_port + 3, server).with(&["-c", "UD"]),
        udaddy(server),
    ]
}

/// Datagram programs for paths without loss while both ends run.
pub fn datagrams(first_port: u16, server: &str) -> Vec<Job> {
    let mut jobs = lossy_datagrams(first_port, server);
    jobs.push(perftest("ib_send_bw", 4096, false, first_port + 10, server).with(&["-c", "UD"]));
    jobs
}

/// All programs of the demo, for each path, on ports from `first_port` on.
pub fn main_job(first_port: u16, server: &str) -> Vec<Job> {
    const PERFTEST: [(&str, u32); 6] = [
        ("ib_send_lat", 64),
        ("ib_write_lat", 64),
        ("ib_read_lat", 64),
        ("ib_send_bw", 65536),
        ("ib_write_bw", 65536),
        ("ib_read_bw", 65536),
    ];
    let mut ports = first_port..;
    let mut port = move || ports.next().unwrap_or(first_port);
    let mut jobs = Vec::new();
    for rdma_cm in [false, true] {
        for (tool, size_octets) in PERFTEST {
            jobs.push(perftest(tool, size_octets, rdma_cm, port(), server));
        }
    }
    jobs.push(rc_pingpong(false, port(), server));
    jobs.push(rc_pingpong(true, port(), server));
    jobs.push(rping(port(), server));
    jobs.push(ucmatose(port(), server));
    jobs.push(rdma_client(port(), server));
    jobs
}

/// Field number `column` (from 0) of the line after the one that starts with `heading`.
fn perftest_column(
    output: &str,
    heading: &str,
    column: usize,
    unit: &'static str,
) -> Option<Figure> {
    let mut lines = output.lines();
    lines.find(|line| line.trim_start().starts_with(heading))?;
    let row = lines.find(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit()))?;
    let value = row.split_whitespace().nth(column)?.parse().ok()?;
    Some(Figure { value, unit })
}

/// `... = 12.34 usec/iter` is a round trip.
fn pingpong_half_round_trip(output: &str) -> Option<Figure> {
    let line = output.lines().find(|line| line.contains("usec/iter"))?;
    let round_trip: f64 = line.split_whitespace().rev().nth(1)?.parse().ok()?;
    Some(Figure {
        value: round_trip / 2.0,
        unit: "us",
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn perftest_latency_output_gives_typical() {
        let output =
            " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]\n\
            \x2064      1000          0.61           12.0         0.71     \t       0.72\n---\n";
        let job = perftest("ib_send_lat", 64, false, 1, "127.0.0.1");
        let figure = job.read(output).unwrap().unwrap();
        assert!((figure.value - 0.71).abs() < 1e-9);
        assert_eq!(figure.unit, "us");
    }

    #[test]
    fn perftest_bandwidth_output_gives_average() {
        let output =
            " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n\
            \x2065536      1000             9000.0            8000.5\t\t   0.13\n";
        let job = perftest("ib_write_bw", 65536, true, 1, "127.0.0.1");
        assert!((job.read(output).unwrap().unwrap().value - 8000.5).abs() < 1e-9);
        let rate = job.as_message_rate().read(output).unwrap().unwrap();
        assert!((rate.value - 0.13).abs() < 1e-9);
    }

    #[test]
    fn pingpong_output_gives_half_round_trip() {
        let output = "8192000 bytes in 0.01 seconds = 6553.60 Mbit/sec\n\
             1000 iters in 0.01 seconds = 10.00 usec/iter\n";
        let job = rc_pingpong(false, 1, "127.0.0.1");
        assert!((job.read(output).unwrap().unwrap().value - 5.0).abs() < 1e-9);
    }

    #[test]
    fn output_without_result_is_a_failure() {
        for job in main_job(1000, "127.0.0.1") {
            assert!(job.read("Couldn't connect").is_err(), "{}", job.label);
        }
    }
}
