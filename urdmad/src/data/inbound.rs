//! Frames from the port: checked, then put into the channel of the slot that their UDP port names.

use arrayvec::ArrayVec;
use proto_trp::limit::RateLimit;
use proto_trp::wire::datagram::group_of;
use proto_trp::wire::trp::VERSION;
use proto_trp::wire::{Meta, PacketHead};
use urdma_cm::cookie::Cookies;
use urdma_cm::wire::{is_req, ReqRoute, MAX_MESSAGE};
use urdma_types::{slot_of_port, Ip16, SlotId, Time};
use urdma_underlay::Received;

use super::channels::{Channels, NotPut};
use super::daemon_traffic::{self, DaemonDatagram};
use super::patience::Patience;
use crate::identity::Identity;
use crate::listeners::RequestTarget;
use crate::shared::{NotGiven, Shared};

/// The state that delivering a received frame needs.
pub(crate) struct Inbound<'a> {
    pub(crate) channels: &'a mut Channels,
    pub(crate) patience: &'a mut Patience,
    pub(crate) shared: &'a Shared,
    pub(crate) identity: &'a Identity,
    pub(crate) limits: &'a mut Limits,
    pub(crate) cookies: &'a Cookies,
    pub(crate) now_ns: u64,
}

/// Rate limits on answers to hosts to which no process has a connection.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    resets: RateLimit,
    rejects: RateLimit,
}

/// Where a datagram comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Origin {
    /// Another host.
    Host,
    /// A process of this host.
    Process,
}

/// A received datagram that needs more than delivery to a process.
#[derive(Debug)]
pub(crate) enum Arrived {
    /// An answer to send.
    Answer(DaemonDatagram),
    /// A request whose sender must be resolved first.
    Request(Request),
}

/// A connection request from another host, which its body names as the source.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) route: ReqRoute,
    /// The slot that it was sent to: a listener's, or slot 0.
    to: SlotId,
    meta: Meta,
    datagram: ArrayVec<u8, MAX_MESSAGE>,
}

impl Request {
    /// Whether `other` is a retransmission of the same message.
    pub(crate) fn is_again(&self, other: &Self) -> bool {
        self.meta.remote_ip == other.meta.remote_ip && self.datagram == other.datagram
    }
}

