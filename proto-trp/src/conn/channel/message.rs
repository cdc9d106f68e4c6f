//! The interface between driver and connection: messages and answers.

use crate::wire::message::{encode_message_body, CELL_LEN, MESSAGE_HEAD_LEN};
use crate::wire::{
    MessageError, MessageFlags, MessageHead, MessageKind, ParseError, ResetReason, Segment,
    SegmentKind,
};
use urdma_types::SlotId;

/// A message that was taken from a channel.
#[derive(Debug)]
pub struct Message<'a, B: ?Sized> {
    /// Its head.
    pub head: MessageHead,
    /// The slot of the process at the other end of the channel.
    pub from: SlotId,
    /// Its cell.
    cell: &'a [u8],
    /// Octets behind the head.
    pub(super) payload_len: usize,
    /// The host's handle of the message. Offsets into it count from the first octet of the head;
    /// what follows the head is in the cell or, if the message has a frame, in the frame.
    pub(super) body: &'a B,
}

impl<'a, B: ?Sized> Message<'a, B> {
    /// The message in `cell`, a private copy of the octets that its cell has, and in `frame_octets`
    /// of a frame.
    ///
    /// # Errors
    /// The message is invalid, and the process that wrote it is at fault.
    #[inline]
    pub fn parse(
        from: SlotId,
        cell: &'a [u8],
        frame_octets: usize,
        body: &'a B,
    ) -> Result<Self, MessageError> {
        let Some((head, rest)) = cell.split_first_chunk::<MESSAGE_HEAD_LEN>() else {
            return Err(MessageError::Truncated);
        };
        if frame_octets != 0 && !rest.is_empty() {
            return Err(MessageError::Divided);
        }
        Ok(Self {
            head: MessageHead::decode(head)?,
            from,
            cell,
            payload_len: rest.len() + frame_octets,
            body,
        })
    }

    /// The message, parsed again: for a branch that is rarely taken. What no other function gets is
    /// never stored, and what only that branch needs is not kept in registers.
    #[inline(always)]
    pub(super) fn again(&self) -> Self {
        let frame_octets = self.payload_len - self.rest().len();
        Self::parse(self.from, self.cell, frame_octets, self.body)
            .expect("the message has been parsed before")
    }

    /// The host's handle of the message, from the first octet of the head on.
    pub fn body(&self) -> &'a B {
        self.body
    }

    /// What follows the head in the cell.
    fn rest(&self) -> &'a [u8] {
        &self.cell[MESSAGE_HEAD_LEN..]
    }

    /// The message as a segment.
    #[inline]
    pub(super) fn segment(&self) -> Result<Segment, ParseError> {
        self.head.segment(self.rest(), self.payload_len)
    }
}

/// A message that refuses another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    octets: [u8; CELL_LEN],
    len: usize,
}

impl Answer {
    /// Its octets, which fit a cell.
    #[inline]
    pub fn octets(&self) -> &[u8] {
        &self.octets[..self.len]
    }

    /// The RESET that answers a message; `None` if the message is none of a reliable connection's
    /// work requests.
    #[cold]
    pub fn reset(refused: &MessageHead, reason: ResetReason) -> Option<Self> {
        if !refused.kind.is_of_work_request() || refused.flags.contains(MessageFlags::UNRELIABLE) {
            return None;
        }
        Some(Self::of_head(&MessageHead {
            kind: MessageKind::Reset,
            flags: refused.flags.and(MessageFlags::EPOCH),
            destination: refused.source,
            source: refused.destination,
            number: 0,
            offset: reason as u64,
            ulp: 0,
            shared_queue: 0,
            ..*refused
        }))
    }

    pub(super) fn of_head(head: &MessageHead) -> Self {
        Self::with_body(head, &SegmentKind::Absent)
    }

    /// A head and the RDMAP header after it.
    pub(super) fn with_body(head: &MessageHead, segment: &SegmentKind) -> Self {
        let mut octets = [0; CELL_LEN];
        let (room, rest) = octets.split_at_mut(MESSAGE_HEAD_LEN);
        if let Some(room) = room.first_chunk_mut() {
            head.encode(room);
        }
        let body = encode_message_body(segment, rest).unwrap_or(0);
        Self {
            octets,
            len: MESSAGE_HEAD_LEN + body,
        }
    }
}

/// The answer to a message for a queue pair that does not exist, if it is answered.
#[cold]
pub fn answer_unknown(refused: &MessageHead) -> Option<Answer> {
    Answer::reset(refused, ResetReason::NoQueuePair)
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Handled {
    /// It is settled.
    Settled,
    /// It is settled once this answer is written.
    Answer(Answer),
}

impl Handled {
    pub(super) fn with(answer: Option<Answer>) -> Self {
        answer.map_or(Handled::Settled, Handled::Answer)
    }
}

/// The kind of the next message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextMessage {
    /// A segment of a Send or Write, which may be its last.
    Part { last: bool },
    /// Another request, or a local one.
    Request,
    /// A segment of a response.
    Response,
    /// A Terminate for an error that no message caused.
    Terminate,
    /// NOT_READY again.
    NotReady,
    /// The end of the connection.
    Fin,
}

/// What the next message is; see [`super::super::Connection::plan_message`]. Two scalars, so that
/// one is returned in registers.
#[derive(Clone, Copy, Debug)]
pub struct MessagePlan {
    pub(super) next: NextMessage,
    /// Octets of payload.
    pub(super) len: u32,
}

impl MessagePlan {
    /// Octets of a frame that the message needs; 0 if its cell holds all of it.
    #[inline]
    pub const fn frame_octets(self) -> usize {
        let len = self.len as usize;
        if len > CELL_LEN - MESSAGE_HEAD_LEN {
            len
        } else {
            0
        }
    }
}

/// A message that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Octets in the cell.
    pub cell_octets: usize,
    /// Octets in the frame.
    pub frame_octets: usize,
}
