//! Errors.

use thiserror::Error;

/// A store that is not possible, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum GeometryError {
    /// What was read is no header of a store.
    #[error("the memory has no store, or one of another format")]
    NoStore,
    /// The store is longer than the memory.
    #[error("the store has {needed} octets, and the memory {has}")]
    TooLong {
        /// Its length.
        needed: u64,
        /// The length of the memory.
        has: u64,
    },
    /// A number is out of its range.
    #[error(
        "a store has 2 to 2^24 buckets, 1 to 2^32 - 1 blocks of a multiple of 8 octets, \
         32 to 65,536, and extents of 1 to 2^16 blocks"
    )]
    Range,
}

/// An operation that has failed. It has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum OperationError {
    /// Key and value are longer than a block.
    #[error("key and value have {has} octets; a block has room for {room}")]
    TooLong {
        /// Their length.
        has: usize,
        /// The room for both.
        room: usize,
    },
    /// Neither bucket of the key has an empty slot.
    #[error("both buckets of the key are full: delete keys, or create a larger store")]
    Full,
    /// All extents have been taken, and the client has no free block.
    #[error("no block is free: delete keys, or create a store with more blocks")]
    NoBlock,
    /// Other clients have changed the key's slots each time.
    #[error("other clients have interfered each time: try again")]
    Contended,
    /// A slot has what no client writes.
    #[error("a slot names a block that does not exist: the memory is corrupt")]
    Corrupt,
}
