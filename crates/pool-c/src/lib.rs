//! `liburdma-pool.so`: virtual queue pairs for C programs. `include/urdma_pool.h` declares the
//! calls, and manual pages describe them; doc/pool.md describes the pool.
//!
//! Files, each of which uses only those before it: `errno`, which turns errors into errno;
//! `handle`, what pointers of the application point to; `values`, the structures of the header;
//! `pool`, the calls for pools; `messages`, those for Sends and Receives; `node`, those for nodes.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod errno;
mod handle;
mod messages;
mod node;
mod pool;
mod values;
