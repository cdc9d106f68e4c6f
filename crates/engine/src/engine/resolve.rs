//! Where a peer is: an address of this instance, or a host behind the port.

use std::net::IpAddr;

use urdma_ipc::Resolution;

use crate::engine::Engine;
use crate::paths::path::NextHop;
use crate::types::{EngineError, Gid};

impl Engine {
    /// Whether an address is the instance's, so that it needs no resolution.
    pub(crate) fn is_own(&self, ip: IpAddr) -> bool {
        let gid = Gid::from_ip(ip);
        self.info.addresses.contains(&ip) || self.info.gids.iter().any(|entry| entry.gid == gid)
    }

    /// Resolves `gid`; may ask urdmad, so not to be called under the engine's lock.
    pub(super) fn find_next_hop(&self, gid: Gid) -> Result<NextHop, EngineError> {
        let ip = gid.to_ip();
        if self.is_own(ip) {
            return Ok(NextHop::Local);
        }
        if ip.is_unspecified() || ip.is_multicast() {
            return Err(EngineError::Invalid);
        }
        if self.info.mtu == 0 {
            return Err(EngineError::NetUnreachable);
        }
        if let Some(mac) = self.next_hop {
            return Ok(NextHop::Remote { ip, mac });
        }
        let control = self.daemon().ok_or(EngineError::NetUnreachable)?;
        match control.resolve(ip) {
            Ok(Resolution::Local) => Ok(NextHop::Local),
            Ok(Resolution::Neighbour { mac, .. }) => Ok(NextHop::Remote { ip, mac }),
            Ok(Resolution::NoHost) => Err(EngineError::HostUnreachable),
            Err(urdma_ipc::ControlError::Gone) => Err(EngineError::DeviceGone),
            Err(_) => Err(EngineError::HostUnreachable),
        }
    }
}
