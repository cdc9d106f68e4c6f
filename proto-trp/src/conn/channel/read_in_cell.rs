//! Reads of one cell in one step, as `in_cell.rs` has Sends and Writes: the requester posts and
//! writes a request at once, the responder answers it while it takes it, and the requester takes
//! the whole response.
//!
//! Each step ends in the same state as by the general way, to which whatever is declined here goes.
//! The driver checks the memory and copies.

use super::super::config::MAX_MESSAGE_OCTETS;
use super::super::connection::Connection;
use super::super::num::len32;
use super::super::queues::Kind;
use super::super::types::{Completion, Payload, RemoteAddr, SendOp, SendWr, Sge};
use super::send::{in_cell, split, NO_HEAD};
use crate::wire::message::{CELL_LEN, CELL_PAYLOAD_LEN};
use crate::wire::rdmap::READ_REQUEST_LEN;
use crate::wire::{MessageFlags, MessageHead, MessageKind, Msn, ReadRequest};
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

    /// How many octets of it, at least one; they fit a cell.
    #[inline(always)]
    pub const fn octets(&self) -> usize {
        self.octets
    }
}

impl Connection {
    /// Whether [`Connection::post_read_in_cell`] may be called with a request.
    #[inline(always)]
    pub fn fits_read(&self, wr: &SendWr<'_>) -> bool {
        let Payload::Sges([sge]) = wr.payload else {
            return false;
        };
        let is_read = matches!(wr.op, SendOp::Read { .. }) && wr.imm.is_none() && !wr.flags.fence;
        // Its request is one cell whatever its length.
        let fits = u64::from(sge.length) <= MAX_MESSAGE_OCTETS;
        is_read && fits && self.sends_at_once() && self.sq.may_read()
    }

    /// Posts a read for which [`Connection::fits_read`], and writes its request into the cell at
    /// `position`. Returns the octets in the cell. There must be room in the send queue.
    #[inline(always)]
    pub fn post_read_in_cell(
        &mut self,
        wr: &SendWr<'_>,
        position: u64,
        cell: &mut [u8; CELL_LEN],
    ) -> usize {
        let index = self.sq.push_read(wr, position + 1);
        let (room, rest) = split(cell);
        let head = MessageHead {
            kind: MessageKind::ReadRequest,
            flags: self.channel.flags | MessageFlags::LAST,
            connection_id: self.peer.tx_id,
            number: self.sq.get(index).msn,
            ..NO_HEAD
        };
        head.encode_between(self.channel.ends, room);
        let request = self.read_request(index);
        let octets = in_cell(request.encode(rest).unwrap_or_default()).cell_octets;
        self.note_posted(octets);
        octets
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
        let is_next = head.kind == MessageKind::ReadRequest
            && self.takes_from(from, head)
            && self.phase.receives()
            && self.phase.sends_stream()
            && !self.is_aside()
            && self.responder.expects(Msn(head.number));
        if !is_next || body.len() != READ_REQUEST_LEN {
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
        if !is_whole || !self.takes_from(from, head) || !self.settles_plainly() {
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

    /// The completion of the next signaled request that is done; to be called until there is none.
    #[inline(always)]
    pub fn next_answered(&mut self) -> Option<Completion> {
        self.next_settled(self.channel.settled)
    }
}
