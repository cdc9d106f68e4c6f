//! The shared packet memory of one host.
//!
//! urdmad creates one memfd, the [`Arena`]; every process of the instance maps it. It holds a slot
//! table, one inbound ring per slot and the frames that carry datagrams. A process that dies
//! between any two instructions blocks no other process and leaks no frame: each frame's state word
//! names its holder, a ring entry is claimed and published by one compare-and-swap, and the
//! [`Reaper`] reclaims the frames of dead processes.
//!
//! | module | what it holds |
//! |---|---|
//! | [`layout`] | sizes, offsets, the header and its validation; no unsafe |
//! | [`state`] | the frame state word and its transitions |
//! | [`ring`] | the many-producer, one-consumer ring of 64-bit words |
//! | [`short`] | the one-producer ring whose cells hold datagrams of up to 120 octets (unsafe) |
//! | [`delivery`] | what a queue pair has delivered, for its peers after its process has ended |
//! | [`park`] | the park word's protocol: no wake-up is lost |
//! | [`slot`] | one entry of the slot table |
//! | [`map`] | the memfd, the mapping, references into it (unsafe) |
//! | [`frame`] | [`TxFrame`], [`RxFrame`]: access to a frame's octets (unsafe) |
//! | [`endpoint`] | operations of a process on its slot |
//! | [`reaper`] | reclaiming a dead slot; accounting |
//! | `futex`, `sync`, `pool` | futex(2) (unsafe); atomics (std or loom); the owner's free lists |
//!
//! # Trust
//!
//! All processes of an instance are one trust domain, but none trusts the memory: each value is
//! read once, then validated. A process that corrupts the arena can lose or corrupt datagrams; it
//! cannot make another one leave the mapping or panic.
//!
//! # Example
//!
//! ```
//! use urdma_arena::{Arena, ArenaConfig, Endpoint};
//! use urdma_types::SlotId;
//! let arena = Arena::create(&ArenaConfig::default())?;
//! let (a, b) = (SlotId::new(1).unwrap(), SlotId::new(2).unwrap());
//! let mut tx = Endpoint::attach(&arena, a)?;
//! let mut rx = Endpoint::attach(&arena, b)?;
//! let mut frame = tx.alloc(5).unwrap();
//! frame.data_mut()[..5].copy_from_slice(b"hello");
//! tx.send(b, frame, 5).unwrap();
//! let frame = rx.recv().unwrap();
//! let mut text = [0u8; 5];
//! assert_eq!(frame.from(), a);
//! assert!(frame.copy_to_slice(0, &mut text));
//! assert_eq!(&text, b"hello");
//! # Ok::<(), std::io::Error>(())
//! ```

mod bits;
#[cfg(not(loom))]
pub mod delivery;
pub mod layout;
pub mod park;
pub mod ring;
pub mod short;
pub mod state;
pub mod sync;

#[cfg(not(loom))]
pub mod endpoint;
#[cfg(not(loom))]
pub mod frame;
#[cfg(not(loom))]
mod futex;
#[cfg(not(loom))]
pub mod map;
#[cfg(not(loom))]
mod pool;
#[cfg(not(loom))]
pub mod reaper;
#[cfg(not(loom))]
mod slot;
pub mod steps;

pub use layout::{
    ArenaConfig, FRAME_DATA_OFFSET, FRAME_HEADROOM, LARGE_CAPACITY, MAX_SLOTS, SMALL_CAPACITY,
};
pub use short::{ShortOctets, SHORT_CAPACITY};

#[cfg(not(loom))]
pub use delivery::DeliveryRecord;
#[cfg(not(loom))]
pub use endpoint::{Arrival, Endpoint, EndpointWith, Parker, SendError};
#[cfg(not(loom))]
pub use frame::{Followers, Meta, Referred, RxFrame, Special, TxFrame, FOLLOWERS_MAX};
#[cfg(not(loom))]
pub use map::{Arena, MappedArena};
#[cfg(not(loom))]
pub use park::Parked;
#[cfg(not(loom))]
pub use reaper::{Accounting, ReapReport, Reaper, Violation};
#[cfg(not(loom))]
pub use slot::{SlotStatus, Witness};
