//! How both ends name one another.

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

/// Where requests go: what an address handle and the fields of a work request name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DcTargetAddress {
    /// The IP address of the target's host.
    pub address: IpAddr,
    /// The target's number.
    pub number: Qpn,
    /// The target's access key.
    pub key: u64,
}
