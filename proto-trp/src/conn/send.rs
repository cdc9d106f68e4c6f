//! The sending half: segments become datagrams; the module `plan` selects the next one, and
//! `segments` says what it carries.

use super::connection::Connection;
use super::host::Host;
use super::num::len32;
use super::qp_state::QpState;
use super::queues::{SegmentSource, SegmentSpec};
use super::transmit::{Controls, Next, Run, Transmit, TransmitPlan};
use super::types::{PostError, SendWr, Trace};
use crate::wire::{
    self, Extensions, Flags, Msn, PacketType, RnrTimer, SegmentKind, Stag, TaggedOffset, TrpHeader,
};
use urdma_types::Time;

impl Connection {
    /// Posts a send request and returns the length of its message in octets; in SQE and ERROR it
    /// completes as flushed at once. The clock is read only if the peer has closed the connection.
    ///
    /// # Errors
    /// Nothing was posted.
    #[inline]
    pub fn post_send<H: Host>(
        &mut self,
        now: impl FnOnce() -> Time,
        wr: &SendWr<'_>,
        host: &mut H,
    ) -> Result<u32, PostError> {
        if !self.phase.state().takes_send() {
            return Err(PostError::InvalidState);
        }
        let octets = self.sq.push(wr)?;
        if wr.op.is_request() {
            self.sq.judge_last(&wr.op, octets);
        }
        if matches!(self.phase.state(), QpState::Sqe | QpState::Error) {
            self.sq.flush(None, host);
        } else if self.phase.peer_has_ended() {
            self.post_without_peer(now(), host);
        }
        Ok(octets)
    }

    /// Writes the next datagram into `buf`, which holds `max_datagram_octets`; `None` if nothing
    /// may be sent now. Drivers use [`Connection::plan_transmit`] and
    /// [`Connection::write_transmit`].
    #[inline]
    pub fn poll_transmit<H: Host>(
        &mut self,
        now: Time,
        buf: &mut [u8],
        host: &mut H,
    ) -> Option<Transmit> {
        while let Some(plan) = self.plan() {
            if let Some(transmit) = self.write_transmit(now, plan, buf, host) {
                return Some(transmit);
            }
        }
        None
    }

    /// Writes the datagram that [`Connection::plan_transmit`] has just planned into `buf`.
    ///
    /// `None` if the payload could not be gathered (the request then ends with an error), or if the
    /// request was local and nothing is sent for it; there may be more to send.
    ///
    /// # Panics
    /// If `buf` is shorter than the plan.
    #[inline]
    pub fn write_transmit<H: Host>(
        &mut self,
        now: Time,
        plan: TransmitPlan,
        buf: &mut [u8],
        host: &mut H,
    ) -> Option<Transmit> {
        let is_plain =
            matches!(plan.next, Next::Request) && self.writes_plain(self.sq.get(self.sq.next()));
        let transmit = if is_plain {
            let mut run = Run::default();
            self.write_plain(now, std::iter::once(buf), host, &mut run);
            (run.count > 0).then_some(Transmit {
                len: run.last,
                ecn_capable: true,
            })?
        } else {
            self.write_other(now, plan, buf, host)?
        };
        self.stats.tx_datagrams += 1;
        self.stats.tx_octets += u64::from(len32(transmit.len));
        Some(transmit)
    }

    /// Writes what is not a part of a plain RDMA Write. A function of its own, so that it takes no
    /// registers from that.
    #[inline(never)]
    fn write_other<H: Host>(
        &mut self,
        now: Time,
        plan: TransmitPlan,
        buf: &mut [u8],
        host: &mut H,
    ) -> Option<Transmit> {
        match plan.next {
            Next::Request => {
                let spec = self.next_request_segment()?;
                self.write_new(now, &spec, buf, host)
            }
            Next::Train => self.write_train(now, plan.len, buf, host),
            Next::Answer => self.write_answer(now, buf, host),
            Next::Retry => self.write_retry(now, buf, host),
            Next::Again => self.write_again(now, buf, host),
            control => Some(self.write_control(now, control, buf)),
        }
    }

    /// Sends a new segment; inlined into the caller, as [`Connection::plan`] is.
    #[inline(always)]
    fn write_new<H: Host>(
        &mut self,
        now: Time,
        spec: &SegmentSpec,
        buf: &mut [u8],
        host: &mut H,
    ) -> Option<Transmit> {
        let seq = self.sender.next();
        let ack_requested = self.begin_segment(seq, spec);
        let len = self.write_segment(seq, spec, ack_requested, buf, host)?;
        self.note_new(now, seq, spec, ack_requested);
        if self.transport.is_unreliable() {
            self.forget_sent(host);
        }
        Some(Transmit {
            len,
            // R13-2
            //# Between hosts there is no congestion control, and packets MUST be sent Not-ECT.
            ecn_capable: self.transport.is_stream(),
        })
    }

