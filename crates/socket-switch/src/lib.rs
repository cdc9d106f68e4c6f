//! The switch of a TCP connection between two programs of one host: each direction of it moves to a
//! ring in shared memory, and back to TCP. doc/sockets.md describes the rules.
//!
//! The calls ([`send`], [`recv`], [`demote`], ...) are sans-IO: whatever they do to the socket, the
//! rings and the words that both ends share goes through [`Host`]. The checker runs each call as a
//! coroutine: it stops a call between any two accesses, lets others run, or kills it there.
//!
//! Files, each of which uses only those before it: `fault`; `block`, the shared words; `host`;
//! `lock`; `mode`, the two changes of a direction; `transfer`, send and receive; `at_once`, both of
//! them while nothing but the rings is needed; `leave`, the calls that end or suspend the use of
//! rings; [`layout`], where block and rings are in the memory that both ends map. `check` holds the
//! checker: processes of both ends under random schedules against a model of TCP.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::cast_possible_truncation))]

mod at_once;
mod block;
#[cfg(test)]
mod check;
mod fault;
mod host;
pub mod layout;
mod leave;
mod lock;
mod mode;
mod transfer;

pub use at_once::{recv_at_once, send_at_once};
pub use block::{Block, End, Owner, Word};
pub use host::{Event, Host, Received, Refused, Rings, Waits};
pub use leave::{
    attend, close, demote, is_over, join, resume, settle, shutdown_write, Closing, Demotion, Over,
};
pub use transfer::{peek, recv, send, Sent, Taken};
