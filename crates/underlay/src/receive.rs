//! Checking a received frame and finding the datagram in it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use crate::addr::{LocalInterface, MacAddr};
use crate::checksum::Sum;
use crate::frame::{
    is_host, Ecn, ETHERNET_OCTETS, ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, IPV4_OCTETS,
    IPV6_OCTETS, MAX_HEADER_OCTETS, PROTOCOL_ICMPV6, PROTOCOL_UDP, UDP_OCTETS,
};
use urdma_types::{udp_port, Ip16, SlotId};

/// A UDP datagram for one of our addresses, or for a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The sender's IP address, IPv4 as IPv4-mapped.
    pub source: Ip16,
    /// Which of our addresses or which group it was sent to, IPv4 as IPv4-mapped.
    pub destination: Ip16,
    /// The sender's UDP port.
    pub source_port: u16,
    /// Our UDP port, which names the slot.
    pub destination_port: u16,
    /// The index of the address that it was sent to; [`NO_INDEX`] if that is a group's.
    pub index: u8,
    /// The ECN bits as they arrived.
    pub ecn: Ecn,
    /// Where in the frame the datagram is.
    pub payload: Range<usize>,
}

/// The index of a destination that is a group.
pub const NO_INDEX: u8 = u8::MAX;

/// Why a frame is not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dropped {
    /// ARP or ICMPv6: no error, for [`crate::Neighbours::handle_frame`].
    NeighbourTraffic,
    /// It ends inside a header, or before the length its headers state.
    Truncated,
    /// Neither IPv4, IPv6 nor ARP.
    NotIp,
    /// Its Ethernet or IP destination is neither local nor a group, or it is to a group and names a
    /// single slot.
    NotForUs,
    /// An invalid version, header length or total length.
    BadIpHeader,
    /// The IPv4 header checksum is wrong.
    BadIpChecksum,
    /// The source is no address of a single host.
    BadSource,
    /// A fragment; TRP never fragments.
    Fragment,
    /// An IP protocol other than UDP.
    NotUdp,
    /// The UDP length disagrees with the IP length.
    BadUdpLength,
    /// The UDP checksum is wrong, or missing, which IPv6 does not allow.
    BadUdpChecksum,
}

impl Dropped {
    /// Every reason, in the order of [`Dropped::index`].
    pub const ALL: [Dropped; 11] = [
        Self::NeighbourTraffic,
        Self::Truncated,
        Self::NotIp,
        Self::NotForUs,
        Self::BadIpHeader,
        Self::BadIpChecksum,
        Self::BadSource,
        Self::Fragment,
        Self::NotUdp,
        Self::BadUdpLength,
        Self::BadUdpChecksum,
    ];

    /// The reason's place in a table of counters with one entry for each of [`Dropped::ALL`].
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The reason as a counter is named.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NeighbourTraffic => "neighbour_traffic",
            Self::Truncated => "truncated",
            Self::NotIp => "not_ip",
            Self::NotForUs => "not_for_us",
            Self::BadIpHeader => "bad_ip_header",
            Self::BadIpChecksum => "bad_ip_checksum",
            Self::BadSource => "bad_source",
            Self::Fragment => "fragment",
            Self::NotUdp => "not_udp",
            Self::BadUdpLength => "bad_udp_length",
            Self::BadUdpChecksum => "bad_udp_checksum",
        }
    }
}

/// How the checksums of received frames are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verification {
    /// Not at all: the kernel has verified them.
    Kernel,
    /// All, as [`parse`] does.
    Full,
    /// As `Full`, but a UDP checksum may also be partial: the sum of the pseudo header, which Linux
    /// leaves to a device to complete (CHECKSUM_PARTIAL), and which no device does between
    /// interfaces of one machine.
    Partial,
}

/// Checks frames and finds the datagrams in them, as [`parse`] does. Most frames are of a stream
/// and have the headers of the frame before, octet for octet: these are only compared.
#[derive(Debug)]
pub struct Checker {
    parse: fn(&[u8], &LocalInterface) -> Result<Received, Dropped>,
    /// The last frame that was found right, if its headers say nothing of its datagram.
    last: Option<Last>,
}

