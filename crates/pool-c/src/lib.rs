//! `liburdma-pool.so`: virtual queue pairs for C programs. `include/urdma_pool.h` declares the
//! calls, and manual pages describe them; doc/pool.md describes the pool.
//!
//! Files, each of which uses only those before it: `errno`, which turns errors into errno;
//! `handle`, what pointers of the application point to; `values`, the structures of the header;
//! `pool` and `node`, the calls of either.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod errno;
mod handle;
mod node;
mod pool;
mod values;
