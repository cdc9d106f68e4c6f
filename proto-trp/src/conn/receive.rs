//! The receiving half: checks and placement; the module `commit` applies the effects in the order
//! of the sequence numbers. The payload of messages and read responses is placed on arrival,
//! because the application may not look at receive buffers and sinks of reads before the
//! completion; the payload of writes waits in the reorder buffer.

use super::connection::Connection;
use super::host::{Host, RemoteAccess};
use super::packet::{Datagram, Packet, Refusal};
use super::qp_state::QpState;
use super::queues::Kind;
use super::responder::{InboundRequest, NotAdmitted};
use super::rxwindow::{Arrival, Commit};
use super::terminate::{tagged_cause, Offender};
use super::transmit::Controls;
use super::types::{Event, NoSharedRecv, PostError, RecvWr, RemoteAddr, Status};
use crate::wire::{
    AtomicResponse, Extensions, Flags, ImmediateData, Msn, PacketType, ParseError, ResetReason,
    Segment, SegmentKind, Stag, TaggedOffset, TerminateCause, TrpHeader,
};
use urdma_types::{Psn, Time};

type Placed = Result<Commit, Refusal>;

impl Connection {
    /// Posts a receive request; in ERROR it completes as flushed at once.
    ///
    /// # Errors
    /// Nothing was posted.
    #[inline(always)]
    pub fn post_recv<H: Host>(&mut self, wr: &RecvWr<'_>, host: &mut H) -> Result<(), PostError> {
        if !self.phase.state().takes_recv() {
            return Err(PostError::InvalidState);
        }
        self.rq.push(wr)?;
        if self.phase.state() == QpState::Error {
            self.flush(None, None, host);
        } else if self.phase.refuses() && self.rq.len() == 1 {
            self.controls.add(Controls::RNR);
        }
        Ok(())
    }

    /// As [`Connection::post_recv`] of a request that is only stored, as in all states but ERROR;
    /// `None` if there is more to do.
    #[inline(always)]
    pub fn store_recv(&mut self, wr: &RecvWr<'_>) -> Option<Result<(), PostError>> {
        let is_stored = self.phase.state().takes_recv()
            && self.phase.state() != QpState::Error
            && !self.phase.refuses();
        is_stored.then(|| self.rq.push(wr))
    }

    /// Processes a datagram that was addressed to this queue pair, valid or not. Returns the number
    /// of packets that it stands for: 1, or the segments of a train.
    ///
    /// # Errors
    /// The state accepts no datagrams: the driver answers with a RESET for this reason.
    #[inline]
    pub fn handle_datagram<H: Host>(
        &mut self,
        now: Time,
        datagram: &Datagram<'_, H::Body>,
        host: &mut H,
    ) -> Result<u32, ResetReason> {
        if self.handle_as_predicted(now, datagram, host) {
            return Ok(1);
        }
        self.stats.rx_datagrams += 1;
        self.stats.rx_octets += super::num::len32(datagram.len) as u64;
        self.handle_other_than_predicted(now, datagram, host)
    }

    /// As [`Connection::handle_datagram`], for any packet.
    #[inline(never)]
    fn handle_other_than_predicted<H: Host>(
        &mut self,
        now: Time,
        datagram: &Datagram<'_, H::Body>,
        host: &mut H,
    ) -> Result<u32, ResetReason> {
        let trp = match TrpHeader::parse(datagram.head, datagram.len) {
            Ok(trp) => trp,
            // R4.3-1
            Err(_) => {
                self.stats.rx_malformed += 1;
                return Ok(1);
            }
        };
        // RFC5041-7.1-3
        if !self.phase.receives() {
            let reset = self.handle_late(&trp, (datagram.head, datagram.len));
            return reset.map_or(Ok(1), Err);
        }
        // R8.4-9
        if !self.is_ours(&trp) {
            self.handle_foreign(now, &trp, host);
            return Ok(1);
        }
        if self.transport.is_unreliable() {
            self.handle_unreliable(&trp, datagram, host);
            return Ok(1);
        }
        if !self.phase.sends_stream() || !self.peer.takes_trains {
            self.learn(&trp);
        }
        // R7.7-2: a RESET is handled above.
        self.sender.on_heard(now);
        self.keepalive.on_heard(now);
        if trp.kind != PacketType::Data {
            return Ok(self.handle_other(now, &trp, datagram, host));
        }
        // R4.3-2
        if self.on_header(now, &trp, datagram, host) {
            self.on_data(now, &trp, datagram, host);
        }
        Ok(1)
    }

