//! The sending half: work requests become messages. A request is done when the peer has settled
//! its last message.

use super::super::config::RtsParams;
use super::super::connection::Connection;
use super::super::host::Host;
use super::super::queues::SegmentSource;
use super::super::queues::{Extra, Kind, SendWqe};
use super::super::transmit::{Controls, Next};
use super::super::types::{SendOp, Status};
use super::message::{Answer, MessagePlan, NextMessage, Written};
use super::state::Intake;
use crate::wire::message::{
    encode_message_body, MessageEnds, CELL_LEN, CELL_PAYLOAD_LEN, MESSAGE_HEAD_LEN,
    MESSAGE_PAYLOAD_MAX,
};
use crate::wire::{
    connection_id, ConnectionId, MessageFlags, MessageHead, MessageKind, Msn, SegmentKind,
};
use urdma_types::Qpn;

impl Connection {
    /// Starts the outgoing stream of messages.
    pub(in crate::conn) fn start_messages(&mut self, remote_qpn: Qpn, params: &RtsParams) {
        self.phase.start_stream();
        self.peer.tx_id = connection_id(self.config.local_qpn, remote_qpn, params.local_psn);
        self.channel.ends = MessageEnds::new(self.peer.index, self.config.local_qpn.index());
        let service = MessageFlags::UNRELIABLE.when(self.config.unreliable);
        // C8.3-1
        //# A receiver that has entered RTR discards requests, and settles them, until one has
        //# START: otherwise a message could be accepted although one before it was refused.
        self.channel.flags = MessageFlags::START | service;
        if !self.config.unreliable {
            self.sq.limit_reads(params.max_rd_atomic.into());
            self.sender.bound_silence(params);
        }
    }

    /// What message would be written next, and the frame that it needs; `None` if nothing may be
    /// written now. For connections over a channel, while it has room for a message of work
    /// requests.
    #[inline]
    pub fn plan_message(&self) -> Option<MessagePlan> {
        if self.is_aside() {
            return self.plan_aside();
        }
        self.plan_request_message()
    }

    /// Whether the next message may be another than a request.
    #[inline(always)]
    pub(super) fn is_aside(&self) -> bool {
        self.controls.any()
            | self.channel.is_paused
            | self.phase.is_ending()
            | self.responder.has_answers()
    }

    #[inline]
    fn plan_request_message(&self) -> Option<MessagePlan> {
        let spec = self.next_segment_up_to(MESSAGE_PAYLOAD_MAX, MESSAGE_PAYLOAD_MAX)?;
        Some(MessagePlan {
            next: match spec.source {
                SegmentSource::Message(_) => NextMessage::Part { last: spec.last },
                _ => NextMessage::Request,
            },
            len: spec.len,
        })
    }

    /// The next message where it may be another than a request.
    #[inline(never)]
    fn plan_aside(&self) -> Option<MessagePlan> {
        if let Some(control) = self.controls.next() {
            return Some(MessagePlan {
                next: match control {
                    Next::Terminate => NextMessage::Terminate,
                    Next::Rnr => NextMessage::NotReady,
                    _ => NextMessage::Fin,
                },
                len: 0,
            });
        }
        if !self.phase.receives() || self.phase.is_ending() {
            return None;
        }
        // C8.2-2
        //# The sender of the refused message takes back that request and those after it, as if they
        //# had not been sent; it alternates EPOCH, waits for the time that the code stands for, and
        //# sends them again, the refused one first.
        let may_request = self.channel.may_request();
        let request = || self.plan_request_message().filter(|_| may_request);
        let Some(answer) = self.next_answer_segment() else {
            return request();
        };
        let response = MessagePlan {
            next: NextMessage::Response,
            len: answer.len,
        };
        if self.responder.has_turn() {
            return Some(response);
        }
        Some(request().unwrap_or(response))
    }

