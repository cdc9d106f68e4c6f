//! A disaggregated key-value store, sans-IO: a hash table in the memory of a node, on which clients
//! work by RDMA READ, WRITE and atomics alone. Its shape is that of Zuo et al., *One-sided
//! RDMA-Conscious Extendible Hashing for Disaggregated Memory* (USENIX ATC 2021). doc/pool.md
//! describes it ("Key-value store").
//!
//! [`Geometry`] is what the node's owner writes into its memory, and what a client knows of it.
//! [`Operation`] is one get, put or delete: it says which requests to post, and takes what they
//! brought. [`Blocks`] are those of a client that are free. Files, each of which uses only those
//! before it: `error` and `fault`; `geometry`; `slot`; `block`, with keys and values; `blocks`;
//! `operation`. `check` holds the checker: clients under random schedules against a plain register
//! for each key.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::cast_possible_truncation))]

mod block;
mod blocks;
#[cfg(test)]
mod check;
mod error;
mod fault;
mod geometry;
mod operation;
mod slot;

pub use blocks::Blocks;
pub use error::{GeometryError, OperationError};
pub use geometry::{Geometry, BLOCK_OCTETS_MAX, BLOCK_OCTETS_MIN, HEADER_LEN};
pub use operation::{Operation, Outcome, Request, Requests, Step, ATTEMPTS_MAX};
