//! The calls of the user for a stream.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use urdma_stream::{CallError, Config, RecvId, SendId, Stats, Stream};

use crate::driver::{Driver, Refused};
use crate::error::Error;
use crate::event::Event;
use crate::ffi::memory::{Buffer, Memory};
use crate::link::Link;
use crate::registrations::Posted;

/// How long the connecting end of a finished stream waits until the other one ends the connection,
/// and how long the end of a process or the drop of a stream waits for that.
pub const LINGER: Duration = Duration::from_secs(1);

/// How long a thread that waits polls before it sleeps, as those of rsockets do. A sleep costs more
/// than the answer of a peer on the same host takes.
const POLL: Duration = Duration::from_micros(10);

/// What a socket is made with.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The protocol's configuration.
    pub config: Config,
    /// The length of the ring for indirect transfers when the stream begins. The peer may ask for
    /// another, up to [`Config::ring_max_octets`].
    pub ring_octets: usize,
    /// How long [`Socket::wait`] polls before it sleeps; 10 microseconds by default, 0: it sleeps
    /// at once. A thread that shares its processor with its peer sleeps now and then without.
    pub poll: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            config: Config::default(),
            ring_octets: 4 << 20,
            poll: POLL,
        }
    }
}

/// One end of a byte stream.
///
/// The protocol makes progress in the calls of the socket only. An end whose user does not call
/// [`Socket::wait`] for a while keeps its peer waiting, as soon as the ring is full.
#[derive(Debug)]
pub struct Socket {
    driver: Driver,
    options: Options,
}

impl Socket {
    pub(crate) fn new(
        link: Link,
        stream: Stream<Posted>,
        options: &Options,
        is_active: bool,
    ) -> Self {
        let send_depth = options.config.send_depth;
        let driver = Driver::new(link, stream, send_depth, options.poll, is_active);
        Self {
            driver,
            options: *options,
        }
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// Posts a send of the first octets of a buffer (exs_send). [`Event::Sent`] returns the buffer.
    ///
    /// # Errors
    /// If the stream refuses it, or the memory cannot be registered.
    #[inline]
    pub fn send(&mut self, buffer: Buffer, len_octets: usize) -> Result<SendId, Refused> {
        self.driver.send(buffer, len_octets)
    }

    /// Posts a receive into the first octets of a buffer (exs_recv). It completes when there are
    /// octets, or with `waitall` (MSG_WAITALL) when there are `len_octets`. [`Event::Received`]
    /// returns the buffer.
    ///
    /// # Errors
    /// If the stream refuses it, or the memory cannot be registered.
    #[inline]
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
    #[inline]
    pub fn wait(&mut self, limit: Option<Duration>) -> Result<Option<Event>, Error> {
        self.driver.wait(limit)
    }

    /// An event that has happened. Takes no completions; short receives that were posted while
    /// events were left get their octets from the ring after the last of these.
    pub fn pop_event(&mut self) -> Option<Event> {
        self.driver.pop_event()
    }

    /// Executes the protocol without sleeping. `false`: the turn has ended before the work; another
    /// is due. `true`: none is due until one of [`Socket::fds`] can be read, or
    /// [`Socket::deadline`] has passed. Events are taken by [`Socket::pop_event`].
    pub fn turn(&mut self) -> bool {
        self.driver.turn()
    }

    /// Whether short sends wait to be carried with later ones (doc/streams.md, "Short messages").
    pub fn is_gathering(&self) -> bool {
        self.driver.is_gathering()
    }

    /// Sends short sends that wait to be carried with later ones. [`Socket::wait`] and
    /// [`Socket::turn`] do so before there is nothing left to be done; a caller that does something
    /// else after a send calls this.
    pub fn flush(&mut self) {
        self.driver.flush();
    }

    /// The descriptors that can be read when a turn is due. `None`: the connection has ended. They
    /// are closed then, and not the caller's to read.
    pub fn fds(&self) -> Option<[BorrowedFd<'_>; 2]> {
        self.driver.fds()
    }

    /// When a turn is due even if no descriptor can be read.
    pub fn deadline(&self) -> Option<Instant> {
        self.driver.deadline()
    }

    /// Whether a turn is due since a call of this thread has found the connection broken, or failed
    /// the stream.
    pub fn is_ending(&self) -> bool {
        self.driver.is_ending()
    }

    /// The address of the other end. `None`: the connection has ended.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.driver.peer()
    }

    /// Ends the registration of memory with this connection, so that it can be freed. `false`: an
    /// operation in progress uses it, and nothing has changed.
    pub fn forget(&mut self, memory: &Memory) -> bool {
        self.driver.forget(memory)
    }

    /// Ends the connection at once. Events return the buffers of the operations in progress.
    pub fn disconnect(&mut self) {
        self.driver.end();
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
