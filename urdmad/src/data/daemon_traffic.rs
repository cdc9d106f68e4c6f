//! Slot 0's own traffic: connection requests, and RESET and REJ for datagrams without a receiver.

use std::net::IpAddr;

use arrayvec::ArrayVec;
use proto_trp::wire::trp::{TrpHeader, HEADER_LEN};
use proto_trp::wire::{Meta, PacketHead, ResetReason};
use urdma_cm::wire::{answer_cookie, reject_no_listener, Cookie, ReqRoute, MAX_MESSAGE};
use urdma_ipc::PortTable;
use urdma_types::{slot_of_port, slot_of_source_port, udp_port, Ip16, SlotId};
use urdma_underlay::UdpPorts;

use super::channels::Channels;
use crate::identity::Identity;
use crate::listeners::RequestTarget;
use crate::shared::Shared;

/// A datagram that urdmad itself sends.
#[derive(Debug, Clone)]
pub(crate) struct DaemonDatagram {
    /// The destination host.
    pub(crate) remote: IpAddr,
    /// Index of the GID whose address is the source.
    pub(crate) gid_index: u8,
    /// UDP ports.
    pub(crate) ports: UdpPorts,
    /// The datagram.
    pub(crate) datagram: ArrayVec<u8, MAX_MESSAGE>,
}

impl DaemonDatagram {
    /// A CM datagram to a slot of a host; none if it is too long. A request is sent from the source
    /// address that it names.
    pub(crate) fn of_cm(
        identity: &Identity,
        remote: IpAddr,
        slot: SlotId,
        octets: &[u8],
    ) -> Option<Self> {
        let mut datagram = ArrayVec::new();
        datagram.try_extend_from_slice(octets).ok()?;
        let request = ReqRoute::parse(octets);
        Some(Self {
            remote,
            gid_index: request.map_or(0, |request| identity.gid_index(request.src.ip())),
            // R3-4
            //# The daemon, which has no queue pairs, MUST send from port 21504; connection
            //# management and RESETs of other slots MUST be sent with e = 0.
            ports: UdpPorts {
                source: udp_port(urdma_types::SlotId::DAEMON),
                destination: udp_port(slot),
            },
            datagram,
        })
    }

    /// A REJ with the reason that no listener exists.
    fn reject(identity: &Identity, request: &ReqRoute) -> Self {
        Self::answer(identity, request, |buf| reject_no_listener(request, buf))
    }

    /// A COOKIE.
    pub(crate) fn cookie(identity: &Identity, request: &ReqRoute, cookie: Cookie) -> Self {
        Self::answer(identity, request, |buf| answer_cookie(request, cookie, buf))
    }

    /// The answer to a request that `write` writes and whose length it returns.
    fn answer(
        identity: &Identity,
        request: &ReqRoute,
        write: impl FnOnce(&mut [u8]) -> usize,
    ) -> Self {
        let mut datagram = ArrayVec::from([0; MAX_MESSAGE]);
        let octets = write(&mut datagram);
        datagram.truncate(octets);
        Self {
            // R9-4, R15-1
            //# All answers to a REQ MUST be sent to the source address in its body.
            //# An answer MUST be sent to the address that the packet came from, never to one that
            //# only its body names.
            remote: request.src.ip(),
            gid_index: identity.gid_index(request.dst.ip()),
            ports: UdpPorts {
                source: udp_port(urdma_types::SlotId::DAEMON),
                destination: udp_port(request.slot),
            },
            datagram,
        }
    }

    /// The RESET that answers a datagram to a slot that is not attached; none if the datagram must
    /// not be answered. It acknowledges what the slot's previous process had delivered of the
    /// stream.
    pub(crate) fn reset(
        datagram: &[u8],
        meta: &Meta,
        (channels, slot): (&Channels, SlotId),
    ) -> Option<Self> {
        let offender = (datagram, datagram.len());
        let reset =
            TrpHeader::reset_answering(offender, ResetReason::NoQueuePair, |index, stream| {
                channels.delivered(slot, index, stream)
            })?;
        let sender = slot_of_source_port(meta.src_port)?;
        let mut octets = ArrayVec::new();
        let mut header = [0; HEADER_LEN];
        reset.encode(&mut header).ok()?;
        octets.try_extend_from_slice(&header).ok()?;
        Some(Self {
            // R3-5, R15-1
            //# The IP source address MUST be the address by which the receiver knows the sender:
            //# that of the GID with which the queue pair or the address handle was set up; in a REQ
            //# the source address in its body; in a RESET the destination address of the packet
            //# that it answers.
            //# An answer MUST be sent to the address that the packet came from, never to one that
            //# only its body names.
            remote: meta.remote_ip.to_ip(),
            gid_index: meta.gid_index,
            ports: UdpPorts {
                source: udp_port(urdma_types::SlotId::DAEMON),
                destination: udp_port(sender),
            },
            datagram: octets,
        })
    }
}