    /// A packet with neither of the connection ids that its type may carry: a RESET, which may
    /// carry either, or a packet of another connection.
    #[cold]
    fn handle_foreign<H: Host>(&mut self, now: Time, trp: &TrpHeader, host: &mut H) {
        if trp.kind == PacketType::Reset {
            self.on_reset(now, trp, host);
        } else {
            self.stats.rx_wrong_id += 1;
        }
    }

    /// Updates what every packet says about the peer, whatever its type.
    #[cold]
    fn learn(&mut self, trp: &TrpHeader) {
        if !self.phase.sends_stream() && matches!(trp.kind, PacketType::Data | PacketType::Train) {
            self.learn_stream(trp.ack);
        }
        self.peer.takes_trains |= trp.flags.contains(Flags::TRAINS);
    }

    /// Processes acknowledgement and extensions of a packet; false if the rest of it is not to be
    /// processed.
    #[inline(always)]
    fn on_header<H: Host>(
        &mut self,
        now: Time,
        trp: &TrpHeader,
        datagram: &Datagram<'_, H::Body>,
        host: &mut H,
    ) -> bool {
        if trp.extension_words == 0 {
            self.on_ack(now, acknowledgement(trp), None, host);
        } else if !self.on_extensions(now, trp, datagram, host) {
            return false;
        }
        self.phase.receives()
    }

    /// Whether a packet that is not a RESET belongs to this incarnation of the connection.
    #[inline]
    pub(super) fn is_ours(&self, trp: &TrpHeader) -> bool {
        let id = trp.connection_id;
        trp.destination_index == self.config.local_qpn.index()
            && !self.transport.is_channel()
            && trp.kind != PacketType::Reset
            && if trp.kind.carries_acknowledged_stream() {
                self.phase.sends_stream() && id == self.peer.tx_id
            } else {
                id == self.peer.rx_id
            }
    }

    /// Processes acknowledgement and extensions; false if they are malformed.
    #[cold]
    fn on_extensions<H: Host>(
        &mut self,
        now: Time,
        trp: &TrpHeader,
        datagram: &Datagram<'_, H::Body>,
        host: &mut H,
    ) -> bool {
        // R6-7
        let Ok(extensions) = Extensions::parse(trp.extension_octets(datagram.head)) else {
            self.stats.rx_malformed += 1;
            return false;
        };
        if let Some(queue) = extensions.shared_queue {
            self.rq.named = queue;
        }
        // R7.9-5: before the acknowledgement.
        if let (PacketType::Rnr, Some(timer)) = (trp.kind, extensions.rnr_timer) {
            self.on_rnr(now, trp, timer, host);
        }
        self.on_ack(now, acknowledgement(trp), extensions.sack.as_ref(), host);
        true
    }

    /// Processes packets of types other than DATA; returns the number of packets that one stands
    /// for.
    #[inline(never)]
    fn handle_other<H: Host>(
        &mut self,
        now: Time,
        trp: &TrpHeader,
        datagram: &Datagram<'_, H::Body>,
        host: &mut H,
    ) -> u32 {
        // R13-3
        if trp.kind == PacketType::UnreliableData {
            // The peer uses the other service (UC instead of RC).
            self.stats.rx_malformed += 1;
            return 1;
        }
        // R8.3-3
        if trp.kind == PacketType::Fin && !self.rx.may_be_next(trp.psn) {
            self.stats.rx_out_of_window += 1;
            return 1;
        }
        if !self.on_header(now, trp, datagram, host) {
            return 1;
        }
        match trp.kind {
            PacketType::Train => return self.on_train(now, trp, datagram, host),
            // R7.3-1
            PacketType::Probe => self.acks.due = true,
            PacketType::Fin => {
                // R8.3-2
                self.controls.add(Controls::FIN_ACK);
                self.on_fin(now, host);
            }
            _ => {}
        }
        1
    }

    #[inline]
    fn on_data<H: Host>(
        &mut self,
        now: Time,
        trp: &TrpHeader,
        datagram: &Datagram<'_, H::Body>,
        host: &mut H,
    ) {
        self.note_mark(datagram);
        let at = trp.len();
        // RFC5041-3-3
        let packet = Packet {
            psn: trp.psn,
            flags: trp.flags,
            ddp: datagram.head.get(at..).unwrap_or(&[]),
            at,
            end: datagram.len,
        };
        self.on_packet(now, &packet, datagram, host);
    }

    #[inline]
    pub(super) fn note_mark<B: ?Sized>(&mut self, datagram: &Datagram<'_, B>) {
        if datagram.congestion_experienced {
            // R7.10-1
            self.acks.marked = true;
            self.stats.ecn_marks += 1;
        }
    }

