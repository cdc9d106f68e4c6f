//! The initiator: a send queue whose requests name their targets, and a connection to the target of
//! the oldest.

use super::ends::{DcArrival, DcPlan, DcTargetAddress};
use super::fault::{Fault, Faults};
use super::known::{Known, KnownTargets};
use super::requests::Requests;
use super::{initial_psn, silence_ns, DC_RD_ATOMIC, DC_TIMEOUT_MAX};
use crate::conn::{
    Completion, ConnConfig, Connection, Datagram, Host, Path, PostError, QpState, RtrParams,
    RtsParams, SendWr, Status, Transmit,
};
use crate::wire::{
    connection_id, ConnectionId, DcConnect, DcRefused, PacketType, ResetReason, TrpHeader,
    DC_CONNECT_LEN, DC_RESET_REASON,
};
use std::net::IpAddr;
use urdma_types::{SlotId, Time};

/// The configuration of an initiator.
#[derive(Clone, Copy, Debug)]
pub struct DcInitiatorConfig {
    /// The sizes of the send queue and the seed; what concerns receive requests is ignored.
    pub conn: ConnConfig,
    /// Largest datagram of the path, 288..=65507 octets.
    pub max_datagram_octets: u32,
    /// Acknowledge timeout, 4.096 us * 2^timeout, 1..=[`DC_TIMEOUT_MAX`].
    pub timeout: u8,
    /// Retries, 0..=7.
    pub retry_cnt: u8,
    /// RNR retries, 0..=7; 7 for no bound.
    pub rnr_retry: u8,
    /// The connection to a target is kept for this long while there are no requests.
    pub linger_ns: u64,
    /// Maximum number of targets whose token is kept, 1 or more; to connect to another one takes a
    /// round trip more.
    pub known_max: usize,
}

/// The connection to a target.
#[derive(Debug)]
struct Open {
    target: DcTargetAddress,
    conn: Connection,
    connect: DcConnect,
    sent: ConnectionId,
    received: ConnectionId,
    /// Requests at the head of the queue that the connection has.
    handed: usize,
    /// When the last packet of the target arrived, or the first request was handed over since all
    /// were complete, whichever is later.
    heard: Time,
    /// Since when there are no requests.
    idle_since: Time,
    /// FIN is being sent.
    is_leaving: bool,
}

/// An initiator of the dynamically connected transport.
///
/// Requests are executed in the order in which they were posted. A request for another target
/// starts when all before it are complete.
#[derive(Debug)]
pub struct DcInitiator {
    config: DcInitiatorConfig,
    requests: Requests,
    open: Option<Open>,
    /// The connection to an earlier target, in RESET.
    spare: Option<Connection>,
    known: KnownTargets,
    connections: u64,
    /// Numbers the first packets to targets whose token is not known.
    contact: u64,
    has_failed: bool,
    faults: Faults,
}

impl DcInitiator {
    /// An initiator without requests; parameters out of range are clamped.
    pub fn new(config: DcInitiatorConfig) -> Self {
        Self {
            requests: Requests::new(Connection::clamped(config.conn)),
            known: KnownTargets::new(config.known_max.max(1)),
            config: DcInitiatorConfig {
                timeout: config.timeout.clamp(1, DC_TIMEOUT_MAX),
                retry_cnt: config.retry_cnt.min(7),
                rnr_retry: config.rnr_retry.min(7),
                max_datagram_octets: config.max_datagram_octets.clamp(DATAGRAM_MIN, 65_507),
                ..config
            },
            open: None,
            spare: None,
            connections: 0,
            contact: config.conn.seed,
            has_failed: false,
            faults: Faults::default(),
        }
    }

    /// An initiator with faults.
    #[cfg(test)]
    pub(super) fn faulty(config: DcInitiatorConfig, faults: Faults) -> Self {
        let mut initiator = Self::new(config);
        initiator.faults = faults;
        initiator
    }

    /// Whether a request has failed: everything that was posted after it is flushed.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Requests that are not complete.
    pub fn sends_outstanding(&self) -> usize {
        self.requests.len()
    }

    /// Connections that were begun.
    pub fn connections(&self) -> u64 {
        self.connections
    }

    /// Posts a request to a target.
    ///
    /// # Errors
    /// Nothing was posted: the queue is full, a list is too long, or the operation is a local one.
    pub fn post_send<H: Host>(
        &mut self,
        now: Time,
        target: DcTargetAddress,
        wr: &SendWr<'_>,
        host: &mut H,
    ) -> Result<(), PostError> {
        self.requests.push(target, wr)?;
        self.advance(now, host);
        Ok(())
    }

