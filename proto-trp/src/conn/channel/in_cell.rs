//! Messages of one cell in one step: the Sends and Writes that programs send most, while the
//! connection does nothing else.
//!
//! A request that [`Connection::fits_cell`] is posted and written at once, and ends in the same
//! state as by `post_send`, `plan_message` and `write_message`, which look at it three times. A
//! message that [`Connection::takes_in_cell`] has the same effect as by `handle_message`. The
//! driver copies the payload, so that neither needs a [`super::super::host::Host`]. Whatever these
//! two decline goes the general way.

use super::super::connection::Connection;
use super::super::qp_state::QpState;
use super::super::types::{Completion, CompletionOp, Payload, RemoteAddr, SendWr, Sge, Status};
use super::send::{in_cell, part_head, split, NO_COMPANION, NO_HEAD};
use super::state::Intake;
use crate::wire::message::{CELL_LEN, CELL_PAYLOAD_LEN, MESSAGE_HEAD_LEN};
use crate::wire::{MessageFlags, MessageHead, MessageKind};
use urdma_types::{Qpn, SlotId};

/// Where the payload of a message of one cell goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// To the beginning of a receive request's only element, which is long enough.
    Receive(Sge),
    /// To memory that the peer names.
    Remote(RemoteAddr),
}

impl Connection {
    /// The octets of a request's payload if [`Connection::post_in_cell`] may be called with it.
    #[inline(always)]
    pub fn fits_cell(&self, wr: &SendWr<'_>) -> Option<usize> {
        let octets = match wr.payload {
            Payload::Sges([sge]) => sge.length as usize,
            Payload::Inline([part]) if part.len() <= self.sq.max_inline() => part.len(),
            _ => return None,
        };
        let fits = wr.has_one_head() && self.sends_at_once() && octets <= CELL_PAYLOAD_LEN;
        fits.then_some(octets)
    }

    /// Whether a message of a request that is posted now would be the next one to be sent.
    #[inline(always)]
    pub(super) fn sends_at_once(&self) -> bool {
        let is_aside = self.is_aside()
            | self.config.unreliable
            | (self.phase.state() != QpState::Rts)
            | self.config.names_shared_queue
            | self.sq.is_stopped();
        !is_aside && self.sq.is_all_sent()
    }

    /// Whether a message from `from` is of this connection, whose requests are simply taken.
    // C7-2
    //# A message for a queue pair whose peer is in another slot, whose peer is another queue pair,
    //# whose connection id differs, or whose service is the other one MUST have no effect.
    #[inline(always)]
    pub(super) fn takes_from(&self, from: SlotId, head: &MessageHead) -> bool {
        self.channel.intake == Intake::Open && self.is_of_peer(from, head)
    }

    /// Whether a message from `from` is of this connection. Responses are taken while requests are
    /// not: an end that only reads and writes never takes one, and its peer need not send any.
    #[inline(always)]
    pub(super) fn is_of_peer(&self, from: SlotId, head: &MessageHead) -> bool {
        head.connection_id == self.peer.rx_id
            && self.peer.remote_qpn == Some(Qpn::new(from, head.source))
    }

    /// A request was posted, and all of its message written at once.
    #[inline(always)]
    pub(super) fn note_posted(&mut self, octets: usize) {
        self.sq.pass_all();
        self.responder.take_turn();
        self.channel.flags = self.channel.flags.without(MessageFlags::START);
        self.note_written(octets);
    }

    /// A message of this many octets was written into a cell.
    #[inline(always)]
    pub(super) fn note_written(&mut self, octets: usize) {
        self.stats.tx_datagrams += 1;
        self.stats.tx_octets += octets as u64;
    }

    /// A message with this many octets behind the head was taken.
    #[inline(always)]
    pub(super) fn note_taken(&mut self, octets: usize) {
        self.stats.rx_datagrams += 1;
        self.stats.rx_octets += (MESSAGE_HEAD_LEN + octets) as u64;
    }

    /// Posts a request for which [`Connection::fits_cell`] has given the length of its payload, and
    /// completes its message in the cell at `position`, where the driver has written the payload
    /// behind the head. Returns the octets in the cell. There must be room in the send queue.
    #[inline(always)]
    pub fn post_in_cell(
        &mut self,
        wr: &SendWr<'_>,
        payload_octets: usize,
        position: u64,
        cell: &mut [u8; CELL_LEN],
    ) -> usize {
        let address = MessageHead {
            flags: self.channel.flags,
            connection_id: self.peer.tx_id,
            ..NO_HEAD
        };
        let wqe = self.sq.push_plain(wr, payload_octets);
        part_head(wqe, true, NO_COMPANION, address)
            .encode_between(self.channel.ends, split(cell).0);
        wqe.advance(wqe.length, true, position + 1);
        if let Some(imm) = wr.imm {
            self.add_immediate(wr, imm, cell);
        }
        let octets = in_cell(payload_octets).cell_octets;
        self.note_posted(octets);
        octets
    }

