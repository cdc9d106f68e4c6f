//! Byte streams over RDMA (EXS) over verbs: `urdma-stream`, the sans-IO protocol, on a reliable
//! connection of librdmacm and libibverbs. It runs over any verbs provider. doc/streams.md
//! describes the protocol and this driver.
//!
//! [`Listener::accept`] and [`Socket::connect`] (exs_accept, exs_connect) make a [`Socket`];
//! [`Socket::send`] and [`Socket::recv`] (exs_send, exs_recv) post operations that own their
//! [`Buffer`] until an [`Event`] returns it; [`Socket::wait`] (exs_qdequeue) executes the protocol
//! and sleeps. The protocol makes progress only in calls of [`Socket`], in the thread that calls.
//!
//! A [`ByteStream`] has buffers of its own and is read and written as a file is. With the feature
//! `tokio`, the module of that name has one for asynchronous programs.
//!
//! ```no_run
//! use std::io::{self, Read, Write};
//! use std::net::{Shutdown, SocketAddr};
//!
//! use urdma_exs::{ByteStream, Options};
//!
//! fn main() -> io::Result<()> {
//!     let server: SocketAddr = ([192, 0, 2, 1], 7471).into();
//!     let mut stream = ByteStream::connect(server, &Options::default())?;
//!     stream.write_all(b"hello")?;
//!     stream.shutdown(Shutdown::Write)?;
//!     let mut answer = String::new();
//!     stream.read_to_string(&mut answer)?;
//!     stream.close()
//! }
//! ```
//!
//! A thread that drives many connections sleeps itself: [`Listener::try_accept`],
//! [`Endpoint::connect`] and [`Socket::turn`] return at once, and there are descriptors and
//! deadlines for each. [`Memory`] is memory of the caller, for callers that are not Rust.
//!
//! Files, each of which uses only those before it: `error`; `ffi`, which has all unsafe code
//! (`ffi/memory`: buffers, `ffi/cm`: identifiers and their events, `ffi/verbs`: domains, regions,
//! completion queues, `ffi/queue_pair`: work requests); `clock`, the time of a stream;
//! `registrations`, the memory regions of a connection; `rings`, those into which the peer writes;
//! `event`, what the user learns; `control`, the slots of control messages; `link`, the verbs
//! objects of a connection; `told`, the protocol and the completions that it has not been told of;
//! `driver`, which executes what the protocol asks for; `socket`, the calls for a stream;
//! `handshake`, how connections are made; `buffered`, a socket that is read and written;
//! `byte_stream`, its blocking calls; `tokio`, the asynchronous ones.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::cast_possible_truncation))]

mod buffered;
mod byte_stream;
mod clock;
mod control;
mod driver;
mod error;
mod event;
mod ffi;
mod handshake;
mod link;
mod registrations;
mod rings;
mod socket;
mod spins;
#[cfg(feature = "tokio")]
pub mod tokio;
mod told;

pub use byte_stream::ByteStream;
pub use driver::Refused;
pub use error::{outcome_errno, Error};
pub use event::Event;
pub use ffi::memory::{Buffer, Memory};
pub use handshake::{Accepting, Connecting, Endpoint, Handshake, Listener};
pub use socket::{Options, Socket, LINGER};
pub use urdma_stream::{
    CallError, Choice, Config, Failure, Kind, Outcome, PeerError, RecvId, SendId, SetupError, Stats,
};
