//! How streams are made.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use super::descriptor::{Alarm, Descriptor};
use super::stream::ByteStream;
use crate::handshake::{Accepting, Endpoint, Handshake};
use crate::socket::Options;

/// Clients that have been answered and have not connected yet, at most.
const ANSWERED: usize = 128;

/// A connection in the making, and what its task sleeps on.
#[derive(Debug)]
struct Making<S> {
    steps: S,
    fd: Descriptor,
    alarm: Alarm,
}

impl<S: Handshake> Making<S> {
    fn new(steps: S) -> io::Result<Self> {
        let fd = Descriptor::new(steps.fd())?;
        Ok(Self {
            steps,
            fd,
            alarm: Alarm::new(),
        })
    }

    /// The stream. Not polled again when it is ready.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<ByteStream>> {
        loop {
            self.fd.arm(context)?;
            if let Some(socket) = self.steps.advance()? {
                return Poll::Ready(ByteStream::new(socket));
            }
            if !self.alarm.is_due(self.steps.deadline(), context) {
                return Poll::Pending;
            }
        }
    }
}

impl ByteStream {
    /// Connects to a listener (exs_connect). The connection is given up if the future is dropped.
    ///
    /// # Errors
    /// If there is no listener, it rejects, the two ends cannot make a stream, or a call fails.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub async fn connect(to: SocketAddr, options: &Options) -> io::Result<Self> {
        let mut making = Making::new(Endpoint::new()?.connect(to, options)?)?;
        poll_fn(|context| making.poll(context)).await
    }
}

/// A port at which streams are accepted.
#[derive(Debug)]
pub struct Listener {
    listener: crate::Listener,
    fd: Descriptor,
    options: Options,
    answered: Vec<Making<Accepting>>,
}

impl Listener {
    /// Listens at an address (exs_bind, exs_listen); with port 0, at a port of the library's
    /// choice. All streams have these options.
    ///
    /// # Errors
    /// If there is no device with the address, or the port is in use.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn bind(address: SocketAddr, options: &Options) -> io::Result<Self> {
        let listener = crate::Listener::bind(address)?;
        let fd = Descriptor::new(listener.fd())?;
        Ok(Self {
            listener,
            fd,
            options: *options,
            answered: Vec::new(),
        })
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.listener.port()
    }

    /// The next client that has connected (exs_accept). No client is lost if the future is dropped.
    ///
    /// # Errors
    /// If a client cannot make a stream with the options, in which case it is rejected, or does not
    /// complete the connection, or a call fails. The listener remains.
    pub async fn accept(&mut self) -> io::Result<ByteStream> {
        poll_fn(|context| self.poll_accept(context)).await
    }

    /// [`Listener::accept`] as a function that is polled.
    ///
    /// # Errors
    /// As there.
    pub fn poll_accept(&mut self, context: &mut Context<'_>) -> Poll<io::Result<ByteStream>> {
        self.fd.arm(context)?;
        while self.answered.len() < ANSWERED {
            let Some(accepting) = self.listener.try_accept(&self.options)? else {
                break;
            };
            self.answered.push(Making::new(accepting)?);
        }
        for index in 0..self.answered.len() {
            if let Poll::Ready(made) = self.answered[index].poll(context) {
                self.answered.remove(index);
                return Poll::Ready(made);
            }
        }
        Poll::Pending
    }
}
