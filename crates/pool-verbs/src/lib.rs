//! The pool over verbs: `urdma-pool`, the sans-IO core, on reliable connections of librdmacm and
//! libibverbs, over any verbs provider, or on initiators of `liburdmadv.so`. doc/pool.md describes
//! both.
//!
//! A [`Node`] offers memory at an address. A [`Client`] opens virtual queue pairs to nodes by their
//! addresses; it makes progress only in its calls, in the thread that calls. Two clients exchange
//! messages by [`Client::offer_messages`]. A [`MetadataService`]
//! has a table of nodes, which clients read.
//!
//! Files, each of which uses only those before it: `described`, regions in private data; `asking`
//! and `metadata`, what else is in that of pools with messages and of a metadata service; `error`;
//! `ffi`, which has all unsafe code; `away`, what is kept of nodes; `buffers`, for messages;
//! `probe`, of a connection; `registration`, of a node at a service; `node`; `service`; `replica`,
//! a service as a client sees it; `client` and `own`; `store`, a key-value store.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod asking;
mod away;
mod buffers;
mod client;
mod described;
mod error;
mod ffi;
mod metadata;
mod node;
mod own;
mod probe;
mod registration;
mod replica;
mod service;
mod store;

pub use client::{Client, Learned, Messages};
pub use error::Error;
pub use ffi::Foreign;
pub use metadata::Refusal;
pub use node::Node;
pub use own::{Own, OwnRead};
pub use service::{Limits, MetadataService};
pub use store::{Store, StoreError};
pub use urdma_node_table::{Answer, Found, Region, Target};
pub use urdma_pool::{
    Access, CallError, Completion, Config, ConfigError, Depths, Element, EndState, LocalRegionId,
    Operation, PostError, Received, RemoteRegionId, Request, SendRequest, Stats, Status, Switching,
    Transport, UserId, VirtualId, ELEMENTS_MAX,
};
pub use urdma_store::{Geometry, GeometryError, OperationError};