    /// Removes requests that are complete, connects to the target of the oldest request, and hands
    /// over the requests to it.
    fn advance<H: Host>(&mut self, now: Time, host: &mut H) {
        self.settle(now);
        if self.has_failed {
            self.flush(host);
            return;
        }
        let Some(target) = self.requests.get(0).map(|request| request.target) else {
            return;
        };
        match &mut self.open {
            None => self.connect(now, target),
            Some(open) if open.is_leaving => return,
            // R17.5-1: the next target has its turn when everything is complete.
            Some(open) if open.target != target => {
                open.leave();
                return;
            }
            Some(_) => {}
        }
        self.hand_over(now, host);
    }

    /// Removes requests that are complete.
    fn settle(&mut self, now: Time) {
        let Some(open) = &mut self.open else {
            return;
        };
        let left = open.conn.sends_outstanding() as usize;
        let done = open.handed - left;
        self.requests.remove(done);
        open.handed = left;
        if open.conn.state() == QpState::Error {
            self.has_failed = true;
        } else if left == 0 {
            if done > 0 {
                open.idle_since = now;
            }
            // R17.4-6
            //# An initiator MUST set the confirmed PSN to one before which all of its requests are
            //# complete and all packets acknowledged.
            if let Some(next) = open.conn.acknowledged_to() {
                open.connect.confirmed = next;
            }
        }
    }

    fn flush<H: Host>(&mut self, host: &mut H) {
        for request in self.requests.drain() {
            host.complete(Completion {
                wr_id: request.wr_id,
                status: Status::WorkRequestFlushed,
                op: request.completion_op(),
                byte_len: 0,
                imm: None,
                invalidated: None,
                solicited: true,
            });
        }
    }

    fn hand_over<H: Host>(&mut self, now: Time, host: &mut H) {
        let Some(open) = &mut self.open else {
            return;
        };
        while let Some(request) = self.requests.get(open.handed) {
            if request.target != open.target {
                break;
            }
            if open.handed == 0 {
                open.heard = now;
            }
            let requests = &self.requests;
            // The send queue of the connection has as many entries as this one.
            if !requests.hand_over(open.handed, now, &mut open.conn, host) {
                break;
            }
            open.handed += 1;
        }
    }

    /// Begins a connection, whose first packet any of the next ones may be.
    fn connect(&mut self, now: Time, target: DcTargetAddress) {
        self.connections += 1;
        let known = self.known.touch(target);
        if known.token == 0 {
            // R17.1-4
            //# A connection without a token, which the target refuses, has in place of the epoch a
            //# number that the initiator MUST NOT have used for another one, and that starts at
            //# random when the initiator begins: the refusal of an earlier contact, which tells a
            //# floor that may have risen, does not name it.
            self.contact = self.contact.wrapping_add(1);
            known.epoch = self.contact;
        } else {
            // R17.1-2
            //# Each connection with a token MUST have an epoch above those before it to this
            //# target, and above each floor that this target has told the initiator.
            known.epoch = known.epoch.wrapping_add(1);
        }
        let known = *known;
        self.open = self.new_connection(now, target, known);
    }

    /// Leaves a connection, which is used again for another target.
    fn disconnect(&mut self) {
        if let Some(Open { mut conn, .. }) = self.open.take() {
            conn.reset();
            self.spare = Some(conn);
        }
    }

    fn new_connection(&mut self, now: Time, target: DcTargetAddress, known: Known) -> Option<Open> {
        let config = &self.config;
        let local = config.conn.local_qpn;
        let [local_psn, remote_psn] = [(local, target.number), (target.number, local)]
            .map(|(from, to)| initial_psn(from, to, known.epoch, known.token));
        let new = || {
            Connection::new(ConnConfig {
                rq_depth: 0,
                shared_recv: false,
                names_shared_queue: false,
                unreliable: false,
                fails_with_peer: false,
                max_dest_rd_atomic_cap: 0,
                ..config.conn
            })
        };
        let mut conn = self.spare.take().unwrap_or_else(new);
        conn.to_init().ok()?;
        let rtr = RtrParams {
            remote_qpn: target.number,
            remote_psn,
            max_datagram_octets: config.max_datagram_octets - CONNECT_LEN,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            path: Path::Network,
        };
        conn.to_rtr(now, &rtr).ok()?;
        let limit = u64::from(config.retry_cnt) + 1;
        let rts = RtsParams {
            local_psn,
            timeout: config.timeout,
            retry_cnt: config.retry_cnt,
            rnr_retry: config.rnr_retry,
            max_rd_atomic: DC_RD_ATOMIC,
            keepalive_ns: silence_ns(config.timeout, config.retry_cnt) / limit,
        };
        conn.to_rts(now, &rts).ok()?;
        let connect = DcConnect {
            timeout: config.timeout,
            retry_cnt: config.retry_cnt,
            initiator: local,
            epoch: known.epoch,
            key: target.key,
            token: known.token,
            confirmed: local_psn,
        };
        Some(Open {
            target,
            conn,
            connect,
            sent: connection_id(local, target.number, local_psn),
            received: connection_id(target.number, local, remote_psn),
            handed: 0,
            heard: now,
            idle_since: now,
            is_leaving: false,
        })
    }

