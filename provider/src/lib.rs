//! The rdma-core plugin: verbs objects and the engine.
//!
//! - [`engine`]: queue pairs, memory, packets, threads; knows nothing of the verbs ABI;
//! - `verbs`: the C entry points of libibverbs over it;
//! - `front`: the C table through which the stand-in reaches this process's engine.

#![cfg_attr(test, allow(clippy::unwrap_used))]

// The tests' rig names this crate as its users do.
#[cfg(test)]
extern crate self as urdma_provider;

pub mod engine;
mod front;
mod verbs;