    /// Processes a segment, from a packet of its own or from a train.
    #[inline]
    pub(super) fn on_packet<H: Host>(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        datagram: &Datagram<'_, H::Body>,
        host: &mut H,
    ) {
        let segment = match Segment::parse_at(packet.flags, packet.ddp, packet.at, packet.end) {
            Ok(segment) => segment,
            Err(error) => {
                self.on_bad_segment(packet, error, host);
                return;
            }
        };
        match self.rx.classify(packet.psn) {
            _ if matches!(segment.kind, SegmentKind::Terminate { .. }) => {
                // R8.5-5
                if self.rx.may_be_next(packet.psn) {
                    self.on_terminate(&segment.kind, host);
                    // R8.5-6
                    self.controls.add(Controls::FIN_ACK);
                } else {
                    self.stats.rx_out_of_window += 1;
                }
            }
            Arrival::Expected => self.on_expected(now, &segment, datagram, host),
            Arrival::Ahead(seq) => self.on_ahead(seq, &segment, datagram, host),
            // R7.2-4, R7.2-5, R7.3-1, RFC5041-3-6, RFC5041-5.3-2
            Arrival::Duplicate => {
                self.stats.rx_duplicates += 1;
                self.acks.due = true;
                self.rx.report_again(packet.psn);
            }
            // R7.2-6
            Arrival::Outside => self.stats.rx_out_of_window += 1,
        }
    }

    #[inline]
    fn on_expected<H: Host>(
        &mut self,
        now: Time,
        segment: &Segment,
        datagram: &Datagram<'_, H::Body>,
        host: &mut H,
    ) {
        self.note_established(host);
        if self.phase.refuses() && !self.begins_again(segment) {
            self.on_expected_refusing(segment, datagram, host);
            return;
        }
        host.taken(self.rx.after_expected_psn());
        // The header is parsed in place: a copy would wait for the stores before it.
        let placed = self.place(segment, datagram.body, host);
        let commit = match &placed {
            Ok(commit) => commit,
            Err(refusal) => {
                host.taken(self.rx.ack());
                self.refuse(*refusal, &Offender::Segment(segment), host);
                return;
            }
        };
        self.phase.refuse(false);
        let mut outcome = self.commit(commit, host);
        if outcome.is_ok() {
            self.rx.advance();
            self.acks
                .on_segment(now, segment.flags.contains(Flags::ACK_REQUESTED));
            // R7.2-7, RFC5041-5.3-3, RFC5041-5.4-1
            while let Some(commit) = self.rx.take_expected() {
                host.taken(self.rx.after_expected_psn());
                outcome = self.commit(&commit, host);
                if outcome.is_err() {
                    break;
                }
                self.rx.advance();
                // R7.3-1: a gap was filled.
                self.acks.due = true;
            }
        }
        if let Err((commit, refusal)) = outcome {
            host.taken(self.rx.ack());
            self.refuse(refusal, &Offender::Commit(commit), host);
        }
    }

    /// A segment ahead of a missing one: its payload is placed now or put into the reorder buffer,
    /// its effect waits. An error is not reported now; the segment was not accepted, so the error
    /// is found again when the retransmission is the expected packet.
    #[cold]
    fn on_ahead<H: Host>(
        &mut self,
        seq: u64,
        segment: &Segment,
        datagram: &Datagram<'_, H::Body>,
        host: &mut H,
    ) {
        self.stats.rx_out_of_order += 1;
        // R7.3-1
        self.acks.due = true;
        let placed = if self.phase.refuses() {
            self.place_refusing(segment, datagram, host)
        } else if let SegmentKind::Write { stag, offset } = segment.kind {
            self.keep_write(stag, offset, segment, datagram, host)
        } else {
            self.place(segment, datagram.body, host)
        };
        match placed {
            // R7.2-1
            Ok(commit) => self.rx.store(seq, commit),
            // R7.2-3
            Err(_) => self.stats.rx_deferred += 1,
        }
    }

    /// Puts the payload of a write into the reorder buffer until everything before it has arrived.
    fn keep_write<H: Host>(
        &mut self,
        stag: Stag,
        offset: TaggedOffset,
        segment: &Segment,
        datagram: &Datagram<'_, H::Body>,
        host: &mut H,
    ) -> Placed {
        let len = segment.payload_len;
        if len == 0 {
            return Ok(Commit::Nothing);
        }
        let (stag, to) = (stag.0, offset.0);
        host.check_remote(RemoteAddr { stag, to }, len as u64, RemoteAccess::Write)
            .map_err(|error| Refusal::Fault(tagged_cause(error)))?;
        // R7.2-2
        let (index, octets) = self.rx.reorder.take(len).ok_or(Refusal::Later)?;
        host.keep(datagram.body, segment.payload_offset, len, octets);
        Ok(Commit::Write {
            stag,
            to,
            buffer: index,
            len: super::num::len32(len),
            last: segment.last,
            announces: segment.flags.contains(Flags::IMMEDIATE),
        })
    }

