//! The target: what becomes of packets, and the contexts of initiators, at most as many as
//! configured.

use super::contexts::{Context, Contexts};
use super::ends::{DcArrival, DcPlan, DcSource};
use super::fault::{Fault, Faults};
use super::floors::Floors;
use super::{initial_psn, silence_ns, DC_RD_ATOMIC, DC_TIMEOUT_MAX};
use crate::conn::{
    ConnConfig, Connection, Datagram, Host, Path, QpState, RtrParams, RtsParams, TransitionError,
    Transmit,
};
use crate::wire::{
    connection_id, DcConnect, DcRefused, PacketType, ResetReason, Segment, SegmentKind, TrpHeader,
    DC_RESET_LEN, DC_RESET_REASON,
};
use std::net::IpAddr;
use urdma_types::{Psn, Qpn, SlotId, Time};

/// The configuration of a target.
#[derive(Clone, Copy, Debug)]
pub struct DcTargetConfig {
    /// Its number, which initiators address.
    pub number: Qpn,
    /// Its access key.
    pub key: u64,
    /// Maximum number of contexts, 1 or more.
    pub contexts_max: usize,
    /// Maximum number of contexts of the initiators at one IP address, 1 or more.
    pub contexts_per_address_max: usize,
    /// Largest datagram of the path, 256..=65507 octets.
    pub max_datagram_octets: u32,
    /// Maximum number of packets in flight, as [`ConnConfig::window_packets`].
    pub window_packets: u32,
    /// Scatter-gather elements of a receive request, as [`ConnConfig::max_recv_sge`].
    pub max_recv_sge: u8,
    /// The code of the delay in RNR packets.
    pub min_rnr_timer: u8,
    /// Random numbers that are used for this target only.
    pub secret: [u64; 2],
}

/// Counters of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DcTargetStats {
    /// Contexts that began.
    pub accepted: u64,
    /// Contexts that were removed for another one.
    pub evicted: u64,
    /// Contexts whose initiator was silent for too long.
    pub expired: u64,
    /// Contexts of initiators whose process has ended.
    pub gone: u64,
    /// Packets that were answered with DC_REFUSED.
    pub refused: u64,
    /// Packets that found every context in use.
    pub busy: u64,
    /// Packets that no connection accepts: malformed, wrong key, late.
    pub dropped: u64,
}

/// What became of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DcVerdict {
    /// A context has processed it.
    Taken,
    /// It was dropped and counted.
    Dropped,
    /// The driver sends this RESET to where the datagram came from, at a limited rate.
    Refused([u8; DC_RESET_LEN]),
}

/// A target of the dynamically connected transport.
///
/// Messages are received into the shared receive queue of the [`Host`].
#[derive(Debug)]
pub struct DcTarget {
    config: DcTargetConfig,
    floors: Floors,
    contexts: Contexts,
    /// Connections of contexts that have ended, in RESET.
    spare: Vec<Connection>,
    /// Contexts whose deadlines have passed or whose initiators have ended, while they are handled.
    due: Vec<u32>,
    stats: DcTargetStats,
    faults: Faults,
}

impl DcTarget {
    /// A target without contexts.
    pub fn new(config: DcTargetConfig) -> Self {
        Self {
            floors: Floors::new(config.secret),
            config,
            contexts: Contexts::default(),
            spare: Vec::new(),
            due: Vec::new(),
            stats: DcTargetStats::default(),
            faults: Faults::default(),
        }
    }

    /// A target with faults.
    #[cfg(test)]
    pub(super) fn faulty(config: DcTargetConfig, faults: Faults) -> Self {
        let mut target = Self::new(config);
        (target.faults, target.contexts.faults) = (faults, faults);
        target
    }

    /// Counters.
    pub fn stats(&self) -> &DcTargetStats {
        &self.stats
    }

    /// Contexts that exist.
    pub fn contexts(&self) -> usize {
        self.contexts.len()
    }