    /// Writes the message that [`Connection::plan_message`] has just planned: its beginning into
    /// the cell at `position`, the octets that the plan says into `frame`.
    ///
    /// `None` if the payload could not be gathered (the request then ends with an error), or if the
    /// request was local and nothing is sent for it; there may be more to send.
    ///
    /// # Panics
    /// If `frame` is shorter than the plan.
    #[inline]
    pub fn write_message<H: Host>(
        &mut self,
        plan: MessagePlan,
        position: u64,
        cell: &mut [u8; CELL_LEN],
        frame: &mut [u8],
        host: &mut H,
    ) -> Option<Written> {
        let written = if let NextMessage::Part { last } = plan.next {
            self.write_part((plan.len, last), position, cell, frame, host)?
        } else {
            self.write_aside(plan, position, cell, frame, host)?
        };
        self.stats.tx_datagrams += 1;
        self.stats.tx_octets += (written.cell_octets + written.frame_octets) as u64;
        Some(written)
    }

    /// Writes a segment of a Send or Write.
    #[inline]
    fn write_part<H: Host>(
        &mut self,
        (len, last): (u32, bool),
        position: u64,
        cell: &mut [u8; CELL_LEN],
        frame: &mut [u8],
        host: &mut H,
    ) -> Option<Written> {
        let index = self.sq.next();
        let shared_queue = self.sq.shared_queue(index);
        let (companion, immediate) = match self.sq.get(index).kind {
            kind if kind.is_plain() => (NO_COMPANION, None),
            _ => (
                companion(&self.sq.extra(index)),
                self.completing(index, last),
            ),
        };
        self.sq.start(index);
        let (wqe, slot, lists) = self.sq.entry(index);
        let (room, rest) = split(cell);
        let (payload, written) = match len as usize {
            len @ ..=CELL_PAYLOAD_LEN => (&mut rest[..len], in_cell(len)),
            len => (&mut frame[..len], in_frame(len)),
        };
        if !lists.copy_payload(wqe, slot, wqe.progress, payload, host) {
            self.poison(index, Status::LocalProtectionError, host);
            return None;
        }
        let address = MessageHead {
            flags: self.channel.flags,
            connection_id: self.peer.tx_id,
            shared_queue,
            ..NO_HEAD
        };
        part_head(wqe, last, companion, address).encode_between(self.channel.ends, room);
        let mut is_sent = wqe.advance(len, last, position + 1);
        if let Some(imm) = immediate {
            MessageHead::complete_write(room, imm, wqe.msn, wqe.flags.solicited);
            (wqe.end, is_sent) = (position + 1, true);
        }
        if is_sent {
            self.sq.pass(index);
        }
        self.note_request(position, host);
        Some(written)
    }

    /// The immediate data of a Write which the message that is planned has all of, if its head has
    /// room for them: it has none for a shared receive queue besides.
    #[inline(never)]
    fn completing(&self, index: u32, last: bool) -> Option<u32> {
        let wqe = self.sq.get(index);
        let is_whole = wqe.kind == Kind::WriteImm && wqe.progress == 0 && last;
        let has_room = !self.config.unreliable && !self.config.names_shared_queue;
        self.sq.imm(index).filter(|_| is_whole && has_room)
    }

    /// A head with everything but what the message is about.
    #[inline]
    pub(super) fn head_to_peer(&self, kind: MessageKind, flags: MessageFlags) -> MessageHead {
        MessageHead {
            kind,
            flags,
            destination: self.peer.index,
            source: self.config.local_qpn.index(),
            connection_id: if self.phase.sends_stream() {
                self.peer.tx_id
            } else {
                self.peer.rx_id
            },
            ..NO_HEAD
        }
    }

    /// Records that a message of a request was written.
    #[inline]
    fn note_request<H: Host>(&mut self, position: u64, host: &mut H) {
        self.responder.take_turn();
        self.channel.flags = self.channel.flags.without(MessageFlags::START);
        if self.config.unreliable {
            self.forget_written(position, host);
        } else if self.channel.is_paused {
            self.channel.note_retry(position);
        }
    }

    /// Completes requests whose messages are all written.
    #[cold]
    fn forget_written<H: Host>(&mut self, position: u64, host: &mut H) {
        self.channel.settled = position + 1;
        self.complete_sends(host);
    }

