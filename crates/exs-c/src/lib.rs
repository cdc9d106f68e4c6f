//! `liburdma-exs.so`: Extended Sockets (EXS) for C programs. `include/exs.h` declares the calls,
//! and a manual page describes each; doc/streams.md describes the library.
//!
//! Sockets and event queues are numbers of descriptors, so that they differ from those of other
//! descriptors of the process, and a queue can be polled. A thread of the library drives all
//! sockets; calls of the application post work requests themselves.
//!
//! Files, each of which uses only those before it: `errno`, which turns errors into errno;
//! `file`, the part of a file that is sent; `queue`, event queues; `operation`, what is posted
//! and its event; `reactor`, on which the thread sleeps; `outgoing`, the sends of a connection;
//! `socket`, the states of a socket; `sockets`, all of them and the thread; `library`, the tables
//! of the process; `ffi`, the calls, which has all unsafe code.
//!
//! Locks are taken in this order: a table, a socket, a queue or the reactor.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod errno;
mod ffi;
mod file;
mod library;
mod operation;
mod outgoing;
mod queue;
mod reactor;
mod socket;
mod sockets;
