//! The calls of a stream.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use ::tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use urdma_stream::Stats;

use super::driver::{Shared, Side};
use crate::buffered::Buffered;
use crate::socket::Socket;

/// One end of a byte stream that is read and written as a `tokio::net::TcpStream` is. It has the
/// buffers and the errors of a [`crate::ByteStream`].
///
/// A read that is given up loses no octets: those that arrive later are for the next read. A task
/// may read while another writes (`tokio::io::split`). `shutdown` finishes the sending half and
/// waits until the peer has all that was written; `flush` waits for nothing, since the runtime
/// sends what was written.
///
/// A stream that is dropped sends what was written as long as the runtime and the peer live;
/// [`ByteStream::close`] tells when the peer has it.
#[derive(Debug)]
pub struct ByteStream {
    shared: Shared,
}

impl ByteStream {
    /// A stream over a socket on which nothing was posted.
    ///
    /// # Errors
    /// `InvalidInput` if the socket is one of messages; if memory or descriptors cannot be
    /// registered.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn new(socket: Socket) -> io::Result<Self> {
        let (shared, driver) = Shared::new(Buffered::new(socket)?)?;
        driver.map(::tokio::spawn);
        Ok(Self { shared })
    }

    /// Finishes both halves, and waits until the peer has finished, too (exs_close): it has all
    /// that was written then.
    ///
    /// # Errors
    /// If the stream fails before.
    pub async fn close(self) -> io::Result<()> {
        self.shared.lock().buffered.finish_both();
        poll_fn(|context| self.shared.call(Side::Writer, context, Buffered::try_close)).await
    }

    /// Gives the stream up. The peer learns the code; reads and writes of both ends fail.
    pub fn abort(&mut self, code: u32) {
        let context = Context::from_waker(std::task::Waker::noop());
        let call = |buffered: &mut Buffered| {
            buffered.socket.abort(code);
            Poll::Ready(())
        };
        let _ = self.shared.call(Side::Writer, &context, call);
    }

    /// The address of the other end. `None`: the connection has ended.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.shared.lock().buffered.socket.peer()
    }

    /// What this end has counted.
    pub fn stats(&self) -> Stats {
        self.shared.lock().buffered.socket.stats()
    }
}

impl AsyncRead for ByteStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let room = into.initialize_unfilled();
        let read = |buffered: &mut Buffered| buffered.try_read(room);
        let read = self.shared.call(Side::Reader, context, read);
        read.map_ok(|count| into.advance(count))
    }
}

impl AsyncWrite for ByteStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        let write = |buffered: &mut Buffered| buffered.try_write(from);
        self.shared.call(Side::Writer, context, write)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.call(Side::Writer, context, |buffered| {
            buffered.finish()?;
            buffered.try_flush()
        })
    }
}

impl Drop for ByteStream {
    fn drop(&mut self) {
        self.shared.release();
    }
}
