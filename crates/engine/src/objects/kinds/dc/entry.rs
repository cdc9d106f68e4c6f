//! One initiator or target: its states, and what is between it and this process.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use proto_trp::conn::{ConnConfig, Datagram, PostError, QpState, SendWr, Time, Transmit};
use proto_trp::dc::{
    DcArrival, DcInitiator, DcInitiatorConfig, DcPlan, DcTarget, DcTargetAddress, DcTargetConfig,
    DcVerdict,
};
use proto_trp::wire::ConnectionId;
use urdma_types::SlotId;

use crate::objects::kinds::handled::Handled;
use crate::objects::process::Process;
use crate::objects::qp::{Counts, Polled, Qp};
use crate::objects::qp_host::QpHost;
use crate::paths::packet_body::PacketBody;
use crate::random::random_u64;
use crate::types::{EngineError, QpAttributes, LIMITS};

/// The address that stands for this host, and comes from no other.
pub(crate) const THIS_HOST: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);
/// Contexts of a target, and of the initiators at one address.
pub(crate) const CONTEXTS_MAX: usize = 4096;
const CONTEXTS_PER_ADDRESS_MAX: usize = 1024;
/// Targets whose token an initiator keeps.
const KNOWN_MAX: usize = 256;
/// The time that an idle connection of an initiator is kept.
const LINGER_NS: u64 = 1_000_000_000;
/// Packets in flight of a context: a megabyte and a half, at the usual MTU.
const WINDOW_PACKETS: u32 = 1024;

/// The role of a queue pair of the dynamically connected transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DcRole {
    /// Its requests name their targets.
    Initiator,
    /// Initiators that know its number and its key reach it.
    Target {
        /// The access key.
        key: u64,
    },
}

/// The protocol of one end.
enum DcEnd {
    Initiator(Box<DcInitiator>),
    Target {
        key: u64,
        /// There is one in RTR.
        target: Option<Box<DcTarget>>,
    },
}

/// One initiator or target.
pub(crate) struct DcEntry {
    pub(crate) qp: Arc<Qp>,
    end: DcEnd,
    state: QpState,
    pub(crate) attributes: QpAttributes,
    pub(crate) counts: Counts,
    /// Whether it is in the ready list.
    pub(crate) is_queued: bool,
    /// Ids of the initiator's streams by which the table finds it.
    pub(crate) ids: [Option<ConnectionId>; 2],
    /// Largest datagram.
    max_datagram_octets: u32,
}

impl DcEntry {
    /// A queue pair in RESET.
    pub(crate) fn new(qp: Arc<Qp>, role: DcRole, max_datagram_octets: u32) -> Self {
        let attributes = QpAttributes::default();
        let end = match role {
            DcRole::Initiator => {
                DcEnd::Initiator(new_initiator(&qp, &attributes, max_datagram_octets))
            }
            DcRole::Target { key } => DcEnd::Target { key, target: None },
        };
        Self {
            qp,
            end,
            state: QpState::Reset,
            attributes,
            counts: Counts::default(),
            is_queued: false,
            ids: [None; 2],
            max_datagram_octets,
        }
    }

    /// The state, which an initiator leaves by itself when a request fails.
    pub(crate) fn state(&self) -> QpState {
        match &self.end {
            DcEnd::Initiator(initiator) if initiator.has_failed() => QpState::Error,
            _ => self.state,
        }
    }

    /// Whether the queue pair has the transition: a target sends no requests.
    fn has_transition(&self, to: QpState) -> bool {
        let is_ready = matches!(to, QpState::Rts | QpState::Sqd | QpState::Sqe);
        let is_drain = matches!(to, QpState::Sqd | QpState::Sqe);
        self.state().may_become(to) && !is_drain && !(self.is_target() && is_ready)
    }

    /// Sets attributes, then goes to a state.
    ///
    /// # Errors
    /// [`EngineError::Invalid`]: no such step. Nothing has changed.
    pub(crate) fn change(
        &mut self,
        now: Time,
        attributes: QpAttributes,
        to: Option<QpState>,
        process: &mut Process,
    ) -> Result<(), EngineError> {
        let to = to.filter(|to| *to != self.state() || !matches!(to, QpState::Rtr | QpState::Rts));
        if to.is_some_and(|to| !self.has_transition(to)) {
            return Err(EngineError::Invalid);
        }
        self.attributes = attributes;
        let Some(to) = to else {
            return Ok(());
        };
        match to {
            QpState::Reset => {
                self.attributes = QpAttributes::default();
                self.renew();
            }
            QpState::Error => self.fail(now, process),
            QpState::Rtr | QpState::Rts => self.renew(),
            _ => {}
        }
        self.state = to;
        if let (DcEnd::Target { key, target }, QpState::Rtr) = (&mut self.end, to) {
            let config = target_config(&self.qp, *key, &self.attributes, self.max_datagram_octets);
            *target = Some(Box::new(DcTarget::new(config)));
        }
        Ok(())
    }

