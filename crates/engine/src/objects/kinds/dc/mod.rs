//! The dynamically connected transport: initiators and targets as queue pairs (doc/dc.md).
//!
//! | file | what it holds |
//! |---|---|
//! | `entry` | one initiator or target: its states and what is between it and the process |
//! | `table` | all of them, by index |
//!
//! They take their indices from the same numbers as connections do, but are in a table of their
//! own. Its methods call none of the shard: they borrow the regions and the notes, and say what is
//! to be sent.

pub(crate) mod entry;
pub(crate) mod table;

pub use entry::DcRole;
pub(crate) use entry::THIS_HOST;
pub(crate) use table::DcTable;
