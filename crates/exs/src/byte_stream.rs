//! A stream that blocks, as those of the standard library do.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::unix::fs::FileExt;
use std::task::Poll;
use std::time::Instant;

use urdma_stream::{Failure, Stats};

use crate::buffered::Buffered;
use crate::error::failed;
use crate::handshake::Listener;
use crate::socket::{Options, Socket, LINGER};

/// One end of a byte stream that is read and written as a [`std::net::TcpStream`] is.
///
/// It has buffers of its own: for each direction as many octets as the ring has
/// ([`Options::ring_octets`]). What is written is copied and sent while the caller goes on. A
/// program that copies nothing uses a [`Socket`].
///
/// The protocol makes progress in the calls of the stream only. A program that has written and then
/// does something else for a while calls `flush` before.
///
/// Errors have the kinds of those of sockets: `BrokenPipe` if the peer receives no more,
/// `ConnectionReset` if it has aborted or the connection is broken, `InvalidData` if it violates
/// the protocol.
///
/// A stream that is dropped sends what was written, and waits up to a second until the peer has it;
/// [`ByteStream::close`] waits as long as it takes, and tells.
#[derive(Debug)]
pub struct ByteStream {
    buffered: Buffered,
}

impl ByteStream {
    /// Connects to a listener, and waits until it has accepted (exs_connect).
    ///
    /// # Errors
    /// If there is no listener, it rejects, the two ends cannot make a stream, or a call fails.
    pub fn connect(to: SocketAddr, options: &Options) -> io::Result<Self> {
        Self::new(Socket::connect(to, options)?)
    }

    /// Waits for the next client of a listener and accepts it (exs_accept).
    ///
    /// # Errors
    /// As [`Listener::accept`]. The listener remains.
    pub fn accept(listener: &Listener, options: &Options) -> io::Result<Self> {
        Self::new(listener.accept(options)?)
    }

    /// A stream over a socket on which nothing was posted.
    ///
    /// # Errors
    /// `InvalidInput` if the socket is one of messages; if memory cannot be registered.
    pub fn new(socket: Socket) -> io::Result<Self> {
        let buffered = Buffered::new(socket)?;
        Ok(Self { buffered })
    }

    /// Sends octets of a file from `offset` on, without a copy by the caller (exs_sendfile). How
    /// many: less than `len_octets` if the file ends before.
    ///
    /// # Errors
    /// As a write, or if the file cannot be read. What was read before is sent.
    pub fn send_file(&mut self, file: &File, offset: u64, len_octets: u64) -> io::Result<u64> {
        let mut sent = 0;
        while sent < len_octets {
            let left = usize::try_from(len_octets - sent).unwrap_or(usize::MAX);
            let count = self.complete(|buffered| {
                buffered.try_write_with(|room| {
                    let len = room.len().min(left);
                    file.read_at(&mut room[..len], offset + sent)
                })
            })?;
            if count == 0 {
                break;
            }
            sent += count as u64;
        }
        Ok(sent)
    }

    /// Finishes the sending half, after what was written; the receiving half, dropping what was not
    /// read; or both (exs_shutdown).
    ///
    /// # Errors
    /// If the stream has failed.
    pub fn shutdown(&mut self, how: Shutdown) -> io::Result<()> {
        if how != Shutdown::Read {
            self.buffered.finish()?;
        }
        if how != Shutdown::Write {
            self.buffered.stop()?;
        }
        Ok(())
    }

    /// Finishes both halves, and waits until the peer has finished, too (exs_close): it has all
    /// that was written then.
    ///
    /// # Errors
    /// If the stream fails before.
    pub fn close(mut self) -> io::Result<()> {
        self.buffered.finish_both();
        self.complete(Buffered::try_close)
    }

    /// Gives the stream up. The peer learns the code; reads and writes of both ends fail.
    pub fn abort(&mut self, code: u32) {
        self.buffered.socket.abort(code);
    }

    /// The address of the other end. `None`: the connection has ended.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.buffered.socket.peer()
    }

    /// What this end has counted.
    pub fn stats(&self) -> Stats {
        self.buffered.socket.stats()
    }

    /// Repeats a call until it is complete.
    fn complete<T>(
        &mut self,
        mut call: impl FnMut(&mut Buffered) -> Poll<io::Result<T>>,
    ) -> io::Result<T> {
        loop {
            if let Poll::Ready(result) = call(&mut self.buffered) {
                // The caller may do something else for long.
                self.buffered.socket.flush();
                return result;
            }
            if !self.buffered.wait(None)? {
                return Err(failed(Failure::Disconnected));
            }
        }
    }
}

impl Read for ByteStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.complete(|buffered| buffered.try_read(into))
    }
}

impl Write for ByteStream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.complete(|buffered| buffered.try_write(from))
    }

    /// Waits until the peer has all that was written, in its ring or its buffers.
    fn flush(&mut self) -> io::Result<()> {
        self.complete(Buffered::try_flush)
    }
}

impl Drop for ByteStream {
    fn drop(&mut self) {
        self.buffered.finish_both();
        let until = Instant::now() + LINGER;
        while self.buffered.try_close().is_pending() {
            let left = until.saturating_duration_since(Instant::now());
            if !self.buffered.wait(Some(left)).unwrap_or(false) {
                return;
            }
        }
    }
}
