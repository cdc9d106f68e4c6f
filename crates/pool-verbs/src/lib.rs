//! The pool over verbs: `urdma-pool`, the sans-IO core, on reliable connections of librdmacm and
//! libibverbs, over any verbs provider, or on initiators of `liburdmadv.so`. doc/pool.md describes
//! both.
//!
//! A [`Node`] offers memory at an address. A [`Client`] opens virtual queue pairs to nodes by their
//! addresses; it makes progress only in its calls, in the thread that calls.
//!
//! Files, each of which uses only those before it: `error`; `ffi`, which has all unsafe code;
//! `described`, the memory of a node as its private data describes it; `node`, `client` and `own`.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod client;
mod described;
mod error;
mod ffi;
mod node;
mod own;

pub use client::Client;
pub use error::Error;
pub use node::Node;
pub use own::Own;
pub use urdma_pool::{
    Access, Completion, Config, LocalRegionId, Operation, RemoteRegionId, Request, Status,
    Transport, UserId, VirtualId,
};
