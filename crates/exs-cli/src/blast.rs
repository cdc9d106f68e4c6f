//! Sends of random lengths.

use std::net::SocketAddr;

use clap::Args;
use sha2::{Digest, Sha256};
use urdma_exs::{Buffer, Event, Outcome, Socket};

use crate::end::{self, StreamArguments, SILENCE};
use crate::error::Error;
use crate::meter::{print_stats, Meter};
use crate::octets::{number, Sum, DIGEST};
use crate::pattern::{self, Pattern};
use crate::request::{Mode, Request, ANSWER, READY};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Host and port of `urdma-stream server`
    #[arg(value_parser = end::address)]
    address: SocketAddr,
    /// Octets that are sent
    #[arg(long, default_value_t = 1 << 30)]
    octets: u64,
    /// What octets and lengths are drawn from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Sends in progress
    #[arg(long, default_value_t = 16)]
    sends: usize,
    /// Receives in progress at the server
    #[arg(long, default_value_t = 32)]
    recvs: u32,
    /// The greatest length of a send or receive
    #[arg(long, default_value_t = 256 << 10)]
    max_octets: usize,
    /// Each send and receive has the greatest length
    #[arg(long)]
    fixed: bool,
    /// Measure the stream alone: no octets are drawn and no digests computed
    #[arg(long)]
    unchecked: bool,
    /// Give the stream up with this code in place of finishing it
    #[arg(long)]
    abort: Option<u32>,
    #[command(flatten)]
    stream: StreamArguments,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    let mut socket = Socket::connect(arguments.address, &arguments.stream.options())?;
    let mode = match arguments.unchecked {
        true => Mode::BlastUnchecked,
        false => Mode::Blast,
    };
    let request = Request {
        mode,
        posted: arguments.recvs,
        octets: arguments.max_octets as u64,
        seed: if arguments.fixed { 0 } else { !arguments.seed },
    };
    // The server refuses the same.
    Request::decode(&request.encode())?;
    end::send_octets(&mut socket, &request.encode())?;
    end::recv_exactly(&mut socket, READY.len(), "the server was ready")?;
    println!("sending");
    let mut free = end::buffers(arguments.sends.max(1), arguments.max_octets)?;
    // Octets that were never written would all be read from the kernel's page of zeros.
    free.iter_mut().for_each(|buffer| buffer.fill(1));
    let meter = Meter::begin();
    let digest = send_all(arguments, &mut socket, free)?;
    if let Some(code) = arguments.abort {
        socket.abort(code);
        loop {
            end::next(&mut socket)?;
        }
    }
    socket.finish()?;
    let answer = end::recv_exactly(&mut socket, ANSWER, "the server has answered")?;
    meter.print(arguments.octets);
    print_stats(&socket);
    let (count, received) = answer.split_at(ANSWER - DIGEST);
    let counted = number(count);
    if counted != arguments.octets {
        return Err(Error::OtherCount {
            sent: arguments.octets,
            received: counted,
        });
    }
    if let Some(digest) = digest {
        if digest != received {
            return Err(Error::OtherOctets);
        }
        println!("sha256 {}", pattern::hex(&digest));
    }
    end::close(&mut socket)
}

/// Sends the octets in these buffers. Their digest, unless it is not wanted.
fn send_all(
    arguments: &Arguments,
    socket: &mut Socket,
    mut free: Vec<Buffer>,
) -> Result<Option<Sum>, Error> {
    let mut lengths = Pattern::new(arguments.seed.rotate_left(32));
    let mut content = Pattern::new(arguments.seed);
    let mut hash = Sha256::new();
    let mut left = arguments.octets;
    while left > 0 {
        let Some(mut buffer) = free.pop() else {
            // An event is matched where it is: to move it takes as long as a send.
            match socket.wait(Some(SILENCE)) {
                Ok(Some(Event::Sent {
                    buffer,
                    outcome: Outcome::Done,
                    ..
                })) => free.push(buffer),
                other => free.push(end::sent(end::next_after(other?, socket)?)?),
            }
            continue;
        };
        let len = match arguments.fixed {
            true => arguments.max_octets,
            false => 1 + lengths.below(arguments.max_octets),
        };
        let len = len.min(usize::try_from(left).unwrap_or(usize::MAX));
        if !arguments.unchecked {
            content.fill(&mut buffer[..len]);
            hash.update(&buffer[..len]);
        }
        left -= len as u64;
        end::send(socket, buffer, len)?;
    }
    Ok((!arguments.unchecked).then(|| hash.finalize().into()))
}