    /// Contexts of the initiators at an address.
    pub fn contexts_at(&self, address: IpAddr) -> usize {
        self.contexts.at_address(address)
    }

    /// Processes a datagram for this target.
    pub fn handle_datagram<H: Host>(
        &mut self,
        now: Time,
        arrival: &DcArrival,
        datagram: &Datagram<'_, H::Body>,
        host: &mut H,
    ) -> DcVerdict {
        let Ok(trp) = TrpHeader::parse(datagram.head, datagram.len) else {
            return self.dropped();
        };
        if trp.kind == PacketType::Reset {
            return self.on_reset(arrival, &trp, host);
        }
        let Some(connect) = DcConnect::find(trp.extension_octets(datagram.head)) else {
            return self.dropped();
        };
        // R17.2-2: a stranger gets no answer that shows the key.
        if connect.key != self.config.key || trp.destination_index != self.config.number.index() {
            return self.dropped();
        }
        // R17.2-6: the token is told to the process that has the initiator, and to no other one.
        if !arrival.is_from(arrival.address, connect.initiator, false) {
            return self.dropped();
        }
        let source = DcSource {
            address: arrival.address,
            initiator: connect.initiator,
        };
        let is_token = connect.token == self.floors.token(&source);
        if !is_token && !self.faults.has(Fault::NoToken) {
            return self.refused(&source, &connect, &trp);
        }
        let place = self.contexts.find(&source);
        let of_epoch = |place: &u32| {
            let context = self.contexts.get_mut(*place);
            context.is_some_and(|context| context.epoch == connect.epoch)
        };
        if let Some(place) = place.filter(of_epoch) {
            self.contexts.set_local(place, arrival.local);
            return self.on_packet(now, place, &connect, &trp, datagram, host);
        }
        // R17.4-8: a connection that does not begin costs no other one its context.
        if !may_begin(trp.kind) || !(1..=DC_TIMEOUT_MAX).contains(&connect.timeout) {
            return self.dropped();
        }
        let admits = self.floors.admits(&source, connect.epoch);
        if !admits && !self.faults.has(Fault::NoFloor) {
            return self.refused(&source, &connect, &trp);
        }
        let Some(place) = self.accept(now, &source, &connect, host) else {
            self.stats.busy += 1;
            return DcVerdict::Dropped;
        };
        self.contexts.set_local(place, arrival.local);
        self.on_packet(now, place, &connect, &trp, datagram, host)
    }

    fn dropped(&mut self) -> DcVerdict {
        self.stats.dropped += 1;
        DcVerdict::Dropped
    }

    /// Tells an initiator how to connect.
    fn refused(&mut self, source: &DcSource, connect: &DcConnect, trp: &TrpHeader) -> DcVerdict {
        let reset = TrpHeader::reset_for(trp, ResetReason::NoQueuePair);
        let reset = reset.filter(|_| may_begin(trp.kind));
        let Some(mut reset) = reset else {
            return self.dropped();
        };
        reset.window = DC_RESET_REASON;
        let mut octets = [0; DC_RESET_LEN];
        if reset.encode(&mut octets).is_err() {
            return self.dropped();
        }
        // R17.2-5
        //# A packet is refused by a RESET with reason 3 and the extension DC_REFUSED, which MUST
        //# have the refused epoch, the floor and the token.
        let refused = DcRefused {
            epoch: connect.epoch,
            floor: self.floors.floor(source),
            token: self.floors.token(source),
        };
        refused.add_to(&mut octets);
        self.stats.refused += 1;
        DcVerdict::Refused(octets)
    }

