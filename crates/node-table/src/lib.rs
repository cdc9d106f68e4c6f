//! The directory of nodes, sans-IO: a hash table in registered memory, from which clients read how
//! to reach a node's DC target, mostly by one RDMA READ of 128 octets. doc/pool.md describes it
//! ("Directory of nodes").
//!
//! [`Table`] is the owner's side: it writes into [`Memory`]. [`Directory`] is what a client knows
//! of a table, and [`Lookup`] one look-up: it says what to read, takes what was read, and answers.
//! Files, each of which uses only those before it: `error` and `fault`; `number`; `node`, keys and
//! targets; `bucket`, the octets of one; `geometry`, the header and the places of everything;
//! `table` and `lookup`. `check` holds the checker: a log of the owner's stores, from which every
//! word of a READ is taken at a moment of its own.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::cast_possible_truncation))]

mod bucket;
#[cfg(test)]
mod check;
mod error;
mod fault;
mod geometry;
mod lookup;
mod node;
mod number;
mod table;

pub use bucket::{BUCKET_LEN, ENTRIES_PER_BUCKET};
pub use error::{BadTable, ChangeError, CreateError, RetryCause};
pub use geometry::{Geometry, BUCKETS_MAX, HEADER_LEN};
pub use lookup::{Answer, Directory, Lookup, Read, Step, READS_MAX};
pub use node::{Found, NodeKey, Region, Target};
pub use table::{Memory, Table};
