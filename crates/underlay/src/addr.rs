//! Link-layer and IP addresses, and those of a local interface.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use arrayvec::ArrayVec;

/// IP addresses that one [`LocalInterface`] can own.
pub const MAX_ADDRESSES: usize = 16;

/// Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// The address of every station.
    pub const BROADCAST: MacAddr = MacAddr([0xff; 6]);

    /// Whether the address names one station: neither a group's nor all zeros.
    #[inline]
    pub const fn is_unicast(self) -> bool {
        let octets = self.0;
        octets[0] & 1 == 0
            && (octets[0] | octets[1] | octets[2] | octets[3] | octets[4] | octets[5]) != 0
    }

    /// The group that an IPv6 multicast address is sent to (RFC 2464 section 7).
    pub const fn of_ipv6_group(group: Ipv6Addr) -> Self {
        let octets = group.octets();
        Self([0x33, 0x33, octets[12], octets[13], octets[14], octets[15]])
    }

    /// The group that an IPv4 multicast address is sent to (RFC 1112 section 6.4).
    pub const fn of_ipv4_group(group: Ipv4Addr) -> Self {
        let octets = group.octets();
        Self([0x01, 0x00, 0x5e, octets[1] & 0x7f, octets[2], octets[3]])
    }

    /// The group that a multicast address of either version is sent to.
    pub fn of_group(group: IpAddr) -> Self {
        match group.to_canonical() {
            IpAddr::V4(v4) => Self::of_ipv4_group(v4),
            IpAddr::V6(v6) => Self::of_ipv6_group(v6),
        }
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The text is not six two-digit hexadecimal numbers with colons between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an Ethernet address: write it like 02:00:5e:00:53:01")]
pub struct MacSyntax;

impl FromStr for MacAddr {
    type Err = MacSyntax;

    fn from_str(text: &str) -> Result<Self, MacSyntax> {
        let mut octets = [0; 6];
        let mut parts = text.split(':');
        for octet in &mut octets {
            let part = parts.next().ok_or(MacSyntax)?;
            let digits = part.len() == 2 && part.bytes().all(|digit| digit.is_ascii_hexdigit());
            *octet = u8::from_str_radix(part, 16)
                .ok()
                .filter(|_| digits)
                .ok_or(MacSyntax)?;
        }
        match parts.next() {
            None => Ok(Self(octets)),
            Some(_) => Err(MacSyntax),
        }
    }
}

/// Which IP a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpVersion {
    /// IPv4, RFC 791.
    V4,
    /// IPv6, RFC 8200.
    V6,
}

impl IpVersion {
    /// The version of an address; an IPv4-mapped IPv6 address travels as IPv4.
    #[inline]
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}

/// A list of addresses was longer than [`MAX_ADDRESSES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a port can have at most {MAX_ADDRESSES} addresses")]
pub struct TooManyAddresses;

/// An interface of this host: its Ethernet address and its IP addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalInterface {
    mac: MacAddr,
    addresses: ArrayVec<IpAddr, MAX_ADDRESSES>,
}

impl LocalInterface {
    /// An interface with these addresses; IPv4-mapped ones count as IPv4.
    ///
    /// # Errors
    /// There are more than [`MAX_ADDRESSES`].
    pub fn new(mac: MacAddr, addresses: &[IpAddr]) -> Result<Self, TooManyAddresses> {
        let mut owned = ArrayVec::new();
        for address in addresses {
            owned
                .try_push(address.to_canonical())
                .map_err(|_| TooManyAddresses)?;
        }
        Ok(Self {
            mac,
            addresses: owned,
        })
    }

    /// The Ethernet address.
    #[inline]
    pub const fn mac(&self) -> MacAddr {
        self.mac
    }

    /// The IP addresses, in the order they were given.
    #[inline]
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// The index of an IPv4 address, if the interface has it.
    #[inline]
    pub fn index_of_v4(&self, address: Ipv4Addr) -> Option<u8> {
        let is_it = |own: &IpAddr| matches!(own, IpAddr::V4(own) if *own == address);
        self.addresses.iter().position(is_it).map(index)
    }

    /// The index of an IPv6 address, if the interface has it.
    #[inline]
    pub fn index_of_v6(&self, address: Ipv6Addr) -> Option<u8> {
        let is_it = |own: &IpAddr| matches!(own, IpAddr::V6(own) if *own == address);
        self.addresses.iter().position(is_it).map(index)
    }

    /// The index of an address, if the interface has it.
    pub fn index_of(&self, address: IpAddr) -> Option<u8> {
        match address.to_canonical() {
            IpAddr::V4(v4) => self.index_of_v4(v4),
            IpAddr::V6(v6) => self.index_of_v6(v6),
        }
    }

    /// Whether the interface has this address.
    pub fn owns(&self, address: IpAddr) -> bool {
        self.index_of(address).is_some()
    }

