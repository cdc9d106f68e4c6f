//! A safe wrapper of the parts of DPDK that urdma uses: EAL, pools, ports, queues, flow rules.
//!
//! # Linking
//! Neither this crate nor `dpdk-sys` links DPDK: the daemon needs the shared libraries (all
//! drivers), and the library of leased queues a small static set (fast to load). A crate of a
//! program has this in its build script:
//! ```text
//! for argument in std::env::var("DEP_URDMA_DPDK_LINK").unwrap().split(' ') {
//!     println!("cargo:rustc-link-arg={argument}");
//! }
//! ```
//!
//! # Lifetimes
//! A process creates one [`Eal`]. [`Mempool`]s and [`Port`]s hold references to it; it is cleaned
//! up when the last of them is dropped. Queues ([`RxQueue`], [`TxQueue`], [`QueuePair`]) are taken
//! from a configured port, each once, and used by one thread at a time.
//!
//! # Errors
//! [`Error`] has a message and a positive errno; "not supported" ([`Error::is_unsupported`]) is a
//! normal result of many drivers.

#![allow(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod connector;
mod eal;
mod error;
mod flow;
mod lend;
mod log;
mod mbuf;
mod mempool;
mod port;
mod queue;
mod spread;

pub use eal::{is_pci_address, version, Drivers, Eal, EalOptions, LcoreId, Memory, Process};
pub use error::Error;
pub use flow::{FlowRule, FlowVersion};
pub use lend::{Lent, QueuePair};
pub use log::Log;
pub use mbuf::{free_bulk, Burst, Mbuf, MAX_BURST};
pub use mempool::{Mempool, PoolConfig, HEADROOM_OCTETS};
pub use port::{Link, Port, PortConfig, PortInfo, PortStats};
pub use queue::{QueueIndex, RxQueue, TxQueue};
pub use spread::Spreading;
