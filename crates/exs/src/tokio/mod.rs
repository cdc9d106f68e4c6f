//! Streams for asynchronous programs, with the feature `tokio`.
//!
//! [`ByteStream`] is read and written by [`AsyncRead`](::tokio::io::AsyncRead) and
//! [`AsyncWrite`](::tokio::io::AsyncWrite), and [`Listener`] accepts them. A task of the runtime
//! drives each stream: it sleeps on the descriptors of the connection, and lives until the
//! connection has ended. All functions that make a stream or a listener are called within a runtime
//! whose IO and time drivers are enabled.
//!
//! Files, each of which uses only those before it: `descriptor`, what a task sleeps on; `driver`,
//! the task of a stream; `stream`, its calls; `handshake`, how streams are made.

mod descriptor;
mod driver;
mod handshake;
mod stream;

pub use handshake::Listener;
pub use stream::ByteStream;
