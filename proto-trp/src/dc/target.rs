//! The target: contexts of initiators, at most as many as configured, least recently used first.

use super::floors::Floors;
use super::source::DcSource;
use super::{initial_psn, silence_ns, DC_RD_ATOMIC, DC_TIMEOUT_MAX};
use crate::conn::{
    ConnConfig, Connection, Datagram, Host, Path, QpState, RtrParams, RtsParams, TransitionError,
    Transmit,
};
use crate::wire::{
    connection_id, ConnectionId, DcConnect, DcRefused, PacketType, ResetReason, Segment,
    SegmentKind, TrpHeader, DC_RESET_LEN, DC_RESET_REASON,
};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use urdma_types::{Psn, Qpn, Time};

/// The configuration of a target.
#[derive(Clone, Copy, Debug)]
pub struct DcTargetConfig {
    /// Its number, which initiators address.
    pub number: Qpn,
    /// Its access key.
    pub key: u32,
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

/// The state of one connection of an initiator.
#[derive(Debug)]
struct Context {
    conn: Connection,
    epoch: u64,
    received: ConnectionId,
    sent: ConnectionId,
    /// When the last packet of the initiator arrived.
    heard: Time,
    /// The silence after which the context ends.
    lease_ns: u64,
    /// Counts the packets of the target; the least is the least recently used.
    used: u64,
    /// Requests may have had an effect that the initiator does not know of until it confirms the
    /// packets before this one.
    pinned: Option<Psn>,
}

impl Context {
    fn is_evictable(&self) -> bool {
        // R17.4-2
        self.pinned.is_none() && self.conn.is_quiescent()
    }

    fn lease_end(&self) -> Time {
        self.heard.plus_ns(self.lease_ns)
    }

    fn deadline(&self) -> Time {
        let deadline = self.conn.next_deadline().unwrap_or(Time::NEVER);
        deadline.earlier(self.lease_end())
    }
}

/// A target of the dynamically connected transport.
///
/// Messages are received into the shared receive queue of the [`Host`].
#[derive(Debug)]
pub struct DcTarget {
    config: DcTargetConfig,
    floors: Floors,
    contexts: BTreeMap<DcSource, Context>,
    /// Contexts that may have something to send.
    ready: BTreeSet<DcSource>,
    packets: u64,
    stats: DcTargetStats,
}

impl DcTarget {
    /// A target without contexts.
    pub fn new(config: DcTargetConfig) -> Self {
        Self {
            floors: Floors::new(config.secret),
            config,
            contexts: BTreeMap::new(),
            ready: BTreeSet::new(),
            packets: 0,
            stats: DcTargetStats::default(),
        }
    }

    /// Counters.
    pub fn stats(&self) -> &DcTargetStats {
        &self.stats
    }

    /// Contexts that exist.
    pub fn contexts(&self) -> usize {
        self.contexts.len()
    }

    /// Processes a datagram for this target that came from `address`.
    pub fn handle_datagram<H: Host>(
        &mut self,
        now: Time,
        address: IpAddr,
        datagram: &Datagram<'_, H::Body>,
        host: &mut H,
    ) -> DcVerdict {
        self.packets += 1;
        let Ok(trp) = TrpHeader::parse(datagram.head, datagram.len) else {
            return self.dropped();
        };
        if trp.kind == PacketType::Reset {
            return self.on_reset(address, &trp, host);
        }
        let Some(connect) = DcConnect::find(trp.extension_octets(datagram.head)) else {
            return self.dropped();
        };
        // R17.2-2: a stranger gets no answer that shows the key.
        if connect.key != self.config.key || trp.destination_index != self.config.number.index() {
            return self.dropped();
        }
        let source = DcSource {
            address,
            initiator: connect.initiator,
        };
        if connect.token != self.floors.token(&source) {
            return self.refused(&source, &connect, &trp);
        }
        let has_context = self.contexts.get(&source).map(|context| context.epoch);
        if has_context != Some(connect.epoch) {
            if !may_begin(trp.kind) {
                return self.dropped();
            }
            if !self.floors.admits(&source, connect.epoch) {
                return self.refused(&source, &connect, &trp);
            }
            if !self.accept(now, &source, &connect, host) {
                self.stats.busy += 1;
                return DcVerdict::Dropped;
            }
        }
        self.on_packet(now, (&source, &connect), &trp, datagram, host)
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
    /// evicted; false if there is no place.
    fn accept<H: Host>(
        &mut self,
        now: Time,
        source: &DcSource,
        connect: &DcConnect,
        host: &mut H,
    ) -> bool {
        let is_known = self.contexts.contains_key(source);
        let of_address = |key: &DcSource| key.address == source.address;
        let at_address = self.contexts.keys().filter(|key| of_address(key)).count();
        // R17.4-1
        let victim = if is_known {
            None
        } else if at_address >= self.config.contexts_per_address_max {
            Some(self.least_recently_used(of_address))
        } else if self.contexts.len() >= self.config.contexts_max {
            Some(self.least_recently_used(|_| true))
        } else {
            None
        };
        match victim {
            // R17.4-3
            Some(None) => {
                self.ask_least_recently_used();
                return false;
            }
            Some(Some(victim)) => {
                self.stats.evicted += 1;
                self.retire(&victim, host);
            }
            None => {}
        }
        let Ok(context) = self.new_context(now, connect) else {
            return false;
        };
        // R17.3-1
        self.floors.raise(source, connect.epoch);
        self.retire(source, host);
        self.contexts.insert(*source, context);
        self.stats.accepted += 1;
        true
    }

    fn least_recently_used(&self, of: impl Fn(&DcSource) -> bool) -> Option<DcSource> {
        let candidates = self.contexts.iter().filter(|(key, _)| of(key));
        let evictable = candidates.filter(|(_, context)| context.is_evictable());
        evictable
            .min_by_key(|(_, context)| context.used)
            .map(|(key, _)| *key)
    }

    /// Asks the initiator that has been idle for the longest time to confirm what it knows.
    fn ask_least_recently_used(&mut self) {
        let quiescent = self.contexts.iter_mut();
        let quiescent = quiescent.filter(|(_, context)| context.conn.is_quiescent());
        if let Some((source, context)) = quiescent.min_by_key(|(_, context)| context.used) {
            // R17.4-7
            context.conn.probe_peer();
            self.ready.insert(*source);
        }
    }

    fn new_context(&self, now: Time, connect: &DcConnect) -> Result<Context, TransitionError> {
        let (number, initiator) = (self.config.number, connect.initiator);
        if connect.timeout == 0 || connect.timeout > DC_TIMEOUT_MAX {
            return Err(TransitionError);
        }
        // R17.4-5
        let lease_ns = 2 * silence_ns(connect.timeout, connect.retry_cnt);
        let [remote_psn, local_psn] = [(initiator, number), (number, initiator)]
            .map(|(from, to)| initial_psn(from, to, connect.epoch));
        let mut conn = Connection::new(ConnConfig {
            sq_depth: 1,
            rq_depth: 1,
            shared_recv: true,
            max_send_sge: 1,
            max_recv_sge: self.config.max_recv_sge,
            max_inline: 0,
            window_packets: self.config.window_packets,
            max_dest_rd_atomic_cap: DC_RD_ATOMIC,
            ..ConnConfig::new(number)
        });
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
            used: self.packets,
            pinned: None,
        })
    }

