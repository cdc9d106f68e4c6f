//! The engine without verbs: latency between two processes, or the processor's work for one message
//! with both ends in one thread, which `perf/tests/instructions.rs` counts.

mod end;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, Subcommand, ValueEnum};
use end::{arena, End};

const WARM_UP: usize = 2000;
/// Messages of a stream that are posted at once.
const BATCH: u32 = 64;

/// Measures the cost of a message in the engine.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    mode: Mode,
}

#[derive(Debug, Subcommand)]
enum Mode {
    /// Half the round trip of SENDs between two processes
    Latency {
        #[arg(default_value_t = 64)]
        octets: u32,
        #[arg(default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
        rounds: u32,
    },
    /// Processor time of a message with both ends in one thread, without another thread
    Alone {
        operation: Operation,
        octets: u32,
        messages: u32,
        /// Over a channel instead of the arena
        #[arg(long)]
        channels: bool,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Operation {
    /// Ping-pong
    Send,
    /// One direction
    Write,
    /// One direction, 64 posted at once
    Stream,
}

/// Sends `number` to the other process and waits for the number that it sends.
fn meet(mut socket: &UnixStream, number: u32) -> Result<u32, String> {
    let mut other = [0; 4];
    socket
        .write_all(&number.to_be_bytes())
        .and_then(|()| socket.read_exact(&mut other))
        .map_err(|error| error.to_string())?;
    Ok(u32::from_be_bytes(other))
}

/// Connects an end to that of the other process.
fn connect(end: &End, socket: &UnixStream) -> Result<(), String> {
    end.connect(meet(socket, end.number())?)?;
    meet(socket, 0).map(drop)
}

/// Nanoseconds of each round trip.
fn run(end: &mut End, rounds: usize, begins: bool) -> Vec<u128> {
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        end.receive();
        let begin = Instant::now();
        if begins {
            end.send();
            end.wait();
        } else {
            end.wait();
            end.send();
        }
        times.push(begin.elapsed().as_nanos());
    }
    times
}

fn latency(octets: u32, rounds: usize) -> Result<(), String> {
    let arena = arena()?;
    let (one, two) = UnixStream::pair().map_err(|error| error.to_string())?;
    // SAFETY: the process has one thread yet.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut end = End::new(arena, 1, octets)?;
        connect(&end, &two)?;
        // The first receive request must be posted before the first message arrives.
        end.receive();
        meet(&two, 0)?;
        run(&mut end, WARM_UP + rounds, false);
        return meet(&two, 0).map(drop);
    }
    let mut end = End::new(arena, 0, octets)?;
    connect(&end, &one)?;
    meet(&one, 0)?;
    run(&mut end, WARM_UP, true);
    let mut times = run(&mut end, rounds, true);
    meet(&one, 0)?;
    times.sort_unstable();
    for (name, share) in [("min", 0), ("p50", 50), ("p90", 90), ("p99", 99)] {
        let at = (rounds - 1) * share / 100;
        println!("{octets} octets one way, {name}: {} ns", times[at] / 2);
    }
    Ok(())
}

fn alone(operation: Operation, octets: u32, messages: u32, channels: bool) -> Result<(), String> {
    let arena = arena()?;
    let mut one = End::without_thread(arena, 0, octets, channels)?;
    let mut two = End::without_thread(arena, 1, octets, channels)?;
    one.connect(two.number())?;
    two.connect(one.number())?;
    let begin = Instant::now();
    let turns = match operation {
        Operation::Send | Operation::Write => messages,
        Operation::Stream => messages / BATCH,
    };
    for _ in 0..turns {
        match operation {
            Operation::Send => {
                two.receive();
                one.send();
                two.wait();
                std::mem::swap(&mut one, &mut two);
            }
            Operation::Write => {
                one.write(&two);
                one.wait_sent(&mut two)?;
            }
            Operation::Stream => {
                (0..BATCH).for_each(|_| two.receive());
                (0..BATCH).for_each(|_| one.send());
                // The poll transmits messages that are deferred for batching.
                one.poll();
                (0..BATCH).for_each(|_| two.wait());
                (0..BATCH).try_for_each(|_| one.wait_sent(&mut two))?;
            }
        }
    }
    let each = begin.elapsed().as_nanos() / u128::from(messages.max(1));
    println!("{octets} octets, processor time of both ends: {each} ns");
    Ok(())
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().mode {
        Mode::Latency { octets, rounds } => latency(octets, rounds as usize),
        Mode::Alone {
            operation,
            octets,
            messages,
            channels,
        } => alone(operation, octets, messages, channels),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("urdma-perf-engine: {error}");
            ExitCode::FAILURE
        }
    }
}