    /// Places the payload of a segment and returns the effect that remains for its turn.
    #[inline]
    pub(super) fn place<H: Host>(
        &mut self,
        segment: &Segment,
        body: &H::Body,
        host: &mut H,
    ) -> Placed {
        let payload = (segment.payload_offset, segment.payload_len);
        match segment.kind {
            // RFC5040-5.1-2
            SegmentKind::Write { stag, offset } => {
                place_write(stag, offset, payload, body, host)?;
                Ok(Commit::Nothing)
            }
            SegmentKind::Send {
                msn,
                offset,
                solicited,
                invalidate,
                immediate,
            } => {
                self.place_message(msn, offset, payload, body, host)?;
                Ok(Commit::Message {
                    msn: msn.0,
                    offset,
                    len: super::num::len32(segment.payload_len),
                    last: segment.last,
                    solicited,
                    imm: immediate,
                    invalidate: invalidate.map(|stag| stag.0),
                })
            }
            SegmentKind::ReadResponse { stag, offset } => {
                self.place_response(stag, offset, segment, body, host)
            }
            SegmentKind::Immediate {
                msn,
                solicited,
                data,
            } => self.place_immediate(msn, solicited, data, host),
            // RFC5040-5.2.1-3
            SegmentKind::ReadRequest { msn, request } => {
                self.admit(msn, InboundRequest::Read(request))
            }
            // RFC7306-5.2.1-2
            SegmentKind::AtomicRequest { msn, request } => {
                self.admit(msn, InboundRequest::Atomic(request, 0))
            }
            SegmentKind::AtomicResponse { response, .. } => {
                self.place_atomic_response(&response, host)
            }
            SegmentKind::Terminate { .. } | SegmentKind::Absent => Ok(Commit::Nothing),
        }
    }

    /// Places `len` octets of `body` from `at`, the payload of a segment of a Send, into the
    /// receive request of the message.
    #[inline(always)]
    pub(super) fn place_message<H: Host>(
        &mut self,
        msn: Msn,
        offset: u32,
        (at, len): (usize, usize),
        body: &H::Body,
        host: &mut H,
    ) -> Result<(), Refusal> {
        // RFC5040-5.3-2
        let index = self.recv_for(msn, host)?;
        let end = u64::from(offset) + len as u64;
        // RFC5041-7.1-1
        if end > self.rq.get(index).capacity {
            return Err(Refusal::Receive(
                Status::LocalLengthError,
                TerminateCause::MESSAGE_TOO_LONG,
            ));
        }
        if len > 0 {
            self.rq
                .scatter(index, u64::from(offset), (at, len), body, host)
                .map_err(|_| {
                    Refusal::Receive(
                        Status::LocalProtectionError,
                        TerminateCause::STREAM_CATASTROPHIC,
                    )
                })?;
        }
        Ok(())
    }

    /// The receive request of a message of queue 0.
    #[inline]
    fn recv_for<H: Host>(&mut self, msn: Msn, host: &mut H) -> Result<u32, Refusal> {
        let ahead = msn.0.wrapping_sub(self.rq.head_msn);
        if ahead >= self.rq.len() {
            self.recv_beyond(msn, host)?;
        }
        Ok(self.rq.ahead(ahead))
    }

    /// A message of queue 0 is none of those for which receive requests have been taken.
    #[cold]
    fn recv_beyond<H: Host>(&mut self, msn: Msn, host: &mut H) -> Result<(), Refusal> {
        let ahead = msn.distance(Msn(self.rq.head_msn));
        let Ok(ahead) = u32::try_from(ahead) else {
            return Err(Refusal::Fault(TerminateCause::MSN_OUT_OF_RANGE));
        };
        self.rq
            .pull_shared(ahead, host)
            .map_err(|error| match error {
                NoSharedRecv::Empty => Refusal::NotReady,
                NoSharedRecv::NoQueue => Refusal::Fault(TerminateCause::INVALID_QUEUE_NUMBER),
            })
    }

