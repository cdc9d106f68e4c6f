//! Tables of rdma_cm's ports, in messages and in `urdma status`.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use urdma_types::PortSpace;

/// A table of ports, shared by the port spaces of one kind of service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortTable {
    /// RDMA_PS_TCP (0x0106): connected.
    Tcp,
    /// RDMA_PS_UDP (0x0111) and RDMA_PS_IPOIB (0x0002): datagrams.
    Udp,
    /// RDMA_PS_IB (0x013F): extended connections.
    Ib,
}

impl PortTable {
    /// The table of a port space; `None` for a port space that does not exist.
    pub const fn of(space: PortSpace) -> Option<Self> {
        match space {
            PortSpace::TCP => Some(Self::Tcp),
            PortSpace::UDP | PortSpace::IPOIB => Some(Self::Udp),
            PortSpace::IB => Some(Self::Ib),
            _ => None,
        }
    }
}

impl fmt::Display for PortTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Ib => "ib",
        })
    }
}

/// A CM port that a process requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmPort {
    /// Port space.
    pub space: PortTable,
    /// Local address; unspecified (`0.0.0.0` or `::`) for all.
    pub addr: IpAddr,
    /// The port; 0 for any free one.
    pub port: u16,
    /// With which other ids the port may be shared.
    pub sharing: PortSharing,
}

/// The options of an rdma_cm id that allow other ids to share its port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortSharing {
    /// `RDMA_OPTION_ID_REUSEADDR`: with ids that also set it.
    pub reuse_addr: bool,
    /// `RDMA_OPTION_ID_AFONLY`: with ids of the other address family that also set it.
    pub af_only: bool,
}
