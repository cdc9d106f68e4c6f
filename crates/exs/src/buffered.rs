//! A socket with buffers of its own, which is read and written in parts of any length.
//!
//! Receives are posted before they are asked for, so that transfers are direct and what arrives is
//! copied once. A write is sent at once while a buffer is left for the next one; writes that come
//! faster than the peer takes them share the last buffer.

use std::collections::VecDeque;
use std::io;
use std::task::Poll;
use std::time::Duration;

use urdma_stream::{Failure, Kind, Outcome};

use crate::error::{failed, Error};
use crate::event::Event;
use crate::ffi::memory::Buffer;
use crate::socket::Socket;

/// Sends, and receives, in progress at most. Those of a direction together are as long as the ring.
const BUFFERS: usize = 16;
/// The shortest and longest buffer.
const BUFFER_OCTETS: [usize; 2] = [4 << 10, 1 << 20];

/// The octets of a receive that were not read yet.
#[derive(Debug)]
struct Received {
    buffer: Buffer,
    start: usize,
    end: usize,
}

/// What has happened since the last look.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct News {
    /// A read that waits may be complete.
    pub(crate) for_reads: bool,
    /// A write, flush or close that waits may be complete.
    pub(crate) for_writes: bool,
}

impl News {
    const ALL: Self = Self {
        for_reads: true,
        for_writes: true,
    };
}

/// One end of a stream of octets.
#[derive(Debug)]
pub(crate) struct Buffered {
    pub(crate) socket: Socket,
    received: VecDeque<Received>,
    /// Nothing follows what was received.
    is_at_end: bool,
    sending: usize,
    free: Vec<Buffer>,
    /// Octets that are not posted, at the beginning of a buffer. Sends are in progress then.
    filled: Option<(Buffer, usize)>,
    /// This end has finished its half.
    is_finished: bool,
    /// The peer receives no more.
    is_refused: bool,
    is_closed: bool,
    failure: Option<Failure>,
    news: News,
}

impl Buffered {
    /// Posts all receives of a socket of octets, on which nothing was posted before.
    pub(crate) fn new(socket: Socket) -> io::Result<Self> {
        let options = *socket.options();
        if options.config.kind != Kind::Octets {
            let reason = "a stream of messages has no octets to be read";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        let [shortest, longest] = BUFFER_OCTETS;
        let len = (options.ring_octets / BUFFERS).clamp(shortest, longest);
        let mut buffered = Self {
            socket,
            received: VecDeque::new(),
            is_at_end: false,
            sending: 0,
            free: split(BUFFERS.min(options.config.max_sends), len)?,
            filled: None,
            is_finished: false,
            is_refused: false,
            is_closed: false,
            failure: None,
            news: News::default(),
        };
        // Of another allocation than what is sent, since the peer may write into all of it.
        for buffer in split(BUFFERS.min(options.config.max_recvs as usize), len)? {
            buffered.post_recv(buffer)?;
        }
        Ok(buffered)
    }

    /// What has happened since the last call of this.
    #[cfg(feature = "tokio")]
    pub(crate) fn take_news(&mut self) -> News {
        std::mem::take(&mut self.news)
    }

    /// Copies octets that were received: 0 at the end of the stream. Pending: none are there.
    pub(crate) fn try_read(&mut self, into: &mut [u8]) -> Poll<io::Result<usize>> {
        self.take_events();
        let mut copied = 0;
        while let Some(first) = self.received.front_mut().filter(|_| copied < into.len()) {
            let octets = &first.buffer[first.start..first.end];
            let len = octets.len().min(into.len() - copied);
            into[copied..copied + len].copy_from_slice(&octets[..len]);
            copied += len;
            first.start += len;
            if first.start == first.end {
                let read = self.received.pop_front().expect("it is the first");
                // It is refused if the stream has failed, which the next read tells.
                let _ = self.post_recv(read.buffer);
            }
        }
        // A receive is complete at once if the ring has octets for it.
        self.take_events();
        match self.failure {
            _ if copied > 0 || into.is_empty() || self.is_at_end => Poll::Ready(Ok(copied)),
            Some(failure) => Poll::Ready(Err(failed(failure))),
            None => Poll::Pending,
        }
    }

    /// Sends as many of the octets as there is room for. Pending: no buffer is free.
    pub(crate) fn try_write(&mut self, from: &[u8]) -> Poll<io::Result<usize>> {
        if from.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.try_write_with(|room| {
            let len = from.len().min(room.len());
            room[..len].copy_from_slice(&from[..len]);
            Ok(len)
        })
    }

    /// Sends the octets that `fill` puts into the beginning of its argument; it returns how many.
    pub(crate) fn try_write_with(
        &mut self,
        fill: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        self.take_events();
        if self.is_finished {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        self.check_sends()?;
        let filled = self.filled.take();
        let filled = filled.or_else(|| self.free.pop().map(|buffer| (buffer, 0)));
        let Some((mut buffer, len)) = filled else {
            return Poll::Pending;
        };
        let result = fill(&mut buffer[len..]);
        let len = len + result.as_ref().map_or(0, |&count| count);
        let is_full = len == buffer.len();
        match len {
            0 => self.free.push(buffer),
            _ => self.filled = Some((buffer, len)),
        }
        if is_full || self.sending == 0 || !self.free.is_empty() {
            self.post_filled()?;
        }
        Poll::Ready(result)
    }

    /// Whether the peer has all that was written.
    pub(crate) fn try_flush(&mut self) -> Poll<io::Result<()>> {
        self.take_events();
        self.check_sends()?;
        match self.sending {
            0 => Poll::Ready(Ok(())),
            _ => Poll::Pending,
        }
    }

    /// Finishes the sending half after what was written.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.is_finished, true) {
            return Ok(());
        }
        self.post_filled()?;
        Ok(self.socket.finish().map_err(Error::from)?)
    }

