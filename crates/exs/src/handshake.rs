//! How connections are made: endpoints, listeners, and connections in the making.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use urdma_stream::wire::Hello;
use urdma_stream::Stream;

use crate::error::Error;
use crate::ffi;
use crate::ffi::cm::{Event as CmEvent, Id};
use crate::link::Link;
use crate::registrations::Posted;
use crate::socket::{Options, Socket};

/// How long each step of a connection may take.
const STEP_LIMIT: Duration = Duration::from_secs(30);
/// Clients that wait to be accepted, unless the caller says otherwise.
const BACKLOG: i32 = 128;

/// A connection in the making, which its owner advances without sleeping.
pub trait Handshake {
    /// The descriptor that can be read when [`Handshake::advance`] is due.
    fn fd(&self) -> BorrowedFd<'_>;

    /// When it is due even if the descriptor cannot be read.
    fn deadline(&self) -> Instant;

    /// Takes the next steps; the socket, once the connection is made. Not called again after a
    /// socket or an error.
    ///
    /// # Errors
    /// If the other end does not complete the connection, or not in time, or rejects it, the two
    /// ends cannot make a stream, or a call fails.
    fn advance(&mut self) -> Result<Option<Socket>, Error>;
}

/// Sleeps until a connection is made.
fn complete(mut making: impl Handshake) -> Result<Socket, Error> {
    loop {
        if let Some(socket) = making.advance()? {
            return Ok(socket);
        }
        let left = making.deadline().saturating_duration_since(Instant::now());
        ffi::sleep([making.fd()], Some(left))?;
    }
}

/// An end that neither listens nor is connected.
#[derive(Debug)]
pub struct Endpoint {
    id: Id,
}

impl Endpoint {
    /// An end without an address.
    ///
    /// # Errors
    /// If connection management cannot be reached.
    pub fn new() -> Result<Self, Error> {
        Ok(Self { id: Id::new()? })
    }

    /// Gives it an address (exs_bind); with port 0, a port of the library's choice.
    ///
    /// # Errors
    /// If there is no device with the address, or the port is in use.
    pub fn bind(&self, address: SocketAddr) -> Result<(), Error> {
        self.id.bind(address)
    }

    /// Listens (exs_listen), with at most `backlog` clients waiting.
    ///
    /// # Errors
    /// If it has no address, or the port is in use.
    pub fn listen(self, backlog: i32) -> Result<Listener, Error> {
        self.id.listen(backlog)?;
        Ok(Listener { id: self.id })
    }

    /// Begins a connection to a listener (exs_connect).
    ///
    /// # Errors
    /// If the address cannot be looked for.
    pub fn connect(self, to: SocketAddr, options: &Options) -> Result<Connecting, Error> {
        self.id.resolve_address(to)?;
        Ok(Connecting {
            id: Arc::new(self.id),
            options: *options,
            link: None,
            until: Instant::now() + STEP_LIMIT,
        })
    }
}

/// A port at which sockets are accepted.
#[derive(Debug)]
pub struct Listener {
    id: Id,
}

impl Listener {
    /// Listens at an address; with port 0, at a port of the library's choice.
    ///
    /// # Errors
    /// If there is no device with the address, or the port is in use.
    pub fn bind(address: SocketAddr) -> Result<Self, Error> {
        let endpoint = Endpoint::new()?;
        endpoint.bind(address)?;
        endpoint.listen(BACKLOG)
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.id.port()
    }

    /// The descriptor that can be read when [`Listener::try_accept`] may find a client.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.id.fd()
    }

    /// Answers the next client, if one waits; does not sleep.
    ///
    /// # Errors
    /// If the client cannot make a stream with these options, in which case it is rejected, or a
    /// call fails. The listener remains.
    pub fn try_accept(&self, options: &Options) -> Result<Option<Accepting>, Error> {
        let (id, private) = loop {
            match self.id.next_event()? {
                Some(CmEvent::Request(id, private)) => break (Arc::new(id), private),
                // Of a client that has been rejected.
                Some(_) => {}
                None => return Ok(None),
            }
        };
        let prepared = prepare(&id, &private, options);
        if prepared.is_err() {
            id.reject()?;
        }
        let (link, stream) = prepared?;
        id.accept(&link.hello().encode())?;
        Ok(Some(Accepting {
            id,
            options: *options,
            prepared: Some((link, stream)),
            until: Instant::now() + STEP_LIMIT,
        }))
    }

    /// Waits for the next client and accepts it (exs_accept).
    ///
    /// # Errors
    /// If the client cannot make a stream with these options, in which case it is rejected, or
    /// does not complete the connection, or a call fails. The listener remains.
    pub fn accept(&self, options: &Options) -> Result<Socket, Error> {
        loop {
            match self.try_accept(options)? {
                Some(accepting) => return complete(accepting),
                None => ffi::sleep([self.fd()], None)?,
            };
        }
    }
}