    /// Processes a datagram. Returns the RESET that answers it, if one does, which the driver sends
    /// at a limited rate.
    pub fn handle_datagram<H: Host>(
        &mut self,
        now: Time,
        arrival: &DcArrival,
        datagram: &Datagram<'_, H::Body>,
        host: &mut H,
    ) -> Option<TrpHeader> {
        let trp = TrpHeader::parse(datagram.head, datagram.len).ok()?;
        let is_reset = trp.kind == PacketType::Reset;
        let is_ours = |open: &&mut Open| {
            let target = &open.target;
            arrival.is_from(target.address, target.number, is_reset)
                && [open.sent, open.received].contains(&trp.connection_id)
        };
        let Some(open) = self.open.as_mut().filter(is_ours) else {
            // R17.5-3: a connection that the initiator has left holds a context at its target.
            return TrpHeader::reset_for(&trp, ResetReason::NoQueuePair);
        };
        if !is_reset {
            open.heard = now;
        } else if trp.window == DC_RESET_REASON {
            let refused = DcRefused::find(trp.extension_octets(datagram.head))?;
            self.on_refused(now, &refused, host);
            self.advance(now, host);
            return None;
        }
        // No state of this connection is answered with a RESET.
        let _ = open.conn.handle_datagram(now, datagram, host);
        self.advance(now, host);
        None
    }

    /// The target has no context for the connection, and never will have.
    fn on_refused<H: Host>(&mut self, now: Time, refused: &DcRefused, host: &mut H) {
        let Some(open) = self.open.as_mut() else {
            return;
        };
        let connect = open.connect;
        let silence = silence_ns(connect.timeout, connect.retry_cnt);
        let is_other_token = refused.token != connect.token;
        // R17.5-5
        //# An initiator MUST ignore a refusal whose epoch is not its present one, or that has the
        //# initiator's token and a floor below the epoch.
        if refused.epoch != connect.epoch || (!is_other_token && refused.floor < connect.epoch) {
            return;
        }
        if let Some(known) = self.known.get_mut(&open.target) {
            known.token = refused.token;
            // R17.1-5
            //# The epochs after this refusal MUST follow its floor, so that an initiator may forget
            //# a target when it has left it.
            known.epoch = match connect.token {
                0 => refused.floor,
                _ => known.epoch.max(refused.floor),
            };
        }
        // R17.5-6, R17.5-7, R17.5-8: what may have had an effect is not repeated.
        let is_contact = connect.token == 0;
        let may_repeat = is_contact
            || (!is_other_token || self.faults.has(Fault::RepeatAfterRestart))
                && now.since_ns(open.heard) <= silence
                && !open.conn.has_executed_atomic();
        if open.handed > 0 && !may_repeat {
            open.conn.give_up(host);
        } else {
            self.disconnect();
        }
    }

    /// The process that had a slot of the host with an address has ended, and everything that it
    /// sent has been handled.
    pub fn slot_gone<H: Host>(
        &mut self,
        now: Time,
        (address, slot): (IpAddr, SlotId),
        host: &mut H,
    ) {
        let is_target =
            |open: &&mut Open| (open.target.address, open.target.number.slot()) == (address, slot);
        let Some(open) = self.open.as_mut().filter(is_target) else {
            return;
        };
        // R17.5-9
        //# If the target's process is on the host of the initiator, its end has the same effect:
        //# the initiator MUST end the oldest request at once when no process has the slot of the
        //# target, or the host's daemon reports its end (channel.md, section 8.4).
        if open.handed > 0 {
            open.conn.give_up(host);
        } else {
            self.disconnect();
        }
        self.advance(now, host);
    }

