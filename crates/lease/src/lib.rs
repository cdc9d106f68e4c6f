//! A leased NIC queue pair: the DPDK secondary that a provider process loads.
//!
//! The library exports one function, [`urdma_lease_table`]; [`urdma_abi::lease`] documents the
//! functions of its table. Files:
//! - `attach`: attaches the process to the primary, without side effects in the host program: no
//!   signal handler, no change of affinity or environment, no output to standard streams or to the
//!   system log;
//! - `interrupts`: the eventfd by which the peer of a net_memif pair wakes the process;
//! - `lease`: routes, bursts and counters of one leased pair;
//! - `memif`: the rings of a net_memif pair, which are used without the driver's burst functions
//!   and their copies;
//! - `table`: the C functions, which convert pointers to references and catch panics.

#![allow(unsafe_code)]

use urdma_abi::lease::DROP_REASONS;
use urdma_underlay::Dropped;

const _: () = assert!(DROP_REASONS == Dropped::ALL.len());

mod attach;
mod interrupts;
mod lease;
mod memif;
mod table;

pub use table::urdma_lease_table;
