//! Reads and atomics of one cell in one step, as `in_cell.rs` has Sends and Writes: the requester
//! posts and writes a request at once, the responder answers it while it takes it, and the
//! requester takes the whole response.
//!
//! Each step ends in the same state as by the general way, to which whatever is declined here goes.
//! The driver checks the memory, copies, and executes atomics.

use super::super::config::MAX_MESSAGE_OCTETS;
use super::super::connection::Connection;
use super::super::host::AtomicOp;
use super::super::num::len32;
use super::super::queues::{Kind, ATOMIC_OCTETS};
use super::super::responder::atomic_op;
use super::super::types::{Completion, Payload, RemoteAddr, SendOp, SendWr, Sge};
use super::send::{in_cell, split, NO_HEAD};
use crate::wire::message::{CELL_LEN, CELL_PAYLOAD_LEN, MESSAGE_HEAD_LEN};
use crate::wire::rdmap::{ATOMIC_REQUEST_LEN, ATOMIC_RESPONSE_LEN, READ_REQUEST_LEN};
use crate::wire::{
    AtomicRequest, AtomicResponse, MessageFlags, MessageHead, MessageKind, Msn, ReadRequest,
};
use urdma_types::SlotId;

/// A Read Request that is answered by one cell.
#[derive(Clone, Copy, Debug)]
pub struct CellRead {
    request: ReadRequest,
    octets: usize,
}

impl CellRead {
    /// What the peer reads.
    #[inline(always)]
    pub const fn source(&self) -> RemoteAddr {
        RemoteAddr {
            stag: self.request.source_stag.0,
            to: self.request.source_offset.0,
        }
    }

    /// The room for its octets, at least one, in the cell of the response.
    #[inline(always)]
    pub fn payload<'a>(&self, cell: &'a mut [u8; CELL_LEN]) -> &'a mut [u8] {
        &mut cell[MESSAGE_HEAD_LEN..][..self.octets]
    }
}

/// An Atomic Request.
#[derive(Clone, Copy, Debug)]
pub struct CellAtomic(AtomicRequest);

impl CellAtomic {
    /// Its operand.
    #[inline(always)]
    pub const fn operand(&self) -> RemoteAddr {
        RemoteAddr {
            stag: self.0.stag.0,
            to: self.0.offset.0,
        }
    }

    /// What is executed.
    #[inline(always)]
    pub const fn operation(&self) -> AtomicOp {
        atomic_op(self.0.operation)
    }
}

impl Connection {
    /// Whether [`Connection::post_request_in_cell`] may be called with a request.
    #[inline(always)]
    pub fn fits_request(&self, wr: &SendWr<'_>) -> bool {
        let Payload::Sges([sge]) = wr.payload else {
            return false;
        };
        let fits = match wr.op {
            // Its request is one cell whatever its length.
            SendOp::Read { .. } => u64::from(sge.length) <= MAX_MESSAGE_OCTETS,
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => sge.length == ATOMIC_OCTETS,
            _ => false,
        };
        let is_plain = wr.imm.is_none() && !wr.flags.fence;
        fits && is_plain && self.sends_at_once() && self.sq.may_read()
    }

    /// Posts a request for which [`Connection::fits_request`], and writes its message into the cell
    /// at `position`. Returns the octets in the cell. There must be room in the send queue.
    #[inline(always)]
    pub fn post_request_in_cell(
        &mut self,
        wr: &SendWr<'_>,
        position: u64,
        cell: &mut [u8; CELL_LEN],
    ) -> usize {
        let index = self.sq.push_request(wr, position + 1);
        let (room, rest) = split(cell);
        let (kind, body) = if matches!(wr.op, SendOp::Read { .. }) {
            let request = self.read_request(index);
            (
                MessageKind::ReadRequest,
                request.encode(rest).unwrap_or_default(),
            )
        } else {
            (
                MessageKind::AtomicRequest,
                self.encode_atomic(index, &wr.op, rest),
            )
        };
        let head = MessageHead {
            kind,
            flags: self.channel.flags | MessageFlags::LAST,
            connection_id: self.peer.tx_id,
            number: self.sq.get(index).msn,
            ..NO_HEAD
        };
        head.encode_between(self.channel.ends, room);
        let octets = in_cell(body).cell_octets;
        self.note_posted(octets);
        octets
    }

    #[inline(never)]
    fn encode_atomic(&self, index: u32, op: &SendOp, body: &mut [u8]) -> usize {
        let request = self.atomic_request(index, op);
        request.map_or(0, |request| request.encode(body).unwrap_or_default())
    }

    /// Whether a message from `from` is the request after which the next response is due, and none
    /// is to be sent before.
    #[inline(always)]
    fn answers_at_once(&self, from: SlotId, head: &MessageHead) -> bool {
        self.takes_from(from, head)
            && self.phase.receives()
            && self.phase.sends_stream()
            && !self.is_aside()
            && self.responder.expects(Msn(head.number))
    }

    /// The read that a message from `from` requests, if nothing precedes its response and one cell
    /// has room for it; `body` follows the head. The driver checks the access and copies, and then
    /// calls [`Connection::answered_in_cell`].
    #[inline(always)]
    pub fn answers_in_cell(
        &self,
        from: SlotId,
        head: &MessageHead,
        body: &[u8],
    ) -> Option<CellRead> {
        let is_read = head.kind == MessageKind::ReadRequest && body.len() == READ_REQUEST_LEN;
        if !is_read || !self.answers_at_once(from, head) {
            return None;
        }
        let request = ReadRequest::parse(body).ok()?;
        let octets = request.len_octets as usize;
        (1..=CELL_PAYLOAD_LEN)
            .contains(&octets)
            .then_some(CellRead { request, octets })
    }

