//! Ports of this machine that exchange frames over loopback.

use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use super::*;
use crate::config::{PortConfig, PortKind};
use crate::kinds::Udp;
use urdma_types::{source_port, Qpn};
use urdma_underlay::{
    parse_verified, Checksum, Ecn, LocalInterface, Received, Route, Template, UdpPorts,
};

const LIMIT: Duration = Duration::from_secs(10);
const SLOTS: u16 = 2;

/// Addresses of the loopback interface that no other run of the tests has.
fn own(number: u8, last: u8) -> IpAddr {
    let [_, _, a, b] = std::process::id().to_be_bytes();
    IpAddr::from([127, a | 64, b, 8 * number + last])
}

fn try_open(addresses: &[IpAddr], mtu: u16) -> Result<OpenPort, PortError> {
    let config = PortConfig {
        kind: PortKind::Udp(Udp),
        mtu,
        lease_queues: 0,
        lease_group: None,
        hugepages_mb: None,
        checksum: false,
    };
    crate::port::open(&PortRequest {
        config: &config,
        run_dir: Path::new("/"),
        addresses,
        slots: SLOTS,
        node_guid: 7,
        log: None,
    })
}

fn port(address: IpAddr) -> Box<dyn PacketPort> {
    try_open(&[address], 1500).unwrap().port
}

/// A packet to send.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Packet {
    ports: (u16, u16),
    ecn: u8,
    octets: Vec<u8>,
}

fn send(port: &mut dyn PacketPort, (from, to): (IpAddr, IpAddr), packets: &[Packet]) {
    let template = Template::new(&Route {
        source_mac: port.mac(),
        destination_mac: port.mac(),
        source: from,
        destination: to,
        checksum: Checksum::Left,
    });
    let template = template.unwrap();
    for packet in packets {
        let octets = template.header_octets() + packet.octets.len();
        let frame = port.transmit(octets).unwrap();
        frame[template.header_octets()..].copy_from_slice(&packet.octets);
        let (source, destination) = packet.ports;
        let ports = UdpPorts {
            source,
            destination,
        };
        template
            .write(frame, ports, Ecn::from_bits(packet.ecn))
            .unwrap();
    }
    assert!(port.flush());
}

/// The packets that arrive until there are `count`, in order.
fn receive(port: &mut dyn PacketPort, at: IpAddr, from: IpAddr, count: usize) -> Vec<Packet> {
    let local = LocalInterface::new(port.mac(), &[at]).unwrap();
    let mut packets = Vec::new();
    let begin = Instant::now();
    while packets.len() < count {
        assert!(begin.elapsed() < LIMIT, "{} of {count}", packets.len());
        let burst = port.receive(&mut |frame| {
            let received: Received = parse_verified(frame, &local).unwrap();
            assert_eq!((received.source.to_ip(), received.index), (from, 0));
            packets.push(Packet {
                ports: (received.source_port, received.destination_port),
                ecn: received.ecn.bits(),
                octets: frame[received.payload].to_vec(),
            });
        });
        assert!(burst <= 32);
    }
    packets
}

fn slot(number: u8) -> SlotId {
    SlotId::new(number).unwrap()
}

/// Packets of three queue pairs and of urdmad, of lengths and marks that make messages of one and
/// of many datagrams.
fn mixture() -> Vec<Packet> {
    let flows = [
        (source_port(Qpn::new(slot(1), 1)), udp_port(slot(2)), 2),
        (source_port(Qpn::new(slot(1), 1)), udp_port(slot(2)), 0),
        (source_port(Qpn::new(slot(2), 9)), udp_port(slot(1)), 1),
        (PORT_BASE, PORT_BASE, 0),
    ];
    let lengths = [1, 1400, 1400, 1400, 700, 700, 1472, 1472, 3, 1452, 64, 64];
    let mut packets = Vec::new();
    for (number, (source, destination, ecn)) in flows.into_iter().enumerate() {
        for (place, length) in lengths.into_iter().enumerate() {
            packets.push(Packet {
                ports: (source, destination),
                ecn,
                octets: vec![(16 * number + place) as u8; length],
            });
        }
    }
    packets
}

#[test]
fn packets_keep_ports_marks_lengths_and_octets() {
    let (a, b) = (own(0, 1), own(0, 2));
    let (mut from, mut to) = (port(a), port(b));
    let packets = mixture();
    for (ends, there, back) in [((a, b), false, true), ((b, a), true, false)] {
        let (from, to) = if there && !back {
            (&mut to, &mut from)
        } else {
            (&mut from, &mut to)
        };
        send(&mut **from, ends, &packets);
        let mut arrived = receive(&mut **to, ends.1, ends.0, packets.len());
        // The order holds within a destination port.
        let mut expected = packets.clone();
        arrived.sort_by_key(|packet| packet.ports);
        expected.sort_by_key(|packet| packet.ports);
        assert_eq!(arrived, expected);
    }
    let report = from.report();
    let count = |name: &str| report.hardware[name];
    assert_eq!(count("tx_packets"), packets.len() as u64);
    assert!(count("tx_calls") < count("tx_packets"), "{report:?}");
    assert_eq!(
        (count("tx_errors"), report.notes.len()),
        (0, 0),
        "{report:?}"
    );
}

