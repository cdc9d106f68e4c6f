//! What a target of the dynamically connected transport does with single packets.

#![allow(clippy::unwrap_used)]

use proto_trp::conn::{
    ConnConfig, Datagram, Payload, SendFlags, SendOp, SendWr, Status, HEAD_OCTETS,
};
use proto_trp::dc::{
    DcArrival, DcInitiator, DcInitiatorConfig, DcTarget, DcTargetAddress, DcTargetConfig, DcVerdict,
};
use std::net::{IpAddr, Ipv4Addr};
use trp_sim::SimHost;
use urdma_types::{Qpn, SlotId, Time};

const NOW: Time = Time::from_ns(1_000_000);
const KEY: u64 = 7;
const DATAGRAM: u32 = 1472;
/// Where DC_CONNECT, the first extension, has the acknowledge timeout.
const TIMEOUT_AT: usize = 16 + 2;

fn qpn(index: u16) -> Qpn {
    Qpn::new(SlotId::new(1).unwrap(), index)
}

fn address(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
}

/// A packet of the process that has all queue pairs, from an address.
fn from(address: IpAddr) -> DcArrival {
    DcArrival {
        address,
        sender: qpn(0).slot(),
        local: 0,
    }
}

fn target(contexts_max: usize, contexts_per_address_max: usize) -> DcTarget {
    DcTarget::new(DcTargetConfig {
        number: qpn(1),
        key: KEY,
        contexts_max,
        contexts_per_address_max,
        max_datagram_octets: DATAGRAM,
        window_packets: 256,
        max_recv_sge: 1,
        min_rnr_timer: 1,
        secret: [1, 2],
    })
}

fn datagram(octets: &[u8]) -> Datagram<'_, [u8]> {
    Datagram {
        head: &octets[..octets.len().min(HEAD_OCTETS)],
        len: octets.len(),
        body: octets,
        congestion_experienced: false,
    }
}

/// An initiator and its address.
struct Peer {
    dc: DcInitiator,
    host: SimHost,
    number: Qpn,
    address: IpAddr,
}

/// A target, and the time.
struct World {
    now: Time,
    target: DcTarget,
    host: SimHost,
}

impl Peer {
    fn new(index: u16, at: u8) -> Self {
        let dc = DcInitiator::new(DcInitiatorConfig {
            conn: ConnConfig::new(qpn(index)),
            max_datagram_octets: DATAGRAM,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            linger_ns: 1_000_000_000_000,
            known_max: 1,
        });
        Self {
            dc,
            host: SimHost::default(),
            number: qpn(index),
            address: address(at),
        }
    }

    /// Posts a Send without octets.
    fn send(&mut self, now: Time) {
        self.send_to(now, 1);
    }

    /// As [`Self::send`], to the target at another address.
    fn send_to(&mut self, now: Time, last: u8) {
        let wr = SendWr {
            wr_id: 1,
            op: SendOp::Send,
            imm: None,
            flags: SendFlags::default(),
            shared_queue: 0,
            payload: Payload::Sges(&[]),
        };
        let to = DcTargetAddress {
            address: address(last),
            number: qpn(1),
            key: KEY,
            local: 0,
        };
        self.dc.post_send(now, to, &wr, &mut self.host).unwrap();
    }

    fn packet(&mut self, now: Time) -> Option<Vec<u8>> {
        let mut buf = vec![0; DATAGRAM as usize];
        let (_, len) = self.dc.poll_transmit(now, &mut buf, &mut self.host)?;
        buf.truncate(len);
        Some(buf)
    }
}

impl World {
    fn new(target: DcTarget) -> Self {
        let mut host = SimHost::default();
        (0..100).for_each(|wr_id| host.shared_recvs.push_back((wr_id, Vec::new())));
        Self {
            now: NOW,
            target,
            host,
        }
    }

    fn give(&mut self, peer: &Peer, packet: &[u8]) -> DcVerdict {
        let datagram = datagram(packet);
        self.target
            .handle_datagram(self.now, &from(peer.address), &datagram, &mut self.host)
    }

    /// Has all exchange packets for two seconds, in which the target asks whether idle initiators
    /// are there, and the answers confirm what is complete.
    fn exchange(&mut self, peers: &mut [Peer]) {
        self.exchange_as(1, peers);
    }

