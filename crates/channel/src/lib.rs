//! Messages between two processes of one host that do not trust each other.
//!
//! A [`Channel`] consists of two regions of memory, one for each direction. The process that sends
//! creates the region and is the only one that can write it; its peer maps it read-only. A message
//! of up to 112 octets lies in a cell of the region's ring; a longer one has its payload in a frame
//! of the region. The receiver counts the messages that it has settled in its own region, which
//! frees cells and frames of the sender's. Nothing is shared, so nothing needs repair when a
//! process dies.
//!
//! Sections 3 to 6 of doc/spec/channel.md specify the memory; the code cites its requirements.
//!
//! | module | what it holds |
//! |---|---|
//! | [`layout`] | sizes, offsets, the header and its validation; no unsafe |
//! | [`cell`] | a cell: its word, its octets, copies of them |
//! | [`region`] | [`OwnRegion`], [`PeerRegion`]: references into a region |
//! | [`outgoing`] | the writer's half: room, owners, frames |
//! | [`incoming`] | the reader's half: validated copies |
//! | [`channel`] | both halves: settling, completion, wake-ups; no unsafe |
//! | `rota` | which of many channels a poll looks at |
//! | `directory`, `records` | tables between urdmad and the processes |
//! | [`recording`] | the last events of a process' connections |
//! | [`steps`] | labels for crash tests |
//! | `sync`, `bits`, `model` | atomics and prefetches; truncations; regions for loom |
//!
//! # Trust
//!
//! The writer of a region may be hostile: it may store anything there at any time, stop, or die. A
//! reader copies each value once and validates the copy, so all that a hostile writer can do is
//! send wrong messages, or none, on its own channel; it cannot make its reader panic, leave the
//! mapping or receive SIGBUS.
//!
//! # Example
//!
//! ```
//! use urdma_channel::{Channel, ChannelConfig, Incoming, Kind, Next, OwnRegion, PeerRegion};
//! use urdma_waiting::{OwnPage, PeerPage};
//! // Each process creates a page and a region, and gives the descriptors to the other one.
//! let (_page_p, page_of_p) = OwnPage::create()?;
//! let (_page_q, page_of_q) = OwnPage::create()?;
//! let (region_p, from_p) = OwnRegion::create(&ChannelConfig::default(), 1)?;
//! let (region_q, from_q) = OwnRegion::create(&ChannelConfig::default(), 2)?;
//! let (mut p, mut q) = (Channel::new(region_p), Channel::new(region_q));
//! p.attach(Incoming::new(PeerRegion::open(from_q)?), PeerPage::open(page_of_q)?);
//! q.attach(Incoming::new(PeerRegion::open(from_p)?), PeerPage::open(page_of_p)?);
//!
//! let mut room = p.begin(Kind::Work, 5).unwrap();
//! room.octets_mut()[..2].copy_from_slice(b"hi");
//! room.payload_mut().copy_from_slice(b"there");
//! room.publish(2, 77);
//! p.notify();
//!
//! let (mut octets, mut text) = ([0; 112], [0; 5]);
//! let Next::Message { len: 2, payload: Some(payload), .. } = q.next(&mut octets, |_| ()) else {
//!     panic!("no message");
//! };
//! assert!(q.incoming().unwrap().copy_payload(payload, 0, &mut text));
//! assert_eq!((&octets[..2], &text), (&b"hi"[..], b"there"));
//! q.settle();
//!
//! let mut owners = Vec::new();
//! p.complete(|owner| owners.push(owner));
//! assert_eq!(owners, [77]);
//! # Ok::<(), urdma_memfd::MemoryError>(())
//! ```

mod bits;
pub mod cell;
pub mod channel;
#[cfg(not(loom))]
mod directory;
pub mod incoming;
pub mod layout;
pub mod outgoing;
#[cfg(not(loom))]
pub mod recording;
#[cfg(not(loom))]
mod records;
#[cfg(not(loom))]
pub mod region;
#[cfg(loom)]
#[path = "model.rs"]
pub mod region;
mod rota;
pub mod steps;
mod sync;
#[cfg(not(loom))]
mod traffic;

pub use cell::CellOctets;
pub use channel::Channel;
#[cfg(not(loom))]
pub use directory::{Directory, OwnDirectory, SLOTS};
pub use incoming::{Counts, Incoming, Next, Payload};
pub use layout::{ChannelConfig, Layout, ANSWER_RESERVE, CELL_DATA, LARGE_FRAME, SMALL_FRAME};
pub use outgoing::{Kind, Left, Outgoing, Room};
#[cfg(not(loom))]
pub use recording::OwnRecording;
#[cfg(not(loom))]
pub use records::{DeliveryRecord, OwnRecords, PeerRecords};
pub use region::{OwnRegion, PeerRegion};
pub use rota::Rota;
#[cfg(not(loom))]
pub use traffic::Traffic;