    /// Begins a context, in the place of the initiator's previous one or of one that may be
    /// evicted; none if there is no place.
    fn accept<H: Host>(
        &mut self,
        now: Time,
        source: &DcSource,
        connect: &DcConnect,
        host: &mut H,
    ) -> Option<u32> {
        let previous = self.contexts.find(source);
        if previous.is_none() && !self.make_room(source.address, host) {
            return None;
        }
        let context = self.new_context(now, connect).ok()?;
        // R17.3-1
        //# When a context begins, the floor MUST be raised to its epoch.
        if !self.faults.has(Fault::FloorNotRaised) {
            self.floors.raise(source, connect.epoch);
        }
        if let Some(previous) = previous {
            self.retire(previous, host);
        }
        self.stats.accepted += 1;
        Some(self.contexts.add(*source, context))
    }

    /// Makes room for a context of an initiator at `address`; false if there is none.
    fn make_room<H: Host>(&mut self, address: IpAddr, host: &mut H) -> bool {
        // R17.4-1
        //# A packet that needs a context when there is none left MUST evict, of those that may be
        //# evicted, the one that has been so for the longest time since its last packet, of the
        //# same address if the bound of the address is reached.
        let of_address = self.contexts.at_address(address);
        let has_bound = !self.faults.has(Fault::NoAddressBound);
        let among = if has_bound && of_address >= self.config.contexts_per_address_max {
            Some(address)
        } else if self.contexts.len() >= self.config.contexts_max
            && !self.faults.has(Fault::NoBound)
        {
            None
        } else {
            return true;
        };
        let Some(victim) = self.contexts.victim(among) else {
            // R17.4-3
            //# If none may be evicted, the packet MUST be dropped without an answer; the
            //# initiator's PTO sends it again.
            self.ask_to_confirm(among);
            return false;
        };
        self.stats.evicted += 1;
        self.retire(victim, host);
        true
    }

    /// Asks the initiator that has been idle for the longest time, of an address if one is given,
    /// to confirm what it knows.
    fn ask_to_confirm(&mut self, among: Option<IpAddr>) {
        let Some(place) = self.contexts.unconfirmed(among) else {
            return;
        };
        if let Some(context) = self.contexts.get_mut(place) {
            // R17.4-7
            //# The target MUST then send a PROBE on the context that has needed nothing but a
            //# confirmation for the longest time, of the same address if the bound of the address
            //# is reached.
            context.conn.probe_peer();
            self.contexts.set_ready(place);
        }
    }

    fn new_context(&mut self, now: Time, connect: &DcConnect) -> Result<Context, TransitionError> {
        let (number, initiator) = (self.config.number, connect.initiator);
        // R17.4-5
        //# A context ends when nothing of its initiator has arrived for its **lease**, which MUST
        //# be twice the silence after which the initiator gives up (section 7.7) by the timeout and
        //# retries in DC_CONNECT.
        let mut lease_ns = 2 * silence_ns(connect.timeout, connect.retry_cnt);
        if self.faults.has(Fault::ShortLease) {
            lease_ns /= 64;
        }
        let [remote_psn, local_psn] = [(initiator, number), (number, initiator)]
            .map(|(from, to)| initial_psn(from, to, connect.epoch, connect.token));
        let spare = self.spare.pop();
        let mut conn = spare.unwrap_or_else(|| self.new_connection());
        conn.to_init()?;
        let rtr = RtrParams {
            remote_qpn: initiator,
            remote_psn,
            max_datagram_octets: self.config.max_datagram_octets,
            max_dest_rd_atomic: DC_RD_ATOMIC,
            min_rnr_timer: self.config.min_rnr_timer,
            path: Path::Network,
        };
        conn.to_rtr(now, &rtr)?;
        let rts = RtsParams {
            local_psn,
            timeout: connect.timeout + 1,
            retry_cnt: connect.retry_cnt,
            rnr_retry: 7,
            max_rd_atomic: 0,
            // Probes stop after the lease has ended, not before.
            keepalive_ns: lease_ns / (u64::from(connect.retry_cnt) + 1),
        };
        conn.to_rts(now, &rts)?;
        Ok(Context {
            conn,
            epoch: connect.epoch,
            received: connection_id(initiator, number, remote_psn),
            sent: connection_id(number, initiator, local_psn),
            heard: now,
            lease_ns,
            pinned: None,
            local: 0,
        })
    }

