//! Ports: how packets leave the host.
//!
//! - `interface`: [`PacketPort`], all that the data path knows of a port.
//! - `error`: why one cannot be used.
//! - `dpdk`: its implementation on DPDK, which is loaded for it.
//! - `udp`: its implementation on UDP sockets, without DPDK.

mod dpdk;
mod error;
mod interface;
mod udp;

use urdma_underlay::MacAddr;

pub use self::dpdk::{kinds as kinds_of_dpdk, remove_leftovers};
pub use self::error::{PortError, QueueError};
pub use self::interface::{NoBuffer, OpenPort, PacketPort, PortReport, PortRequest, Resolver};
pub(crate) use self::udp::has_route;

/// Opens the port, with DPDK if it needs that.
///
/// # Errors
/// It cannot be used.
pub fn open(request: &PortRequest<'_>) -> Result<OpenPort, PortError> {
    let [_, a, b, _, _, c, d, e] = request.node_guid.to_be_bytes();
    let mac = MacAddr([0x02, a, b ^ c, c, d, e]);
    let config = request.config;
    match config.kind.get().arguments(config.mtu, mac) {
        Ok(None) => udp::open(request, mac),
        Ok(Some(arguments)) => dpdk::open(request, &arguments),
        Err(error) => Err(PortError::refused(
            config.kind.get().cause(),
            error.to_string(),
        )),
    }
}
