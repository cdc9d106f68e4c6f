//! Messages that are sent back.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use clap::Args;
use urdma_exs::{Buffer, Event, Outcome, Socket};

use crate::end::{self, StreamArguments};
use crate::error::Error;
use crate::request::{Mode, Request, READY};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Host and port of `urdma-stream server`
    #[arg(value_parser = end::address)]
    address: SocketAddr,
    /// Octets of a message
    #[arg(long, default_value_t = 64)]
    octets: usize,
    /// Messages
    #[arg(long, default_value_t = 10_000)]
    count: usize,
    #[command(flatten)]
    stream: StreamArguments,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    let mut socket = Socket::connect(arguments.address, &arguments.stream.options())?;
    let request = Request {
        mode: Mode::Ping,
        posted: 1,
        octets: arguments.octets as u64,
        seed: 0,
    };
    // The server refuses the same.
    Request::decode(&request.encode())?;
    end::send_octets(&mut socket, &request.encode())?;
    end::recv_exactly(&mut socket, READY.len(), "the server was ready")?;
    let mut times = Vec::with_capacity(arguments.count);
    let mut buffers = (
        Buffer::new(arguments.octets)?,
        Buffer::new(arguments.octets)?,
    );
    // Octets that were never written would all be read from the kernel's page of zeros.
    buffers.0.fill(1);
    let mut begun = Instant::now();
    for _ in 0..arguments.count {
        buffers = round_trip(&mut socket, buffers)?;
        let ended = Instant::now();
        times.push(ended.duration_since(begun));
        begun = ended;
    }
    times.sort_unstable();
    print_times(&times);
    end::close(&mut socket)
}

/// Sends one buffer and receives into the other.
fn round_trip(
    socket: &mut Socket,
    (outgoing, incoming): (Buffer, Buffer),
) -> Result<(Buffer, Buffer), Error> {
    let octets = outgoing.len();
    end::recv(socket, incoming, octets, true)?;
    end::send(socket, outgoing, octets)?;
    let (mut outgoing, mut incoming) = (None, None);
    loop {
        match end::next(socket)? {
            Event::Received {
                buffer,
                outcome: Outcome::Done,
                ..
            } => incoming = Some(buffer),
            Event::Received { .. } | Event::Closed => {
                return Err(Error::Truncated("a message was sent back"));
            }
            event => outgoing = Some(end::sent(event)?),
        }
        (outgoing, incoming) = match (outgoing, incoming) {
            (Some(outgoing), Some(incoming)) => return Ok((outgoing, incoming)),
            one => one,
        };
    }
}

/// Prints halves of round trips, which are sorted.
fn print_times(times: &[Duration]) {
    let half_us = |share: usize| {
        let at = (times.len() * share / 1000).min(times.len().saturating_sub(1));
        times
            .get(at)
            .map_or(0.0, |time| time.as_secs_f64() * 1e6 / 2.0)
    };
    let all: Duration = times.iter().sum();
    #[allow(clippy::cast_precision_loss)] // A figure for people.
    let mean_us = all.as_secs_f64() * 1e6 / 2.0 / times.len().max(1) as f64;
    println!(
        "{} round trips; half of one in us: {:.2} least, {:.2} typical, {mean_us:.2} on \
         average, {:.2} in 99 %, {:.2} greatest",
        times.len(),
        half_us(0),
        half_us(500),
        half_us(990),
        half_us(1000)
    );
}
