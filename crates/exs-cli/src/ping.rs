//! Messages that are sent back.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use clap::Args;
use urdma_exs::{Buffer, Event, Outcome, Socket};

use crate::ahead::{self, Ahead};
use crate::end::{self, StreamArguments, SILENCE};
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
    let mut outgoing = end::buffers(ahead::buffers_in_turn(arguments.octets), arguments.octets)?;
    for buffer in &mut outgoing {
        // Octets that were never written would all be read from the kernel's page of zeros.
        buffer.fill(1);
    }
    let mut receives = Ahead::new(arguments.octets, 0)?;
    let mut begun: Option<Instant> = None;
    for _ in 0..arguments.count {
        receives.before(&mut socket)?;
        if let Some(buffer) = outgoing.pop() {
            end::send(&mut socket, buffer, arguments.octets)?;
        }
        // The clock is read while the message is on its way.
        let now = Instant::now();
        times.extend(begun.replace(now).map(|begun| now.duration_since(begun)));
        receives.after(&mut socket)?;
        await_answer(&mut socket, &mut outgoing, &mut receives)?;
    }
    times.extend(begun.map(|begun| begun.elapsed()));
    print_times(&mut times);
    end::close(&mut socket)
}

/// Receives the answer. A buffer to be sent is there afterwards.
fn await_answer(
    socket: &mut Socket,
    outgoing: &mut Vec<Buffer>,
    receives: &mut Ahead,
) -> Result<(), Error> {
    let mut is_answered = false;
    while !is_answered || outgoing.is_empty() {
        // Each event is matched where it is: to copy it takes as long as to find it.
        match socket.wait(Some(SILENCE)) {
            Ok(Some(Event::Received {
                buffer,
                outcome: Outcome::Done,
                ..
            })) => {
                receives.received();
                receives.put(buffer);
                is_answered = true;
            }
            Ok(Some(Event::Sent {
                buffer,
                outcome: Outcome::Done,
                ..
            })) => outgoing.push(buffer),
            other => return Err(end::why_not_done(other, socket, "a message was sent back")),
        }
    }
    Ok(())
}

/// Prints halves of round trips.
fn print_times(times: &mut [Duration]) {
    let all: Duration = times.iter().sum();
    let count = times.len();
    let mut half_us = |share: usize| {
        if count == 0 {
            return 0.0;
        }
        let at = (count * share / 1000).min(count - 1);
        let (_, time, _) = times.select_nth_unstable(at);
        time.as_secs_f64() * 1e6 / 2.0
    };
    #[allow(clippy::cast_precision_loss)] // A figure for people.
    let mean_us = all.as_secs_f64() * 1e6 / 2.0 / count.max(1) as f64;
    println!(
        "{count} round trips; half of one in us: {:.2} least, {:.2} typical, {mean_us:.2} on \
         average, {:.2} in 99 %, {:.2} greatest",
        half_us(0),
        half_us(500),
        half_us(990),
        half_us(1000)
    );
}