    /// Begins anew: requests and contexts are dropped.
    fn renew(&mut self) {
        match &mut self.end {
            DcEnd::Initiator(initiator) => {
                *initiator = new_initiator(&self.qp, &self.attributes, self.max_datagram_octets);
            }
            DcEnd::Target { target, .. } => *target = None,
        }
    }

    /// To ERR: requests are flushed, and contexts are dropped.
    pub(crate) fn fail(&mut self, now: Time, process: &mut Process) {
        let (end, mut host) = self.parts(process);
        match end {
            DcEnd::Initiator(initiator) => initiator.to_error(now, &mut host),
            DcEnd::Target { target, .. } => *target = None,
        }
        self.state = QpState::Error;
    }

    fn parts<'a>(&'a mut self, process: &'a mut Process) -> (&'a mut DcEnd, QpHost<'a>) {
        let host = QpHost {
            regions: &mut process.regions,
            qp: &self.qp,
            access: self.attributes.access,
            remote_qpn: 0,
            counts: &mut self.counts,
            delivery: None,
            notes: &mut process.notes,
        };
        (&mut self.end, host)
    }

    /// Before the queue pair ends: the initiator leaves its target if all requests are complete.
    pub(crate) fn close(&mut self) {
        if let DcEnd::Initiator(initiator) = &mut self.end {
            initiator.leave();
        }
    }

    /// Requests of an initiator that are not complete.
    pub(crate) fn sends_outstanding(&self) -> u32 {
        match &self.end {
            DcEnd::Initiator(initiator) => {
                u32::try_from(initiator.sends_outstanding()).unwrap_or(u32::MAX)
            }
            DcEnd::Target { .. } => 0,
        }
    }

    /// Places of the send queue in use: by requests, and by completions that were not polled.
    pub(crate) fn sends_in_use(&self, polled: &Polled) -> u32 {
        self.sends_outstanding() + polled.send_waiting(&self.counts)
    }

    /// Posts a request.
    ///
    /// # Errors
    /// It was not accepted.
    pub(crate) fn post(
        &mut self,
        now: Time,
        to: DcTargetAddress,
        wr: &SendWr<'_>,
        process: &mut Process,
    ) -> Result<(), PostError> {
        if !self.state().takes_send() {
            return Err(PostError::InvalidState);
        }
        match self.parts(process) {
            (DcEnd::Initiator(initiator), mut host) => initiator.post_send(now, to, wr, &mut host),
            (DcEnd::Target { .. }, _) => Err(PostError::InvalidState),
        }
    }

    /// Processes a packet.
    pub(crate) fn handle(
        &mut self,
        now: Time,
        arrival: &DcArrival,
        datagram: &Datagram<'_, PacketBody<'_>>,
        process: &mut Process,
    ) -> Handled {
        let is_init = self.state == QpState::Init;
        let (end, mut host) = self.parts(process);
        match end {
            DcEnd::Initiator(initiator) => {
                let answer = initiator.handle_datagram(now, arrival, datagram, &mut host);
                answer.map_or(Handled::Done, |reset| Handled::reset(&reset))
            }
            DcEnd::Target {
                target: Some(target),
                ..
            } => match target.handle_datagram(now, arrival, datagram, &mut host) {
                DcVerdict::Taken | DcVerdict::Dropped => Handled::Done,
                DcVerdict::Refused(reset) => Handled::Answer(reset, reset.len()),
            },
            // It is about to be ready.
            DcEnd::Target { target: None, .. } if is_init => Handled::Done,
            DcEnd::Target { target: None, .. } => Handled::NoQueuePair,
        }
    }

    /// Whether a RESET named a context of this target, which has ended by it.
    pub(super) fn takes_reset(
        &mut self,
        now: Time,
        arrival: &DcArrival,
        datagram: &Datagram<'_, PacketBody<'_>>,
        process: &mut Process,
    ) -> bool {
        let (DcEnd::Target { target, .. }, mut host) = self.parts(process) else {
            return false;
        };
        let verdict = target
            .as_mut()
            .map(|target| target.handle_datagram(now, arrival, datagram, &mut host));
        verdict == Some(DcVerdict::Taken)
    }

    /// Whether it is a target.
    pub(super) fn is_target(&self) -> bool {
        matches!(self.end, DcEnd::Target { .. })
    }

    /// The contexts of a target in RTR.
    pub(super) fn contexts(&self) -> Option<usize> {
        match &self.end {
            DcEnd::Target { target, .. } => Some(target.as_ref()?.contexts()),
            DcEnd::Initiator(_) => None,
        }
    }

    /// The process that had a slot of this host has ended.
    pub(crate) fn slot_gone(&mut self, now: Time, slot: SlotId, process: &mut Process) {
        let (end, mut host) = self.parts(process);
        match end {
            DcEnd::Initiator(initiator) => initiator.slot_gone(now, (THIS_HOST, slot), &mut host),
            DcEnd::Target { target, .. } => {
                if let Some(target) = target {
                    target.slot_gone((THIS_HOST, slot), &mut host);
                }
            }
        }
    }

    /// Handles the timers that have expired.
    pub(crate) fn handle_timeout(&mut self, now: Time, process: &mut Process) {
        match self.parts(process) {
            (DcEnd::Initiator(initiator), mut host) => initiator.handle_timeout(now, &mut host),
            (DcEnd::Target { target, .. }, mut host) => {
                if let Some(target) = target {
                    target.handle_timeout(now, &mut host);
                }
            }
        }
    }

    /// When [`Self::handle_timeout`] is to be called.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        match &self.end {
            DcEnd::Initiator(initiator) => initiator.next_deadline(),
            DcEnd::Target { target, .. } => target.as_ref()?.next_deadline(),
        }
    }

    /// What would be sent next.
    pub(crate) fn plan(&mut self, now: Time, process: &mut Process) -> Option<DcPlan> {
        match self.parts(process) {
            (DcEnd::Initiator(initiator), mut host) => initiator.plan_transmit(now, &mut host),
            (DcEnd::Target { target, .. }, _) => target.as_mut()?.plan_transmit(),
        }
    }

    /// Writes the packet of a plan that was just made.
    pub(crate) fn write(
        &mut self,
        now: Time,
        plan: &DcPlan,
        buf: &mut [u8],
        process: &mut Process,
    ) -> Option<Transmit> {
        match self.parts(process) {
            (DcEnd::Initiator(initiator), mut host) => {
                initiator.write_transmit(now, plan, buf, &mut host)
            }
            (DcEnd::Target { target, .. }, mut host) => {
                target.as_mut()?.write_transmit(now, plan, buf, &mut host)
            }
        }
    }

    /// The ids of the streams of the initiator's connection.
    pub(super) fn stream_ids(&self) -> [Option<ConnectionId>; 2] {
        match &self.end {
            DcEnd::Initiator(initiator) => initiator.stream_ids(),
            DcEnd::Target { .. } => [None; 2],
        }
    }
}