    fn place_immediate<H: Host>(
        &mut self,
        msn: Msn,
        solicited: bool,
        data: ImmediateData,
        host: &mut H,
    ) -> Placed {
        // RFC7306-6.3-2
        self.recv_for(msn, host)?;
        Ok(Commit::Immediate {
            msn: msn.0,
            solicited,
            imm: data.immediate,
            write_len: data.write_len_octets,
        })
    }

    fn admit(&mut self, msn: Msn, request: InboundRequest) -> Placed {
        // RFC5040-5.2.1-2, RFC7306-5.2.1-1
        match self.responder.admit(msn, request) {
            Ok(entry) => Ok(Commit::Request { entry }),
            Err(NotAdmitted::TooMany) => Err(Refusal::Fault(TerminateCause::NO_BUFFER)),
            Err(NotAdmitted::Busy) => Err(Refusal::Later),
        }
    }

    /// The work request of a response: started, its request acknowledged, not answered yet.
    #[inline]
    fn asked_by(&self, id: u32) -> Option<u32> {
        self.sq.awaiting(id, self.accepted_before())
    }

    #[inline]
    fn place_response<H: Host>(
        &mut self,
        stag: Stag,
        offset: TaggedOffset,
        segment: &Segment,
        body: &H::Body,
        host: &mut H,
    ) -> Placed {
        let fault = |cause| Err(Refusal::Fault(cause));
        let Some(index) = self.asked_by(stag.0) else {
            return fault(TerminateCause::TAGGED_INVALID_STAG);
        };
        let len = segment.payload_len;
        let wqe = self.sq.get(index);
        if wqe.kind != Kind::Read {
            return fault(TerminateCause::TAGGED_INVALID_STAG);
        }
        let end = offset.0.checked_add(len as u64);
        // RFC5041-7.1-2
        if end.is_none_or(|end| end > u64::from(wqe.length)) {
            return fault(TerminateCause::TAGGED_BOUNDS);
        }
        if len > 0 {
            host.scatter_response(
                self.sq.sges(index),
                offset.0,
                body,
                segment.payload_offset,
                len,
            )
            .map_err(|_| Refusal::Sink(index))?;
        }
        let len = super::num::len32(len);
        if self.sq.note_response(index, len, segment.last) {
            self.complete_sends(host);
        }
        Ok(Commit::Nothing)
    }

    fn place_atomic_response<H: Host>(
        &mut self,
        response: &AtomicResponse,
        host: &mut H,
    ) -> Placed {
        // RFC7306-5.2.2-2: the work request that waits is the buffer.
        let index = self
            .asked_by(response.request_id)
            .filter(|&index| self.sq.get(index).kind != Kind::Read)
            .ok_or(Refusal::Fault(TerminateCause::UNEXPECTED_OPCODE))?;
        let tells_original = self.sq.get(index).kind != Kind::AtomicWrite;
        if tells_original
            && host
                .scatter_u64(self.sq.sges(index), response.original)
                .is_err()
        {
            return Err(Refusal::Sink(index));
        }
        // RFC7306-5.4-2
        self.sq.note_answered(index);
        self.complete_sends(host);
        Ok(Commit::Nothing)
    }

    #[cold]
    fn on_bad_segment<H: Host>(&mut self, packet: &Packet<'_>, error: ParseError, host: &mut H) {
        self.stats.rx_malformed += 1;
        let Some(cause) = error.terminate_cause() else {
            return;
        };
        if self.rx.classify(packet.psn) == Arrival::Expected {
            let offender = Offender::Octets(packet.ddp, packet.end.saturating_sub(packet.at));
            self.refuse(Refusal::Fault(cause), &offender, host);
        }
    }

    #[inline]
    pub(super) fn note_established<H: Host>(&mut self, host: &mut H) {
        if self.phase.establish() {
            host.event(Event::Established);
        }
    }
}

/// What a header acknowledges.
#[inline]
fn acknowledgement(trp: &TrpHeader) -> (Psn, u32, bool) {
    let marked = trp.flags.contains(Flags::ECN_ECHO);
    (trp.ack, trp.window_packets(), marked)
}

/// Writes `len` octets of `body` from `at`, the payload of a segment of a Write.
#[inline]
pub(super) fn place_write<H: Host>(
    stag: Stag,
    offset: TaggedOffset,
    (at, len): (usize, usize),
    body: &H::Body,
    host: &mut H,
) -> Result<(), Refusal> {
    // RFC5041-5.2-7
    if len > 0 {
        let remote = RemoteAddr {
            stag: stag.0,
            to: offset.0,
        };
        host.write_remote(remote, body, at, len)
            .map_err(|error| Refusal::Fault(tagged_cause(error)))?;
    }
    Ok(())
}
