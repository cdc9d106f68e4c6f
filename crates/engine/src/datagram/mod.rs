//! Unreliable datagrams: queue pairs without a connection, address handles, multicast groups.
//!
//! | file | what it holds |
//! |---|---|
//! | `handle` | address handles: a destination and the way there |
//! | `queue` | the rings of posted work requests |
//! | `pair` | one queue pair: its states, what it takes and completes |
//! | `table` | all of them, by index, and the groups that they are attached to |
//! | `send`, `receive` | messages out, messages in |
//!
//! A datagram queue pair takes its index from the same numbers as connections do, but lives in a table of its own, which packets of connections
//! never touch: the packet's type says which of the two is meant.
//!
//! A message is written into a frame and completed at once. When the receiver's ring is full it waits, for at most [`send::PATIENCE_NS`], so that
//! processes of one host lose nothing to one another while both run; after that, as on any network, it is lost.

mod calls;
mod handle;
mod lifecycle;
mod pair;
mod queue;
mod receive;
mod send;
mod table;

pub use handle::AddressHandle;
pub use pair::{DatagramAttributes, DatagramModify, DatagramState};
pub use queue::DatagramWr;
pub(super) use table::DatagramTable;