#[derive(Debug)]
struct Last {
    header: [u8; MAX_HEADER_OCTETS],
    frame_octets: usize,
    received: Received,
}

impl Checker {
    /// Of frames whose checksums are checked in this way.
    pub fn new(verification: Verification) -> Self {
        Self {
            parse: match verification {
                Verification::Kernel => parse_verified,
                Verification::Full => parse,
                Verification::Partial => parse_partial,
            },
            last: None,
        }
    }

    /// The datagram in a frame to `local`, which is the same in all calls.
    ///
    /// # Errors
    /// As of [`parse`].
    #[inline]
    pub fn check(&mut self, frame: &[u8], local: &LocalInterface) -> Result<&Received, Dropped> {
        let is_next = self.last.as_ref().is_some_and(|last| last.is_like(frame));
        if !is_next {
            self.last = None;
            let received = (self.parse)(frame, local)?;
            self.last = Some(Last::new(frame, received));
        }
        let last = self.last.as_ref().ok_or(Dropped::Truncated)?;
        Ok(&last.received)
    }
}

impl Last {
    fn new(frame: &[u8], received: Received) -> Self {
        let mut header = [0; MAX_HEADER_OCTETS];
        let octets = received.payload.start;
        header[..octets].copy_from_slice(&frame[..octets]);
        // The last field is the UDP checksum. What it covers differs from frame to frame.
        let has_checksum = frame[octets - 2..octets] != [0, 0];
        Self {
            header,
            frame_octets: if has_checksum { 0 } else { frame.len() },
            received,
        }
    }

    /// Whether a frame has the same headers, which say nothing of the datagram.
    #[inline]
    fn is_like(&self, frame: &[u8]) -> bool {
        let octets = self.received.payload.start;
        frame.len() == self.frame_octets && frame[..octets] == self.header[..octets]
    }
}

/// Checks every header of a frame and finds the UDP datagram that it carries to `local`, or to a
/// group of which `local` may be a member.
///
/// Octets behind the IP packet (Ethernet padding) are ignored.
///
/// # Errors
/// The reason to drop the frame, or [`Dropped::NeighbourTraffic`].
#[inline]
pub fn parse(frame: &[u8], local: &LocalInterface) -> Result<Received, Dropped> {
    parse_with::<true, false>(frame, local)
}

/// As [`parse`] of a frame whose checksums the kernel has verified: they are not looked at.
///
/// # Errors
/// As of [`parse`].
#[inline]
pub fn parse_verified(frame: &[u8], local: &LocalInterface) -> Result<Received, Dropped> {
    parse_with::<false, false>(frame, local)
}

/// As [`parse`] of a frame that may be from this machine: see [`Verification::Partial`].
fn parse_partial(frame: &[u8], local: &LocalInterface) -> Result<Received, Dropped> {
    parse_with::<true, true>(frame, local)
}

#[inline]
fn parse_with<const CHECKSUMS: bool, const PARTIAL: bool>(
    frame: &[u8],
    local: &LocalInterface,
) -> Result<Received, Dropped> {
    let (header, packet) = frame
        .split_first_chunk::<ETHERNET_OCTETS>()
        .ok_or(Dropped::Truncated)?;
    match [header[12], header[13]] {
        ETHERTYPE_IPV4 if header[..6] == local.mac().0 => {
            parse_ipv4::<CHECKSUMS, PARTIAL>(packet, |destination| local.index_of_v4(destination))
        }
        ETHERTYPE_IPV6 if header[..6] == local.mac().0 => {
            parse_ipv6::<CHECKSUMS, PARTIAL>(packet, |destination| local.index_of_v6(destination))
        }
        ETHERTYPE_IPV6 if packet.get(6) == Some(&PROTOCOL_ICMPV6) => Err(Dropped::NeighbourTraffic),
        ETHERTYPE_IPV4 if header[0] & 1 == 1 => {
            to_all_slots(parse_ipv4::<CHECKSUMS, PARTIAL>(packet, |group| {
                let is_to_group = header[..6] == MacAddr::of_ipv4_group(group).0;
                (group.is_multicast() && is_to_group).then_some(NO_INDEX)
            }))
        }
        ETHERTYPE_IPV6 if header[0] & 1 == 1 => {
            to_all_slots(parse_ipv6::<CHECKSUMS, PARTIAL>(packet, |group| {
                let is_to_group = header[..6] == MacAddr::of_ipv6_group(group).0;
                (group.is_multicast() && is_to_group).then_some(NO_INDEX)
            }))
        }
        ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => Err(Dropped::NotForUs),
        ETHERTYPE_ARP => Err(Dropped::NeighbourTraffic),
        _ => Err(Dropped::NotIp),
    }
}

