//! Writing the headers of a route in front of a datagram.

use std::net::IpAddr;

use crate::addr::{IpVersion, MacAddr};
use crate::checksum::Sum;

/// Octets of an Ethernet header without a VLAN tag.
pub const ETHERNET_OCTETS: usize = 14;
/// Octets of an IPv4 header without options.
pub const IPV4_OCTETS: usize = 20;
/// Octets of an IPv6 header without extensions.
pub const IPV6_OCTETS: usize = 40;
/// Octets of a UDP header.
pub const UDP_OCTETS: usize = 8;
/// Octets in front of a datagram at most: what a buffer must keep free.
pub const MAX_HEADER_OCTETS: usize = ETHERNET_OCTETS + IPV6_OCTETS + UDP_OCTETS;

pub(crate) const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
pub(crate) const ETHERTYPE_ARP: [u8; 2] = [0x08, 0x06];
pub(crate) const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
pub(crate) const PROTOCOL_UDP: u8 = 17;
pub(crate) const PROTOCOL_ICMPV6: u8 = 58;
const HOP_LIMIT: u8 = 64;

/// Octets of all headers in front of a datagram.
#[inline]
pub const fn header_octets(version: IpVersion) -> usize {
    match version {
        IpVersion::V4 => ETHERNET_OCTETS + IPV4_OCTETS + UDP_OCTETS,
        IpVersion::V6 => ETHERNET_OCTETS + IPV6_OCTETS + UDP_OCTETS,
    }
}

/// The longest datagram that fits an IP MTU unfragmented; 0 when not even the headers do.
#[inline]
pub const fn max_datagram(mtu: u16, version: IpVersion) -> usize {
    // R3-7
    //# A packet MUST NOT be longer than the path MTU less 28 octets (IPv4) or 48 octets (IPv6).
    (mtu as usize).saturating_sub(header_octets(version) - ETHERNET_OCTETS)
}

/// The two ECN bits of an IP header (RFC 3168 section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Ecn {
    /// The sender does not react to marks.
    #[default]
    NotCapable = 0,
    /// ECT(1).
    Capable1 = 1,
    /// ECT(0): the sender reacts to marks.
    Capable0 = 2,
    /// Congestion experienced.
    Congested = 3,
}

impl Ecn {
    /// The bits in the low end of `octet`, as in a traffic class.
    #[inline]
    pub const fn from_bits(octet: u8) -> Self {
        match octet & 3 {
            0 => Self::NotCapable,
            1 => Self::Capable1,
            2 => Self::Capable0,
            _ => Self::Congested,
        }
    }

    /// The two bits.
    #[inline]
    pub const fn bits(self) -> u8 {
        self as u8
    }
}

/// Whether the UDP checksum is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Checksum {
    /// Over header and payload.
    #[default]
    Full,
    /// Sent as 0, "not computed": for paths that stay in memory. IPv6 forbids it, so there it is
    /// computed anyway.
    None,
    /// Left as 0 in all frames: the kernel computes it for the datagram that it sends.
    Left,
}

/// Source and destination port of a UDP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UdpPorts {
    /// The sender's port; one per queue pair, so that paths and receive queues are spread.
    pub source: u16,
    /// The receiver's port, which names its slot.
    pub destination: u16,
}

/// Source and destination of packets on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Own Ethernet address.
    pub source_mac: MacAddr,
    /// Ethernet address of the next hop.
    pub destination_mac: MacAddr,
    /// Own IP address.
    pub source: IpAddr,
    /// IP address of the remote host, or of a group.
    pub destination: IpAddr,
    /// Whether UDP checksums are computed.
    pub checksum: Checksum,
}

/// An invalid route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// One address is IPv4, the other IPv6.
    #[error("source and destination are of different IP versions")]
    MixedVersions,
    /// The source is no address of a single host, or the destination neither that nor a group's.
    #[error("the source must be the address of a single host, the destination that or a group's")]
    NoAddress,
}

/// A datagram is longer than the length field of its IP header can say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the datagram does not fit an IP packet")]
pub struct Oversize;

/// The headers of a route, ready to be written in front of datagrams.
#[derive(Clone, Debug)]
pub struct Template {
    header: [u8; MAX_HEADER_OCTETS],
    version: IpVersion,
    checksum: Checksum,
    /// IPv4 header without length, ECN and checksum.
    ip_sum: Sum,
    /// Addresses and protocol, which the UDP checksum covers too.
    pseudo_sum: Sum,
}

