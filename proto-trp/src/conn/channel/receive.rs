//! The receiving half: a message is placed and takes effect at once, or is refused by an answer.

use super::super::connection::Connection;
use super::super::ending::Offender;
use super::super::host::Host;
use super::super::packet::Refusal;
use super::super::placement::place_write;
use super::super::qp_state::QpState;
use super::super::transmit::Controls;
use super::message::{Answer, Handled, Message};
use super::state::Intake;
use crate::wire::message::MESSAGE_HEAD_LEN;
use crate::wire::{
    ImmediateData, MessageFlags, MessageHead, MessageKind, Msn, ParseError, ResetReason, Stag,
    TaggedOffset, TerminateCause,
};
use urdma_types::{Qpn, Time};

impl Connection {
    /// Processes a message that was addressed to this queue pair. The driver has room for an answer
    /// and, if there is one, writes it before it counts the message as settled. The clock is read
    /// only if the message concerns a pause.
    #[inline]
    pub fn handle_message<H: Host>(
        &mut self,
        now: impl FnOnce() -> Time,
        message: &Message<'_, H::Body>,
        host: &mut H,
    ) -> Handled {
        self.stats.rx_datagrams += 1;
        self.stats.rx_octets += (MESSAGE_HEAD_LEN + message.payload_len) as u64;
        let head = &message.head;
        // C7-2
        //# A message for a queue pair whose peer is in another slot, whose peer is another queue
        //# pair, whose connection id differs, or whose service is the other one MUST have no
        //# effect.
        let is_plain = self.channel.intake == Intake::Open
            && head.connection_id == self.peer.rx_id
            && self.is_peer(message);
        let done = match head.kind {
            MessageKind::Send if is_plain => self.take_send(message, host),
            MessageKind::Write if is_plain => take_write(message, host),
            MessageKind::WriteImmediate if is_plain => {
                take_write(message, host).and_then(|()| self.complete_write(&message.again(), host))
            }
            _ => return self.handle_aside(now, &message.again(), host),
        };
        match done {
            Ok(()) => Handled::Settled,
            Err(refusal) => self.refuse_message(refusal, &message.again(), host),
        }
    }

    /// A segment of a Send.
    #[inline]
    fn take_send<H: Host>(
        &mut self,
        message: &Message<'_, H::Body>,
        host: &mut H,
    ) -> Result<(), Refusal> {
        let head = &message.head;
        let offset = head.message_offset().map_err(refusal_of)?;
        let len = message.payload_len;
        self.rq.name(head.shared_queue);
        let len32 = super::super::num::len32(len);
        // R10-3, RFC5041-7.1-1
        //# **Messages of queue 0.** The segments of a message MUST follow one another by message
        //# offset without gap or overlap.
        //# An untagged segment is placed only if its queue number, its MSN, and its message offset
        //# and length fit the buffer.
        if !self.rq.expects(head.number, offset) {
            return self.take_unexpected(&message.again(), offset, host);
        }
        self.rq.place(
            head.number,
            offset,
            (MESSAGE_HEAD_LEN, len),
            message.body,
            host,
        )?;
        self.rq.count(len32);
        if !head.flags.contains(MessageFlags::LAST) {
            return Ok(());
        }
        let invalidates = head.flags.contains(MessageFlags::INVALIDATE);
        let has_immediate = head.flags.contains(MessageFlags::HAS_IMMEDIATE) && !invalidates;
        let solicited = head.flags.contains(MessageFlags::SOLICITED);
        let imm = has_immediate.then_some(head.ulp);
        self.end_message(solicited, imm, invalidates.then_some(head.ulp), host)
    }

    /// The Immediate Data of a whole Write, which has been placed.
    // C7.2-1
    //# A receiver MUST give a WRITE_IMMEDIATE the effect of two messages: a WRITE with the same
    //# STag, tagged offset and payload, and an IMMEDIATE with the message number at offset 28, the
    //# immediate data of the head, and the length of the payload.
    #[inline(never)]
    fn complete_write<H: Host>(
        &mut self,
        message: &Message<'_, H::Body>,
        host: &mut H,
    ) -> Result<(), Refusal> {
        let head = &message.head;
        let solicited = head.flags.contains(MessageFlags::SOLICITED);
        let data = ImmediateData {
            immediate: head.ulp,
            write_len_octets: super::super::num::len32(message.payload_len),
        };
        // A head has no room for a shared receive queue besides.
        self.rq.name(0);
        let commit = self.place_immediate(Msn(head.shared_queue), solicited, data, host)?;
        self.commit(&commit, host).map_err(|(_, refusal)| refusal)
    }