    /// Finishes the receiving half. What was not read is dropped.
    pub(crate) fn stop(&mut self) -> io::Result<()> {
        self.is_at_end = true;
        self.received.clear();
        self.news.for_reads = true;
        Ok(self.socket.stop().map_err(Error::from)?)
    }

    /// Finishes both halves. It fails only if the stream has failed, which
    /// [`Buffered::try_close`] tells.
    pub(crate) fn finish_both(&mut self) {
        let _ = self.finish();
        let _ = self.stop();
    }

    /// Whether both ends have finished, and each has all that the other has sent.
    pub(crate) fn try_close(&mut self) -> Poll<io::Result<()>> {
        self.take_events();
        match self.failure {
            _ if self.is_closed => Poll::Ready(Ok(())),
            Some(failure) => Poll::Ready(Err(failed(failure))),
            None => Poll::Pending,
        }
    }

    /// Executes the protocol, and sleeps until something happens, for at most so long. `false`: the
    /// limit has passed, or the connection has ended.
    pub(crate) fn wait(&mut self, limit: Option<Duration>) -> io::Result<bool> {
        let event = self.socket.wait(limit)?;
        let has_one = event.is_some();
        event.into_iter().for_each(|event| self.handle(event));
        Ok(has_one)
    }

    /// Takes what has happened, as [`Socket::pop_event`] does.
    pub(crate) fn take_events(&mut self) {
        while let Some(event) = self.socket.pop_event() {
            self.handle(event);
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Sent {
                buffer, outcome, ..
            } => {
                self.sending -= 1;
                self.free.push(buffer);
                self.is_refused |= outcome == Outcome::PeerStopped;
                self.news.for_writes = true;
                // It is refused for what the next write tells.
                let _ = self.post_filled();
            }
            Event::Received {
                buffer,
                octets,
                outcome,
                ..
            } => {
                let end = usize::try_from(octets).unwrap_or(0);
                if end > 0 && !self.is_at_end {
                    self.received.push_back(Received {
                        buffer,
                        start: 0,
                        end,
                    });
                }
                self.is_at_end |= outcome == Outcome::EndOfStream;
                self.news.for_reads = true;
            }
            Event::Closed => {
                self.is_closed = true;
                self.news = News::ALL;
            }
            Event::Failed(failure) => {
                self.failure = Some(failure);
                self.news = News::ALL;
            }
        }
    }

    fn check_sends(&self) -> io::Result<()> {
        match self.failure {
            Some(failure) => Err(failed(failure)),
            None if self.is_refused => Err(io::ErrorKind::BrokenPipe.into()),
            None => Ok(()),
        }
    }

    fn post_filled(&mut self) -> Result<(), Error> {
        let Some((buffer, len)) = self.filled.take() else {
            return Ok(());
        };
        match self.socket.send(buffer, len) {
            Ok(_) => self.sending += 1,
            Err(refused) => {
                self.free.push(refused.buffer);
                return Err(refused.error);
            }
        }
        Ok(())
    }

    fn post_recv(&mut self, buffer: Buffer) -> Result<(), Error> {
        let len = buffer.len();
        let posted = self.socket.recv(buffer, len, false);
        posted.map(drop).map_err(|refused| refused.error)
    }
}

/// Buffers of one allocation.
fn split(count: usize, len_octets: usize) -> Result<Vec<Buffer>, Error> {
    let mut rest = Buffer::new(count * len_octets)?;
    let parts = (0..count).map(|_| {
        let next = rest.split_off(len_octets);
        std::mem::replace(&mut rest, next)
    });
    Ok(parts.collect())
}
