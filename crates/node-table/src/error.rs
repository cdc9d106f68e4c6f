//! Errors of the owner, and what a client can find instead of an answer.

use thiserror::Error;

/// A table that cannot be created. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CreateError {
    /// Each key has two buckets.
    #[error("{0} buckets are not possible: take 2 to 16777216")]
    Buckets(u32),
    /// Buckets of zeroes have the epoch 0.
    #[error("the epoch is 0; take another one")]
    Epoch,
    /// Clients of the table before would not see that it has ended.
    #[error("the memory has a table of epoch {0} already; take another epoch")]
    SameEpoch(u16),
    /// The memory ends before the last bucket.
    #[error("the table needs {needed} words of 8 octets, and the memory has {available}")]
    Memory {
        /// What the geometry needs.
        needed: u64,
        /// What there is.
        available: u64,
    },
}

/// A change that is refused. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ChangeError {
    /// The key is in the table: EEXIST.
    #[error("the node is in the table: update it instead")]
    Known,
    /// The key is not in the table: ENOENT.
    #[error("the node is not in the table")]
    Unknown,
    /// No place is free within the bound of displacements: ENOSPC.
    #[error("the table has no place for the node: create one with more buckets")]
    Full,
}

/// Why a look-up has no answer yet. The client may begin it again or ask another replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RetryCause {
    /// The last READ raced with an update. A bucket that stays so was left by an owner that
    /// ended.
    #[error("the bucket was being written")]
    Torn,
    /// The bucket of the key changed between the READs.
    #[error("the bucket changed during the look-up")]
    Changed,
}

/// A table that cannot be used as it was read. The client reads the header again if the table is
/// another one, or asks another replica or the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BadTable {
    /// What was read is not as long as what was to be read: an error of the driver.
    #[error("{actual} octets were read instead of {expected}")]
    Length {
        /// What was to be read.
        expected: u64,
        /// What was handed over.
        actual: u64,
    },
    /// The memory has no header: no table, or one that is being created.
    #[error("there is no table, or it is being created")]
    NoTable,
    /// A header with a geometry that is not possible.
    #[error("the header describes no table that is possible")]
    Geometry,
    /// The table is longer than the memory that the client may read.
    #[error("the table of {table} octets does not fit into the memory of {memory}")]
    Bounds {
        /// The length that the header says.
        table: u64,
        /// The length of the region.
        memory: u64,
    },
    /// The bucket is of another epoch: the header has to be read again.
    #[error("the bucket belongs to another table: read the header again")]
    OtherTable,
    /// An entry that its key does not place into the bucket, one key twice, octets in an empty
    /// entry or behind the last one, or a target number beyond 24 bits.
    #[error("the bucket has an entry that no owner writes")]
    Entry,
}
