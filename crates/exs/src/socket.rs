//! The calls of the user: listeners and sockets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use urdma_stream::wire::Hello;
use urdma_stream::{CallError, Config, RecvId, SendId, Stats, Stream};

use crate::driver::{Driver, Event, Refused};
use crate::error::Error;
use crate::ffi;
use crate::ffi::cm::{Event as CmEvent, Id};
use crate::ffi::memory::Buffer;
use crate::link::Link;

/// How long each step of a connection may take.
const STEP_LIMIT: Duration = Duration::from_secs(30);
/// How long the end of a socket waits for the other end after everything is finished.
const LINGER: Duration = Duration::from_secs(1);

/// What a socket is made with.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The protocol's configuration.
    pub config: Config,
    /// The length of the ring for indirect transfers.
    pub ring_octets: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            config: Config::default(),
            ring_octets: 4 << 20,
        }
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
        let id = Id::new()?;
        id.listen(address)?;
        Ok(Self { id })
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.id.port()
    }

    /// Waits for the next client and accepts it (exs_accept).
    ///
    /// # Errors
    /// If the client cannot make a stream with these options, in which case it is rejected, or
    /// does not complete the connection, or a call fails. The listener remains.
    pub fn accept(&self, options: &Options) -> Result<Socket, Error> {
        let (id, private) = loop {
            match next_event(&self.id, None)? {
                CmEvent::Request(id, private) => break (Arc::new(id), private),
                // Of a client that has been rejected.
                _ => continue,
            }
        };
        let prepared = Self::prepare(&id, &private, options);
        if prepared.is_err() {
            id.reject()?;
        }
        let (link, stream) = prepared?;
        id.accept(&link.hello(&options.config).encode())?;
        match next_event(&id, Some(STEP_LIMIT))? {
            CmEvent::Established(_) => Ok(Socket::new(link, stream, options, false)),
            other => Err(not_connected(other)),
        }
    }

    fn prepare(id: &Arc<Id>, private: &[u8], options: &Options) -> Result<(Link, Stream), Error> {
        let hello = Hello::decode(private)?;
        let link = Link::new(id, &options.config, options.ring_octets)?;
        let stream = Stream::new(&options.config, link.ring(), &hello)?;
        Ok((link, stream))
    }
}

/// One end of a byte stream.
///
/// The protocol makes progress in the calls of the socket only. An end whose user does not call
/// [`Socket::wait`] for a while keeps its peer waiting, as soon as the ring is full.
#[derive(Debug)]
pub struct Socket {
    driver: Driver,
}

impl Socket {
    fn new(link: Link, stream: Stream, options: &Options, is_active: bool) -> Self {
        let driver = Driver::new(link, stream, options.config.send_depth, is_active);
        Self { driver }
    }

    /// Connects to a listener (exs_connect).
    ///
    /// # Errors
    /// If there is no listener, it rejects, the two ends cannot make a stream, or a call fails.
    pub fn connect(to: SocketAddr, options: &Options) -> Result<Self, Error> {
        let id = Arc::new(Id::new()?);
        let next = || next_event(&id, Some(STEP_LIMIT));
        id.resolve_address(to)?;
        match next()? {
            CmEvent::AddressResolved => id.resolve_route()?,
            other => return Err(not_connected(other)),
        }
        match next()? {
            CmEvent::RouteResolved => {}
            other => return Err(not_connected(other)),
        }
        let link = Link::new(&id, &options.config, options.ring_octets)?;
        id.connect(&link.hello(&options.config).encode())?;
        let private = match next()? {
            CmEvent::Established(private) => private,
            other => return Err(not_connected(other)),
        };
        let made = Hello::decode(&private)
            .and_then(|hello| Stream::new(&options.config, link.ring(), &hello));
        match made {
            Ok(stream) => Ok(Self::new(link, stream, options, true)),
            Err(error) => {
                id.disconnect()?;
                Err(error.into())
            }
        }
    }

    /// Posts a send of the first octets of a buffer (exs_send). [`Event::Sent`] returns the buffer.
    ///
    /// # Errors
    /// If the stream refuses it, or the memory cannot be registered.
    pub fn send(&mut self, buffer: Buffer, len_octets: usize) -> Result<SendId, Refused> {
        self.driver.send(buffer, len_octets)
    }

    /// Posts a receive into the first octets of a buffer (exs_recv). It completes when there are
    /// octets, or with `waitall` (MSG_WAITALL) when there are `len_octets`. [`Event::Received`]
    /// returns the buffer.
    ///
    /// # Errors
    /// If the stream refuses it, or the memory cannot be registered.
    pub fn recv(
        &mut self,
        buffer: Buffer,
        len_octets: usize,
        waitall: bool,
    ) -> Result<RecvId, Refused> {
        self.driver.recv(buffer, len_octets, waitall)
    }

    /// Ends a send as soon as possible (exs_cancel). Its event follows.
    ///
    /// # Errors
    /// If it is complete.
    pub fn cancel_send(&mut self, id: SendId) -> Result<(), CallError> {
        self.driver.call(|stream| stream.cancel_send(id))
    }

    /// Ends a receive as soon as the peer cannot write into its buffer (exs_cancel). Its event
    /// follows.
    ///
    /// # Errors
    /// If it is complete.
    pub fn cancel_recv(&mut self, id: RecvId) -> Result<(), CallError> {
        self.driver.call(|stream| stream.cancel_recv(id))
    }

    /// Finishes the sending half (SHUT_WR).
    ///
    /// # Errors
    /// If the stream has failed.
    pub fn finish(&mut self) -> Result<(), CallError> {
        self.driver.call(Stream::finish)
    }

    /// Finishes the receiving half (SHUT_RD).
    ///
    /// # Errors
    /// If the stream has failed.
    pub fn stop(&mut self) -> Result<(), CallError> {
        self.driver.call(Stream::stop)
    }

    /// Finishes both halves; [`Event::Closed`] follows when the peer has finished, too.
    ///
    /// # Errors
    /// If the stream has failed.
    pub fn close(&mut self) -> Result<(), CallError> {
        self.driver.call(Stream::close)
    }

    /// Gives the stream up. The peer learns the code; [`Event::Failed`] follows.
    pub fn abort(&mut self, code: u32) {
        self.driver.call(|stream| stream.abort(code));
    }

    /// The next event (exs_qdequeue). Without one, executes the protocol, and sleeps while there is
    /// nothing to do, for at most `limit`. `None`: the limit has passed, or the connection has
    /// ended and all of its events were taken.
    ///
    /// # Errors
    /// The call that has made the connection fail, after all events.
    pub fn wait(&mut self, limit: Option<Duration>) -> Result<Option<Event>, Error> {
        self.driver.wait(limit)
    }

    /// What this end has counted.
    pub fn stats(&self) -> Stats {
        self.driver.stats()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.driver.linger(LINGER);
        self.driver.end();
    }
}

/// Sleeps until an identifier has an event.
fn next_event(id: &Id, limit: Option<Duration>) -> Result<CmEvent, Error> {
    let until = limit.map(|limit| Instant::now() + limit);
    loop {
        if let Some(event) = id.next_event()? {
            return Ok(event);
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(Error::TimedOut);
        }
        ffi::sleep([id.fd()], left)?;
    }
}

fn not_connected(event: CmEvent) -> Error {
    let event = match event {
        CmEvent::Other(name) => name,
        other => format!("{other:?}"),
    };
    Error::NotConnected { event }
}
