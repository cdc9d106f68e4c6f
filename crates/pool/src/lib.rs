//! Virtual queue pairs on shared ones, sans-IO: many users of one process reach a node over the few
//! reliable connections to it, or all nodes over a few initiators of dynamically connected
//! transport. Each has the semantics of a reliable connection of its own. doc/pool.md describes it.
//!
//! [`Pool`] is all of it: it validates requests, accounts for the places of every queue, says what
//! is posted to which queue pair, and dispatches the completions. Files, each of which uses only
//! those before it:
//!
//! - `slots`, tables with generations; `header` and `credit`, of messages for Sends; `types`,
//!   `error`, `config` and `fault`; `regions`, the memory that requests may name;
//! - `queued`, a request; `end`, what a virtual queue pair has for Sends and Receives;
//!   `virtual_qp`; `exchange`, what a shared queue pair has for messages; `physical_qp`; `lone`, a
//!   request that nothing precedes; `idle`, nodes by their last use; `services`, and virtual queue
//!   pairs by their other ends; `switch`, connections of a pool of initiators;
//! - `pool`, turns and failures; `transmit`, what is posted; `calls`, of users and of the driver;
//!   `switching`, which nodes initiators are left for, and when; `settle`, what becomes of requests
//!   when a queue pair fails; `removal`, of nodes; `messages`, the calls for Sends and Receives;
//!   `connects`, connections that nodes ask for; `arrivals`, messages that arrive.
//!
//! `check` holds the checker: users, a device and faults under random schedules against a plain
//! model, and several pools that exchange messages.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::cast_possible_truncation))]

mod arrivals;
mod asks;
mod calls;
#[cfg(test)]
mod check;
mod config;
mod connects;
mod credit;
mod end;
mod error;
mod exchange;
mod fault;
mod header;
mod idle;
mod lone;
mod meeting;
mod meetings;
mod messages;
mod per_element;
mod physical_qp;
mod pool;
mod queued;
mod regions;
mod removal;
mod ring;
mod services;
mod settle;
mod slots;
mod switch;
mod switching;
mod target;
mod transmit;
mod types;
mod virtual_qp;

pub use config::{Config, MessageConfig, Switching, Transport};
pub use credit::{Announced, Class, Covered, Credit, Grant, Taken, SHARE_MAX, SHARE_MIN};
pub use error::{CallError, ConfigError, PostError};
pub use header::{
    EndId, Ends, Header, HeaderError, HeaderOctets, Label, Message, HEADER_OCTETS,
    HEADER_OCTETS_MAX, LABEL_OCTETS,
};
pub use meeting::PoolTerms;
pub use pool::{Pool, Stats};
pub use transmit::PostWork;
pub use types::{
    Access, Action, BufferAction, Completion, ConnectionName, Depths, Element, EndState,
    LocalRegion, LocalRegionId, NodeId, Operation, PhysicalId, PhysicalState, Posted, Received,
    RemoteRegion, RemoteRegionId, Request, SendRequest, Sge, Status, Transmit, UserId, VirtualId,
    VirtualState, ATOMIC_OCTETS, ELEMENTS_MAX,
};
