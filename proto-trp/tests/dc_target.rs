//! What a target of the dynamically connected transport does with single packets.

#![allow(clippy::unwrap_used)]

use proto_trp::conn::{ConnConfig, Datagram, Payload, SendFlags, SendOp, SendWr, HEAD_OCTETS};
use proto_trp::dc::{
    DcInitiator, DcInitiatorConfig, DcTarget, DcTargetAddress, DcTargetConfig, DcVerdict,
};
use proto_trp::sim::SimHost;
use std::net::{IpAddr, Ipv4Addr};
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
        let wr = SendWr {
            wr_id: 1,
            op: SendOp::Send,
            imm: None,
            flags: SendFlags::default(),
            shared_queue: 0,
            payload: Payload::Sges(&[]),
        };
        let to = DcTargetAddress {
            address: address(1),
            number: qpn(1),
            key: KEY,
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

    fn give(&mut self, from: &Peer, packet: &[u8]) -> DcVerdict {
        let datagram = datagram(packet);
        self.target
            .handle_datagram(self.now, from.address, &datagram, &mut self.host)
    }

    /// Has all exchange packets for two seconds, in which the target asks whether idle initiators
    /// are there, and the answers confirm what is complete.
    fn exchange(&mut self, peers: &mut [Peer]) {
        let mut buf = vec![0; DATAGRAM as usize];
        for _ in 0..200 {
            for peer in &mut *peers {
                while let Some(packet) = peer.packet(self.now) {
                    if let DcVerdict::Refused(reset) = self.give(peer, &packet) {
                        peer.take(self.now, &reset);
                    }
                }
            }
            let (target, host) = (&mut self.target, &mut self.host);
            while let Some((source, transmit)) = target.poll_transmit(self.now, &mut buf, host) {
                let is_meant = |peer: &&mut Peer| peer.number == source.initiator;
                if let Some(peer) = peers.iter_mut().find(is_meant) {
                    peer.take(self.now, &buf[..transmit.len]);
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
        let datagram = datagram(octets);
        let host = &mut self.host;
        let reset = self.dc.handle_datagram(now, address(1), &datagram, host);
        assert!(reset.is_none());
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
