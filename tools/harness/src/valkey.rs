//! Valkey's server and benchmark over urdma, over TCP, and over rings in its place;
//! `scripts/valkey.sh` builds them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::calls::{Calls, Counted};
use crate::over::Over;
use crate::process::{Ended, Process};
use crate::Failure;

/// How long the server may take to start or to end.
const SHORT: Duration = Duration::from_secs(30);
/// How long the benchmark may run.
const LIMIT: Duration = Duration::from_secs(120);

/// What the server prints when it can be reached.
const READY: [&str; 2] = [
    "Ready to accept connections rdma",
    "Ready to accept connections tcp",
];
/// The address of both ends.
const ADDRESS: &str = "127.0.0.1";

/// What the benchmark does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Clients, which are in one thread.
    pub clients: u32,
    /// Requests that a client sends at once.
    pub in_a_row: u32,
    /// GET requests of all clients.
    pub requests: u32,
}

impl Load {
    /// The same with one of `by` requests.
    #[must_use]
    pub const fn shortened(self, by: u32) -> Self {
        Self {
            requests: self.requests / by,
            ..self
        }
    }
}

/// A run of server and benchmark.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// What the octets go over.
    pub over: Over<'a>,
    /// The server's port.
    pub port: u16,
    /// What the benchmark does.
    pub load: Load,
    /// The directory of the server's files.
    pub dir: &'a Path,
}

/// The figures of a run.
#[derive(Debug, Clone, Copy)]
pub struct Figures {
    /// Requests a second.
    pub rate: f64,
    /// Processor time of the benchmark, from its start to its end, and of the server meanwhile.
    pub processor: Duration,
}

fn expect_success(ended: &Ended) -> Result<(), Failure> {
    match ended.succeeded() {
        true => Ok(()),
        false => Err(Failure::new(ended.describe())),
    }
}

/// The rate that the benchmark has printed.
fn rate_of(asked: &Ended) -> Result<f64, Failure> {
    expect_success(asked)?;
    Valkey::rate(&asked.output)
}

/// Where Valkey was built.
#[derive(Debug, Clone)]
pub struct Valkey(PathBuf);

impl Valkey {
    /// The programs below `directory`.
    ///
    /// # Errors
    /// They have not been built.
    pub fn built_in(directory: &Path) -> Result<Self, Failure> {
        let valkey = Self(directory.to_owned());
        for program in [valkey.program("server"), valkey.program("benchmark")] {
            if !Path::new(&program).exists() {
                return Err(Failure::new(format!(
                    "{program} is missing: scripts/valkey.sh target/valkey"
                )));
            }
        }
        Ok(valkey)
    }

    fn program(&self, name: &str) -> String {
        self.0
            .join(format!("src/valkey-{name}"))
            .display()
            .to_string()
    }

    /// The server, which keeps its files in `dir`. It listens over one of both alone, so that
    /// nothing can bypass the other.
    ///
    /// # Errors
    /// `urdma` has not been built.
    pub fn server(&self, over: Over<'_>, port: u16, dir: &Path) -> Result<Command, Failure> {
        let (port, dir) = (port.to_string(), dir.display().to_string());
        let listen: [&str; 6] = match over {
            Over::Urdma(_) => ["--port", "0", "--rdma-bind", ADDRESS, "--rdma-port", &port],
            _ => ["--port", &port, "--bind", ADDRESS, "--tcp-backlog", "511"],
        };
        let rest = ["--protected-mode", "no", "--save", "", "--dir", &dir];
        let words = listen.iter().chain(&rest).map(ToString::to_string);
        let argv: Vec<String> = [self.program("server")].into_iter().chain(words).collect();
        over.command(&argv)
    }

    /// What the server prints when it can be reached.
    pub const fn ready(over: Over<'_>) -> &'static str {
        match over {
            Over::Urdma(_) => READY[0],
            _ => READY[1],
        }
    }

    /// The benchmark, which prints one line.
    ///
    /// # Errors
    /// `urdma` has not been built.
    pub fn benchmark(&self, over: Over<'_>, port: u16, load: Load) -> Result<Command, Failure> {
        let Load {
            clients,
            in_a_row,
            requests,
        } = load;
        let options =
            format!("-h {ADDRESS} -p {port} -t get -q -c {clients} -P {in_a_row} -n {requests}");
        let mut argv = vec![self.program("benchmark")];
        argv.extend(options.split(' ').map(str::to_owned));
        if let Over::Urdma(_) = over {
            argv.push("--rdma".to_owned());
        }
        over.command(&argv)
    }

    /// Runs both programs.
    ///
    /// # Errors
    /// One of them failed or hung.
    pub fn run(&self, run: Run<'_>) -> Result<Figures, Failure> {
        let mut serving = Process::start(&mut self.server(run.over, run.port, run.dir)?)?;
        serving.wait_for_text(Self::ready(run.over), SHORT)?;
        let before = serving.processor_time()?;
        let (asked, of_client) =
            Process::run_measured(&mut self.benchmark(run.over, run.port, run.load)?, LIMIT)?;
        let of_server = serving.processor_time()?.saturating_sub(before);
        let rate = rate_of(&asked)?;
        serving.signal(Signal::SIGTERM)?;
        expect_success(&serving.wait(SHORT)?)?;
        Ok(Figures {
            rate,
            processor: of_server + of_client,
        })
    }

    /// The system calls of each request of a longer run that a run with a third of its requests
    /// has not: those of the server, and those of the client.
    ///
    /// # Errors
    /// One of the programs failed, or cannot be counted.
    pub fn calls(&self, run: Run<'_>) -> Result<[Calls; 2], Failure> {
        let load = run.load.shortened(3);
        let (long, short) = (self.count(run)?, self.count(Run { load, ..run })?);
        let more = run.load.requests - load.requests;
        Ok([0, 1].map(|end| long[end].of_each(&short[end], more)))
    }

    /// The system calls of the server and those of the client.
    fn count(&self, run: Run<'_>) -> Result<[Calls; 2], Failure> {
        let mut serving = Counted::start(&self.server(run.over, run.port, run.dir)?)?;
        let ready = Self::ready(run.over);
        serving.process().wait_for_text(ready, SHORT)?;
        let asking = Counted::start(&self.benchmark(run.over, run.port, run.load)?)?;
        let (asked, client) = asking.wait(LIMIT)?;
        rate_of(&asked)?;
        serving.terminate()?;
        let (served, server) = serving.wait(SHORT)?;
        expect_success(&served)?;
        Ok([server, client])
    }

    /// Requests a second, as the benchmark prints them.
    ///
    /// # Errors
    /// It printed something else.
    fn rate(printed: &str) -> Result<f64, Failure> {
        let mut parts = printed.split(['\r', '\n']).rev();
        let line = parts.find_map(|part| part.trim().strip_prefix("GET: "));
        let rate = line.and_then(|line| line.split_once(" requests per second"));
        rate.and_then(|(rate, _)| rate.parse().ok())
            .ok_or_else(|| Failure::new(format!("the benchmark printed no rate: {printed}")))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_that_of_the_end() {
        let printed = "GET: rps=0.0 (overall: 0.0)\rGET: rps=9.0 (overall: 9.0)\r      \r\
                       GET: 52260.26 requests per second, p50=0.879 msec\n\n";
        let rate = Valkey::rate(printed).unwrap();
        assert!((rate - 52_260.26).abs() < 1e-9);
        assert!(Valkey::rate("Could not connect").is_err());
    }
}
