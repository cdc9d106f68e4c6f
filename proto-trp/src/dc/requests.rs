//! The send queue of an initiator: copies of the requests that are not complete, in memory that is
//! allocated once.

use super::ends::DcTargetAddress;
use crate::conn::{
    CompletionOp, ConnConfig, Connection, Host, Payload, PostError, SendFlags, SendOp, SendWr, Sge,
    MAX_MESSAGE_OCTETS,
};
use std::collections::VecDeque;
use urdma_types::Time;
use urdma_zeroed::ZeroedSlice;

/// A request that is not complete.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) target: DcTargetAddress,
    pub(super) wr_id: u64,
    op: SendOp,
    imm: Option<u32>,
    flags: SendFlags,
    /// Elements of its list, or octets of its inline data.
    count: usize,
    is_inline: bool,
}

impl Request {
    /// The operation in the completion of a request that was not started.
    pub(super) fn completion_op(&self) -> CompletionOp {
        match self.op {
            SendOp::Send | SendOp::SendInvalidate { .. } => CompletionOp::Send,
            SendOp::Write { .. } => CompletionOp::Write,
            SendOp::Read { .. } => CompletionOp::Read,
            SendOp::CompareSwap { .. } => CompletionOp::CompareSwap,
            SendOp::FetchAdd { .. } => CompletionOp::FetchAdd,
            SendOp::AtomicWrite { .. } => CompletionOp::AtomicWrite,
            SendOp::LocalInvalidate { .. } => CompletionOp::LocalInvalidate,
            SendOp::BindWindow(_) => CompletionOp::BindWindow,
        }
    }
}

/// The requests, oldest first.
#[derive(Debug)]
pub(super) struct Requests {
    queue: VecDeque<Request>,
    depth: usize,
    /// The slot of the oldest request; those after it have the next ones.
    head: usize,
    /// Room for the list of each slot, and for its inline data.
    sges: ZeroedSlice<Sge>,
    inline: ZeroedSlice<u8>,
    max_sge: usize,
    max_inline: usize,
}

impl Requests {
    /// A queue of the sizes of a connection's send queue.
    pub(super) fn new(config: ConnConfig) -> Self {
        let depth = config.sq_depth as usize;
        let (max_sge, max_inline) = (usize::from(config.max_send_sge), config.max_inline as usize);
        Self {
            queue: VecDeque::with_capacity(depth),
            depth,
            head: 0,
            sges: ZeroedSlice::new(depth * max_sge),
            inline: ZeroedSlice::new(depth * max_inline),
            max_sge,
            max_inline,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// The request before which `ahead` others wait.
    pub(super) fn get(&self, ahead: usize) -> Option<&Request> {
        self.queue.get(ahead)
    }

    /// Adds a copy of a request that a connection will accept later, so that an error shows here.
    ///
    /// # Errors
    /// The queue is full, a list is too long, or the operation is a local one.
    pub(super) fn push(
        &mut self,
        target: DcTargetAddress,
        wr: &SendWr<'_>,
    ) -> Result<(), PostError> {
        if self.queue.len() == self.depth {
            return Err(PostError::QueueFull);
        }
        if matches!(
            wr.op,
            SendOp::LocalInvalidate { .. } | SendOp::BindWindow(_)
        ) {
            return Err(PostError::InvalidRequest);
        }
        let slot = self.slot(self.queue.len());
        let (count, is_inline) = match wr.payload {
            Payload::Inline(parts) => (self.keep_inline(slot, parts)?, true),
            Payload::Sges(sges) => (self.keep_sges(slot, sges)?, false),
        };
        self.queue.push_back(Request {
            target,
            wr_id: wr.wr_id,
            op: wr.op,
            imm: wr.imm,
            flags: wr.flags,
            count,
            is_inline,
        });
        Ok(())
    }

    fn slot(&self, ahead: usize) -> usize {
        (self.head + ahead) % self.depth
    }

    fn keep_inline(&mut self, slot: usize, parts: &[&[u8]]) -> Result<usize, PostError> {
        let mut room = &mut self.inline[slot * self.max_inline..][..self.max_inline];
        for part in parts {
            let (into, rest) = room
                .split_at_mut_checked(part.len())
                .ok_or(PostError::InlineTooLong)?;
            into.copy_from_slice(part);
            room = rest;
        }
        Ok(self.max_inline - room.len())
    }

    fn keep_sges(&mut self, slot: usize, sges: &[Sge]) -> Result<usize, PostError> {
        let room = &mut self.sges[slot * self.max_sge..][..self.max_sge];
        let room = room.get_mut(..sges.len());
        room.ok_or(PostError::TooManySges)?.copy_from_slice(sges);
        let octets: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
        if octets > MAX_MESSAGE_OCTETS {
            return Err(PostError::MessageTooLong);
        }
        Ok(sges.len())
    }

    /// Posts the request before which `ahead` others wait to a connection, which takes it unless
    /// its queue is full.
    pub(super) fn hand_over<H: Host>(
        &self,
        ahead: usize,
        now: Time,
        conn: &mut Connection,
        host: &mut H,
    ) -> bool {
        let Some(request) = self.queue.get(ahead) else {
            return false;
        };
        let (slot, inline);
        let payload = if request.is_inline {
            slot = self.slot(ahead) * self.max_inline;
            inline = [&self.inline[slot..slot + request.count]];
            Payload::Inline(&inline)
        } else {
            slot = self.slot(ahead) * self.max_sge;
            Payload::Sges(&self.sges[slot..slot + request.count])
        };
        let wr = SendWr {
            wr_id: request.wr_id,
            op: request.op,
            imm: request.imm,
            flags: request.flags,
            shared_queue: 0,
            payload,
        };
        conn.post_send(|| now, &wr, host).is_ok()
    }

    /// Removes the `count` oldest requests.
    pub(super) fn remove(&mut self, count: usize) {
        self.queue.drain(..count);
        self.head = self.slot(count);
    }

    /// Removes all requests, oldest first.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Request> + '_ {
        self.queue.drain(..)
    }
}
