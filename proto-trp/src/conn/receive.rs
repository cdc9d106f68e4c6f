//! The receiving half: what each packet of the peer does. The modules `placement` and `commit` have
//! the effect of a segment.

use super::connection::Connection;
use super::ending::{tagged_cause, Offender};
use super::host::{Host, RemoteAccess};
use super::num::len32;
use super::packet::{Datagram, Packet, Refusal};
use super::placement::Placed;
use super::qp_state::QpState;
use super::rxwindow::{Arrival, Commit};
use super::transmit::Controls;
use super::types::{PostError, RecvWr, RemoteAddr};
use crate::wire::{
    Extensions, Flags, PacketType, ParseError, ResetReason, Segment, SegmentKind, Stag,
    TaggedOffset, Train, TrpHeader, SEGMENT_HEAD_LEN,
};
use urdma_types::{Psn, Time};

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
        self.stats.rx_octets += len32(datagram.len) as u64;
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
            //# A packet that fails one MUST be dropped without an answer, and is counted by the
            //# first check that fails; check 5 has exceptions (section 8.4).
            Err(_) => {
                self.stats.rx_malformed += 1;
                return Ok(1);
            }
        };
        // RFC5041-7.1-3
        //# After an error nothing more is placed, the error is reported, and later segments are
        //# dropped without an answer other than the Terminate.
        if !self.phase.receives() {
            let reset = self.handle_late(&trp, (datagram.head, datagram.len));
            return reset.map_or(Ok(1), Err);
        }
        // R8.4-9
        //# A packet for a queue pair that exists, from elsewhere than its peer or with a connection
        //# id that is not its own, MUST be dropped without an answer and is counted: it is late, or
        //# forged.
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
        //# The segment MUST NOT be examined before all checks have passed.
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
        //# **Errors.** An extension that ends outside the length given in the header, or that has a
        //# length which its kind cannot have, MUST make the whole packet invalid.
        let Ok(extensions) = Extensions::parse(trp.extension_octets(datagram.head)) else {
            self.stats.rx_malformed += 1;
            return false;
        };
        if let Some(queue) = extensions.shared_queue {
            self.rq.name(queue);
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
        //# An end of one service MUST drop packets of the other.
        if trp.kind == PacketType::UnreliableData {
            // The peer uses the other service (UC instead of RC).
            self.stats.rx_malformed += 1;
            return 1;
        }
        // R8.3-3
        //# **Receiver.** The receiver MUST answer each FIN with FIN_ACK, except a FIN of a
        //# dynamically connected initiator (section 17.5), but MUST drop a FIN whose PSN is not the
        //# expected one or ahead of it by at most the window.
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
            //# It MUST send one at once in each of the following cases:
            PacketType::Probe => self.acks.due = true,
            PacketType::Fin => {
                // R8.3-2
                //# **Receiver.** The receiver MUST answer each FIN with FIN_ACK, except a FIN of a
                //# dynamically connected initiator (section 17.5), but MUST drop a FIN whose PSN is
                //# not the expected one or ahead of it by at most the window.
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
        //# TRP preserves the boundaries of segments and tells the receiver their length.
        let packet = Packet {
            psn: trp.psn,
            flags: trp.flags,
            ddp: datagram.head.get(at..).unwrap_or(&[]),
            at,
            end: datagram.len,
        };
        self.on_packet(now, &packet, datagram, host);
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
                //# **Receiver.** A receiver MUST act on a Terminate whenever it arrives, unless its
                //# PSN is behind the expected one or ahead of it by more than the window.
                if self.rx.may_be_next(packet.psn) {
                    self.on_terminate(&segment.kind, host);
                    // R8.5-6
                    //# It MUST answer each Terminate with FIN_ACK.
                    self.controls.add(Controls::FIN_ACK);
                } else {
                    self.stats.rx_out_of_window += 1;
                }
            }
            Arrival::Expected => self.on_expected(now, &segment, datagram, host),
            Arrival::Ahead(seq) => self.on_ahead(seq, &segment, datagram, host),
            // R7.2-4, R7.2-5, R7.3-1, RFC5041-3-6, RFC5041-5.3-2
            //# **Duplicate**: it MUST NOT be placed again.
            //# It MUST be answered with an ACK at once, whose SACK covers it if it is ahead.
            //# It MUST send one at once in each of the following cases:
            //# TRP passes no segment to DDP a second time.
            //# A message is delivered at most once.
            Arrival::Duplicate => {
                self.stats.rx_duplicates += 1;
                self.acks.due = true;
                self.rx.report_again(packet.psn);
            }
            // R7.2-6
            //# **Outside** the window: it MUST be dropped and is counted.
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
            //# Effects MUST take place strictly in the order of PSNs: completions, RNR, errors and
            //# their Terminate, atomics, the responses to reads, invalidation, Writes.
            //# Messages are delivered in the order in which they were sent.
            //# A message is delivered when all of its segments and all messages before it have been
            //# placed, and all messages before it have been delivered.
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
        //# It MUST send one at once in each of the following cases:
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
            //# **Ahead** of a missing packet, within the window: it is acknowledged (SACK), and its
            //# effects MUST wait until everything before it has arrived.
            Ok(commit) => self.rx.store(seq, commit),
            // R7.2-3
            //# A packet that can be neither placed nor kept MUST be dropped without being
            //# acknowledged; it is judged when it is sent again and its turn has come.
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
        //# The payload of a Write MUST NOT be placed before its turn: a later Write overwrites an
        //# earlier one, and programs look at memory to see that a Write has arrived, and with it
        //# all before it.
        let (index, octets) = self.rx.reorder.take(len).ok_or(Refusal::Later)?;
        host.keep(datagram.body, segment.payload_offset, len, octets);
        Ok(Commit::Write {
            stag,
            to,
            buffer: index,
            len: len32(len),
            last: segment.last,
            announces: segment.flags.contains(Flags::IMMEDIATE),
        })
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

    /// Processes the segments of a train one after the other; returns their number.
    #[inline(never)]
    pub(super) fn on_train<H: Host>(
        &mut self,
        now: Time,
        trp: &TrpHeader,
        datagram: &Datagram<'_, H::Body>,
        host: &mut H,
    ) -> u32 {
        let Ok(train) = Train::parse(trp, datagram.head, datagram.len) else {
            self.stats.rx_malformed += 1;
            return 1;
        };
        self.stats.rx_trains += 1;
        self.note_mark(datagram);
        let pieces = train.pieces();
        let count = len32(pieces.len());
        let shared = trp.flags.without(Flags::ACK_REQUESTED | Flags::IMMEDIATE);
        for (number, piece) in (0..).zip(pieces) {
            let mut flags = shared;
            if piece.has_immediate {
                flags = flags | Flags::IMMEDIATE;
            }
            if number + 1 == count {
                flags = flags | trp.flags.and(Flags::ACK_REQUESTED);
            }
            let mut head = [0; SEGMENT_HEAD_LEN];
            // R15-2
            //# A receiver MUST copy each header before it evaluates it, since the sender may share
            //# the memory that it lies in.
            host.peek(datagram.body, piece.at, &mut head);
            let packet = Packet {
                psn: trp.psn.add(number),
                flags,
                ddp: &head[..piece.len.min(SEGMENT_HEAD_LEN)],
                at: piece.at,
                end: piece.at + piece.len,
            };
            // R4.4-4
            //# **Receiver.** Each segment MUST be treated by itself: it is acknowledged, refused,
            //# found ahead, a duplicate or outside the window, and named in a Terminate as if it
            //# had arrived in a DATA packet.
            self.on_packet(now, &packet, datagram, host);
            if !self.phase.receives() {
                break;
            }
        }
        count
    }
}

/// What a header acknowledges.
#[inline]
fn acknowledgement(trp: &TrpHeader) -> (Psn, u32, bool) {
    let marked = trp.flags.contains(Flags::ECN_ECHO);
    (trp.ack, trp.window_packets(), marked)
}
