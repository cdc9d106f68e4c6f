//! Byte streams over RDMA (EXS), sans-IO: the protocol that chooses, per transfer, between an RDMA
//! Write into the buffer of a posted receive and one into a ring, out of which the receiver copies.
//! doc/streams.md describes it.
//!
//! [`Stream`] is one end. Files, each of which uses only those before it: `types`, `error` and
//! `fault`; [`wire`], the layout of greetings, control messages and immediate data; `config`,
//! `credit`, `adverts`, `queue`, `resync`, `sojourn`; `own_ring` and `peer_ring`, the ring of
//! either end; `sender` and `receiver`, the two halves; `stream`, which joins them. `check` holds
//! the checker: both ends under random schedules against a model of a byte stream.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::cast_possible_truncation))]

mod adverts;
#[cfg(test)]
mod check;
mod config;
mod credit;
mod error;
mod fault;
mod own_ring;
mod peer_ring;
mod queue;
mod receiver;
mod resync;
mod sender;
mod sojourn;
mod stream;
mod transfer;
mod types;
pub mod wire;

pub use config::{Config, Stats};
pub use error::{CallError, Failure, PeerError, SetupError, ABORT_PROTOCOL};
pub use receiver::RingCopy;

pub use stream::{Stream, Transmit};
pub use transfer::{Lone, Piece};
pub use types::{
    AdvertNo, Buffer, Choice, Clock, Event, Kind, Outcome, Part, Parts, Phase, RecvId, RingNo,
    SendId, Seq, GATHER_MAX,
};