#[test]
fn long_streams_are_sent_in_messages_and_passed_on_in_bursts() {
    let (a, b) = (own(1, 1), own(1, 2));
    let (mut from, mut to) = (port(a), port(b));
    let packet = |number: usize| Packet {
        ports: (source_port(Qpn::new(slot(1), 1)), udp_port(slot(1))),
        ecn: 2,
        octets: vec![number as u8; 1400],
    };
    let packets: Vec<Packet> = (0..100).map(packet).collect();
    send(&mut *from, (a, b), &packets);
    assert_eq!(receive(&mut *to, b, a, 100), packets);
    let calls = from.report().hardware["tx_calls"];
    assert!(calls <= 2, "{calls}");
}

#[test]
fn port_over_ipv6_does_the_same() {
    let ip: IpAddr = "::1".parse().unwrap();
    // All instances of a machine share this address: another test may have its ports.
    let Ok(opened) = try_open(&[ip], 1500) else {
        return;
    };
    let mut port = opened.port;
    let packets = mixture();
    let packets: Vec<Packet> = packets
        .into_iter()
        .filter(|packet| packet.octets.len() <= 1452)
        .collect();
    send(&mut *port, (ip, ip), &packets);
    let mut arrived = receive(&mut *port, ip, ip, packets.len());
    let mut expected = packets;
    arrived.sort_by_key(|packet| packet.ports);
    expected.sort_by_key(|packet| packet.ports);
    assert_eq!(arrived, expected);
}

#[test]
fn port_in_use_and_foreign_address_are_named_with_the_remedy() {
    let ip = own(2, 1);
    let _other = UdpSocket::bind((ip, PORT_BASE + 1)).unwrap();
    let said = try_open(&[ip], 1500).err().unwrap().to_string();
    let expected = format!("UDP port 21505 of {ip} is in use: end the program");
    assert!(said.starts_with(&expected), "{said}");
    let said = try_open(&["203.0.113.7".parse().unwrap()], 1500)
        .err()
        .unwrap()
        .to_string();
    assert!(
        said.starts_with("203.0.113.7 is not an address of this host"),
        "{said}"
    );
}

#[test]
fn confined_process_is_told_what_to_allow() {
    for errno in [Errno::EPERM, Errno::EACCES, Errno::EAFNOSUPPORT] {
        let said = PortError::no_socket(errno, 1).to_string();
        assert!(said.contains("allow AF_INET and AF_INET6"), "{said}");
    }
    let said = PortError::no_socket(Errno::EMFILE, 508).to_string();
    assert!(said.starts_with("508 sockets are needed"), "{said}");
}

#[test]
fn source_port_of_another_program_is_replaced_and_reported() {
    let (a, b) = (own(3, 1), own(3, 2));
    let (mut from, mut to) = (port(a), port(b));
    let taken = source_port(Qpn::new(slot(1), 5));
    let _other = UdpSocket::bind((a, taken)).unwrap();
    let free = source_port(Qpn::new(slot(1), 6));
    let packets = [taken, free].map(|source| Packet {
        ports: (source, udp_port(slot(1))),
        ecn: 0,
        octets: vec![1; 64],
    });
    send(&mut *from, (a, b), &packets);
    let mut expected = packets.clone();
    expected[0].ports.0 = source_port(Qpn::new(slot(1), 0));
    for _ in 0..2 {
        let mut arrived = receive(&mut *to, b, a, 2);
        arrived.sort_by_key(|packet| packet.ports);
        assert_eq!(arrived, expected);
        send(&mut *from, (a, b), &packets);
    }
    let notes = from.report().notes;
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].starts_with("1 UDP source ports"), "{notes:?}");
}

#[test]
fn source_ports_that_others_can_take_keep_no_slot_from_sending() {
    let (a, b) = (own(8, 1), own(8, 2));
    let (mut from, mut to) = (port(a), port(b));
    let first = |number| source_port(Qpn::new(slot(number), 0));
    // Another user's program takes all that it gets.
    let others: Vec<UdpSocket> = (0xc000..=0xffff)
        .filter(|port| port & 0xff <= SLOTS)
        .filter_map(|port| UdpSocket::bind((a, port)).ok())
        .collect();
    assert_eq!(others.len(), 64 * 3 - usize::from(SLOTS));
    for number in 1..=2 {
        for index in 0..64 {
            let source = source_port(Qpn::new(slot(number), index));
            let mut packet = Packet {
                ports: (source, udp_port(slot(1))),
                ecn: 0,
                octets: vec![1; 64],
            };
            send(&mut *from, (a, b), std::slice::from_ref(&packet));
            packet.ports.0 = first(number);
            assert_eq!(receive(&mut *to, b, a, 1), [packet]);
        }
    }
    assert_eq!(from.report().hardware["tx_sockets"], u64::from(SLOTS));
}