/// A datagram to a group is for the daemon, which knows the members: for any other slot, each host
/// would answer it.
#[cold]
fn to_all_slots(parsed: Result<Received, Dropped>) -> Result<Received, Dropped> {
    parsed.and_then(|received| {
        // R12-5
        //# Every receiver MUST drop a datagram to a group's IP address at any port other than
        //# 21504: nothing sent to a group is ever answered.
        if received.destination_port == udp_port(SlotId::DAEMON) {
            Ok(received)
        } else {
            Err(Dropped::NotForUs)
        }
    })
}

#[inline]
fn parse_ipv4<const CHECKSUMS: bool, const PARTIAL: bool>(
    packet: &[u8],
    ours: impl Fn(Ipv4Addr) -> Option<u8>,
) -> Result<Received, Dropped> {
    let header = packet
        .first_chunk::<IPV4_OCTETS>()
        .ok_or(Dropped::Truncated)?;
    // Options (a header of more than 5 words) never travel with TRP.
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if header[0] != 0x45 || total < IPV4_OCTETS {
        return Err(Dropped::BadIpHeader);
    }
    let body = packet.get(IPV4_OCTETS..total).ok_or(Dropped::Truncated)?;
    if CHECKSUMS && !Sum::default().octets(header).is_right() {
        return Err(Dropped::BadIpChecksum);
    }
    // More fragments, or an offset.
    if header[6] & 0x3f != 0 || header[7] != 0 {
        return Err(Dropped::Fragment);
    }
    let source = Ipv4Addr::new(header[12], header[13], header[14], header[15]);
    let destination = Ipv4Addr::new(header[16], header[17], header[18], header[19]);
    let index = ours(destination).ok_or(Dropped::NotForUs)?;
    if header[9] != PROTOCOL_UDP {
        return Err(Dropped::NotUdp);
    }
    let pseudo = Sum::default().octets(&header[12..20]);
    let udp = parse_udp::<CHECKSUMS, PARTIAL>(body, pseudo, false)?;
    if !is_host(IpAddr::V4(source)) {
        return Err(Dropped::BadSource);
    }
    Ok(finish(
        Ip16::mapped(source),
        (Ip16::mapped(destination), index),
        Ecn::from_bits(header[1]),
        udp,
        ETHERNET_OCTETS + IPV4_OCTETS,
    ))
}

#[inline]
fn parse_ipv6<const CHECKSUMS: bool, const PARTIAL: bool>(
    packet: &[u8],
    ours: impl Fn(Ipv6Addr) -> Option<u8>,
) -> Result<Received, Dropped> {
    let header = packet
        .first_chunk::<IPV6_OCTETS>()
        .ok_or(Dropped::Truncated)?;
    if header[0] >> 4 != 6 {
        return Err(Dropped::BadIpHeader);
    }
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let body = packet
        .get(IPV6_OCTETS..IPV6_OCTETS + length)
        .ok_or(Dropped::Truncated)?;
    match header[6] {
        PROTOCOL_UDP => {}
        PROTOCOL_ICMPV6 => return Err(Dropped::NeighbourTraffic),
        44 => return Err(Dropped::Fragment),
        _ => return Err(Dropped::NotUdp),
    }
    let address = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&header[at..at + 16]);
        Ipv6Addr::from(octets)
    };
    let (source, destination) = (address(8), address(24));
    let index = ours(destination).ok_or(Dropped::NotForUs)?;
    let pseudo = Sum::default().octets(&header[8..40]);
    let udp = parse_udp::<CHECKSUMS, PARTIAL>(body, pseudo, true)?;
    let ecn = Ecn::from_bits(header[1] >> 4);
    if !is_host(IpAddr::V6(source)) {
        return Err(Dropped::BadSource);
    }
    Ok(finish(
        Ip16(source.octets()),
        (Ip16(destination.octets()), index),
        ecn,
        udp,
        ETHERNET_OCTETS + IPV6_OCTETS,
    ))
}