fn prepare(
    id: &Arc<Id>,
    private: &[u8],
    options: &Options,
) -> Result<(Link, Stream<Posted>), Error> {
    let hello = Hello::decode(private)?;
    let link = Link::new(id, &options.config, options.ring_octets)?;
    let stream = link.stream(&hello)?;
    Ok((link, stream))
}

/// A client that has been answered.
#[derive(Debug)]
pub struct Accepting {
    prepared: Option<(Link, Stream<Posted>)>,
    id: Arc<Id>,
    options: Options,
    until: Instant,
}

impl Handshake for Accepting {
    fn fd(&self) -> BorrowedFd<'_> {
        self.id.fd()
    }

    fn deadline(&self) -> Instant {
        self.until
    }

    fn advance(&mut self) -> Result<Option<Socket>, Error> {
        let prepared = match next_step(&self.id, self.until)? {
            None => return Ok(None),
            Some(CmEvent::Established(_)) => self.prepared.take(),
            Some(other) => return Err(not_connected(other)),
        };
        Ok(prepared.map(|(link, stream)| Socket::new(link, stream, &self.options, false)))
    }
}

/// A connection that is being made to a listener.
#[derive(Debug)]
pub struct Connecting {
    /// Once the address is resolved.
    link: Option<Link>,
    id: Arc<Id>,
    options: Options,
    until: Instant,
}

impl Handshake for Connecting {
    fn fd(&self) -> BorrowedFd<'_> {
        self.id.fd()
    }

    fn deadline(&self) -> Instant {
        self.until
    }

    fn advance(&mut self) -> Result<Option<Socket>, Error> {
        loop {
            let Some(event) = next_step(&self.id, self.until)? else {
                return Ok(None);
            };
            match (event, self.link.take()) {
                (CmEvent::AddressResolved, None) => self.id.resolve_route()?,
                (CmEvent::RouteResolved, None) => {
                    let config = &self.options.config;
                    let link = Link::new(&self.id, config, self.options.ring_octets)?;
                    self.id.connect(&link.hello().encode())?;
                    self.link = Some(link);
                }
                (CmEvent::Established(private), Some(link)) => {
                    return self.complete(link, &private).map(Some);
                }
                (other, _) => return Err(not_connected(other)),
            }
            self.until = Instant::now() + STEP_LIMIT;
        }
    }
}

impl Connecting {
    fn complete(&self, link: Link, private: &[u8]) -> Result<Socket, Error> {
        let made = Hello::decode(private).and_then(|hello| link.stream(&hello));
        match made {
            Ok(stream) => Ok(Socket::new(link, stream, &self.options, true)),
            Err(error) => {
                self.id.disconnect()?;
                Err(error.into())
            }
        }
    }
}

impl Socket {
    /// Connects to a listener, and waits until it has accepted (exs_connect).
    ///
    /// # Errors
    /// If there is no listener, it rejects, the two ends cannot make a stream, or a call fails.
    pub fn connect(to: SocketAddr, options: &Options) -> Result<Self, Error> {
        complete(Endpoint::new()?.connect(to, options)?)
    }
}

/// The next event of a connection in the making. `None`: it has not come yet.
fn next_step(id: &Id, until: Instant) -> Result<Option<CmEvent>, Error> {
    match id.next_event()? {
        None if Instant::now() >= until => Err(Error::TimedOut),
        event => Ok(event),
    }
}

fn not_connected(event: CmEvent) -> Error {
    let (event, errno) = match event {
        CmEvent::Other(name, errno) => (name, errno),
        other => (format!("{other:?}"), libc::ECONNABORTED),
    };
    Error::NotConnected { event, errno }
}
