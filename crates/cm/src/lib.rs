//! Connection management, sans-IO: REQ, REP, RTU, REJ, DREQ, DREP and MRA as in the InfiniBand
//! communication manager, and COOKIE, carried in TRP datagrams of type 7.
//!
//! Files: [`wire`] is the layout of the messages; [`manager`] is the state machine of all listeners
//! and connections of one process; [`conn`] holds one connection's state; `ended` what is
//! remembered of those that are over; `services` remembers where listeners are; `backlog` has the
//! places of a listener; [`cookie`] has both sides of cookies; `trace` is what the flight recorder
//! is told.
//!
//! The manager has no clock, no socket and no thread. `now` is a time of a monotonic clock, passed
//! in by the caller. Order of calls: [`ConnectionManager::handle_datagram`] for each datagram that
//! arrived, [`ConnectionManager::handle_timeout`] when [`ConnectionManager::next_deadline`] has
//! passed, then [`ConnectionManager::poll_transmit`] and [`ConnectionManager::poll_event`] until
//! both return `None`.
//!
//! The first REQ to a listener goes to slot 0 of the destination host, where urdmad looks up the
//! listener ([`wire::ReqRoute`]) and forwards the datagram; further ones go to the slot that has
//! answered (`services`). All later messages go from slot to slot.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::cast_possible_truncation))]

mod backlog;
pub mod conn;
pub mod cookie;
mod ended;
pub mod manager;
mod services;
pub mod wire;

pub use conn::{ConnId, ConnState, ListenId, LocalQp, PrivateData, RemoteQp, Role};
pub use manager::{
    AcceptParams, Config, ConnectParams, ConnectRequest, ConnectionManager, Error, Event, Transmit,
};
pub use wire::{CommId, Nonce, Peer, RejReason};