    /// As [`Self::exchange`], with the target at another address.
    fn exchange_as(&mut self, last: u8, peers: &mut [Peer]) {
        let mut buf = vec![0; DATAGRAM as usize];
        for _ in 0..200 {
            for peer in &mut *peers {
                while let Some(packet) = peer.packet(self.now) {
                    if let DcVerdict::Refused(reset) = self.give(peer, &packet) {
                        peer.take_from(self.now, last, &reset);
                    }
                }
            }
            let (target, host) = (&mut self.target, &mut self.host);
            while let Some((source, transmit)) = target.poll_transmit(self.now, &mut buf, host) {
                let is_meant = |peer: &&mut Peer| peer.number == source.initiator;
                if let Some(peer) = peers.iter_mut().find(is_meant) {
                    peer.take_from(self.now, last, &buf[..transmit.len]);
                }
            }
            self.now = self.now.plus_ns(10_000_000);
            target.handle_timeout(self.now, host);
            for peer in &mut *peers {
                peer.dc.handle_timeout(self.now, &mut peer.host);
            }
        }
    }
}

impl Peer {
    fn take(&mut self, now: Time, octets: &[u8]) {
        self.take_from(now, 1, octets);
    }

    /// Takes a packet from the target at an address; one of a connection that it has left is
    /// answered.
    fn take_from(&mut self, now: Time, last: u8, octets: &[u8]) {
        let (datagram, host) = (datagram(octets), &mut self.host);
        let _ = self
            .dc
            .handle_datagram(now, &from(address(last)), &datagram, host);
    }
}

// The victim was gone although no context began.
#[test]
fn packet_that_begins_no_context_evicts_none() {
    let mut world = World::new(target(1, 1));
    let mut first = [Peer::new(2, 10)];
    first[0].send(world.now);
    world.exchange(&mut first);
    assert_eq!(first[0].dc.sends_outstanding(), 0);
    let mut other = Peer::new(3, 11);
    other.send(world.now);
    let packet = other.packet(world.now).unwrap();
    let DcVerdict::Refused(reset) = world.give(&other, &packet) else {
        panic!("a stranger is not refused");
    };
    other.take(world.now, &reset);
    let mut packet = other.packet(world.now).unwrap();
    assert_eq!(packet[TIMEOUT_AT], 14);
    packet[TIMEOUT_AT] = 0;
    assert_eq!(world.give(&other, &packet), DcVerdict::Dropped);
    let stats = *world.target.stats();
    assert_eq!((world.target.contexts(), stats.evicted), (1, 0));
    packet[TIMEOUT_AT] = 14;
    assert_eq!(world.give(&other, &packet), DcVerdict::Taken);
    let stats = *world.target.stats();
    assert_eq!((world.target.contexts(), stats.evicted), (1, 1));
}

// Its own token would be told to the process that claims to have the initiator.
#[test]
fn packet_of_another_process_than_the_initiators_is_dropped() {
    let mut world = World::new(target(1, 1));
    let mut peer = Peer::new(2, 10);
    peer.send(world.now);
    let packet = peer.packet(world.now).unwrap();
    let other = DcArrival {
        sender: SlotId::new(2).unwrap(),
        ..from(peer.address)
    };
    let (target, host) = (&mut world.target, &mut world.host);
    let verdict = target.handle_datagram(world.now, &other, &datagram(&packet), host);
    assert_eq!(verdict, DcVerdict::Dropped);
    assert_ne!(world.give(&peer, &packet), DcVerdict::Dropped);
}

// The initiator counted the time in which it waited for a processor as the target's silence.
#[test]
fn first_contact_survives_that_its_refusal_is_processed_late() {
    const LATE_NS: u64 = 60_000_000_000;
    let mut world = World::new(target(1, 1));
    let mut peer = [Peer::new(2, 10)];
    peer[0].send(world.now);
    let packet = peer[0].packet(world.now).unwrap();
    let DcVerdict::Refused(refusal) = world.give(&peer[0], &packet) else {
        panic!("a stranger is not refused");
    };
    world.now = world.now.plus_ns(LATE_NS);
    peer[0].take(world.now, &refusal);
    assert!(!peer[0].dc.has_failed());
    world.exchange(&mut peer);
    assert_eq!(peer[0].dc.sends_outstanding(), 0);
    assert_eq!(world.target.stats().accepted, 1);
}

#[test]
fn end_of_a_process_ends_the_contexts_of_its_initiators_alone() {
    let mut world = World::new(target(4, 4));
    let other_slot = SlotId::new(2).unwrap();
    let mut peers = [Peer::new(2, 10), Peer::new(3, 11), Peer::new(4, 10)];
    for peer in &mut peers {
        peer.send(world.now);
    }
    world.exchange(&mut peers);
    // Pinned: the initiator does not learn that its request was executed.
    peers[0].send(world.now);
    let packet = peers[0].packet(world.now).unwrap();
    assert_eq!(world.give(&peers[0], &packet), DcVerdict::Taken);
    let (target, host) = (&mut world.target, &mut world.host);
    assert_eq!((target.contexts(), target.contexts_at(address(10))), (3, 2));
    for elsewhere in [
        (address(10), other_slot),
        (address(1), from(address(1)).sender),
    ] {
        target.slot_gone(elsewhere, host);
        assert_eq!(target.contexts(), 3);
    }
    target.slot_gone((address(10), qpn(0).slot()), host);
    assert_eq!((target.contexts(), target.contexts_at(address(10))), (1, 0));
    assert_eq!(target.stats().gone, 2);
    peers[1].send(world.now);
    world.exchange(&mut peers[1..2]);
    assert_eq!(peers[1].dc.sends_outstanding(), 0);
    assert_eq!(world.target.stats().accepted, 3, "its context stays");
}

