//! One end of a stream, and its options.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use clap::{Args, ValueEnum};
use urdma_exs::{Buffer, CallError, Choice, Event, Listener, Options, Outcome, Refused, Socket};

use crate::error::Error;

/// The longest time without an event.
pub(crate) const SILENCE: Duration = Duration::from_secs(60);

/// A host and a port, as the command line has them.
pub(crate) fn address(text: &str) -> io::Result<SocketAddr> {
    let mut found = text.to_socket_addrs()?;
    let none = || io::Error::new(io::ErrorKind::NotFound, format!("{text} has no address"));
    found.next().ok_or_else(none)
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Transfers {
    /// The protocol chooses for each transfer
    Dynamic,
    /// Into receives only
    Direct,
    /// Through the peer's ring only
    Indirect,
}

/// The options of both ends.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct StreamArguments {
    /// Octets of the ring of this end when the stream begins
    #[arg(long, default_value_t = 4 << 20)]
    ring_octets: usize,
    /// Octets to which the ring may grow if the path holds more
    #[arg(long, default_value_t = 64 << 20)]
    ring_max_octets: u64,
    /// How this end chooses between transfers
    #[arg(long, value_enum, default_value_t = Transfers::Dynamic)]
    transfers: Transfers,
    /// Microseconds for which this end polls before it sleeps; 0: it sleeps at once
    #[arg(long, default_value_t = 10)]
    poll_us: u64,
}

impl StreamArguments {
    pub(crate) fn options(&self) -> Options {
        let mut options = Options {
            ring_octets: self.ring_octets,
            poll: Duration::from_micros(self.poll_us),
            ..Options::default()
        };
        options.config.ring_max_octets = self.ring_max_octets;
        options.config.choice = match self.transfers {
            Transfers::Dynamic => Choice::Dynamic,
            Transfers::Direct => Choice::Direct,
            Transfers::Indirect => Choice::Indirect,
        };
        options
    }
}

/// The options of an end that serves others.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct ServerArguments {
    /// Address and port; port 0 is one of the library's choice
    #[arg(value_parser = address)]
    address: SocketAddr,
    /// Serve one client, and fail if it fails
    #[arg(long)]
    one: bool,
    #[command(flatten)]
    stream: StreamArguments,
}

impl ServerArguments {
    /// Serves clients one after the other. Ends with the first one if that is asked for; otherwise
    /// tells what ends a client.
    pub(crate) fn serve_each(
        &self,
        mut serve: impl FnMut(Socket) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let listener = Listener::bind(self.address)?;
        println!("listening at port {}", listener.port());
        loop {
            let served = listener
                .accept(&self.stream.options())
                .map_err(Error::from)
                .and_then(&mut serve);
            match served {
                result if self.one => return result,
                Ok(()) => {}
                Err(error) => eprintln!("urdma-stream: a client: {error}"),
            }
        }
    }
}

/// So many buffers of this length, parts of one allocation.
pub(crate) fn buffers(count: usize, octets: usize) -> Result<Vec<Buffer>, Error> {
    let mut rest = Buffer::new(count * octets)?;
    let mut buffers = Vec::new();
    for _ in 0..count {
        let next = rest.split_off(octets);
        buffers.push(std::mem::replace(&mut rest, next));
    }
    Ok(buffers)
}

/// The next event, which must come. An event of the end of a failed stream is an error.
#[inline]
pub(crate) fn next(socket: &mut Socket) -> Result<Event, Error> {
    match socket.wait(Some(SILENCE)) {
        Ok(Some(
            event @ (Event::Sent {
                outcome: Outcome::Done,
                ..
            }
            | Event::Received {
                outcome: Outcome::Done,
                ..
            }),
        )) => Ok(event),
        other => next_after(other?, socket),
    }
}

