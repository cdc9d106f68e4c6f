//! IP addresses in the 16 octets of a GID.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An IP address in network byte order, IPv4 in its IPv4-mapped form: the form of frame metadata,
/// leased routes and GIDs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct Ip16(pub [u8; 16]);

impl Ip16 {
    /// The unspecified address, `::`.
    pub const UNSPECIFIED: Self = Self([0; 16]);

    /// The 16 octets of an address.
    #[inline]
    pub const fn new(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self(v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => Self(v6.octets()),
        }
    }

    /// The 16 octets of an IPv4 address.
    #[inline]
    pub fn mapped(address: Ipv4Addr) -> Self {
        let mut octets = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0];
        octets[12..].copy_from_slice(&address.octets());
        Self(octets)
    }

    /// The address; an IPv4-mapped one is IPv4.
    #[inline]
    pub fn to_ip(self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }
}

impl From<IpAddr> for Ip16 {
    #[inline]
    fn from(address: IpAddr) -> Self {
        Self::new(address)
    }
}

impl From<Ip16> for IpAddr {
    #[inline]
    fn from(address: Ip16) -> Self {
        address.to_ip()
    }
}

impl fmt::Debug for Ip16 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_ip().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octets_of_either_version_round_trip() {
        for text in ["127.0.0.2", "fe80::1", "::"] {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(Ip16::new(address).to_ip(), address);
        }
    }

    #[test]
    fn ipv4_mapped_address_is_ipv4() {
        let mapped: IpAddr = "::ffff:10.0.0.1".parse().unwrap();
        assert_eq!(Ip16::new(mapped).to_ip(), mapped.to_canonical());
    }
}
