//! How a target tells initiators apart.

use std::net::IpAddr;
use urdma_types::Qpn;

/// An initiator, as a target knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DcSource {
    /// The IP source address of its packets.
    pub address: IpAddr,
    /// Its queue pair number.
    pub initiator: Qpn,
}