    /// Writes a message that is no segment of a Send or Write.
    #[inline(never)]
    fn write_aside<H: Host>(
        &mut self,
        plan: MessagePlan,
        position: u64,
        cell: &mut [u8; CELL_LEN],
        frame: &mut [u8],
        host: &mut H,
    ) -> Option<Written> {
        let answer = match plan.next {
            NextMessage::Part { .. } | NextMessage::Request => {
                return self.write_request(position, cell, host)
            }
            NextMessage::Response => return self.write_reply(position, cell, frame, host),
            NextMessage::Terminate => {
                self.controls.take(Controls::TERMINATE);
                self.terminate_message()?
            }
            NextMessage::NotReady => {
                self.controls.take(Controls::RNR);
                self.not_ready_message()?
            }
            NextMessage::Fin => {
                self.controls.take(Controls::FIN);
                let flags = self.channel.epoch();
                Answer::of_head(&self.head_to_peer(MessageKind::Fin, flags))
            }
        };
        let octets = answer.octets();
        cell[..octets.len()].copy_from_slice(octets);
        Some(Written {
            cell_octets: octets.len(),
            frame_octets: 0,
        })
    }

    /// Writes a read, an atomic or immediate data, or executes a local request.
    fn write_request<H: Host>(
        &mut self,
        position: u64,
        cell: &mut [u8; CELL_LEN],
        host: &mut H,
    ) -> Option<Written> {
        let spec = self.next_request_segment()?;
        let index = match spec.source {
            SegmentSource::Local(index) => {
                self.do_local(index, host);
                return None;
            }
            SegmentSource::Immediate(index) | SegmentSource::Request(index) => index,
            _ => return None,
        };
        self.sq.start(index);
        let kind = self.request_kind(index, &spec);
        let mut head = self.head_to_peer(MessageKind::Immediate, self.channel.flags);
        head.shared_queue = self.sq.shared_queue(index);
        let head = head.of_segment(&kind, true);
        let (room, rest) = split(cell);
        head.encode(room);
        let body = encode_message_body(&kind, rest).ok()?;
        self.note_sent(position, &spec);
        self.note_request(position, host);
        Some(in_cell(body))
    }

    /// Writes a segment of a response. A channel loses nothing, so the response is done with it.
    fn write_reply<H: Host>(
        &mut self,
        position: u64,
        cell: &mut [u8; CELL_LEN],
        frame: &mut [u8],
        host: &mut H,
    ) -> Option<Written> {
        let spec = self.next_answer_segment()?;
        let SegmentSource::Response(entry) = spec.source else {
            return None;
        };
        let (kind, source) = self.responder.segment_kind(entry, &spec);
        let head = self.head_to_peer(MessageKind::ReadResponse, self.channel.epoch());
        let (room, rest) = split(cell);
        head.of_segment(&kind, spec.last).encode(room);
        let len = spec.len as usize;
        let written = match source {
            None => in_cell(encode_message_body(&kind, rest).ok()?),
            Some(source) => {
                let (payload, written) = if len <= CELL_PAYLOAD_LEN {
                    (&mut rest[..len], in_cell(len))
                } else {
                    (&mut frame[..len], in_frame(len))
                };
                if len > 0 {
                    if let Err(error) = host.read_remote(source, payload) {
                        self.refuse_read(entry, error, host);
                        return None;
                    }
                }
                written
            }
        };
        self.note_sent(position, &spec);
        self.responder.acked(entry);
        Some(written)
    }

    /// The Terminate of this end.
    #[cold]
    pub(super) fn terminate_message(&self) -> Option<Answer> {
        let segment = SegmentKind::Terminate {
            msn: Msn::FIRST,
            terminate: self.ending.terminate()?,
        };
        let head = self.head_to_peer(MessageKind::Terminate, self.channel.epoch());
        Some(Answer::with_body(
            &head.of_segment(&segment, true),
            &segment,
        ))
    }

    /// The count of settled messages that this connection waits for before it sends more; `None` if
    /// it waits for none. A driver that sleeps asks the peer to wake it then.
    #[inline]
    pub fn awaited_count(&self) -> Option<u64> {
        self.channel.pause.retry
    }

    /// The count of settled messages at which a request completes that is reported to the
    /// application; `None` if no count completes one.
    pub fn reported_count(&self) -> Option<u64> {
        self.sq.awaited()
    }

