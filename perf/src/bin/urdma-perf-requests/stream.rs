//! Connections as an event loop sees them, and those over TCP.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use crate::text;

/// Octets that a TCP stream takes at once, as in Valkey.
const TAKEN: usize = 16 * 1024;

/// A connection.
pub(crate) trait Stream {
    /// The descriptor that is readable when [`Stream::receive`] has something to do.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Appends what has arrived.
    fn receive(&mut self, to: &mut Vec<u8>) -> Result<(), String>;

    /// Sends the octets or the first of them, and returns how many. The rest can be sent after
    /// something was received.
    fn send(&mut self, octets: &[u8]) -> Result<usize, String>;
}

/// What makes a server's connections.
pub(crate) trait Listener {
    /// The descriptor that is readable when [`Listener::accept`] has something to do.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// The port on which it listens.
    fn port(&self) -> Result<u16, String>;

    /// Looks what has happened. The result may be a new connection.
    fn accept(&mut self) -> Result<Option<Box<dyn Stream>>, String>;
}

/// A connection over TCP.
struct TcpConnection {
    stream: TcpStream,
    taken: Box<[u8]>,
}

impl TcpConnection {
    fn boxed(stream: TcpStream) -> Result<Box<dyn Stream>, String> {
        stream.set_nodelay(true).map_err(text)?;
        stream.set_nonblocking(true).map_err(text)?;
        let taken = vec![0; TAKEN].into_boxed_slice();
        Ok(Box::new(Self { stream, taken }))
    }
}

impl Stream for TcpConnection {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn receive(&mut self, to: &mut Vec<u8>) -> Result<(), String> {
        match self.stream.read(&mut self.taken) {
            Ok(0) => Err("the connection has ended".into()),
            Ok(count) => {
                to.extend_from_slice(&self.taken[..count]);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(text(error)),
        }
    }

    fn send(&mut self, octets: &[u8]) -> Result<usize, String> {
        // There is always room for the requests or answers of one message.
        self.stream.write(octets).map_err(text)
    }
}

/// Connects to a server's TCP port.
pub(crate) fn connect(to: (Ipv4Addr, u16)) -> Result<Box<dyn Stream>, String> {
    TcpConnection::boxed(TcpStream::connect(to).map_err(text)?)
}

/// A server's TCP port.
pub(crate) struct TcpStreams(TcpListener);

impl TcpStreams {
    pub(crate) fn new(address: Ipv4Addr) -> Result<Self, String> {
        TcpListener::bind((address, 0)).map(Self).map_err(text)
    }
}

impl Listener for TcpStreams {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn port(&self) -> Result<u16, String> {
        Ok(self.0.local_addr().map_err(text)?.port())
    }

    fn accept(&mut self) -> Result<Option<Box<dyn Stream>>, String> {
        let (stream, _) = self.0.accept().map_err(text)?;
        TcpConnection::boxed(stream).map(Some)
    }
}