    fn new_connection(&self) -> Connection {
        Connection::new(ConnConfig {
            sq_depth: 1,
            rq_depth: 1,
            shared_recv: true,
            max_send_sge: 1,
            max_recv_sge: self.config.max_recv_sge,
            max_inline: 0,
            window_packets: self.config.window_packets,
            max_dest_rd_atomic_cap: DC_RD_ATOMIC,
            ..ConnConfig::new(self.config.number)
        })
    }

    /// Hands a packet to its context.
    fn on_packet<H: Host>(
        &mut self,
        now: Time,
        place: u32,
        connect: &DcConnect,
        trp: &TrpHeader,
        datagram: &Datagram<'_, H::Body>,
        host: &mut H,
    ) -> DcVerdict {
        let Some(context) = self.contexts.get_mut(place) else {
            return DcVerdict::Dropped;
        };
        let id = if trp.kind.carries_acknowledged_stream() {
            context.sent
        } else {
            context.received
        };
        if trp.connection_id != id {
            return self.dropped();
        }
        context.heard = now;
        // R17.4-4: what the initiator has confirmed it never repeats.
        let faults = self.faults;
        let confirmed = |pinned: &Psn| {
            pinned.distance(connect.confirmed) <= 0 || faults.has(Fault::AllConfirmed)
        };
        if context.pinned.as_ref().is_some_and(confirmed) {
            context.pinned = None;
        }
        if trp.kind == PacketType::Fin {
            // R17.5-2
            //# A FIN that confirms all packets that pin the context MUST end the context.
            if context.pinned.is_none() {
                self.retire(place, host);
            } else {
                self.contexts.touch(place);
            }
            return DcVerdict::Taken;
        }
        let has_effect = may_have_effect(trp, datagram) && !faults.has(Fault::NoPin);
        // In ERROR the connection repeats its Terminate, and there is no RESET to send.
        let packets = context.conn.handle_datagram(now, datagram, host);
        if has_effect {
            let end = trp.psn.add(packets.unwrap_or(1));
            let later = context.pinned.filter(|pinned| pinned.distance(end) > 0);
            context.pinned = Some(later.unwrap_or(end));
        }
        self.contexts.touch(place);
        self.contexts.set_ready(place);
        DcVerdict::Taken
    }

    /// The initiator does not have a connection with this id any more.
    fn on_reset<H: Host>(
        &mut self,
        arrival: &DcArrival,
        trp: &TrpHeader,
        host: &mut H,
    ) -> DcVerdict {
        let id = trp.connection_id;
        let found = self.contexts.find_by_id(arrival.address, id);
        let index = trp.psn.to_u32();
        let is_meant = |place: &u32| {
            let source = self.contexts.source(*place);
            source.is_some_and(|source| {
                u32::from(source.initiator.index()) == index
                    && arrival.is_from(source.address, source.initiator, true)
            })
        };
        let Some(place) = found.filter(is_meant) else {
            return self.dropped();
        };
        // R17.5-4
        //# Such a RESET that names a stream of a context MUST end the context.
        self.retire(place, host);
        DcVerdict::Taken
    }

    /// The process that had a slot of the host with an address has ended, and everything that it
    /// sent has been handled: the contexts of its initiators end. This looks at all contexts.
    pub fn slot_gone<H: Host>(&mut self, (address, slot): (IpAddr, SlotId), host: &mut H) {
        let mut gone = std::mem::take(&mut self.due);
        gone.extend(self.contexts.of_slot(address, slot));
        for place in gone.drain(..) {
            // R17.5-10
            //# If the process of an initiator is on the host of the target and has ended, the
            //# target MUST end the contexts of the initiator: nothing else comes from it.
            self.stats.gone += 1;
            self.retire(place, host);
        }
        self.due = gone;
    }

