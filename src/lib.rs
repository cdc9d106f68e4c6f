//! The command line of `urdma`: software RDMA for every verbs program.
//!
//! The map of the whole project is `doc/architecture.md`. This package is the command line only, as
//! a library, so that its manual pages can be generated:
//! - `up` and `down`: [`daemon`], start and end an instance of urdmad;
//! - `run`: [`run`], a program with the environment that makes libibverbs find our device;
//! - `status`: [`status`], what an instance knows, as a table or as JSON;
//! - `top`: [`top`], rates of processes and connections; `metrics`: [`metrics`], for Prometheus;
//! - `trace`: [`trace`], the last events of connections, also of processes that have ended;
//! - `bench`: [`bench`], sweeps on this machine, by a program of its own;
//! - `capture`: [`capture`], frames into a file that Wireshark reads;
//! - `doctor`: [`doctor`], what the machine offers and what to do next;
//! - `fault`: [`fault`], what happens to packets at an instance's port;
//! - [`libraries`]: where the plugin, the stand-in and the lease library are;
//! - [`target`]: the instance that a command is for; [`error`]: why a command failed.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bench;
mod capture;
mod daemon;
mod doctor;
mod error;
mod fault;
mod libraries;
mod metrics;
mod run;
mod status;
mod target;
mod top;
mod trace;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use target::Target;

/// Exit status of a command that failed.
const EXIT_FAILURE: u8 = 1;

/// Software RDMA for every verbs program, without RDMA hardware.
#[derive(Debug, Parser)]
#[command(name = "urdma", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start an instance (one host's daemon) and wait until it is ready
    Up(daemon::UpArgs),
    /// Stop an instance and remove its files
    Down(Target),
    /// Run a program whose verbs go through urdma
    Run(run::RunArgs),
    /// Show processes, queue pairs, ports and counters of an instance
    Status(status::StatusArgs),
    /// Show rates, retransmissions and queues of processes and connections
    Top(top::TopArgs),
    /// Print counters for Prometheus
    Metrics(metrics::MetricsArgs),
    /// Show the last events of connections, and why they failed
    Trace(trace::TraceArgs),
    /// Write the frames that pass the daemon into a pcapng file
    Capture(capture::CaptureArgs),
    /// Lose, duplicate, delay, reorder or corrupt packets at an instance's port, or show the
    /// impairments
    Fault(fault::FaultArgs),
    /// Report what this machine offers and what to do next
    Doctor(doctor::DoctorArgs),
    /// Measure latency, bandwidth, queue pairs and loss on this machine
    Bench(bench::BenchArgs),
}

/// The command line, to generate manual pages and completions from.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Parses the arguments of this process and executes the command.
pub fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Up(args) => daemon::up(&args),
        Command::Down(target) => daemon::down(&target),
        Command::Run(args) => run::run(&args),
        Command::Status(args) => status::status(&args),
        Command::Top(args) => top::top(&args),
        Command::Metrics(args) => metrics::metrics(&args),
        Command::Trace(args) => trace::trace(&args),
        Command::Capture(args) => capture::capture(&args),
        Command::Fault(args) => fault::fault(&args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Bench(args) => bench::bench(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("urdma: {error}");
            ExitCode::from(EXIT_FAILURE)
        }
    }
}
