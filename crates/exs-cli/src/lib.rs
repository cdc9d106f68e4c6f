//! `urdma-stream`: programs on byte streams over RDMA (EXS). doc/streams.md describes them.
//!
//! Files, each of which uses only those before it: `error`; `octets`, numbers and digests;
//! `pattern`, octets of a seed; `end`, one end of a stream and its options; `request`, what a
//! client asks a server for; `meter`, what a run has cost; `blast` and `ping`, the measurements of
//! a client; `server`, its other end; `pipe`, standard input and output; `copy`, files.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod ahead;
mod blast;
mod copy;
mod end;
mod error;
mod meter;
mod octets;
pub mod pattern;
mod ping;
mod pipe;
mod request;
mod server;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::error::Error;

/// Byte streams over RDMA (EXS): measurements, pipes and files.
#[derive(Debug, Parser)]
#[command(name = "urdma-stream", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve clients of `blast` and `ping`, one after the other
    Server(end::ServerArguments),
    /// Send octets in sends of random lengths; the server receives them in receives of random
    /// lengths, and both compare the SHA-256
    Blast(blast::Arguments),
    /// Send messages that the server sends back, one at a time
    Ping(ping::Arguments),
    /// Receive files of senders, one after the other
    Receive(copy::receive::Arguments),
    /// Send files, or what a receiver lacks of them
    Send(copy::send::Arguments),
    /// Send standard input to the peer, and write what the peer sends to standard output
    Pipe(pipe::Arguments),
}

fn run(command: &Command) -> Result<(), Error> {
    match command {
        Command::Server(arguments) => server::run(arguments),
        Command::Blast(arguments) => blast::run(arguments),
        Command::Ping(arguments) => ping::run(arguments),
        Command::Receive(arguments) => copy::receive::run(arguments),
        Command::Send(arguments) => copy::send::run(arguments),
        Command::Pipe(arguments) => pipe::run(arguments),
    }
}

/// The definition by which the program parses its arguments.
pub fn command() -> clap::Command {
    Arguments::command()
}

/// The program: parses the arguments of the process, and runs.
pub fn main() -> ExitCode {
    match run(&Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("urdma-stream: {error}");
            ExitCode::FAILURE
        }
    }
}
