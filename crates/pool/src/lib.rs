//! Virtual queue pairs on shared ones, sans-IO: many users of one process reach a node over the few
//! reliable connections to it, or all nodes over a few initiators of dynamically connected
//! transport. Each has the semantics of a reliable connection of its own. doc/pool.md describes it.
//!
//! [`Pool`] is all of it: it validates requests, accounts for the places of every queue, says what
//! is posted to which queue pair, and dispatches the completions. Files, each of which uses only
//! those before it: `slots`, tables with generations; `types`, `error`, `config` and `fault`;
//! `header` and `credit`, of messages for Sends, which the pool does not have yet
//! (doc/design/pool-sends.md);
//! `regions`, the memory that requests may name; `virtual_qp` and `physical_qp`, the two kinds of
//! queue pairs; `idle`, nodes by their last use; `pool`, the calls of users and of the driver;
//! `settle`, what becomes of requests when a queue pair fails; `removal`, of nodes. `check` holds
//! the checker: users, a device and faults under random schedules against a plain model.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::cast_possible_truncation))]

#[cfg(test)]
mod check;
mod config;
mod credit;
mod error;
mod fault;
mod header;
mod idle;
mod physical_qp;
mod pool;
mod regions;
mod removal;
mod settle;
mod slots;
mod types;
mod virtual_qp;

pub use config::{Config, Transport};
pub use credit::{Announced, Class, Covered, Credit, Grant, SHARE_MAX, SHARE_MIN};
pub use error::{CallError, ConfigError, PostError};
pub use header::{EndId, Ends, Header, HeaderError, Message, HEADER_OCTETS};
pub use pool::{Pool, Stats};
pub use types::{
    Access, Action, Completion, Element, LocalRegion, LocalRegionId, NodeId, Operation, PhysicalId,
    PhysicalState, Posted, RemoteRegion, RemoteRegionId, Request, Sge, Status, Transmit, UserId,
    VirtualId, VirtualState, ATOMIC_OCTETS, ELEMENTS_MAX,
};
