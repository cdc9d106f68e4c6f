//! The frames of ARP (RFC 826) and IPv6 neighbour discovery (RFC 4861): encoding and decoding.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    EthernetRepr, Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv6Packet, Ipv6Repr, NdiscNeighborFlags,
    NdiscRepr, RawHardwareAddress,
};

use crate::addr::MacAddr;

/// Octets of the longest frame that neighbour resolution sends: a solicitation with its link-layer
/// option.
pub const MAX_SOLICITATION_OCTETS: usize = 14 + 40 + 32;

/// Neighbour discovery is accepted only with this hop limit, which no router forwards (RFC 4861
/// section 7.1).
const ND_HOP_LIMIT: u8 = 255;

/// The content of a frame of either protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// "Who has `target`?", asked by `sender`; the asker is unspecified when it probes for a
    /// duplicate.
    Question {
        asker: IpAddr,
        asker_mac: MacAddr,
        target: IpAddr,
        /// The destination of the request: the neighbour itself when it is known, else broadcast or
        /// the solicited-node group.
        to: Option<MacAddr>,
    },
    /// "`address` is at `mac`".
    Answer {
        address: IpAddr,
        mac: MacAddr,
        /// The destination of the answer; `None` announces to all.
        to: Option<(IpAddr, MacAddr)>,
    },
}

/// Writes a message from `own_mac` and returns the frame's length; `None` when `buffer` is too
/// short or the message mixes IP versions.
pub(crate) fn write(message: &Message, own_mac: MacAddr, buffer: &mut [u8]) -> Option<usize> {
    match *message {
        Message::Question {
            asker: IpAddr::V4(asker),
            target: IpAddr::V4(target),
            to,
            ..
        } => {
            let arp = arp(
                ArpOperation::Request,
                own_mac,
                asker,
                MacAddr::default(),
                target,
            );
            write_arp(&arp, own_mac, to.unwrap_or(MacAddr::BROADCAST), buffer)
        }
        Message::Answer {
            address: IpAddr::V4(address),
            to: Some((IpAddr::V4(asker), asker_mac)),
            ..
        } => {
            let arp = arp(ArpOperation::Reply, own_mac, address, asker_mac, asker);
            write_arp(&arp, own_mac, asker_mac, buffer)
        }
        Message::Answer {
            address: IpAddr::V4(address),
            to: None,
            ..
        } => {
            // The announcement of RFC 5227 section 3: a request for one's own address.
            let arp = arp(
                ArpOperation::Request,
                own_mac,
                address,
                MacAddr::default(),
                address,
            );
            write_arp(&arp, own_mac, MacAddr::BROADCAST, buffer)
        }
        Message::Question {
            asker: IpAddr::V6(asker),
            target: IpAddr::V6(target),
            to,
            ..
        } => {
            let group = solicited_node(target);
            let (address, mac) = match to {
                Some(mac) => (target, mac),
                None => (group, MacAddr::of_ipv6_group(group)),
            };
            let repr = NdiscRepr::NeighborSolicit {
                target_addr: target,
                lladdr: Some(raw(own_mac)),
            };
            write_nd(repr, own_mac, asker, (address, mac), buffer)
        }
        Message::Answer {
            address: IpAddr::V6(address),
            to,
            ..
        } => {
            let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
            let (flags, to) = match to {
                Some((IpAddr::V6(asker), mac)) if !asker.is_unspecified() => (
                    NdiscNeighborFlags::SOLICITED | NdiscNeighborFlags::OVERRIDE,
                    (asker, mac),
                ),
                _ => (
                    NdiscNeighborFlags::OVERRIDE,
                    (all_nodes, MacAddr::of_ipv6_group(all_nodes)),
                ),
            };
            let repr = NdiscRepr::NeighborAdvert {
                flags,
                target_addr: address,
                lladdr: Some(raw(own_mac)),
            };
            write_nd(repr, own_mac, address, to, buffer)
        }
        _ => None,
    }
}

/// The content of a received frame; `None` for everything that is not a valid message of either
/// protocol.
pub(crate) fn read(frame: &[u8]) -> Option<Message> {
    let ethernet = EthernetFrame::new_checked(frame).ok()?;
    match ethernet.ethertype() {
        EthernetProtocol::Arp => read_arp(ethernet.payload()),
        EthernetProtocol::Ipv6 => read_nd(ethernet.payload(), MacAddr(ethernet.src_addr().0)),
        _ => None,
    }
}

fn arp(
    operation: ArpOperation,
    source_mac: MacAddr,
    source: Ipv4Addr,
    target_mac: MacAddr,
    target: Ipv4Addr,
) -> ArpRepr {
    ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: EthernetAddress(source_mac.0),
        source_protocol_addr: source,
        target_hardware_addr: EthernetAddress(target_mac.0),
        target_protocol_addr: target,
    }
}