    /// Hands a packet to its context.
    fn on_packet<H: Host>(
        &mut self,
        now: Time,
        (source, connect): (&DcSource, &DcConnect),
        trp: &TrpHeader,
        datagram: &Datagram<'_, H::Body>,
        host: &mut H,
    ) -> DcVerdict {
        let Some(context) = self.contexts.get_mut(source) else {
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
        context.used = self.packets;
        context.heard = now;
        // R17.4-4: what the initiator has confirmed it never repeats.
        let confirmed = |pinned: &Psn| pinned.distance(connect.confirmed) <= 0;
        if context.pinned.as_ref().is_some_and(confirmed) {
            context.pinned = None;
        }
        if trp.kind == PacketType::Fin {
            // R17.5-2
            if context.pinned.is_none() {
                self.retire(source, host);
            }
            return DcVerdict::Taken;
        }
        let has_effect = may_have_effect(trp, datagram);
        // In ERROR the connection repeats its Terminate, and there is no RESET to send.
        let packets = context.conn.handle_datagram(now, datagram, host);
        if has_effect {
            let end = trp.psn.add(packets.unwrap_or(1));
            let later = context.pinned.filter(|pinned| pinned.distance(end) > 0);
            context.pinned = Some(later.unwrap_or(end));
        }
        self.ready.insert(*source);
        DcVerdict::Taken
    }

    /// The initiator does not have a connection with this id any more.
    fn on_reset<H: Host>(&mut self, address: IpAddr, trp: &TrpHeader, host: &mut H) -> DcVerdict {
        let is_meant = |(key, context): &(&DcSource, &Context)| {
            key.address == address
                && u32::from(key.initiator.index()) == trp.psn.to_u32()
                && [context.sent, context.received].contains(&trp.connection_id)
        };
        let found = self.contexts.iter().find(is_meant).map(|(key, _)| *key);
        let Some(source) = found else {
            return self.dropped();
        };
        // R17.5-4
        self.retire(&source, host);
        DcVerdict::Taken
    }

    /// Ends a context; a message that has arrived in part completes as flushed.
    fn retire<H: Host>(&mut self, source: &DcSource, host: &mut H) {
        self.ready.remove(source);
        if let Some(mut context) = self.contexts.remove(source) {
            if context.conn.recvs_outstanding() > 0 && context.conn.state() != QpState::Error {
                context.conn.to_error(host);
            }
        }
    }

    /// Handles the timers that have expired.
    pub fn handle_timeout<H: Host>(&mut self, now: Time, host: &mut H) {
        let mut expired = Vec::new();
        for (source, context) in &mut self.contexts {
            if context.lease_end() <= now {
                expired.push(*source);
            } else if context.conn.next_deadline().is_some_and(|due| due <= now) {
                context.conn.handle_timeout(now, host);
                self.ready.insert(*source);
            }
        }
        for source in expired {
            self.stats.expired += 1;
            self.retire(&source, host);
        }
    }

    /// When [`DcTarget::handle_timeout`] is to be called.
    pub fn next_deadline(&self) -> Option<Time> {
        self.contexts
            .values()
            .map(Context::deadline)
            .min()
            .filter(|&deadline| deadline != Time::NEVER)
    }

    /// Writes the next datagram into `buf`, which holds `max_datagram_octets`, and says to whom it
    /// goes.
    pub fn poll_transmit<H: Host>(
        &mut self,
        now: Time,
        buf: &mut [u8],
        host: &mut H,
    ) -> Option<(DcSource, Transmit)> {
        while let Some(source) = self.ready.first().copied() {
            let context = self.contexts.get_mut(&source);
            let sent = context.and_then(|context| context.conn.poll_transmit(now, buf, host));
            if let Some(transmit) = sent {
                return Some((source, transmit));
            }
            self.ready.remove(&source);
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
