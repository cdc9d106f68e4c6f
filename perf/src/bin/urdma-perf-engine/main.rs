//! The engine without verbs: the processor's work for one message with both ends in one thread,
//! which `perf/tests/instructions.rs` counts, or for one packet between two hosts.

mod end;
mod events;
mod network;
mod packets;

use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, ValueEnum};
use end::{End, GID};
use urdma_engine::InProcess;

/// Messages of a stream that are posted at once.
const BATCH: u32 = 64;

/// Measures the processor time of a message with both ends in one thread, without another thread.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    operation: Operation,
    /// Octets of a message, or the MTU of packets
    octets: u32,
    messages: u32,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Operation {
    /// Ping-pong
    Send,
    /// Ping-pong, with immediate data
    SendImm,
    /// One direction
    Write,
    /// Ping-pong, with immediate data
    WriteImm,
    /// One direction
    Read,
    /// One direction
    FetchAdd,
    /// One direction, 64 posted at once
    Stream,
    /// 64 KB messages in one direction, in packets, by connections without engines
    Packets,
    /// 64 KB messages in one direction, in packets that an urdmad of either host forwards
    Forwarded,
    /// 64 KB messages in one direction, in packets over leased queue pairs
    Leased,
    /// Events in the flight recorder, of as many queue pairs in turn as `octets` says
    Events,
}

fn run(operation: Operation, octets: u32, messages: u32) -> Result<(), String> {
    match operation {
        Operation::Packets => {
            let packets = packets::run(octets, messages)?;
            println!("{packets} packets");
            return Ok(());
        }
        Operation::Forwarded => return network::run_forwarded(octets, messages),
        Operation::Leased => return network::run_leased(octets, messages),
        Operation::Events => return events::run(octets, messages),
        _ => {}
    }
    let instance = InProcess::new().map_err(|error| error.to_string())?;
    let mut one = End::new(&instance, 0, octets)?;
    let mut two = End::new(&instance, 1, octets)?;
    one.connect(two.number(), GID, 0)?;
    two.connect(one.number(), GID, 0)?;
    let (mut one, mut two) = (&mut one, &mut two);
    let begin = Instant::now();
    let turns = match operation {
        Operation::Stream => messages / BATCH,
        _ => messages,
    };
    for turn in 0..turns {
        match operation {
            Operation::Send | Operation::SendImm | Operation::WriteImm => {
                two.receive();
                match operation {
                    Operation::Send => one.send(None),
                    Operation::SendImm => one.send(Some(turn)),
                    _ => one.write(two, Some(turn)),
                }
                two.wait();
                std::mem::swap(&mut one, &mut two);
            }
            Operation::Stream => {
                (0..BATCH).for_each(|_| two.receive());
                (0..BATCH).for_each(|_| one.send(None));
                // The poll transmits messages that are deferred for batching.
                one.poll();
                (0..BATCH).for_each(|_| two.wait());
                (0..BATCH).try_for_each(|_| one.wait_sent(two))?;
            }
            Operation::Read => {
                one.read(two);
                one.wait_sent(two)?;
            }
            Operation::FetchAdd => {
                one.fetch_add(two);
                one.wait_sent(two)?;
            }
            _ => {
                one.write(two, None);
                one.wait_sent(two)?;
            }
        }
    }
    let each = begin.elapsed().as_nanos() / u128::from(messages.max(1));
    println!("{octets} octets, processor time of both ends: {each} ns");
    Ok(())
}

fn main() -> ExitCode {
    let Arguments {
        operation,
        octets,
        messages,
    } = Arguments::parse();
    match run(operation, octets, messages) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("urdma-perf-engine: {error}");
            ExitCode::FAILURE
        }
    }
}