    /// Handles the timers that have expired.
    pub fn handle_timeout<H: Host>(&mut self, now: Time, host: &mut H) {
        if let Some(open) = &mut self.open {
            if open.conn.next_deadline().is_some_and(|due| due <= now) {
                open.conn.handle_timeout(now, host);
            }
            if open.is_idle() && open.linger_end(self.config.linger_ns) <= now {
                open.leave();
            }
        }
        self.advance(now, host);
    }

    /// When [`DcInitiator::handle_timeout`] is to be called.
    pub fn next_deadline(&self) -> Option<Time> {
        let open = self.open.as_ref()?;
        let deadline = open.conn.next_deadline().unwrap_or(Time::NEVER);
        let linger_end = if open.is_idle() {
            open.linger_end(self.config.linger_ns)
        } else {
            Time::NEVER
        };
        Some(deadline.earlier(linger_end)).filter(|&deadline| deadline != Time::NEVER)
    }

    /// What would be sent next; `None` when nothing may be sent.
    pub fn plan_transmit<H: Host>(&mut self, now: Time, host: &mut H) -> Option<DcPlan> {
        loop {
            self.advance(now, host);
            let open = self.open.as_mut()?;
            if let Some(plan) = open.conn.plan_transmit() {
                return Some(DcPlan {
                    address: open.target.address,
                    peer: open.target.number,
                    local: open.target.local,
                    room: DC_CONNECT_LEN + plan.room(),
                    plan,
                    place: 0,
                });
            }
            if !open.is_leaving {
                return None;
            }
            self.disconnect();
        }
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
        let open = self.open.as_mut()?;
        let room = buf.get_mut(DC_CONNECT_LEN..)?;
        let transmit = open.conn.write_transmit(now, plan.plan, room, host)?;
        let len = DC_CONNECT_LEN + transmit.len;
        // R17.1-3
        //# Each packet of an initiator except the RESET of section 17.5 MUST have DC_CONNECT, so
        //# that any of them may be the first to arrive.
        open.connect.add_to(&mut buf[..len]).ok()?;
        Some(Transmit { len, ..transmit })
    }

    /// Writes the next datagram into `buf`, which holds `max_datagram_octets`, and says to which
    /// target and how long it is. Drivers use [`DcInitiator::plan_transmit`] and
    /// [`DcInitiator::write_transmit`].
    pub fn poll_transmit<H: Host>(
        &mut self,
        now: Time,
        buf: &mut [u8],
        host: &mut H,
    ) -> Option<(DcTargetAddress, usize)> {
        while let Some(plan) = self.plan_transmit(now, host) {
            let target = self.open.as_ref()?.target;
            if let Some(transmit) = self.write_transmit(now, &plan, buf, host) {
                return Some((target, transmit.len));
            }
        }
        None
    }

    /// Leaves the present target if all requests are complete: its context ends.
    pub fn leave(&mut self) {
        if let Some(open) = self.open.as_mut().filter(|open| open.is_idle()) {
            open.leave();
        }
    }

    /// Ends all requests, which complete as flushed, and so do those that are posted afterwards.
    pub fn to_error<H: Host>(&mut self, now: Time, host: &mut H) {
        if let Some(open) = &mut self.open {
            open.conn.to_error(host);
        }
        self.has_failed = true;
        self.advance(now, host);
    }

    /// The ids of both streams of the present connection, for RESETs, which name nothing else.
    pub fn stream_ids(&self) -> [Option<ConnectionId>; 2] {
        let open = self.open.as_ref();
        [open.map(|open| open.sent), open.map(|open| open.received)]
    }
}

/// The shortest bound of a connection, and the extension.
const DATAGRAM_MIN: u32 = 256 + CONNECT_LEN;
/// [`DC_CONNECT_LEN`], as the lengths of datagrams are counted.
const CONNECT_LEN: u32 = 32;
const _: () = assert!(CONNECT_LEN as usize == DC_CONNECT_LEN);

impl Open {
    /// Ends the connection, whose requests are complete, with a FIN, which is not repeated.
    fn leave(&mut self) {
        if !self.is_leaving {
            self.is_leaving = true;
            self.conn.close();
        }
    }

    fn is_idle(&self) -> bool {
        self.handed == 0 && !self.is_leaving && self.conn.state() == QpState::Rts
    }

    fn linger_end(&self, linger_ns: u64) -> Time {
        self.idle_since.plus_ns(linger_ns)
    }
}
