//! A leased NIC queue pair: the DPDK secondary that a provider process loads.
//!
//! The library exports one function, [`urdma_lease_table`]; what its table offers is declared and
//! explained in [`urdma_abi::lease`]. Here:
//! - `attach`: joining the primary, once a process, without a trace in the host program: no signal
//!   handler, no changed affinity, nothing on its outputs or in the system's log, its environment
//!   untouched;
//! - `lease`: routes, bursts and counters of one leased pair;
//! - `memif`: the rings of a net_memif pair, which is used without the driver's bursts and their
//!   copies;
//! - `table`: the C functions, which turn pointers into references and panics into refusals.

use urdma_abi::lease::DROP_REASONS;
use urdma_underlay::Dropped;

const _: () = assert!(DROP_REASONS == Dropped::ALL.len());

mod attach;
mod lease;
mod memif;
mod table;

pub use table::urdma_lease_table;
