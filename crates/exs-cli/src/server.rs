//! The other end of `blast` and `ping`.

use sha2::{Digest, Sha256};
use urdma_exs::{Buffer, Event, Outcome, Socket};

use crate::ahead::Ahead;
use crate::end::{self, ServerArguments, SILENCE};
use crate::error::Error;
use crate::meter::{print_stats, Meter};
use crate::octets::{Sum, DIGEST};
use crate::pattern::{self, Pattern};
use crate::request::{Mode, Request, ANSWER, READY, REQUEST};

/// The code by which a client learns that its request is refused.
const REFUSED: u32 = 1;

pub(crate) fn run(arguments: &ServerArguments) -> Result<(), Error> {
    arguments.serve_each(serve)
}

fn serve(mut socket: Socket) -> Result<(), Error> {
    let octets = end::recv_exactly(&mut socket, REQUEST, "a request has come")?;
    let mut request = [0; REQUEST];
    request.copy_from_slice(&octets);
    let request = match Request::decode(&request) {
        Ok(request) => request,
        Err(error) => {
            socket.abort(REFUSED);
            while end::next(&mut socket).is_ok() {}
            return Err(error);
        }
    };
    match request.mode {
        Mode::Ping => send_back(&request, &mut socket)?,
        Mode::Blast | Mode::BlastUnchecked => take(&request, &mut socket)?,
    }
    socket.finish()?;
    while !matches!(end::next(&mut socket)?, Event::Closed) {}
    print_stats(&socket);
    Ok(())
}

/// The receives of a blast, with the lengths that are drawn for them.
struct Receives {
    lengths: Pattern,
    max_octets: usize,
    is_fixed: bool,
}

impl Receives {
    #[inline]
    fn post(&mut self, socket: &mut Socket, buffer: Buffer) -> Result<(), Error> {
        let (octets, waitall) = match self.is_fixed {
            true => (self.max_octets, true),
            false => self.draw(),
        };
        end::recv(socket, buffer, octets, waitall)
    }

    #[inline(never)]
    fn draw(&mut self) -> (usize, bool) {
        let waitall = self.lengths.below(4) == 0;
        (1 + self.lengths.below(self.max_octets), waitall)
    }
}

/// Receives until the end of the stream; answers with count and digest.
fn take(request: &Request, socket: &mut Socket) -> Result<(), Error> {
    let max_octets = usize::try_from(request.octets).unwrap_or(usize::MAX);
    let posted = usize::try_from(request.posted).unwrap_or(usize::MAX);
    let mut receives = Receives {
        lengths: Pattern::new(request.seed),
        max_octets,
        is_fixed: request.seed == 0,
    };
    for buffer in end::buffers(posted, max_octets)? {
        receives.post(socket, buffer)?;
    }
    end::send_octets(socket, &READY)?;
    println!("receiving");
    let (mut hash, mut count, meter) = (Sha256::new(), 0, Meter::begin());
    loop {
        // Most events are matched where they are: to move one takes as long as a receive.
        let (buffer, octets, outcome) = match socket.wait(Some(SILENCE)) {
            Ok(Some(Event::Received {
                buffer,
                octets,
                outcome: outcome @ Outcome::Done,
                ..
            })) => (buffer, octets, outcome),
            other => match end::next_after(other?, socket)? {
                Event::Received {
                    buffer,
                    octets,
                    outcome,
                    ..
                } => (buffer, octets, outcome),
                Event::Closed => break,
                event => {
                    end::sent(event)?;
                    continue;
                }
            },
        };
        if request.mode == Mode::Blast {
            hash.update(&buffer[..usize::try_from(octets).unwrap_or(usize::MAX)]);
        }
        count += octets;
        match outcome {
            Outcome::Done => receives.post(socket, buffer)?,
            Outcome::EndOfStream => break,
            other => return Err(Error::Operation(other)),
        }
    }
    meter.print(count);
    let mut answer = [0; ANSWER];
    answer[..ANSWER - DIGEST].copy_from_slice(&count.to_le_bytes());
    if request.mode == Mode::Blast {
        let digest: Sum = hash.finalize().into();
        answer[ANSWER - DIGEST..].copy_from_slice(&digest);
        println!("sha256 {}", pattern::hex(&digest));
    }
    end::send_octets(socket, &answer)
}

/// Sends each message back, until the end of the stream.
fn send_back(request: &Request, socket: &mut Socket) -> Result<(), Error> {
    let octets = usize::try_from(request.octets).unwrap_or(usize::MAX);
    // Of two that are not received into, one may be in progress after its answer has come.
    let mut receives = Ahead::new(octets, 2)?;
    receives.after(socket)?;
    end::send_octets(socket, &READY)?;
    loop {
        // Each event is matched where it is, as in `ping`.
        match socket.wait(Some(SILENCE)) {
            Ok(Some(Event::Received {
                buffer,
                octets: count,
                outcome: Outcome::Done,
                ..
            })) if count == request.octets => {
                receives.received();
                receives.before(socket)?;
                end::send(socket, buffer, octets)?;
            }
            Ok(Some(Event::Sent {
                buffer,
                outcome: Outcome::Done,
                ..
            })) => {
                // READY was in a buffer of its own.
                if buffer.len() == octets {
                    receives.put(buffer);
                }
            }
            other => match end::next_after(other?, socket)? {
                Event::Received { .. } | Event::Closed => return Ok(()),
                event => drop(end::sent(event)?),
            },
        }
        receives.after(socket)?;
    }
}