    #[inline(never)]
    fn write_answer<H: Host>(
        &mut self,
        now: Time,
        buf: &mut [u8],
        host: &mut H,
    ) -> Option<Transmit> {
        let spec = self.next_answer_segment()?;
        self.write_new(now, &spec, buf, host)
    }

    /// Sends the refused segment again; it requests an acknowledgement.
    #[cold]
    fn write_retry<H: Host>(
        &mut self,
        now: Time,
        buf: &mut [u8],
        host: &mut H,
    ) -> Option<Transmit> {
        let spec = self.next_request_segment()?;
        let seq = self.sender.next();
        self.sender.request_ack_next();
        let transmit = self.write_new(now, &spec, buf, host)?;
        self.sender.note_retry(seq);
        Some(transmit)
    }

    #[cold]
    fn write_again<H: Host>(
        &mut self,
        now: Time,
        buf: &mut [u8],
        host: &mut H,
    ) -> Option<Transmit> {
        // R7.1-2
        //# A retransmitted segment MUST keep its PSN and its octets from the DDP header on; the TRP
        //# header is written anew.
        let (seq, spec) = self.sender.may_send_again()?;
        let Some(len) = self.write_segment(seq, &spec, true, buf, host) else {
            // Never retransmitted: the request that it belongs to ends with an error.
            self.sender.give_up(seq);
            return None;
        };
        self.sender.resent(now, seq);
        self.stats.retransmits += 1;
        host.trace(Trace::SentAgain);
        Some(Transmit {
            len,
            ecn_capable: true,
        })
    }

    /// Writes headers and payload of one segment.
    #[inline(always)]
    fn write_segment<H: Host>(
        &mut self,
        seq: u64,
        spec: &SegmentSpec,
        ack_requested: bool,
        buf: &mut [u8],
        host: &mut H,
    ) -> Option<usize> {
        let flags = if ack_requested {
            Flags::ACK_REQUESTED
        } else {
            Flags::NONE
        };
        let mut trp = self.header(PacketType::Data, flags | self.sender.epoch());
        trp.psn = self.sender.psn(seq);
        if self.transport.is_unreliable() {
            trp.kind = PacketType::UnreliableData;
        }
        match spec.source {
            SegmentSource::Message(index) => {
                // R4.2-1, R10-5
                //# **Sender.** IMM MUST be set in every segment of the message.
                //# **RDMA Write before Immediate Data.** It MUST have IMM set.
                if self.sq.imm(index).is_some() {
                    trp.flags = trp.flags | Flags::IMMEDIATE;
                }
                self.write_part_of_message(&trp, index, spec, buf, host)
            }
            SegmentSource::Immediate(index) | SegmentSource::Request(index) => {
                let kind = self.request_kind(index, spec);
                let extensions = self.naming(index);
                self.put_headers(&trp, &extensions, &kind, true, buf)
            }
            SegmentSource::Response(entry) => self.write_response(&trp, entry, spec, buf, host),
            SegmentSource::Local(index) => {
                self.do_local(index, host);
                None
            }
            SegmentSource::Void => {
                // R7.9-8
                //# Voided PSNs that are lost MUST be sent again as RDMA Writes of no octets, STag
                //# 0, in epoch e.
                // Refused in the previous epoch: an empty write.
                trp.flags = trp.flags ^ Flags::EPOCH;
                let nothing = SegmentKind::Write {
                    stag: Stag(0),
                    offset: TaggedOffset(0),
                };
                self.put_headers(&trp, &Extensions::NONE, &nothing, true, buf)
            }
        }
    }

    #[inline]
    fn write_part_of_message<H: Host>(
        &mut self,
        trp: &TrpHeader,
        index: u32,
        spec: &SegmentSpec,
        buf: &mut [u8],
        host: &mut H,
    ) -> Option<usize> {
        let kind = self.message_kind(index, spec);
        let extensions = self.naming(index);
        let at = self.put_headers(trp, &extensions, &kind, spec.last, buf)?;
        let end = at + spec.len as usize;
        self.put_payload(index, spec.offset, &mut buf[at..end], host)
            .then_some(end)
    }

    fn write_response<H: Host>(
        &mut self,
        trp: &TrpHeader,
        entry: u16,
        spec: &SegmentSpec,
        buf: &mut [u8],
        host: &mut H,
    ) -> Option<usize> {
        let (kind, source) = self.responder.segment_kind(entry, spec);
        let at = self.put_headers(trp, &Extensions::NONE, &kind, spec.last, buf)?;
        let Some(source) = source.filter(|_| spec.len > 0) else {
            return Some(at + spec.len as usize);
        };
        let end = at + spec.len as usize;
        match host.read_remote(source, &mut buf[at..end]) {
            Ok(()) => Some(end),
            Err(error) => {
                self.refuse_read(entry, error, host);
                None
            }
        }
    }

