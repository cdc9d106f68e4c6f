//! What a thread needs that sleeps until there is something to do.
//!
//! A thread of a process sleeps on the *bells* of its peers, words in memory that it only reads, or
//! in a call on descriptors. Nothing here knows what comes: a caller looks at its channels once
//! more after it has said that it sleeps, and a peer looks at the sleeper's [`OwnPage`] after it
//! has stored something. Section 6 of doc/spec/channel.md specifies both; doc/wakeups.md
//! says which thread sleeps when.
//!
//! | module | what it holds |
//! |---|---|
//! | [`page`] | the page by which a process is known to its peers; sleeping and waking |
//! | [`seat`] | which thread of a process makes progress and sleeps on the bells |
//! | [`signal`] | a word of the process itself that a thread waits on beside the bells |
//! | [`wake_socket`] | what wakes a thread in a call on descriptors |
//! | [`spins`] | how long a thread looks before it sleeps |
//! | [`local_events`], [`unread`] | events that a thread raises for itself stay in memory |
//! | [`futex`] | futex(2), futex_waitv(2) |
//! | [`sync`] | atomics |
//!
//! Under `--cfg loom` the memory, the socket and the kernel's calls are models, and the tests of
//! `urdma-channel` explore every interleaving of a sleeper and its peers.

pub mod futex;
#[cfg(not(loom))]
pub mod local_events;
pub mod page;
pub mod seat;
pub mod signal;
#[cfg(not(loom))]
pub mod spins;
pub mod sync;
#[cfg(not(loom))]
pub mod unread;
pub mod wake_socket;

pub use page::{Bells, OwnPage, Parked, PeerPage};
pub use seat::{Seat, Seated, Watched};
pub use signal::Signal;
#[cfg(not(loom))]
pub use wake_socket::descriptors_max;
pub use wake_socket::{WakeSocket, Waker};