/// The route of a connection request, to this host or another one, if `packet`, which a process
/// sent to slot 0, is one.
pub(crate) fn request_in(packet: &[u8], meta: &Meta) -> Option<ReqRoute> {
    if slot_of_port(meta.dst_port) != Some(SlotId::DAEMON) || packet.len() > MAX_MESSAGE {
        return None;
    }
    ReqRoute::parse(packet)
}

/// The target of a request.
pub(crate) fn request_target(shared: &Shared, request: &ReqRoute) -> RequestTarget {
    let service = PortTable::of(request.port_space).map_or(RequestTarget::Unbound, |space| {
        let listeners = shared.listeners();
        listeners.find(space, request.dst.ip(), request.dst.port())
    });
    match service {
        // The listener may have closed since slot 0 accepted the request. Slot 0's CM engine knows
        // its requests and refuses others.
        RequestTarget::Unbound if shared.manages_connections() => {
            RequestTarget::Listening(SlotId::DAEMON)
        }
        service => service,
    }
}

fn record_no_listener(shared: &Shared, request: &ReqRoute, is_bound: bool) {
    let (peer, port) = (request.src.ip(), request.dst.port());
    shared.recorder.no_listener(peer, port, is_bound);
}

/// Delivers a request by `put` to the slot that listens for it. Returns the REJ to send, if any;
/// otherwise the request was delivered, or its sender retransmits it.
pub(crate) fn dispatch(
    (shared, identity): (&Shared, &Identity),
    request: &ReqRoute,
    put: impl FnOnce(SlotId) -> bool,
) -> Option<DaemonDatagram> {
    let counters = &shared.counters;
    let slot = match request_target(shared, request) {
        RequestTarget::Listening(slot) => Some(slot),
        RequestTarget::Bound => {
            record_no_listener(shared, request, true);
            None
        }
        RequestTarget::Unbound => {
            record_no_listener(shared, request, false);
            counters.cm_rejected.bump();
            return Some(DaemonDatagram::reject(identity, request));
        }
    };
    if slot.is_some_and(put) {
        counters.cm_requests.bump();
    } else {
        counters.cm_unanswered.bump();
    }
    None
}

/// Sends an answer to a process of this host; a process whose channel is full retransmits its
/// request.
pub(crate) fn send_to_slot(channels: &mut Channels, answer: &DaemonDatagram, identity: &Identity) {
    let Some(slot) = slot_of_port(answer.ports.destination) else {
        return;
    };
    let own = identity.addresses.first().copied().unwrap_or(answer.remote);
    let meta = Meta {
        remote_ip: Ip16::new(own),
        src_port: answer.ports.source,
        dst_port: answer.ports.destination,
        ecn: 0,
        gid_index: answer.gid_index,
    };
    let _ = channels.put(slot, &PacketHead::of(meta), &answer.datagram);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, SocketAddr};
    use urdma_cm::{Config, ConnectParams, ConnectionManager, LocalQp, PrivateData};

    /// A request from another host to a port of this one.
    fn request() -> ReqRoute {
        let address = |last, port| SocketAddr::new(Ipv4Addr::new(192, 0, 2, last).into(), port);
        let mut active = ConnectionManager::new(Config::new(SlotId::new(3).unwrap(), 7));
        active.connect(
            urdma_types::Time::from_ns(1),
            &ConnectParams {
                src: address(2, 50_000),
                dst: address(1, 7174),
                port_space: urdma_types::PortSpace::TCP,
                qp: LocalQp::default(),
                retry_count: 7,
                ack_timeout: 16,
                path_mtu: 5,
                private_data: PrivateData::EMPTY,
            },
        );
        let mut octets = [0; MAX_MESSAGE];
        let sent = active.poll_transmit(&mut octets).unwrap();
        ReqRoute::parse(&octets[..sent.len]).unwrap()
    }

    fn identity() -> Identity {
        let address = Ipv4Addr::new(192, 0, 2, 1).into();
        Identity::new(std::path::Path::new("/run/urdma/test"), Some(&[address]))
    }

    /// The slot that a request without a listener is delivered to, and whether it is refused here.
    fn unlistened(shared: &Shared) -> (Option<SlotId>, bool) {
        let mut given = None;
        let answer = dispatch((shared, &identity()), &request(), |slot| {
            given = Some(slot);
            true
        });
        (given, answer.is_some())
    }

    #[test]
    fn request_without_a_listener_is_refused() {
        let shared = Shared::new().unwrap();
        assert_eq!(unlistened(&shared), (None, true));
    }

    /// A retransmitted request whose listener has closed was delivered before, and may be accepted.
    #[test]
    fn request_without_a_listener_is_for_slot_0_to_judge_if_it_manages_connections() {
        let shared = Shared::new().unwrap();
        shared.manage_connections();
        assert_eq!(unlistened(&shared), (Some(SlotId::DAEMON), false));
    }
}