struct Udp {
    source_port: u16,
    destination_port: u16,
    length: usize,
}

#[inline(always)]
fn parse_udp<const CHECKSUMS: bool, const PARTIAL: bool>(
    segment: &[u8],
    pseudo: Sum,
    checksum_required: bool,
) -> Result<Udp, Dropped> {
    let header = segment
        .first_chunk::<UDP_OCTETS>()
        .ok_or(Dropped::BadUdpLength)?;
    let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let length = word(4);
    if usize::from(length) != segment.len() {
        return Err(Dropped::BadUdpLength);
    }
    let computed = word(6) != 0;
    if CHECKSUMS && computed {
        let sum = pseudo.word(u16::from(PROTOCOL_UDP)).word(length);
        let is_partial = PARTIAL && sum.word(!word(6)).is_right();
        if !is_partial && !sum.octets(segment).is_right() {
            return Err(Dropped::BadUdpChecksum);
        }
    } else if CHECKSUMS && checksum_required {
        return Err(Dropped::BadUdpChecksum);
    }
    Ok(Udp {
        source_port: word(0),
        destination_port: word(2),
        length: usize::from(length),
    })
}

#[inline(always)]
fn finish(
    source: Ip16,
    (destination, index): (Ip16, u8),
    ecn: Ecn,
    udp: Udp,
    udp_at: usize,
) -> Received {
    Received {
        source,
        destination,
        source_port: udp.source_port,
        destination_port: udp.destination_port,
        index,
        ecn,
        payload: udp_at + UDP_OCTETS..udp_at + udp.length,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Checksum, MacAddr, Route, Template, UdpPorts};
    use proptest::collection::vec;
    use proptest::prelude::*;

    const OURS: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

    fn local() -> LocalInterface {
        let addresses = ["127.0.0.2".parse().unwrap(), "fe80::2".parse().unwrap()];
        LocalInterface::new(OURS, &addresses).unwrap()
    }

    fn frame(version6: bool, checksum: Checksum, datagram: &[u8]) -> Vec<u8> {
        let (source, destination) = match version6 {
            false => ("127.0.0.1", "127.0.0.2"),
            true => ("fe80::1", "fe80::2"),
        };
        let route = Route {
            source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
            destination_mac: OURS,
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            checksum,
        };
        written(&route, 21505, datagram)
    }

    fn written(route: &Route, port: u16, datagram: &[u8]) -> Vec<u8> {
        let template = Template::new(route).unwrap();
        let mut frame = vec![0; template.header_octets()];
        frame.extend(datagram);
        let ports = UdpPorts {
            source: 7,
            destination: port,
        };
        template.write(&mut frame, ports, Ecn::Capable0).unwrap();
        frame
    }

    fn fix_ip_checksum(frame: &mut [u8]) {
        frame[24..26].fill(0);
        let sum = Sum::default().octets(&frame[14..34]).finish();
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }

    #[test]
    fn parse_of_a_written_frame_finds_the_datagram() {
        for version6 in [false, true] {
            for checksum in [Checksum::Full, Checksum::None] {
                for length in [0, 1, 18, 1000] {
                    let datagram = vec![0x5a; length];
                    let mut frame = frame(version6, checksum, &datagram);
                    frame.extend([0xff; 7]); // padding
                    let received = parse(&frame, &local()).unwrap();
                    assert_eq!(frame[received.payload.clone()], datagram);
                    assert_eq!(received.source_port, 7);
                    assert_eq!(received.destination_port, 21505);
                    assert_eq!(received.ecn, Ecn::Capable0);
                    let source = if version6 { "fe80::1" } else { "127.0.0.1" };
                    assert_eq!(received.source.to_ip().to_string(), source);
                }
            }
        }
    }

    #[test]
    fn parse_of_a_frame_to_a_group_wants_the_groups_ethernet_address() {
        for (source, group) in [("127.0.0.1", "239.129.2.3"), ("fe80::1", "ff02::1:203")] {
            let mut route = Route {
                source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
                destination_mac: MacAddr::of_group(group.parse().unwrap()),
                source: source.parse().unwrap(),
                destination: group.parse().unwrap(),
                checksum: Checksum::Full,
            };
            let received = parse(&written(&route, 21504, b"to all"), &local()).unwrap();
            assert_eq!(received.destination.to_ip(), route.destination);
            let to_slot = parse(&written(&route, 21505, b"to all"), &local());
            assert_eq!(to_slot, Err(Dropped::NotForUs));
            for mac in [OURS, MacAddr::BROADCAST, MacAddr([0x33; 6])] {
                route.destination_mac = mac;
                let parsed = parse(&written(&route, 21504, b"to all"), &local());
                assert_eq!(parsed, Err(Dropped::NotForUs), "{group} at {mac}");
            }
            // A unicast IP address in a frame to an Ethernet group is not accepted.
            route.destination_mac = MacAddr::of_group(group.parse().unwrap());
            route.destination = if route.source.is_ipv4() {
                "127.0.0.2".parse().unwrap()
            } else {
                "fe80::2".parse().unwrap()
            };
            let parsed = parse(&written(&route, 21504, b"to one"), &local());
            assert_eq!(parsed, Err(Dropped::NotForUs));
        }
    }

    #[test]
    fn parse_of_every_prefix_is_truncated() {
        for version6 in [false, true] {
            let frame = frame(version6, Checksum::Full, b"0123456789");
            for length in 0..frame.len() {
                assert_eq!(
                    parse(&frame[..length], &local()),
                    Err(Dropped::Truncated),
                    "{length}"
                );
            }
        }
    }

    #[test]
    fn parse_of_a_changed_ipv4_frame_says_why_it_drops() {
        let good = frame(false, Checksum::Full, b"0123456789");
        let check = |at: usize, value: u8, fix: bool, want: Dropped| {
            let mut bad = good.clone();
            bad[at] = value;
            if fix {
                fix_ip_checksum(&mut bad);
            }
            assert_eq!(parse(&bad, &local()), Err(want), "octet {at} = {value}");
        };
        check(5, 9, false, Dropped::NotForUs);
        check(12, 0x81, false, Dropped::NotIp);
        check(13, 0x06, false, Dropped::NeighbourTraffic);
        check(14, 0x46, true, Dropped::BadIpHeader);
        check(14, 0x65, true, Dropped::BadIpHeader);
        check(17, 19, true, Dropped::BadIpHeader);
        check(17, 27, true, Dropped::BadUdpLength);
        check(17, 36, true, Dropped::BadUdpLength);
        check(22, 1, false, Dropped::BadIpChecksum);
        check(20, 0x20, true, Dropped::Fragment);
        check(21, 1, true, Dropped::Fragment);
        check(23, 6, true, Dropped::NotUdp);
        check(26, 224, true, Dropped::BadUdpChecksum);
        check(33, 9, true, Dropped::NotForUs);
        check(39, 9, false, Dropped::BadUdpLength);
        check(50, b'x', false, Dropped::BadUdpChecksum);
    }

    #[test]
    fn parse_of_ipv4_options_reserved_flag_and_group_sources_drops() {
        let mut bad = frame(false, Checksum::None, b"x");
        bad[26] = 224;
        fix_ip_checksum(&mut bad);
        assert_eq!(parse(&bad, &local()), Err(Dropped::BadSource));
    }

    #[test]
    fn parse_of_a_changed_ipv6_frame_says_why_it_drops() {
        let good = frame(true, Checksum::Full, b"0123456789");
        let check = |at: usize, value: u8, want: Dropped| {
            let mut bad = good.clone();
            bad[at] = value;
            assert_eq!(parse(&bad, &local()), Err(want), "octet {at} = {value}");
        };
        check(14, 0x40, Dropped::BadIpHeader);
        check(20, 58, Dropped::NeighbourTraffic);
        check(20, 44, Dropped::Fragment);
        check(20, 6, Dropped::NotUdp);
        check(53, 9, Dropped::NotForUs);
        let mut bad = good.clone();
        bad[60..62].fill(0);
        assert_eq!(parse(&bad, &local()), Err(Dropped::BadUdpChecksum));
    }

    // As udp4_hwcsum() of Linux, for a device with NETIF_F_HW_CSUM.
    #[test]
    fn partial_checksum_is_accepted_only_where_it_may_be_and_full_ones_are_verified() {
        for version6 in [false, true] {
            let full = frame(version6, Checksum::Full, b"0123456789");
            let udp = if version6 { 54 } else { 34 };
            let addresses = if version6 { 22..54 } else { 26..34 };
            let length = u16::from_be_bytes([full[udp + 4], full[udp + 5]]);
            let pseudo = Sum::default().octets(&full[addresses]).word(17);
            let mut partial = full.clone();
            let sum = !pseudo.word(length).finish();
            partial[udp + 6..udp + 8].copy_from_slice(&sum.to_be_bytes());
            assert_eq!(parse(&partial, &local()), Err(Dropped::BadUdpChecksum));
            let parsed = parse_partial(&partial, &local());
            assert_eq!(parsed, parse(&full, &local()));
            assert_eq!(parse_partial(&full, &local()), parsed);
            for at in udp..full.len() {
                let mut bad = full.clone();
                bad[at] ^= 1;
                assert!(parse_partial(&bad, &local()).is_err(), "octet {at}");
            }
        }
    }

    #[test]
    fn dropped_reasons_have_the_index_of_their_place() {
        for (place, reason) in Dropped::ALL.into_iter().enumerate() {
            assert_eq!(reason.index(), place);
        }
    }

    proptest! {
        #[test]
        fn parse_of_anything_stays_inside_the_frame(
            mut data in vec(any::<u8>(), 0..120),
            start in 0usize..3,
        ) {
            let good = frame(start == 2, Checksum::Full, b"0123456789");
            if start > 0 {
                let keep = good.len().min(60).min(data.len());
                for (octet, from) in data[..keep].iter_mut().zip(&good) {
                    if *octet > 12 { *octet = *from; }
                }
            }
            if let Ok(received) = parse(&data, &local()) {
                prop_assert!(received.payload.start <= received.payload.end);
                prop_assert!(received.payload.end <= data.len());
            }
        }
    }

    // A frame whose headers are those of the frame before is not parsed again.
    #[test]
    fn stream_is_checked_as_each_of_its_frames() {
        for (version6, checksum, verification, parse) in [
            (
                false,
                Checksum::None,
                Verification::Full,
                parse as fn(&[u8], &LocalInterface) -> Result<Received, Dropped>,
            ),
            (false, Checksum::Full, Verification::Full, parse),
            (true, Checksum::Full, Verification::Partial, parse_partial),
            (true, Checksum::Left, Verification::Kernel, parse_verified),
        ] {
            let first = frame(version6, checksum, &[1; 100]);
            let others = (0..first.len()).map(|at| {
                let mut other = first.clone();
                other[at] ^= 0xff;
                other
            });
            let shorter = [
                first[..first.len() - 1].to_vec(),
                frame(version6, checksum, &[1; 99]),
            ];
            for other in others.chain(shorter) {
                let mut checker = Checker::new(verification);
                for frame in [&first, &other, &other, &first] {
                    let checked = checker.check(frame, &local()).cloned();
                    assert_eq!(checked, parse(frame, &local()));
                }
            }
        }
    }
}