    /// Ends a context; a message that has arrived in part completes as flushed.
    fn retire<H: Host>(&mut self, place: u32, host: &mut H) {
        if let Some(Context { mut conn, .. }) = self.contexts.remove(place) {
            if conn.recvs_outstanding() > 0 && conn.state() != QpState::Error {
                conn.to_error(host);
            }
            conn.reset();
            self.spare.push(conn);
        }
    }

    /// Handles the timers that have expired.
    pub fn handle_timeout<H: Host>(&mut self, now: Time, host: &mut H) {
        let mut due = std::mem::take(&mut self.due);
        self.contexts.take_due(now, &mut due);
        for place in due.drain(..) {
            let Some(context) = self.contexts.get_mut(place) else {
                continue;
            };
            if context.lease_end() <= now {
                self.stats.expired += 1;
                self.retire(place, host);
            } else {
                context.conn.handle_timeout(now, host);
                self.contexts.file(place);
                self.contexts.set_ready(place);
            }
        }
        self.due = due;
    }

    /// When [`DcTarget::handle_timeout`] is to be called; it may have nothing to do then.
    pub fn next_deadline(&self) -> Option<Time> {
        self.contexts.next_deadline()
    }

    /// What would be sent next; `None` when nothing may be sent. Contexts have turns of one
    /// datagram.
    pub fn plan_transmit(&mut self) -> Option<DcPlan> {
        while let Some(place) = self.contexts.first_ready() {
            let context = self.contexts.get_mut(place);
            let planned = context.and_then(|context| {
                let plan = context.conn.plan_transmit()?;
                Some((plan, context.local))
            });
            if let (Some((plan, local)), Some(source)) = (planned, self.contexts.source(place)) {
                return Some(DcPlan {
                    address: source.address,
                    peer: source.initiator,
                    local,
                    room: plan.room(),
                    plan,
                    place,
                });
            }
            self.contexts.file(place);
            self.contexts.clear_ready(place);
        }
        None
    }

    /// Writes the datagram of a plan that was just made; `None` if there is nothing to send after
    /// all: then a new plan is made.
    pub fn write_transmit<H: Host>(
        &mut self,
        now: Time,
        plan: &DcPlan,
        buf: &mut [u8],
        host: &mut H,
    ) -> Option<Transmit> {
        let context = self.contexts.get_mut(plan.place)?;
        let transmit = context.conn.write_transmit(now, plan.plan, buf, host);
        self.contexts.file(plan.place);
        // The next context has its turn.
        self.contexts.clear_ready(plan.place);
        self.contexts.set_ready(plan.place);
        transmit
    }

    /// Writes the next datagram into `buf`, which holds `max_datagram_octets`, and says to whom it
    /// goes. Drivers use [`DcTarget::plan_transmit`] and [`DcTarget::write_transmit`].
    pub fn poll_transmit<H: Host>(
        &mut self,
        now: Time,
        buf: &mut [u8],
        host: &mut H,
    ) -> Option<(DcSource, Transmit)> {
        while let Some(plan) = self.plan_transmit() {
            if let Some(transmit) = self.write_transmit(now, &plan, buf, host) {
                let source = DcSource {
                    address: plan.address,
                    initiator: plan.peer,
                };
                return Some((source, transmit));
            }
        }
        None
    }
}

/// Whether a packet of this type begins a context, or is refused; others are dropped.
const fn may_begin(kind: PacketType) -> bool {
    matches!(
        kind,
        PacketType::Data | PacketType::Train | PacketType::Probe
    )
}

/// Whether a packet carries a request other than a read, which alone may be repeated.
fn may_have_effect<B: ?Sized>(trp: &TrpHeader, datagram: &Datagram<'_, B>) -> bool {
    match trp.kind {
        PacketType::Train => true,
        PacketType::Data => {
            let segment = Segment::parse_after(trp, datagram.head, datagram.len);
            !segment.is_ok_and(|segment| matches!(segment.kind, SegmentKind::ReadRequest { .. }))
        }
        _ => false,
    }
}