    /// A segment of a Send that does not continue the message which is arriving: why it is refused.
    #[cold]
    fn take_unexpected<H: Host>(
        &mut self,
        message: &Message<'_, H::Body>,
        offset: u32,
        host: &mut H,
    ) -> Result<(), Refusal> {
        let (msn, payload) = (message.head.number, (MESSAGE_HEAD_LEN, message.payload_len));
        self.rq.place(msn, offset, payload, message.body, host)?;
        Ok(self.rq.advance(msn, offset, 0)?)
    }

    /// Whether the source of a message is the queue pair that this one is connected to.
    #[inline]
    fn is_peer<B: ?Sized>(&self, message: &Message<'_, B>) -> bool {
        self.peer.remote_qpn == Some(Qpn::new(message.from, message.head.source))
    }

    /// Whether a message is of this connection.
    fn is_of_connection<B: ?Sized>(&self, message: &Message<'_, B>) -> bool {
        let id = message.head.connection_id;
        self.transport.is_channel()
            && self.is_peer(message)
            && (id == self.peer.rx_id || (self.phase.sends_stream() && id == self.peer.tx_id))
    }

    /// Processes a message that is no segment of a Send or Write, or comes while requests are not
    /// simply taken.
    #[inline(never)]
    fn handle_aside<H: Host>(
        &mut self,
        now: impl FnOnce() -> Time,
        message: &Message<'_, H::Body>,
        host: &mut H,
    ) -> Handled {
        let head = &message.head;
        if matches!(self.phase.state(), QpState::Reset | QpState::Init) {
            self.stats.rx_wrong_state += 1;
            return Handled::with(Answer::reset(head, ResetReason::NotConnected));
        }
        let is_unreliable = head.flags.contains(MessageFlags::UNRELIABLE);
        // C7-2
        //# A message for a queue pair whose peer is in another slot, whose peer is another queue
        //# pair, whose connection id differs, or whose service is the other one MUST have no
        //# effect.
        // R13-3
        //# An end of one service MUST drop packets of the other.
        if !self.is_of_connection(message) || is_unreliable != self.config.unreliable {
            self.stats.rx_wrong_id += 1;
            return Handled::with(Answer::reset(head, ResetReason::NotConnected));
        }
        if self.phase.state() == QpState::Error {
            return self.answer_late(head);
        }
        if head.kind.is_of_work_request() {
            if self.config.unreliable {
                self.take_unreliable_message(message, host);
                return Handled::Settled;
            }
            return self.take_message(message, host);
        }
        match head.kind {
            MessageKind::Terminate => match message.segment() {
                Ok(segment) => self.on_terminate(&segment.kind, host),
                Err(_) => self.stats.rx_malformed += 1,
            },
            MessageKind::NotReady => self.on_not_ready(now, head, host),
            MessageKind::Reset => self.on_reset_message(now, head, host),
            MessageKind::Fin => self.on_fin(now(), host),
            _ => self.stats.rx_malformed += 1,
        }
        Handled::Settled
    }

    /// A request or response, of any kind.
    fn take_message<H: Host>(&mut self, message: &Message<'_, H::Body>, host: &mut H) -> Handled {
        let head = &message.head;
        // C8.2-1: responses are still taken.
        if !head.kind.is_response() && self.channel.intake != Intake::Open && !self.reopens(head) {
            self.stats.rx_deferred += 1;
            return Handled::Settled;
        }
        self.note_established(host);
        if matches!(head.kind, MessageKind::Send | MessageKind::Immediate) {
            self.rq.name(head.shared_queue);
        }
        let placed = match message.segment() {
            Ok(segment) => self.place(&segment, message.body, host),
            Err(error) => Err(refusal_of(error)),
        };
        let mut done =
            placed.and_then(|commit| self.commit(&commit, host).map_err(|(_, refusal)| refusal));
        if head.kind == MessageKind::WriteImmediate {
            done = done.and_then(|()| self.complete_write(message, host));
        }
        match done {
            // A response may have shown that a request of this end fails.
            Ok(()) => self.terminate_now(),
            Err(refusal) => self.refuse_message(refusal, message, host),
        }
    }