/// What `next` says of an event that is not the success of an operation, or of none.
#[inline(never)]
pub(crate) fn next_after(mut event: Option<Event>, socket: &mut Socket) -> Result<Event, Error> {
    loop {
        match event {
            None => return Err(Error::Silence(SILENCE)),
            Some(Event::Failed(failure)) => return Err(Error::Failed(failure)),
            // They come before the failure of the stream.
            Some(
                Event::Sent {
                    outcome: Outcome::Failed(_),
                    ..
                }
                | Event::Received {
                    outcome: Outcome::Failed(_),
                    ..
                },
            ) => {}
            Some(event) => return Ok(event),
        }
        event = socket.wait(Some(SILENCE))?;
    }
}

/// Why what [`Socket::wait`] has returned is not the success of an operation. `what`: that which
/// was to come before the end of the stream.
#[inline(never)]
pub(crate) fn why_not_done(
    waited: Result<Option<Event>, urdma_exs::Error>,
    socket: &mut Socket,
    what: &'static str,
) -> Error {
    let event = waited.map_err(Error::from);
    match event.and_then(|event| next_after(event, socket)) {
        Err(error) => error,
        Ok(Event::Sent { outcome, .. }) => Error::Operation(outcome),
        Ok(_) => Error::Truncated(what),
    }
}

/// Why an operation is not posted: the failure of the stream, if it has failed.
#[inline(never)]
pub(crate) fn why_refused(socket: &mut Socket, refused: Refused) -> Error {
    let is_failed = matches!(refused.error, urdma_exs::Error::Refused(CallError::Failed));
    if is_failed {
        loop {
            if let Err(error) = next(socket) {
                return error;
            }
        }
    }
    refused.into()
}

/// Posts a send of the first octets of a buffer.
#[inline]
pub(crate) fn send(socket: &mut Socket, buffer: Buffer, octets: usize) -> Result<(), Error> {
    match socket.send(buffer, octets) {
        Ok(_) => Ok(()),
        Err(refused) => Err(why_refused(socket, refused)),
    }
}

/// Posts a receive into the first octets of a buffer.
#[inline]
pub(crate) fn recv(
    socket: &mut Socket,
    buffer: Buffer,
    octets: usize,
    waitall: bool,
) -> Result<(), Error> {
    match socket.recv(buffer, octets, waitall) {
        Ok(_) => Ok(()),
        Err(refused) => Err(why_refused(socket, refused)),
    }
}

/// The buffer of a send that is complete.
pub(crate) fn sent(event: Event) -> Result<Buffer, Error> {
    match event {
        Event::Sent {
            buffer,
            outcome: Outcome::Done,
            ..
        } => Ok(buffer),
        Event::Sent { outcome, .. } | Event::Received { outcome, .. } => {
            Err(Error::Operation(outcome))
        }
        Event::Closed | Event::Failed(_) => Err(Error::Truncated("a send was complete")),
    }
}

/// Receives exactly `octets` octets, while no other receive is posted. `what`: what they are.
pub(crate) fn recv_exactly(
    socket: &mut Socket,
    octets: usize,
    what: &'static str,
) -> Result<Buffer, Error> {
    recv(socket, Buffer::new(octets)?, octets, true)?;
    loop {
        match next(socket)? {
            Event::Received {
                buffer,
                octets: count,
                ..
            } if count == octets as u64 => return Ok(buffer),
            Event::Received { .. } | Event::Closed => return Err(Error::Truncated(what)),
            event => drop(sent(event)?),
        }
    }
}

/// Sends these octets.
pub(crate) fn send_octets(socket: &mut Socket, octets: &[u8]) -> Result<(), Error> {
    let mut buffer = Buffer::new(octets.len())?;
    buffer.copy_from_slice(octets);
    send(socket, buffer, octets.len())
}

/// Finishes the sending half, and waits until both halves are finished. What the peer still sends
/// is dropped.
pub(crate) fn close(socket: &mut Socket) -> Result<(), Error> {
    socket.close()?;
    while !matches!(next(socket)?, Event::Closed) {}
    Ok(())
}
