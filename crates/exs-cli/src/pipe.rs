//! Standard input and output as the two directions of a stream.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Instant;

use clap::Args;
use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::unistd::read;
use urdma_exs::{Buffer, Event, Listener, Outcome, Socket};

use crate::end::{self, StreamArguments};
use crate::error::Error;

/// The octets of a buffer, and the buffers of each direction.
const OCTETS: usize = 128 << 10;
const COUNT: usize = 8;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Host and port of the peer, or address and port to listen at
    #[arg(value_parser = end::address)]
    address: SocketAddr,
    /// Wait for the peer to connect
    #[arg(long, short)]
    listen: bool,
    #[command(flatten)]
    stream: StreamArguments,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    let options = arguments.stream.options();
    let socket = if arguments.listen {
        let listener = Listener::bind(arguments.address)?;
        eprintln!("listening at port {}", listener.port());
        listener.accept(&options)?
    } else {
        Socket::connect(arguments.address, &options)?
    };
    Pipe::new(socket)?.run()
}

/// A stream between standard input and output.
struct Pipe {
    socket: Socket,
    /// Of the sending half.
    free: Vec<Buffer>,
    is_input_open: bool,
    is_closed: bool,
}

impl Pipe {
    fn new(mut socket: Socket) -> Result<Self, Error> {
        let mut free = end::buffers(2 * COUNT, OCTETS)?;
        for buffer in free.drain(COUNT..) {
            end::recv(&mut socket, buffer, OCTETS, false)?;
        }
        Ok(Self {
            socket,
            free,
            is_input_open: true,
            is_closed: false,
        })
    }

    fn run(mut self) -> Result<(), Error> {
        while !self.is_closed {
            let is_done = self.socket.turn();
            while let Some(event) = self.socket.pop_event() {
                self.take(event)?;
            }
            if is_done && !self.is_closed {
                self.rest()?;
            }
        }
        Ok(())
    }

    fn take(&mut self, event: Event) -> Result<(), Error> {
        match event {
            Event::Sent {
                buffer,
                outcome: Outcome::Done,
                ..
            } => self.free.push(buffer),
            // The end of the stream follows.
            Event::Sent {
                outcome: Outcome::PeerStopped,
                ..
            } => self.is_input_open = false,
            Event::Received {
                buffer,
                octets,
                outcome: outcome @ (Outcome::Done | Outcome::EndOfStream),
                ..
            } => {
                let octets = usize::try_from(octets).unwrap_or(usize::MAX);
                let mut output = io::stdout().lock();
                let written = output.write_all(&buffer[..octets]);
                written
                    .and_then(|()| output.flush())
                    .map_err(|error| Error::Io("standard output", error))?;
                if outcome == Outcome::Done {
                    end::recv(&mut self.socket, buffer, OCTETS, false)?;
                }
            }
            Event::Sent {
                outcome: Outcome::Failed(failure),
                ..
            }
            | Event::Received {
                outcome: Outcome::Failed(failure),
                ..
            }
            | Event::Failed(failure) => return Err(failure.into()),
            Event::Sent { outcome, .. } | Event::Received { outcome, .. } => {
                return Err(Error::Operation(outcome));
            }
            Event::Closed => self.is_closed = true,
        }
        Ok(())
    }

    /// Sleeps until a turn is due or there is input, which it sends.
    fn rest(&mut self) -> Result<(), Error> {
        let input = io::stdin();
        let Some([first, second]) = self.socket.fds() else {
            // The next turn has the events of the end.
            return Ok(());
        };
        let mut fds = vec![
            PollFd::new(first, PollFlags::POLLIN),
            PollFd::new(second, PollFlags::POLLIN),
        ];
        let wants_input = self.is_input_open && !self.free.is_empty();
        if wants_input {
            fds.push(PollFd::new(input.as_fd(), PollFlags::POLLIN));
        }
        let limit = self.socket.deadline().map_or(PollTimeout::NONE, |until| {
            let left = until.saturating_duration_since(Instant::now());
            PollTimeout::try_from(left.as_millis() + 1).unwrap_or(PollTimeout::MAX)
        });
        match poll(&mut fds, limit) {
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok(()),
            Err(errno) => return Err(Error::Io("poll", errno.into())),
        }
        let has_input = wants_input && fds.last().and_then(PollFd::any).unwrap_or(false);
        drop(fds);
        if has_input {
            self.send_input(&input)?;
        }
        Ok(())
    }

    fn send_input(&mut self, input: &io::Stdin) -> Result<(), Error> {
        let Some(mut buffer) = self.free.pop() else {
            return Ok(());
        };
        match read(input, &mut buffer) {
            Ok(0) => {
                self.free.push(buffer);
                self.is_input_open = false;
                self.socket.finish()?;
            }
            Ok(octets) => end::send(&mut self.socket, buffer, octets)?,
            Err(Errno::EINTR) => self.free.push(buffer),
            Err(errno) => return Err(Error::Io("standard input", errno.into())),
        }
        Ok(())
    }
}
