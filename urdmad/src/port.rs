//! Ports: how packets leave the host.
//!
//! - `interface`: [`PacketPort`], all that the data path knows of a port.
//! - `dpdk`: its implementation on DPDK.
//! - `open`: starts DPDK and the port.
//! - `device`: the device arguments for DPDK.
//! - `table`: steers packets to leased queues where a NIC has no flow rules.
//! - `steer`: separates the packets of an AF_XDP port from the kernel's.
//! - `udp`: its implementation on UDP sockets, without DPDK.
//! - `tap`: gives the kernel's end of a TAP port its address.

mod device;
mod dpdk;
mod interface;
mod open;
mod steer;
mod table;
mod tap;
mod udp;

pub use self::interface::{NoBuffer, OpenPort, PacketPort, PortReport, PortRequest, Resolver};
pub use self::open::{open, remove_leftovers};
pub(crate) use self::udp::has_route;