impl Template {
    /// The template of a route.
    ///
    /// # Errors
    /// The addresses are of different versions, or cannot be the ends of a datagram.
    pub fn new(route: &Route) -> Result<Self, RouteError> {
        let addresses = (
            route.source.to_canonical(),
            route.destination.to_canonical(),
        );
        let mut header = [0; MAX_HEADER_OCTETS];
        header[..6].copy_from_slice(&route.destination_mac.0);
        header[6..12].copy_from_slice(&route.source_mac.0);
        let ip = &mut header[ETHERNET_OCTETS..];
        let pseudo = Sum::default().word(u16::from(PROTOCOL_UDP));
        let (version, ethertype, ip_sum, pseudo_sum) = match addresses {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                ip[0] = 0x45;
                // R3-6
                //# IP datagrams MUST NOT be fragmented: IPv4 sets DF.
                ip[6] = 0x40; // Do not fragment; identification 0 then says nothing (RFC 6864).
                ip[8] = HOP_LIMIT;
                ip[9] = PROTOCOL_UDP;
                ip[12..16].copy_from_slice(&source.octets());
                ip[16..20].copy_from_slice(&destination.octets());
                let sums = (
                    Sum::default().octets(&ip[..IPV4_OCTETS]),
                    pseudo.octets(&ip[12..20]),
                );
                (IpVersion::V4, ETHERTYPE_IPV4, sums.0, sums.1)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                ip[0] = 0x60;
                ip[6] = PROTOCOL_UDP;
                ip[7] = HOP_LIMIT;
                ip[8..24].copy_from_slice(&source.octets());
                ip[24..40].copy_from_slice(&destination.octets());
                let sum = pseudo.octets(&ip[8..40]);
                (IpVersion::V6, ETHERTYPE_IPV6, Sum::default(), sum)
            }
            _ => return Err(RouteError::MixedVersions),
        };
        let to_group = addresses.1.is_multicast();
        if !is_host(addresses.0) || !(to_group || is_host(addresses.1)) {
            return Err(RouteError::NoAddress);
        }
        header[12..14].copy_from_slice(&ethertype);
        Ok(Self {
            header,
            version,
            checksum: route.checksum,
            ip_sum,
            pseudo_sum,
        })
    }

    /// The IP version of the route.
    #[inline]
    pub const fn version(&self) -> IpVersion {
        self.version
    }

    /// Octets that [`Template::write`] fills in front of the datagram.
    #[inline]
    pub const fn header_octets(&self) -> usize {
        header_octets(self.version)
    }

    /// Sends later packets to another Ethernet address, after the neighbour's has changed.
    #[inline]
    pub fn set_destination_mac(&mut self, mac: MacAddr) {
        self.header[..6].copy_from_slice(&mac.0);
    }

    /// Writes the headers into `frame`, whose octets from [`Template::header_octets`] on are the
    /// datagram.
    ///
    /// # Errors
    /// The datagram is too long for an IP packet, or `frame` is shorter than the headers; `frame`
    /// is unchanged then.
    #[inline]
    pub fn write(&self, frame: &mut [u8], ports: UdpPorts, ecn: Ecn) -> Result<(), Oversize> {
        let ip_octets = frame.len().wrapping_sub(ETHERNET_OCTETS);
        match self.version {
            IpVersion::V4 => {
                let total = u16::try_from(ip_octets).map_err(|_| Oversize)?;
                let udp = total
                    .checked_sub(28)
                    .map(|datagram| datagram + 8)
                    .ok_or(Oversize)?;
                frame[..34].copy_from_slice(&self.header[..34]);
                frame[15] = ecn.bits();
                frame[16..18].copy_from_slice(&total.to_be_bytes());
                let sum = self.ip_sum.word(total).word(u16::from(ecn.bits()));
                frame[24..26].copy_from_slice(&sum.finish().to_be_bytes());
                self.write_udp(&mut frame[34..], ports, udp);
            }
            IpVersion::V6 => {
                let udp =
                    u16::try_from(ip_octets.wrapping_sub(IPV6_OCTETS)).map_err(|_| Oversize)?;
                if usize::from(udp) < UDP_OCTETS {
                    return Err(Oversize);
                }
                frame[..54].copy_from_slice(&self.header[..54]);
                frame[15] = ecn.bits() << 4;
                frame[18..20].copy_from_slice(&udp.to_be_bytes());
                self.write_udp(&mut frame[54..], ports, udp);
            }
        }
        Ok(())
    }

    /// Whether the UDP checksum is computed, so that the headers depend on the datagram.
    #[inline]
    fn has_checksum(&self) -> bool {
        // R3-8
        //# The UDP checksum MUST be valid on paths that leave the host's memory.
        match self.checksum {
            Checksum::Full => true,
            Checksum::None => self.version == IpVersion::V6,
            Checksum::Left => false,
        }
    }

    #[inline]
    fn write_udp(&self, segment: &mut [u8], ports: UdpPorts, length: u16) {
        segment[0..2].copy_from_slice(&ports.source.to_be_bytes());
        segment[2..4].copy_from_slice(&ports.destination.to_be_bytes());
        segment[4..6].copy_from_slice(&length.to_be_bytes());
        segment[6..8].copy_from_slice(&[0, 0]);
        if self.has_checksum() {
            let sum = self.pseudo_sum.word(length).octets(segment).finish();
            // 0 would mean "not computed"; the other representation of the same sum is sent (RFC
            // 768).
            let sent = if sum == 0 { 0xffff } else { sum };
            segment[6..8].copy_from_slice(&sent.to_be_bytes());
        }
    }
}