    /// The peer has settled every message before position `count`. The driver first processes the
    /// messages that the peer had written when it counted.
    #[inline]
    pub fn settled<H: Host>(&mut self, count: u64, host: &mut H) {
        if count <= self.channel.settled {
            return;
        }
        self.channel.settled = count;
        self.complete_sends_before(count, host);
        if self.channel.is_paused {
            self.channel.end_retry();
        }
    }

    /// The NOT_READY for the message that is expected, while requests are refused.
    pub(super) fn not_ready_message(&self) -> Option<Answer> {
        let Intake::FromEpoch(epoch) = self.channel.intake else {
            return None;
        };
        Some(Answer::of_head(&MessageHead {
            number: self.rq.expected(),
            offset: u64::from(self.rnr_code()),
            ..self.head_to_peer(MessageKind::NotReady, epoch)
        }))
    }
}

pub(super) const NO_HEAD: MessageHead = MessageHead {
    kind: MessageKind::Send,
    flags: MessageFlags::NONE,
    destination: 0,
    source: 0,
    connection_id: ConnectionId::from_u32(0),
    number: 0,
    offset: 0,
    ulp: 0,
    shared_queue: 0,
};

/// The head of the next segment of a Send or Write with its companion, whose address is that of
/// `head`.
#[inline(always)]
pub(super) fn part_head(
    wqe: &SendWqe,
    last: bool,
    (own, ulp): (MessageFlags, u32),
    head: MessageHead,
) -> MessageHead {
    let flags = head.flags | own | MessageFlags::LAST.when(last);
    if wqe.kind.is_write() {
        let remote = wqe.remote();
        // RFC5040-5.1-3, RFC5041-4.2-2, RFC5041-5.2-5
        //# An RDMA Write writes to one tagged buffer.
        //# All segments of a tagged message carry the same STag and ULP field, as the ULP gave
        //# them.
        //# The tagged offset of a segment is that of the message plus the offset of the payload in
        //# it.
        return MessageHead {
            kind: MessageKind::Write,
            flags,
            number: remote.stag,
            offset: remote.to.wrapping_add(u64::from(wqe.progress)),
            shared_queue: 0,
            ..head
        };
    }
    // RFC5041-4.3-2, RFC5041-5.2-4
    //# All segments of an untagged message carry the same queue number, MSN and ULP field.
    //# The message offset of a segment is the offset of its payload in the message.
    MessageHead {
        flags: flags | MessageFlags::SOLICITED.when(wqe.flags.solicited),
        number: wqe.msn,
        offset: u64::from(wqe.progress),
        ulp,
        ..head
    }
}

/// A plain Send or Write is accompanied by nothing.
pub(super) const NO_COMPANION: (MessageFlags, u32) = (MessageFlags::NONE, 0);

/// What accompanies a Send or Write: the flag for it, and its field of the head.
#[cold]
fn companion(extra: &Extra) -> (MessageFlags, u32) {
    match (extra.op, extra.imm) {
        // RFC5040-5.3-4
        //# A Send with Invalidate names an STag.
        (SendOp::SendInvalidate { stag }, _) => (MessageFlags::INVALIDATE, stag),
        (_, Some(imm)) => (MessageFlags::HAS_IMMEDIATE, imm),
        (_, None) => NO_COMPANION,
    }
}

/// A message with `len` octets behind the head, all of them in its cell.
#[inline]
pub(super) const fn in_cell(len: usize) -> Written {
    Written {
        cell_octets: MESSAGE_HEAD_LEN + len,
        frame_octets: 0,
    }
}

/// A message whose payload of `len` octets is in a frame.
#[inline]
const fn in_frame(len: usize) -> Written {
    Written {
        cell_octets: MESSAGE_HEAD_LEN,
        frame_octets: len,
    }
}

/// The room for the head in a cell, and what follows it.
#[inline]
pub(super) fn split(
    cell: &mut [u8; CELL_LEN],
) -> (&mut [u8; MESSAGE_HEAD_LEN], &mut [u8; CELL_PAYLOAD_LEN]) {
    let (head, rest) = cell
        .split_first_chunk_mut::<MESSAGE_HEAD_LEN>()
        .expect("a cell is longer than a head");
    (head, rest.first_chunk_mut().expect("the rest of a cell"))
}