fn sges(count: u32) -> u8 {
    u8::try_from(count.clamp(1, LIMITS.max_sge)).unwrap_or(1)
}

fn new_initiator(qp: &Qp, attributes: &QpAttributes, max_datagram_octets: u32) -> Box<DcInitiator> {
    let caps = qp.caps();
    Box::new(DcInitiator::new(DcInitiatorConfig {
        conn: ConnConfig {
            sq_depth: caps.max_send_wr,
            max_send_sge: sges(caps.max_send_sge),
            max_inline: caps.max_inline,
            seed: random_u64(),
            ..ConnConfig::new(qp.number())
        },
        max_datagram_octets,
        timeout: attributes.timeout,
        retry_cnt: attributes.retry_cnt,
        rnr_retry: attributes.rnr_retry,
        linger_ns: LINGER_NS,
        known_max: KNOWN_MAX,
    }))
}

fn target_config(
    qp: &Qp,
    key: u64,
    attributes: &QpAttributes,
    max_datagram_octets: u32,
) -> DcTargetConfig {
    DcTargetConfig {
        number: qp.number(),
        key,
        contexts_max: CONTEXTS_MAX,
        contexts_per_address_max: CONTEXTS_PER_ADDRESS_MAX,
        max_datagram_octets,
        window_packets: WINDOW_PACKETS,
        max_recv_sge: sges(qp.srq().map_or(1, |srq| srq.max_sge())),
        min_rnr_timer: attributes.min_rnr_timer,
        secret: [random_u64(), random_u64()],
    }
}
