//! A port of DPDK: the library that urdmad loads when its configuration names one.
//!
//! The library exports [`urdma_port_table`]; [`urdma_abi::port`] documents the functions of its
//! table. doc/adr/0018-without-dpdk.md gives the reasons. Files:
//! - `params`: the caller's parameters, copied and validated;
//! - `open`: starts DPDK and the port; `device`: what is known of drivers;
//! - `error`: why something does not work;
//! - `port`: queue pairs and frames of an open port;
//! - `redirection`: steers packets to leased queues where a NIC has no flow rules;
//! - `steer`: separates the packets of an AF_XDP port from the kernel's;
//! - `guard`: functions of DPDK that are replaced;
//! - `table`: the C functions, which convert pointers to references and catch panics.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod device;
mod error;
mod guard;
mod open;
mod params;
mod port;
mod redirection;
mod steer;
mod table;

pub use table::urdma_port_table;