#[test]
fn few_descriptors_are_left_to_clients() {
    let few = Ok((1024, 1024));
    assert!(leaves_room(253, few) && !leaves_room(2 * 253, few));
    assert!(leaves_room(16 * 253, Ok((524_288, 524_288))));
    assert!(!leaves_room(1, Err(Errno::EINVAL)));
}

#[test]
fn slot_whose_ports_are_all_taken_at_the_start_is_reported() {
    let (a, b) = (own(9, 1), own(9, 2));
    let _others: Vec<UdpSocket> = (0..64)
        .map(|index| UdpSocket::bind((a, source_port(Qpn::new(slot(1), index)))).unwrap())
        .collect();
    let (mut from, mut to) = (port(a), port(b));
    let packets = [1, 2].map(|number| Packet {
        ports: (source_port(Qpn::new(slot(number), 5)), udp_port(slot(1))),
        ecn: 0,
        octets: vec![1; 64],
    });
    send(&mut *from, (a, b), &packets);
    assert_eq!(receive(&mut *to, b, a, 1), packets[1..]);
    let notes = from.report().notes;
    assert!(
        notes
            .iter()
            .any(|note| note.starts_with("1 UDP ports from")),
        "{notes:?}"
    );
    assert!(
        notes.iter().any(|note| note.contains("of a queue pair")),
        "{notes:?}"
    );
}

#[test]
fn host_without_sockets_refuses_and_is_reported() {
    let (a, b) = (own(4, 1), own(4, 2));
    let mut from = port(a);
    let packet = Packet {
        ports: (source_port(Qpn::new(slot(1), 1)), udp_port(slot(1))),
        ecn: 0,
        octets: vec![1; 64],
    };
    let begin = Instant::now();
    loop {
        send(&mut *from, (a, b), std::slice::from_ref(&packet));
        let notes = from.report().notes;
        if notes.iter().any(|note| note.contains("start urdmad there")) {
            break;
        }
        assert!(begin.elapsed() < LIMIT, "{notes:?}");
    }
}

#[test]
fn datagram_longer_than_any_mtu_is_dropped() {
    let (a, b) = (own(7, 1), own(7, 2));
    let mut to = port(b);
    let other = UdpSocket::bind((a, 0)).unwrap();
    for octets in [9601, 60_000, 64] {
        other.send_to(&vec![1; octets], (b, PORT_BASE)).unwrap();
    }
    assert_eq!(receive(&mut *to, b, a, 1)[0].octets, [1; 64]);
    assert_eq!(to.report().hardware["rx_errors"], 2);
}

#[test]
fn group_is_received_as_long_as_there_are_members() {
    let (a, b) = (own(5, 1), own(5, 2));
    let (mut from, mut to) = (port(a), port(b));
    let group: IpAddr = "239.3.2.1".parse().unwrap();
    let packet = Packet {
        ports: (source_port(Qpn::new(slot(1), 1)), PORT_BASE),
        ecn: 0,
        octets: vec![1; 64],
    };
    // Nothing within the shorter time is nothing.
    let none = Duration::from_millis(200);
    let arrived = |port: &mut dyn PacketPort, limit: Duration| {
        let begin = Instant::now();
        let mut count = 0;
        while count == 0 && begin.elapsed() < limit {
            count += port.receive(&mut |frame| assert_eq!(frame[..3], [1, 0, 0x5e]));
        }
        count
    };
    to.set_group(group, true);
    // The sender is a member too, and does not receive what it sent itself.
    from.set_group(group, true);
    send(&mut *from, (a, group), std::slice::from_ref(&packet));
    assert_eq!(arrived(&mut *to, LIMIT), 1);
    assert_eq!(arrived(&mut *from, none), 0);
    to.set_group(group, false);
    send(&mut *from, (a, group), std::slice::from_ref(&packet));
    assert_eq!(arrived(&mut *to, none), 0);
}

#[test]
fn senders_are_bounded_and_all_work() {
    let (a, b) = (own(6, 1), own(6, 2));
    let (mut from, mut to) = (port(a), port(b));
    for index in 1..=64 * 20 {
        let (slot_number, index) = ((index % 20) as u8, (index / 20 + 1) as u16);
        let source = source_port(Qpn::new(slot(slot_number), index));
        let packet = Packet {
            ports: (source, udp_port(slot(1))),
            ecn: 0,
            octets: vec![1; 64],
        };
        send(&mut *from, (a, b), std::slice::from_ref(&packet));
        assert_eq!(receive(&mut *to, b, a, 1), [packet]);
    }
    assert_eq!(
        from.report().hardware["tx_sockets"],
        1024 + u64::from(SLOTS)
    );
}