    /// The request that was posted last, and written as if it was plain, has immediate data.
    #[cold]
    fn add_immediate(&mut self, wr: &SendWr<'_>, imm: u32, cell: &mut [u8; CELL_LEN]) {
        let head = split(cell).0;
        match self.sq.keep_last(wr) {
            Some(number) => MessageHead::complete_write(head, imm, number, wr.flags.solicited),
            None => MessageHead::add_immediate(head, imm),
        }
    }

    /// Where the payload of a message from `from` goes, if its effect is that and, of a Send, the
    /// completion of the oldest receive request. The driver checks the access and copies, and then
    /// calls [`Connection::took_in_cell`]; the general way refuses what may not be accessed.
    #[inline(always)]
    pub fn takes_in_cell(
        &self,
        from: SlotId,
        head: &MessageHead,
        payload_octets: usize,
    ) -> Option<Target> {
        let is_plain = self.takes_from(from, head);
        if !is_plain || payload_octets == 0 {
            return None;
        }
        if head.kind == MessageKind::Write {
            // RFC5040-5.1-2
            //# An RDMA Write is placed, and not delivered to the application.
            return Some(Target::Remote(RemoteAddr {
                stag: head.number,
                to: head.offset,
            }));
        }
        let is_whole = head.kind == MessageKind::Send
            && head
                .flags
                .and(MessageFlags::LAST | MessageFlags::INVALIDATE)
                == MessageFlags::LAST
            && head.offset == 0;
        // R10-3, RFC5041-7.1-1
        //# **Messages of queue 0.** The segments of a message MUST follow one another by message
        //# offset without gap or overlap.
        //# An untagged segment is placed only if its queue number, its MSN, and its message offset
        //# and length fit the buffer.
        if !is_whole || !self.rq.expects(head.number, 0) {
            return None;
        }
        let sge = self.rq.oldest_plain()?;
        (payload_octets <= sge.length as usize).then_some(Target::Receive(sge))
    }

    /// The payload of a message for which there was a target has been copied there. Returns the
    /// completion of the receive request, if one is complete.
    #[inline(always)]
    pub fn took_in_cell(
        &mut self,
        head: &MessageHead,
        payload_octets: usize,
    ) -> Option<Completion> {
        self.note_taken(payload_octets);
        if head.kind == MessageKind::Write {
            return None;
        }
        // RFC5040-5.3-3, RFC5040-5.5-1
        //# Sends are delivered to the application in the order in which they were sent.
        //# Sends are delivered after DDP has delivered them, and in that order (rules 10 and 16).
        let wr_id = self.rq.take_oldest();
        let has_immediate = head.flags.contains(MessageFlags::HAS_IMMEDIATE);
        Some(Completion {
            wr_id,
            status: Status::Success,
            op: CompletionOp::Recv,
            byte_len: super::super::num::len32(payload_octets),
            imm: has_immediate.then_some(head.ulp),
            invalidated: None,
            solicited: head.flags.contains(MessageFlags::SOLICITED),
        })
    }

    /// As [`Connection::takes_in_cell`], of a whole Write whose Immediate Data completes the oldest
    /// receive request. After the copy the driver calls [`Connection::took_whole_write`].
    #[inline(always)]
    pub fn takes_whole_write(
        &self,
        from: SlotId,
        head: &MessageHead,
        payload_octets: usize,
    ) -> Option<RemoteAddr> {
        let flags = MessageFlags::LAST | MessageFlags::HAS_IMMEDIATE;
        let is_whole = head.kind == MessageKind::WriteImmediate
            && head.flags.contains(flags)
            && payload_octets > 0;
        let completes = is_whole
            && self.takes_from(from, head)
            && self.rq.expects(head.shared_queue, 0)
            && self.rq.has_own();
        completes.then_some(RemoteAddr {
            stag: head.number,
            to: head.offset,
        })
    }

    /// The payload of a whole Write has been copied. Returns the completion of the receive request
    /// that its Immediate Data completes.
    #[inline(always)]
    pub fn took_whole_write(&mut self, head: &MessageHead, payload_octets: usize) -> Completion {
        self.note_taken(payload_octets);
        // RFC7306-6.3-3
        //# Immediate Data is delivered in the order in which it was sent.
        let wr_id = self.rq.take_oldest();
        Completion {
            wr_id,
            status: Status::Success,
            op: CompletionOp::RecvWriteImm,
            byte_len: super::super::num::len32(payload_octets),
            imm: Some(head.ulp),
            invalidated: None,
            solicited: head.flags.contains(MessageFlags::SOLICITED),
        }
    }

    /// Whether [`Connection::settled`] only completes requests, which [`Connection::next_settled`]
    /// then does as well.
    #[inline(always)]
    pub fn settles_plainly(&self) -> bool {
        let is_aside =
            self.channel.is_paused | self.sq.is_stopped() | (self.phase.state() == QpState::Sqd);
        !is_aside
    }

    /// The completion of the next signaled request that is done, since the peer has settled every
    /// message before position `count`; to be called until there is none.
    #[inline(always)]
    pub fn next_settled(&mut self, count: u64) -> Option<Completion> {
        loop {
            let Some(wqe) = self.sq.pop_done(count) else {
                self.channel.settled = self.channel.settled.max(count);
                return None;
            };
            if wqe.flags.signaled {
                return Some(wqe.completion(Status::Success));
            }
        }
    }
}