    /// Whether the peer's requests are taken from this one on, after some were refused or before
    /// any was taken.
    fn reopens(&mut self, head: &MessageHead) -> bool {
        let reopens = match self.channel.intake {
            Intake::Open => true,
            // C8.3-1
            //# A receiver that has entered RTR discards requests, and settles them, until one has
            //# START: otherwise a message could be accepted although one before it was refused.
            Intake::FromStart => head.flags.contains(MessageFlags::START),
            // C8.2-1
            //# It then discards all requests of that connection, and settles them, until a request
            //# has another EPOCH than the refused one.
            Intake::FromEpoch(refused) => head.flags.and(MessageFlags::EPOCH) != refused,
        };
        if reopens {
            self.channel.intake = Intake::Open;
            self.phase.refuse(false);
            self.controls.take(Controls::RNR);
        }
        reopens
    }

    /// A message of an unreliable connection.
    fn take_unreliable_message<H: Host>(&mut self, message: &Message<'_, H::Body>, host: &mut H) {
        let Ok(segment) = message.segment() else {
            self.stats.rx_malformed += 1;
            return;
        };
        self.note_established(host);
        if message.head.flags.contains(MessageFlags::START) {
            self.arrived.forget_writes();
        }
        self.rq.name(message.head.shared_queue);
        self.on_unreliable(&segment, message.body, host);
    }

    /// A message was not accepted: the answer to it.
    #[cold]
    fn refuse_message<H: Host>(
        &mut self,
        refusal: Refusal,
        message: &Message<'_, H::Body>,
        host: &mut H,
    ) -> Handled {
        let fault = match refusal {
            Refusal::NotReady => return self.refuse_requests(&message.head),
            // Messages are not retransmitted.
            Refusal::Later => Refusal::Fault(TerminateCause::STREAM_CATASTROPHIC),
            fault => fault,
        };
        match message.segment() {
            Ok(segment) => self.end_by(fault, &Offender::Segment(&segment), host),
            Err(_) => {
                self.stats.rx_malformed += 1;
                self.end_by(fault, &Offender::Octets(&[], 0), host);
            }
        }
        self.terminate_now()
    }

    /// The Terminate that is to be sent, if there is one, as the answer to the present message.
    fn terminate_now(&mut self) -> Handled {
        if !self.controls.take(Controls::TERMINATE) {
            return Handled::Settled;
        }
        Handled::with(self.terminate_message())
    }

    /// The answer to a message that arrives in ERROR.
    #[cold]
    fn answer_late(&mut self, head: &MessageHead) -> Handled {
        self.stats.rx_wrong_state += 1;
        if !head.kind.is_of_work_request() || self.config.unreliable {
            return Handled::Settled;
        }
        self.controls.take(Controls::TERMINATE);
        let terminate = self.terminate_message();
        Handled::with(terminate.or_else(|| Answer::reset(head, ResetReason::Failed)))
    }
}

/// A segment of a Write, or a whole one.
#[inline(always)]
fn take_write<H: Host>(message: &Message<'_, H::Body>, host: &mut H) -> Result<(), Refusal> {
    let (stag, to) = (Stag(message.head.number), TaggedOffset(message.head.offset));
    let payload = (MESSAGE_HEAD_LEN, message.payload_len);
    // RFC5040-5.1-2
    //# An RDMA Write is placed, and not delivered to the application.
    place_write(stag, to, payload, message.body, host)
}

/// Why a message is refused that is no valid segment.
#[cold]
fn refusal_of(error: ParseError) -> Refusal {
    let cause = error.terminate_cause();
    Refusal::Fault(cause.unwrap_or(TerminateCause::MESSAGE_TOO_LONG))
}