/// Whether an address can be one host's.
#[inline]
pub(crate) fn is_host(address: IpAddr) -> bool {
    !address.is_unspecified()
        && !address.is_multicast()
        && !matches!(address, IpAddr::V4(v4) if v4.is_broadcast())
}

/// The headers of a stream of datagrams: those of one length have the same, which are copied.
#[derive(Debug)]
pub struct Headers<'t> {
    template: &'t Template,
    ports: UdpPorts,
    ecn: Ecn,
    written: [u8; MAX_HEADER_OCTETS],
    /// Length of the frames that have the headers in `written`; 0 for none.
    frame_octets: usize,
}

impl<'t> Headers<'t> {
    /// The headers of datagrams between two ports.
    #[inline]
    pub fn new(template: &'t Template, ports: UdpPorts, ecn: Ecn) -> Self {
        Self {
            template,
            ports,
            ecn,
            written: [0; MAX_HEADER_OCTETS],
            frame_octets: 0,
        }
    }

    /// As [`Template::write`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn write(&mut self, frame: &mut [u8]) -> Result<(), Oversize> {
        let is_written = frame.len() == self.frame_octets;
        match self.template.version {
            IpVersion::V4 if is_written => frame[..42].copy_from_slice(&self.written[..42]),
            IpVersion::V6 if is_written => frame[..62].copy_from_slice(&self.written[..62]),
            _ => self.write_first(frame)?,
        }
        Ok(())
    }

    #[inline(never)]
    fn write_first(&mut self, frame: &mut [u8]) -> Result<(), Oversize> {
        self.template.write(frame, self.ports, self.ecn)?;
        if !self.template.has_checksum() {
            let octets = self.template.header_octets();
            self.written[..octets].copy_from_slice(&frame[..octets]);
            self.frame_octets = frame.len();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smoltcp::phy::ChecksumCapabilities;
    use smoltcp::wire::{EthernetFrame, IpAddress, Ipv4Packet, Ipv4Repr, Ipv6Packet, UdpPacket};

    const PORTS: UdpPorts = UdpPorts {
        source: 50001,
        destination: 21505,
    };

    fn route(source: &str, destination: &str, checksum: Checksum) -> Route {
        Route {
            source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
            destination_mac: MacAddr([2, 0, 0, 0, 0, 2]),
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            checksum,
        }
    }

    fn written(route: &Route, datagram: &[u8], ecn: Ecn) -> Vec<u8> {
        let template = Template::new(route).unwrap();
        let mut frame = vec![0xee; template.header_octets()];
        frame.extend(datagram);
        template.write(&mut frame, PORTS, ecn).unwrap();
        frame
    }

    #[test]
    fn write_over_ipv4_makes_what_another_parser_accepts() {
        for length in [0, 1, 2, 3, 64, 1471, 8972] {
            let datagram: Vec<u8> = (0..length).map(|octet| octet as u8).collect();
            let frame = written(
                &route("127.0.0.1", "127.0.0.2", Checksum::Full),
                &datagram,
                Ecn::Capable0,
            );
            let ethernet = EthernetFrame::new_checked(&frame).unwrap();
            assert_eq!(ethernet.src_addr().0, [2, 0, 0, 0, 0, 1]);
            let ip = Ipv4Packet::new_checked(ethernet.payload()).unwrap();
            assert!(ip.verify_checksum() && ip.dont_frag() && !ip.more_frags());
            assert_eq!((ip.ecn(), ip.dscp(), ip.hop_limit()), (2, 0, 64));
            Ipv4Repr::parse(&ip, &ChecksumCapabilities::default()).unwrap();
            let udp = UdpPacket::new_checked(ip.payload()).unwrap();
            assert!(udp.checksum() != 0);
            assert!(udp.verify_checksum(
                &IpAddress::Ipv4(ip.src_addr()),
                &IpAddress::Ipv4(ip.dst_addr())
            ));
            assert_eq!((udp.src_port(), udp.dst_port()), (50001, 21505));
            assert_eq!(udp.payload(), datagram);
        }
    }

    #[test]
    fn write_over_ipv6_makes_what_another_parser_accepts() {
        for checksum in [Checksum::Full, Checksum::None] {
            let frame = written(
                &route("fe80::1", "fe80::2", checksum),
                b"datagram!",
                Ecn::Congested,
            );
            let ip = Ipv6Packet::new_checked(&frame[ETHERNET_OCTETS..]).unwrap();
            assert_eq!((ip.traffic_class(), ip.flow_label()), (3, 0));
            let udp = UdpPacket::new_checked(ip.payload()).unwrap();
            assert!(udp.checksum() != 0);
            assert!(udp.verify_checksum(
                &IpAddress::Ipv6(ip.src_addr()),
                &IpAddress::Ipv6(ip.dst_addr())
            ));
            assert_eq!(udp.payload(), b"datagram!");
        }
    }

    #[test]
    fn write_without_checksum_over_ipv4_sends_zero() {
        let frame = written(
            &route("10.0.0.1", "10.0.0.2", Checksum::None),
            b"x",
            Ecn::NotCapable,
        );
        assert_eq!(frame[40..42], [0, 0]);
    }

    #[test]
    fn write_of_a_datagram_beyond_the_length_field_is_refused() {
        let template = Template::new(&route("10.0.0.1", "10.0.0.2", Checksum::None)).unwrap();
        let most = 65535 + ETHERNET_OCTETS;
        assert_eq!(
            template.write(&mut vec![0; most], PORTS, Ecn::NotCapable),
            Ok(())
        );
        assert_eq!(
            template.write(&mut vec![0; most + 1], PORTS, Ecn::NotCapable),
            Err(Oversize)
        );
        assert_eq!(
            template.write(&mut [0; 41], PORTS, Ecn::NotCapable),
            Err(Oversize)
        );
        let template = Template::new(&route("fe80::1", "fe80::2", Checksum::None)).unwrap();
        assert_eq!(
            template.write(&mut [0; 61], PORTS, Ecn::NotCapable),
            Err(Oversize)
        );
        assert_eq!(
            template.write(&mut [0; 3], PORTS, Ecn::NotCapable),
            Err(Oversize)
        );
    }

    #[test]
    fn template_of_impossible_addresses_is_refused() {
        let new = |source, destination| {
            Template::new(&route(source, destination, Checksum::Full)).map(|_| ())
        };
        assert_eq!(new("10.0.0.1", "fe80::1"), Err(RouteError::MixedVersions));
        assert_eq!(new("224.0.0.1", "10.0.0.1"), Err(RouteError::NoAddress));
        assert_eq!(new("0.0.0.0", "10.0.0.1"), Err(RouteError::NoAddress));
        assert_eq!(
            new("10.0.0.1", "255.255.255.255"),
            Err(RouteError::NoAddress)
        );
        assert_eq!(new("10.0.0.1", "224.0.0.1"), Ok(()));
        assert_eq!(new("::ffff:10.0.0.1", "10.0.0.2"), Ok(()));
    }

    #[test]
    fn max_datagram_of_usual_mtus_leaves_room_for_headers() {
        assert_eq!(max_datagram(1500, IpVersion::V4), 1472);
        assert_eq!(max_datagram(1500, IpVersion::V6), 1452);
        assert_eq!(max_datagram(9000, IpVersion::V4), 8972);
        assert_eq!(max_datagram(20, IpVersion::V4), 0);
    }
}