    /// The packet flags of a request.
    #[inline]
    fn naming(&self, index: u32) -> Extensions {
        // R10-10
        //# **XRC.** A queue pair that sends to shared receive queues of its peer MUST name the
        //# queue in an extension SHARED_QUEUE of each packet of its requests.
        if self.config.names_shared_queue {
            Extensions::for_shared_queue(self.sq.shared_queue(index))
        } else {
            Extensions::NONE
        }
    }

    /// Writes the headers of a packet with one segment.
    #[inline]
    fn put_headers(
        &mut self,
        trp: &TrpHeader,
        extensions: &Extensions,
        kind: &SegmentKind,
        last: bool,
        buf: &mut [u8],
    ) -> Option<usize> {
        self.note_acknowledged();
        wire::encode(trp, extensions, kind, last, buf).ok()
    }

    fn write_control(&mut self, now: Time, control: Next, buf: &mut [u8]) -> Transmit {
        let mut extensions = Extensions::NONE;
        let mut segment = SegmentKind::Absent;
        let kind = match control {
            // R7.9-4
            //# Where it would send an ACK, and once at once, it MUST send RNR instead: PSN n,
            //# RNR_TIMER with the `min_rnr_timer` of its queue pair, and as cumulative
            //# acknowledgement (to which SACK refers) the PSN that it expects next, which is beyond
            //# n.
            Next::Rnr | Next::Ack if self.phase.refuses() => {
                self.controls.take(Controls::RNR);
                self.stats.rnr_sent += 1;
                // R6-5
                //# An RNR MUST have an RNR_TIMER.
                extensions.rnr_timer = Some(RnrTimer::new(self.rnr_code()));
                PacketType::Rnr
            }
            Next::Terminate => {
                self.controls.take(Controls::TERMINATE);
                let interval_ns = self.sender.probe_interval_ns();
                self.ending.on_terminate_sent(now, interval_ns);
                if let Some(terminate) = self.ending.terminate() {
                    segment = SegmentKind::Terminate {
                        msn: Msn::FIRST,
                        terminate,
                    };
                }
                // R4.4-3, R8.5-1
                //# A Terminate MUST NOT be sent in a train.
                //# **Sender.** An end that finds its peer at fault (section 11) MUST send a
                //# Terminate (RFC 5040 section 4.8) in a DATA packet, goes to ERR, and accepts
                //# nothing more.
                PacketType::Data
            }
            Next::Fin => {
                self.controls.take(Controls::FIN);
                PacketType::Fin
            }
            Next::FinAck => {
                self.controls.take(Controls::FIN_ACK);
                PacketType::FinAck
            }
            Next::Probe => {
                self.controls.take(Controls::PROBE);
                PacketType::Probe
            }
            Next::Ack
            | Next::Rnr
            | Next::Request
            | Next::Train
            | Next::Answer
            | Next::Retry
            | Next::Again => {
                self.controls.take(Controls::RNR);
                self.stats.tx_acks += 1;
                PacketType::Ack
            }
        };
        // R7.9-3
        //# While the receiver refuses, every packet that it sends except RNR MUST have n as
        //# cumulative acknowledgement and no SACK.
        // While requests are refused, only an RNR says how far packets have arrived.
        let says_all = kind == PacketType::Rnr || !self.phase.refuses();
        if says_all {
            // R6-2
            //# An ACK of a stream with gaps MUST have a SACK.
            extensions.sack = self.rx.sack();
        }
        // R8.5-2: the next PSN.
        let mut trp = self.header(kind, Flags::NONE);
        match kind {
            // R7.9-4
            //# Where it would send an ACK, and once at once, it MUST send RNR instead: PSN n,
            //# RNR_TIMER with the `min_rnr_timer` of its queue pair, and as cumulative
            //# acknowledgement (to which SACK refers) the PSN that it expects next, which is beyond
            //# n.
            PacketType::Rnr => (trp.psn, trp.ack) = (self.rx.ack(), self.rx.expected_psn()),
            PacketType::Probe => trp.flags = trp.flags | Flags::ACK_REQUESTED,
            _ => {}
        }
        let len = wire::encode(&trp, &extensions, &segment, true, buf).unwrap_or(0);
        if says_all {
            self.acks.on_sent();
            // R6-4
            //# A receiver that has more to report than one bitmap covers MUST send the part with
            //# the packet that arrived last, and MUST send a second ACK if one does not cover all
            //# that arrived since the last: each arrival is then reported at least once, and by all
            //# ACKs for arrivals near to it.
            self.acks.due = self.rx.owes_sack();
        }
        Transmit {
            len,
            ecn_capable: false,
        }
    }
}
