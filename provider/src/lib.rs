//! The rdma-core plugin: verbs objects over the engine ([`urdma_engine`]).
//!
//! - `verbs`: the C entry points of libibverbs;
//! - `front`: the C table through which the stand-in reaches this process's engine.

#![allow(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod front;
mod verbs;

// Loads libgcc_s with the first panic.
use urdma_unwind as _;