    /// A read has been taken, and its payload is in a cell behind the head, which this completes.
    /// Returns the octets in the cell.
    // RFC5040-4.4-2, RFC5040-5.2.1-3, RFC5040-5.2.1-6, RFC5040-5.2.2-4
    //# A Read Response carries the sink STag of its request, uninterpreted.
    //# The responder executes Read Requests itself, and does not deliver them to the application.
    //# The responder answers a valid Read Request with a valid Read Response.
    //# Read Responses are sent in the order of their requests.
    #[inline(always)]
    pub fn answered_in_cell(&mut self, read: &CellRead, cell: &mut [u8; CELL_LEN]) -> usize {
        self.note_taken(READ_REQUEST_LEN);
        self.responder.answered_at_once();
        let head = MessageHead {
            kind: MessageKind::ReadResponse,
            flags: self.channel.epoch() | MessageFlags::LAST,
            connection_id: self.peer.tx_id,
            number: read.request.sink_stag.0,
            offset: read.request.sink_offset.0,
            ..NO_HEAD
        };
        head.encode_between(self.channel.ends, split(cell).0);
        let octets = in_cell(read.octets).cell_octets;
        self.note_written(octets);
        octets
    }

    /// As [`Connection::answers_in_cell`], of an atomic. The driver gets room for the response,
    /// checks the access and executes, and then calls [`Connection::executed_in_cell`].
    #[inline(always)]
    pub fn executes_in_cell(
        &self,
        from: SlotId,
        head: &MessageHead,
        body: &[u8],
    ) -> Option<CellAtomic> {
        let is_atomic = head.kind == MessageKind::AtomicRequest && body.len() == ATOMIC_REQUEST_LEN;
        if !is_atomic || !self.answers_at_once(from, head) {
            return None;
        }
        AtomicRequest::parse(body).ok().map(CellAtomic)
    }

    /// An atomic has been executed; `original` is the old value. Writes the response into the cell
    /// and returns the octets there.
    // RFC7306-5.2.1-2, RFC7306-5.2.1-5
    //# The responder executes Atomic Requests itself, in the order in which they were sent, and
    //# does not deliver them to the application.
    //# The responder answers a valid Atomic Request with an Atomic Response.
    #[inline(always)]
    pub fn executed_in_cell(
        &mut self,
        atomic: &CellAtomic,
        original: u64,
        cell: &mut [u8; CELL_LEN],
    ) -> usize {
        self.note_taken(ATOMIC_REQUEST_LEN);
        let head = MessageHead {
            kind: MessageKind::AtomicResponse,
            flags: self.channel.epoch() | MessageFlags::LAST,
            connection_id: self.peer.tx_id,
            number: self.responder.executed_at_once().0,
            ..NO_HEAD
        };
        let response = AtomicResponse {
            request_id: atomic.0.request_id,
            original,
        };
        let (room, rest) = split(cell);
        head.encode_between(self.channel.ends, room);
        let octets = in_cell(response.encode(rest).unwrap_or_default()).cell_octets;
        self.note_written(octets);
        octets
    }

    /// The read that a message from `from` is the whole response to, and where its payload goes.
    /// The driver checks the access and copies, and then calls [`Connection::took_response`].
    #[inline(always)]
    pub fn takes_response(
        &self,
        from: SlotId,
        head: &MessageHead,
        payload_octets: usize,
    ) -> Option<(u32, Sge)> {
        let is_whole = head.kind == MessageKind::ReadResponse
            && head.flags.contains(MessageFlags::LAST)
            && head.offset == 0
            && payload_octets > 0;
        if !is_whole || !self.is_of_peer(from, head) || !self.settles_plainly() {
            return None;
        }
        let index = self.sq.awaiting(head.number, self.channel.settled)?;
        let wqe = self.sq.get(index);
        let fits = wqe.kind == Kind::Read
            && wqe.has_one_sge()
            && wqe.progress == 0
            && wqe.length as usize == payload_octets;
        fits.then_some((index, wqe.sge))
    }

    /// The payload of the whole response to a read has been copied; [`Connection::next_answered`]
    /// reports what completes with it.
    #[inline(always)]
    pub fn took_response(&mut self, index: u32, payload_octets: usize) {
        self.note_taken(payload_octets);
        let is_complete = self.sq.note_response(index, len32(payload_octets), true);
        debug_assert!(is_complete);
    }

    /// As [`Connection::takes_response`], of an Atomic Response with this body. After the old value
    /// has been copied, the driver calls [`Connection::took_original`].
    #[inline(always)]
    pub fn takes_original(
        &self,
        from: SlotId,
        head: &MessageHead,
        response: &AtomicResponse,
    ) -> Option<(u32, Sge)> {
        let is_atomic = head.kind == MessageKind::AtomicResponse;
        if !is_atomic || !self.is_of_peer(from, head) || !self.settles_plainly() {
            return None;
        }
        let accepted = self.channel.settled;
        let index = self.sq.awaiting(response.request_id, accepted)?;
        let wqe = self.sq.get(index);
        let brings_word = matches!(wqe.kind, Kind::CompareSwap | Kind::FetchAdd);
        (brings_word && wqe.has_one_sge()).then_some((index, wqe.sge))
    }

    /// The old value of an atomic has been copied; then as [`Connection::took_response`].
    #[inline(always)]
    pub fn took_original(&mut self, index: u32) {
        self.note_taken(ATOMIC_RESPONSE_LEN);
        self.sq.note_answered(index);
    }

    /// The completion of the next signaled request that is done; to be called until there is none.
    #[inline(always)]
    pub fn next_answered(&mut self) -> Option<Completion> {
        self.next_settled(self.channel.settled)
    }
}