impl Inbound<'_> {
    /// Whether a slot must catch up before any datagram is delivered.
    #[inline]
    pub(crate) fn waits(&mut self) -> bool {
        self.patience.waits(self.channels, self.now_ns)
    }

    /// Delivers a datagram to its slot; returns the work that is left.
    #[inline(always)]
    pub(crate) fn deliver(&mut self, received: &Received, datagram: &[u8]) -> Option<Arrived> {
        let counters = &self.shared.counters;
        let Some(slot) = slot_of_port(received.destination_port) else {
            counters.drop_rx_not_our_port.bump();
            return None;
        };
        if slot == SlotId::DAEMON {
            return self.for_daemon(&metadata(received), Some(received.destination), datagram);
        }
        let meta = metadata(received);
        self.deliver_to(slot, &meta, datagram)
    }

    /// Delivers a datagram of another host to a slot; returns the work that is left.
    #[inline(always)]
    pub(crate) fn deliver_to(
        &mut self,
        slot: SlotId,
        meta: &Meta,
        datagram: &[u8],
    ) -> Option<Arrived> {
        // A malformed one is the process' to count.
        if let Some(route) = is_req(datagram)
            .then(|| ReqRoute::parse(datagram))
            .flatten()
        {
            return self.request(slot, route, meta, datagram);
        }
        let counters = &self.shared.counters;
        match self.put(slot, meta, datagram) {
            Ok(()) => counters.to_processes.bump(),
            Err(NotPut::Full) => counters.drop_rx_slot_behind.bump(),
            Err(NotPut::Unattached) => {
                counters.drop_rx_unattached_slot.bump();
                return self.reset(meta, slot, datagram);
            }
        }
        None
    }

    /// Handles a datagram to slot 0: connection management, or a datagram of a multicast group to
    /// copy to its members. The destination of a datagram from a leased queue is unknown.
    #[cold]
    pub(crate) fn for_daemon(
        &mut self,
        meta: &Meta,
        destination: Option<Ip16>,
        datagram: &[u8],
    ) -> Option<Arrived> {
        let counters = &self.shared.counters;
        if let Some(group) = group_of(datagram, datagram.len()).map(Ip16) {
            // R12-4
            //# A daemon MUST drop a datagram whose destination GID is a group other than the IP
            //# destination.
            if destination.is_none_or(|destination| group == destination) {
                self.copy_to_members(group, Origin::Host, meta, datagram);
            } else {
                counters.drop_not_for_daemon.bump();
            }
            return None;
        }
        let remote = meta.remote_ip.to_ip();
        let Some(route) = ReqRoute::parse(datagram) else {
            let version = datagram.first().map_or(VERSION, |first| first >> 4);
            if version != VERSION {
                self.shared.note_version(remote, version);
            } else if self.shared.give_cm_datagram(remote, datagram) == Err(NotGiven::NotForControl)
            {
                counters.drop_not_for_daemon.bump();
            }
            return None;
        };
        self.request(SlotId::DAEMON, route, meta, datagram)
    }

    /// Checks a connection request of another host to a slot.
    #[cold]
    fn request(
        &mut self,
        to: SlotId,
        route: ReqRoute,
        meta: &Meta,
        datagram: &[u8],
    ) -> Option<Arrived> {
        let counters = &self.shared.counters;
        if !self.identity.owns(route.dst.ip()) {
            counters.drop_not_for_daemon.bump();
            return None;
        }
        // R9-6
        //# A daemon or slot MUST drop a REQ that came from an IP address other than the source
        //# address in its body.
        // The answer goes to the source in the request's body.
        if route.src.ip().to_canonical() != meta.remote_ip.to_ip() {
            counters.drop_request_source.bump();
            return None;
        }
        let datagram = datagram.try_into().ok()?;
        Some(Arrived::Request(Request {
            route,
            to,
            meta: *meta,
            datagram,
        }))
    }

    /// Whether the sender of a request has shown that it receives what is sent to its address.
    pub(crate) fn is_proven(&self, request: &Request) -> bool {
        let now = Time::from_ns(self.now_ns);
        self.cookies.accepts(now, &request.route)
    }

    /// Whether a request has a listener, so that its sender is to be resolved before delivery.
    pub(crate) fn has_listener(&self, request: &Request) -> bool {
        matches!(
            daemon_traffic::request_target(self.shared, &request.route),
            RequestTarget::Listening(_)
        )
    }

    /// The answer to a request whose sender is not proven.
    pub(crate) fn ask_for_proof(&self, request: &Request) -> DaemonDatagram {
        let now = Time::from_ns(self.now_ns);
        let cookie = self.cookies.cookie(now, &request.route);
        self.shared.counters.cm_cookies.bump();
        DaemonDatagram::cookie(self.identity, &request.route, cookie)
    }

    /// Delivers a request of a proven sender to its listener; returns the answer to send, if any.
    pub(crate) fn give_request(&mut self, request: &Request) -> Option<DaemonDatagram> {
        let (meta, datagram) = (&request.meta, &request.datagram[..]);
        if request.to != SlotId::DAEMON {
            self.give_direct_request(request);
            return None;
        }
        let around = (self.shared, self.identity);
        let answer = daemon_traffic::dispatch(around, &request.route, |slot| match slot {
            SlotId::DAEMON => {
                let remote = meta.remote_ip.to_ip();
                self.shared.give_cm_datagram(remote, datagram).is_ok()
            }
            slot => self.put(slot, meta, datagram).is_ok(),
        })?;
        if !self.limits.rejects.allows(self.now_ns) {
            self.shared.counters.drop_reject_limit.bump();
            return None;
        }
        Some(answer)
    }

    /// Delivers a request to the slot that it was sent to, whose process refuses it if it does not
    /// listen any more.
    fn give_direct_request(&mut self, request: &Request) {
        let counters = &self.shared.counters;
        match self.put(request.to, &request.meta, &request.datagram) {
            Ok(()) => counters.cm_requests.bump(),
            Err(NotPut::Full) => counters.drop_rx_slot_behind.bump(),
            Err(NotPut::Unattached) => counters.drop_rx_unattached_slot.bump(),
        }
    }

    /// Copies a datagram to every member of a group on this host.
    #[inline(never)]
    pub(crate) fn copy_to_members(
        &mut self,
        group: Ip16,
        origin: Origin,
        meta: &Meta,
        datagram: &[u8],
    ) {
        let counters = &self.shared.counters;
        counters.group_datagrams.bump();
        let members = self.shared.groups().members(group);
        // R12-3
        //# The daemon of each host, the sender's included, MUST pass a copy of a message to a group
        //# to every slot that has registered a member, and the slot one to each of its members: a
        //# sender that is a member receives its own message, unless it asked not to.
        for slot in members.iter() {
            let put = match origin {
                Origin::Host => self.put(slot, meta, datagram),
                Origin::Process => self
                    .channels
                    .put_local(slot, &PacketHead::of(*meta), datagram),
            };
            match put {
                Ok(()) => counters.group_copies.bump(),
                // The process is ending, and with it its membership.
                Err(NotPut::Unattached) => {}
                Err(_) => counters.drop_group_copies.bump(),
            }
        }
    }

    #[cold]
    fn reset(&mut self, meta: &Meta, slot: SlotId, datagram: &[u8]) -> Option<Arrived> {
        let answer = DaemonDatagram::reset(datagram, meta, (self.channels, slot))?;
        if !self.limits.resets.allows(self.now_ns) {
            self.shared.counters.drop_reset_limit.bump();
            return None;
        }
        self.shared.counters.resets_sent.bump();
        Some(Arrived::Answer(answer))
    }

    #[inline(always)]
    fn put(&mut self, slot: SlotId, meta: &Meta, datagram: &[u8]) -> Result<(), NotPut> {
        let put = self.channels.put(slot, &PacketHead::of(*meta), datagram);
        if put.is_ok() {
            self.patience.note(self.channels, slot, datagram.len());
        }
        put
    }
}

/// The metadata of a frame for a datagram from the port.
#[inline]
fn metadata(received: &Received) -> Meta {
    Meta {
        remote_ip: received.source,
        src_port: received.source_port,
        dst_port: received.destination_port,
        ecn: received.ecn.bits(),
        gid_index: received.index,
    }
}
