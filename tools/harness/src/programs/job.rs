//! A program as server and client, and how its output is evaluated.

use std::net::IpAddr;

use crate::process::Ended;
use crate::Failure;

/// Whether rping ended as it does after a successful run.
///
/// Both ends close their event channel at the end, while one of their threads may be about to read
/// from it; rping then exits with 255, on any device.
pub fn is_content_of_rping(ended: &Ended) -> bool {
    ended.succeeded()
        || ended
            .output
            .contains("rdma_get_cm_event: Bad file descriptor")
}

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
pub(super) enum Reading {
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
    pub(super) reading: Reading,
    pub(super) serves_forever: bool,
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
        ended.succeeded() || self.label.starts_with("rping") && is_content_of_rping(ended)
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
