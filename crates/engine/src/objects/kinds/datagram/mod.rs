//! Unreliable datagrams: queue pairs without a connection, address handles, multicast groups.
//!
//! | file | what it holds |
//! |---|---|
//! | `handle` | address handles: a destination and the path to it |
//! | `queue` | the rings of posted work requests |
//! | `pair` | one queue pair: its states, its requests and their completions |
//! | `table` | all of them, by index, and the groups that they are attached to |
//!
//! A datagram queue pair takes its index from the same numbers as connections do, but is in a table
//! of its own, which packets of connections never reach: the type of a packet selects the table.
//!
//! A message is written into a frame and completed at once. When the receiver's ring is full it
//! waits, for at most `PATIENCE_NS` (`data/kinds/datagram/send.rs`), so that processes of one host
//! lose nothing while both run. After that it is lost, as on any network.

pub(crate) mod handle;
pub(crate) mod pair;
pub(crate) mod queue;
pub(crate) mod table;

pub use handle::AddressHandle;
pub use pair::{DatagramAttributes, DatagramModify};
pub use queue::DatagramWr;
pub(crate) use table::DatagramTable;