fn write_arp(arp: &ArpRepr, own: MacAddr, to: MacAddr, buffer: &mut [u8]) -> Option<usize> {
    let body = write_ethernet(own, to, EthernetProtocol::Arp, arp.buffer_len(), buffer)?;
    arp.emit(&mut ArpPacket::new_unchecked(body));
    Some(EthernetFrame::<&[u8]>::header_len() + arp.buffer_len())
}

fn read_arp(packet: &[u8]) -> Option<Message> {
    let packet = ArpPacket::new_checked(packet).ok()?;
    let ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr,
        source_protocol_addr,
        target_hardware_addr,
        target_protocol_addr,
    } = ArpRepr::parse(&packet).ok()?
    else {
        return None;
    };
    let source_mac = MacAddr(source_hardware_addr.0);
    let announcement = source_protocol_addr == target_protocol_addr;
    match operation {
        ArpOperation::Request if !announcement => Some(Message::Question {
            asker: source_protocol_addr.into(),
            asker_mac: source_mac,
            target: target_protocol_addr.into(),
            to: None,
        }),
        ArpOperation::Request | ArpOperation::Reply => Some(Message::Answer {
            address: source_protocol_addr.into(),
            mac: source_mac,
            to: (!announcement)
                .then_some((target_protocol_addr.into(), MacAddr(target_hardware_addr.0))),
        }),
        ArpOperation::Unknown(_) => None,
    }
}

fn write_nd(
    nd: NdiscRepr<'_>,
    own: MacAddr,
    source: Ipv6Addr,
    to: (Ipv6Addr, MacAddr),
    buffer: &mut [u8],
) -> Option<usize> {
    let icmp = Icmpv6Repr::Ndisc(nd);
    let ip = Ipv6Repr {
        src_addr: source,
        dst_addr: to.0,
        next_header: IpProtocol::Icmpv6,
        payload_len: icmp.buffer_len(),
        hop_limit: ND_HOP_LIMIT,
    };
    let octets = ip.buffer_len() + icmp.buffer_len();
    let body = write_ethernet(own, to.1, EthernetProtocol::Ipv6, octets, buffer)?;
    let mut packet = Ipv6Packet::new_unchecked(body);
    ip.emit(&mut packet);
    icmp.emit(
        &source,
        &to.0,
        &mut Icmpv6Packet::new_unchecked(packet.payload_mut()),
        &ChecksumCapabilities::default(),
    );
    Some(EthernetFrame::<&[u8]>::header_len() + octets)
}

fn read_nd(packet: &[u8], sender: MacAddr) -> Option<Message> {
    let packet = Ipv6Packet::new_checked(packet).ok()?;
    let ip = Ipv6Repr::parse(&packet).ok()?;
    if ip.next_header != IpProtocol::Icmpv6 || ip.hop_limit != ND_HOP_LIMIT {
        return None;
    }
    let icmp = Icmpv6Packet::new_checked(packet.payload()).ok()?;
    let checks = ChecksumCapabilities::default();
    let Icmpv6Repr::Ndisc(nd) =
        Icmpv6Repr::parse(&ip.src_addr, &ip.dst_addr, &icmp, &checks).ok()?
    else {
        return None;
    };
    match nd {
        NdiscRepr::NeighborSolicit {
            target_addr,
            lladdr,
        } => Some(Message::Question {
            asker: ip.src_addr.into(),
            asker_mac: lladdr.map_or(Some(sender), cooked)?,
            target: target_addr.into(),
            to: None,
        }),
        NdiscRepr::NeighborAdvert {
            target_addr,
            lladdr,
            ..
        } => Some(Message::Answer {
            address: target_addr.into(),
            mac: lladdr.map_or(Some(sender), cooked)?,
            to: None,
        }),
        _ => None,
    }
}

fn write_ethernet(
    own: MacAddr,
    to: MacAddr,
    ethertype: EthernetProtocol,
    body_octets: usize,
    buffer: &mut [u8],
) -> Option<&mut [u8]> {
    let header = EthernetRepr {
        src_addr: EthernetAddress(own.0),
        dst_addr: EthernetAddress(to.0),
        ethertype,
    };
    let octets = header.buffer_len();
    let frame = buffer.get_mut(..octets + body_octets)?;
    header.emit(&mut EthernetFrame::new_unchecked(&mut *frame));
    Some(&mut frame[octets..])
}

/// The solicited-node group of an address (RFC 4291 section 2.7.1).
pub(crate) fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let octets = address.octets();
    let mut group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0).octets();
    group[13..].copy_from_slice(&octets[13..]);
    group.into()
}

fn raw(mac: MacAddr) -> RawHardwareAddress {
    RawHardwareAddress::from_bytes(&mac.0)
}

fn cooked(raw: RawHardwareAddress) -> Option<MacAddr> {
    raw.as_bytes().try_into().ok().map(MacAddr)
}
