//! The port spaces of rdma_cm, as messages and `urdma status` name them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A port space of rdma_cm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortSpace {
    /// RDMA_PS_TCP (0x0106): connected.
    Tcp,
    /// RDMA_PS_UDP (0x0111) and RDMA_PS_IPOIB (0x0002): datagrams.
    Udp,
    /// RDMA_PS_IB (0x013F): extended connections.
    Ib,
}

impl PortSpace {
    /// The port space with this number of `enum rdma_ucm_port_space`; `None` for those without ports.
    pub const fn from_number(number: u16) -> Option<Self> {
        match number {
            0x0106 => Some(Self::Tcp),
            0x0111 | 0x0002 => Some(Self::Udp),
            0x013f => Some(Self::Ib),
            _ => None,
        }
    }
}

impl fmt::Display for PortSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Ib => "ib",
        })
    }
}