#[test]
fn end_of_the_targets_process_fails_the_request_to_it_and_those_behind() {
    let mut world = World::new(target(4, 4));
    let mut peer = [Peer::new(2, 10)];
    peer[0].send(world.now);
    world.exchange(&mut peer);
    let [Peer { dc, host, .. }] = &mut peer;
    let gone = (address(1), qpn(0).slot());
    // Without requests there is only a connection to be forgotten.
    dc.slot_gone(world.now, gone, host);
    assert!(!dc.has_failed());
    assert_eq!(dc.stream_ids(), [None; 2]);
    let before = peer[0].host.completions.len();
    peer[0].send(world.now);
    peer[0].send_to(world.now, 2);
    assert!(peer[0].packet(world.now).is_some());
    let [Peer { dc, host, .. }] = &mut peer;
    dc.slot_gone(world.now, (address(2), gone.1), host);
    assert!(!dc.has_failed(), "its turn has not come");
    dc.slot_gone(world.now, gone, host);
    let ended = host.completions.iter().skip(before);
    assert_eq!(
        ended.map(|ended| ended.status).collect::<Vec<_>>(),
        [Status::RetryExceeded, Status::WorkRequestFlushed]
    );
    assert!(dc.has_failed());
}

#[test]
fn bound_of_an_address_evicts_of_this_address() {
    let mut world = World::new(target(3, 1));
    let mut peers = [Peer::new(2, 10), Peer::new(3, 11), Peer::new(4, 11)];
    for number in 0..peers.len() {
        peers[number].send(world.now);
        world.exchange(&mut peers);
        assert_eq!(peers[number].dc.sends_outstanding(), 0);
    }
    let stats = *world.target.stats();
    assert_eq!((world.target.contexts(), stats.evicted), (2, 1));
    // The first one still has its context, and the second one begins another.
    for (number, accepted) in [(0, 3), (1, 4)] {
        peers[number].send(world.now);
        world.exchange(&mut peers);
        assert_eq!(world.target.stats().accepted, accepted);
    }
}

// The initiator began again with an epoch that it had used, and took late packets for new ones.
#[test]
fn refusal_of_an_earlier_contact_is_ignored() {
    let (mut world, mut other) = (World::new(target(2, 2)), World::new(target(2, 2)));
    let mut peer = [Peer::new(2, 10)];
    peer[0].send(world.now);
    let first = peer[0].packet(world.now).unwrap();
    let DcVerdict::Refused(late) = world.give(&peer[0], &first) else {
        panic!("a stranger is not refused");
    };
    peer[0].take(world.now, &late);
    world.exchange(&mut peer);
    assert_eq!(world.target.stats().accepted, 1);
    // Another target, for which the initiator forgets the first one.
    peer[0].send_to(world.now, 2);
    let mut contacts = 0;
    while peer[0].dc.sends_outstanding() > 0 {
        let Some(packet) = peer[0].packet(world.now) else {
            break;
        };
        if let DcVerdict::Refused(reset) = other.give(&peer[0], &packet) {
            contacts += 1;
            peer[0].take_from(world.now, 2, &reset);
        }
    }
    assert_eq!(contacts, 1);
    other.now = world.now;
    other.exchange_as(2, &mut peer);
    assert_eq!(peer[0].dc.sends_outstanding(), 0);
    world.now = other.now;
    peer[0].send(world.now);
    // The FIN to the other target may be first.
    let contact = std::iter::from_fn(|| peer[0].packet(world.now))
        .last()
        .unwrap();
    peer[0].take(world.now, &late);
    assert!(
        peer[0].packet(world.now).is_none(),
        "the late refusal counts"
    );
    let DcVerdict::Refused(fresh) = world.give(&peer[0], &contact) else {
        panic!("the contact is not refused");
    };
    peer[0].take(world.now, &fresh);
    world.exchange(&mut peer);
    assert_eq!(peer[0].dc.sends_outstanding(), 0);
    assert_eq!(world.target.stats().accepted, 2);
}
