//! Identifiers and small types that all crates of urdma share.
//!
//! - [`SlotId`], [`Qpn`] and the UDP ports that they map to (doc/spec/trp.md, section 3);
//! - [`RawQpn`], a queue pair number of any device;
//! - [`Psn`], a packet sequence number with serial arithmetic;
//! - [`Ip16`], an IP address in the 16 octets of a GID;
//! - [`PortSpace`], a port space of rdma_cm;
//! - [`Time`], a point in time on a monotonic clock;
//! - [`Rng`], reproducible random numbers, and the [`seeds`] of a test;
//! - [`mix`], a bijection, [`absorb`] and [`scale`], for digests;
//! - [`faults`], deliberate faults of a state machine, for its tests.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod addr;
mod digest;
mod faults;
mod ip;
mod port_space;
mod psn;
mod rng;
mod time;

pub use addr::{
    slot_of_port, slot_of_source_port, source_port, udp_port, Qpn, RawQpn, SlotId, MAX_SLOTS,
    PORT_BASE, SOURCE_PORT_BASE,
};
pub use digest::{absorb, mix, scale};
pub use ip::Ip16;
pub use port_space::PortSpace;
pub use psn::Psn;
pub use rng::{seeds, Rng};
pub use time::Time;