    /// The source address for `destination`: that of `index`, if it exists and has the same version
    /// and scope; else the first that has, else the first of the same version.
    pub fn source_for(&self, destination: IpAddr, index: u8) -> Option<IpAddr> {
        let destination = destination.to_canonical();
        let version = IpVersion::of(destination);
        let wanted = is_link_local(destination);
        let fits = |own: &IpAddr| IpVersion::of(*own) == version && is_link_local(*own) == wanted;
        let named = self
            .addresses
            .get(usize::from(index))
            .filter(|own| fits(own));
        named
            .or_else(|| self.addresses.iter().find(|own| fits(own)))
            .copied()
            .or_else(|| self.first(version))
    }

    /// The first address of an IP version.
    pub fn first(&self, version: IpVersion) -> Option<IpAddr> {
        self.addresses
            .iter()
            .copied()
            .find(|own| IpVersion::of(*own) == version)
    }
}

/// An index below [`MAX_ADDRESSES`].
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "there are few addresses")]
const fn index(place: usize) -> u8 {
    place as u8
}

/// Whether an address is link-local, or a group's of that scope.
fn is_link_local(address: IpAddr) -> bool {
    /// The scope in the second octet of a group's address, RFC 4291 section 2.7.
    const LINK_LOCAL_SCOPE: u8 = 2;
    match address {
        IpAddr::V6(v6) if v6.is_multicast() => v6.octets()[1] & 0xf == LINK_LOCAL_SCOPE,
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
        IpAddr::V4(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_text_with_six_octets_is_read_and_written_back() {
        let mac: MacAddr = "02:00:5e:00:53:Af".parse().unwrap();
        assert_eq!(mac, MacAddr([2, 0, 0x5e, 0, 0x53, 0xaf]));
        assert_eq!(mac.to_string(), "02:00:5e:00:53:af");
    }

    #[test]
    fn mac_text_with_other_shapes_is_refused() {
        for text in [
            "",
            "02:00:5e:00:53",
            "02:00:5e:00:53:01:02",
            "2:0:5e:0:53:1",
            "+2:00:5e:00:53:01",
            "gg:00:5e:00:53:01",
        ] {
            assert_eq!(text.parse::<MacAddr>(), Err(MacSyntax), "{text}");
        }
    }

    #[test]
    fn mac_of_groups_and_of_zeroes_is_not_unicast() {
        assert!(MacAddr([2, 0, 0, 0, 0, 1]).is_unicast());
        assert!(!MacAddr::BROADCAST.is_unicast());
        assert!(!MacAddr::default().is_unicast());
        assert!(!MacAddr([0x33, 0x33, 0, 0, 0, 1]).is_unicast());
    }

    #[test]
    fn mac_of_a_group_has_the_low_bits_of_its_address() {
        let of = |text: &str| MacAddr::of_group(text.parse().unwrap()).to_string();
        assert_eq!(of("239.129.2.3"), "01:00:5e:01:02:03");
        assert_eq!(of("::ffff:224.0.0.1"), "01:00:5e:00:00:01");
        assert_eq!(of("ff0e::1:203"), "33:33:00:01:02:03");
    }

    #[test]
    fn endpoint_with_mapped_address_owns_the_ipv4_one() {
        let own =
            LocalInterface::new(MacAddr([2; 6]), &["::ffff:10.0.0.1".parse().unwrap()]).unwrap();
        assert!(own.owns("10.0.0.1".parse().unwrap()));
        assert!(own.owns("::ffff:10.0.0.1".parse().unwrap()));
        assert!(!own.owns("10.0.0.2".parse().unwrap()));
        assert_eq!(own.first(IpVersion::V6), None);
    }

    #[test]
    fn source_is_the_one_named_if_it_is_of_the_destinations_version_and_scope() {
        let addresses = ["fe80::1", "10.0.0.1", "2001:db8::1", "10.0.0.9"];
        let addresses = addresses.map(|text| text.parse().unwrap());
        let own = LocalInterface::new(MacAddr([2; 6]), &addresses).unwrap();
        for (destination, index, expected) in [
            ("10.0.0.2", 0, "10.0.0.1"),
            ("10.0.0.2", 3, "10.0.0.9"),
            ("10.0.0.2", 7, "10.0.0.1"),
            ("fe80::2", 2, "fe80::1"),
            ("2001:db8::2", 0, "2001:db8::1"),
            ("239.1.2.3", 3, "10.0.0.9"),
            ("ff02::1234", 1, "fe80::1"),
            ("ff0e::1234", 2, "2001:db8::1"),
        ] {
            let source = own.source_for(destination.parse().unwrap(), index);
            assert_eq!(
                source,
                Some(expected.parse().unwrap()),
                "{destination} {index}"
            );
        }
    }

    #[test]
    fn endpoint_with_too_many_addresses_is_refused() {
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        assert!(LocalInterface::new(MacAddr([2; 6]), &[address; MAX_ADDRESSES]).is_ok());
        assert_eq!(
            LocalInterface::new(MacAddr([2; 6]), &[address; MAX_ADDRESSES + 1]),
            Err(TooManyAddresses)
        );
    }
}
