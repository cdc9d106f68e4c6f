//! The send and receive queues: rings of posted work requests, with scatter-gather lists and inline
//! data.

use super::config::MAX_MESSAGE_OCTETS;
use super::host::Host;
use super::num::{low32, slot32};
use super::types::{
    NoSharedRecv, Payload, PostError, RecvWr, SendFlags, SendOp, SendWr, Sge, Status,
};

/// A posted send request and its progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendWqe {
    pub(super) wr_id: u64,
    pub(super) op: SendOp,
    pub(super) imm: Option<u32>,
    /// Length of the message, in octets.
    pub(super) length: u32,
    /// Octets that were sent; of a read: octets received.
    pub(super) progress: u32,
    /// Message number, valid once a segment that has one was sent.
    pub(super) msn: u32,
    /// One past the last segment's sequence number, valid once `segmented`; of a read or atomic:
    /// one past the request's.
    pub(super) end: u64,
    pub(super) flags: SendFlags,
    pub(super) shared_queue: u32,
    pub(super) sge_count: u8,
    pub(super) inline: bool,
    /// The first segment has been sent.
    pub(super) started: bool,
    /// Every segment has been sent at least once.
    pub(super) segmented: bool,
    /// Of a read: the last segment of the response has arrived.
    pub(super) last_seen: bool,
    /// Of a read or atomic: the whole response has arrived.
    pub(super) answered: bool,
}

impl SendWqe {
    const EMPTY: Self = Self {
        wr_id: 0,
        op: SendOp::Send,
        imm: None,
        length: 0,
        progress: 0,
        msn: 0,
        end: 0,
        flags: SendFlags {
            signaled: false,
            fence: false,
            solicited: false,
        },
        shared_queue: 0,
        sge_count: 0,
        inline: false,
        started: false,
        segmented: false,
        last_seen: false,
        answered: false,
    };

    /// Whether the peer responds with data (queue 1).
    #[inline]
    pub(super) const fn is_request(&self) -> bool {
        self.op.is_request()
    }

    /// Whether it has a message number, of queue 0 or queue 1.
    #[inline]
    pub(super) const fn has_msn(&self) -> bool {
        (!matches!(self.op, SendOp::Write { .. }) || self.imm.is_some()) && !self.op.is_local()
    }

    /// Begins it: the message of a Send, or of immediate data, gets the next number of queue 0.
    #[inline]
    pub(super) fn start_message(&mut self, next_msn: &mut u32) {
        self.started = true;
        if self.imm.is_some() || !matches!(self.op, SendOp::Write { .. }) {
            // RFC5041-4.3-3
            self.msn = *next_msn;
            *next_msn = next_msn.wrapping_add(1);
        }
    }

    /// Records a segment of a Send or Write of `len` octets that was sent; `end` is one past its
    /// number. Returns whether the request is sent.
    #[inline]
    pub(super) fn advance(&mut self, len: u32, last: bool, end: u64) -> bool {
        self.progress += len;
        let more = matches!(self.op, SendOp::Write { .. }) && self.imm.is_some();
        let ends = last && !more;
        if ends {
            self.segmented = true;
            self.end = end;
        }
        ends
    }

    /// Whether it is done when everything before sequence number `una` is acknowledged.
    #[inline]
    pub(super) const fn is_done(&self, una: u64) -> bool {
        if self.is_request() {
            self.answered
        } else {
            self.segmented && self.end <= una
        }
    }
}

/// The payload of a send request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source<'a> {
    /// In registered memory.
    Sges(&'a [Sge]),
    /// Inline data.
    Inline(&'a [u8]),
}

impl Source<'_> {
    /// Copies octets from `offset` on to `payload`; false if the local memory may not be read.
    #[inline]
    pub(super) fn copy_to<H: Host>(self, offset: u32, payload: &mut [u8], host: &mut H) -> bool {
        match self {
            Source::Inline(octets) => {
                let from = offset as usize;
                payload.copy_from_slice(&octets[from..from + payload.len()]);
                true
            }
            Source::Sges(sges) => {
                payload.is_empty() || host.gather(sges, u64::from(offset), payload).is_ok()
            }
        }
    }
}

/// The send queue: `head <= next <= tail`.
#[derive(Debug)]
pub(super) struct SendQueue {
    wqes: Box<[SendWqe]>,
    sges: Box<[Sge]>,
    inline: Box<[u8]>,
    mask: u32,
    max_sge: usize,
    max_inline: usize,
    /// The oldest request that has not completed.
    pub(super) head: u32,
    /// The request that is being sent, or is the next to be sent.
    pub(super) next: u32,
    /// Where the next request is posted.
    pub(super) tail: u32,
    /// A request that cannot be finished, and the status that it gets once those before it are
    /// done.
    pub(super) poisoned: Option<(u32, Status)>,
}

impl SendQueue {
    pub(super) fn new(depth: u32, max_sge: u8, max_inline: u32) -> Self {
        let entries = depth as usize;
        Self {
            wqes: vec![SendWqe::EMPTY; entries].into(),
            sges: vec![Sge::default(); entries * usize::from(max_sge)].into(),
            inline: vec![0; entries * max_inline as usize].into(),
            mask: depth - 1,
            max_sge: usize::from(max_sge),
            max_inline: max_inline as usize,
            head: 0,
            next: 0,
            tail: 0,
            poisoned: None,
        }
    }

    pub(super) fn clear(&mut self) {
        (self.head, self.next, self.tail) = (0, 0, 0);
        self.poisoned = None;
    }

    #[inline]
    pub(super) const fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Whether more than half of the queue is outstanding.
    #[inline]
    pub(super) const fn is_half_full(&self) -> bool {
        self.len() > self.mask / 2
    }

    #[inline]
    pub(super) fn get(&self, index: u32) -> &SendWqe {
        &self.wqes[slot32(index, self.mask)]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: u32) -> &mut SendWqe {
        &mut self.wqes[slot32(index, self.mask)]
    }

    /// The scatter-gather list of a request.
    #[inline]
    pub(super) fn sges(&self, index: u32) -> &[Sge] {
        let slot = slot32(index, self.mask);
        let at = slot * self.max_sge;
        &self.sges[at..at + usize::from(self.wqes[slot].sge_count)]
    }

    /// A request and its payload.
    #[inline]
    pub(super) fn entry(&mut self, index: u32) -> (&mut SendWqe, Source<'_>) {
        let slot = slot32(index, self.mask);
        let wqe = &mut self.wqes[slot];
        let source = if wqe.inline {
            let at = slot * self.max_inline;
            Source::Inline(&self.inline[at..at + wqe.length as usize])
        } else {
            let at = slot * self.max_sge;
            Source::Sges(&self.sges[at..at + usize::from(wqe.sge_count)])
        };
        (wqe, source)
    }

    /// Whether a request must not be sent because it, or one before it, cannot be finished.
    #[inline]
    pub(super) fn is_stopped_at(&self, index: u32) -> bool {
        self.poisoned.is_some_and(|(poisoned, _)| {
            index.wrapping_sub(self.head) >= poisoned.wrapping_sub(self.head)
        })
    }

    /// Whether the peer may still respond to a request.
    #[inline]
    pub(super) const fn is_outstanding(&self, index: u32) -> bool {
        index.wrapping_sub(self.head) < self.next.wrapping_sub(self.head)
    }

    /// Checks and stores a request; returns the length of its message in octets.
    #[inline]
    pub(super) fn push(&mut self, wr: &SendWr<'_>) -> Result<u32, PostError> {
        if self.len() > self.mask {
            return Err(PostError::QueueFull);
        }
        let slot = slot32(self.tail, self.mask);
        let (length, sge_count, inline) = match wr.payload {
            Payload::Sges(sges) => {
                if sges.len() > self.max_sge {
                    return Err(PostError::TooManySges);
                }
                copy_list(&mut self.sges[slot * self.max_sge..], sges);
                (total_length(sges)?, sges.len(), false)
            }
            Payload::Inline(parts) => (self.copy_inline(slot, parts)?, 0, true),
        };
        check_operation(wr, length, inline)?;
        self.wqes[slot] = SendWqe {
            wr_id: wr.wr_id,
            op: wr.op,
            imm: wr.imm,
            length,
            flags: wr.flags,
            shared_queue: wr.shared_queue,
            sge_count: u8::try_from(sge_count).map_err(|_| PostError::TooManySges)?,
            inline,
            ..SendWqe::EMPTY
        };
        self.tail = self.tail.wrapping_add(1);
        Ok(length)
    }

    /// Makes the last posted request fail in its turn.
    #[cold]
    pub(super) fn fail_last(&mut self, status: Status) {
        let wqe = self.get_mut(self.tail.wrapping_sub(1));
        let op = wqe.op.completion_op();
        wqe.op = SendOp::Fail { op, status };
    }

    fn copy_inline(&mut self, slot: usize, parts: &[&[u8]]) -> Result<u32, PostError> {
        let at = slot * self.max_inline;
        let mut room = &mut self.inline[at..at + self.max_inline];
        let mut length = 0;
        for part in parts {
            let (into, rest) = room
                .split_at_mut_checked(part.len())
                .ok_or(PostError::InlineTooLong)?;
            into.copy_from_slice(part);
            room = rest;
            length += part.len();
        }
        u32::try_from(length).map_err(|_| PostError::InlineTooLong)
    }
}

/// Copies a list to the beginning of `room`. Most have one element, which needs no loop.
#[inline]
fn copy_list(room: &mut [Sge], sges: &[Sge]) {
    if let ([sge], Some(first)) = (sges, room.first_mut()) {
        *first = *sge;
    } else {
        room[..sges.len()].copy_from_slice(sges);
    }
}

/// Length of a scatter-gather list.
#[inline]
fn octets_of(sges: &[Sge]) -> u64 {
    match sges {
        [sge] => u64::from(sge.length),
        sges => sges.iter().map(|sge| u64::from(sge.length)).sum(),
    }
}

/// Length of a scatter-gather list, at most 2^31 octets.
#[inline]
fn total_length(sges: &[Sge]) -> Result<u32, PostError> {
    let total = octets_of(sges);
    // RFC5041-5.2-2
    if total > MAX_MESSAGE_OCTETS {
        return Err(PostError::MessageTooLong);
    }
    Ok(low32(total))
}

/// Checks flags and length of an operation.
#[inline]
fn check_operation(wr: &SendWr<'_>, length: u32, inline: bool) -> Result<(), PostError> {
    let fits = match wr.op {
        SendOp::Send | SendOp::Write { .. } => true,
        SendOp::SendInvalidate { .. } => wr.imm.is_none(),
        SendOp::Read { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => {
            wr.imm.is_none() && !inline
        }
        SendOp::AtomicWrite { .. } | SendOp::LocalInvalidate { .. } | SendOp::BindWindow(_) => {
            wr.imm.is_none() && !inline && length == 0
        }
        SendOp::Fail { .. } => true,
    };
    if fits {
        Ok(())
    } else {
        Err(PostError::InvalidRequest)
    }
}

/// A posted receive request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RecvWqe {
    pub(super) wr_id: u64,
    /// Capacity of its scatter-gather list, in octets.
    pub(super) capacity: u64,
    pub(super) sge_count: u8,
    /// The shared receive queue that it was taken from; 0 if there is only one, or none.
    pub(super) shared_queue: u32,
}

/// The receive queue, or the requests taken from the shared receive queue. The request at `head`
/// belongs to message `head_msn`.
#[derive(Debug)]
pub(super) struct RecvQueue {
    wqes: Box<[RecvWqe]>,
    sges: Box<[Sge]>,
    mask: u32,
    depth: u32,
    max_sge: usize,
    shared: bool,
    /// The shared receive queue that the peer named last.
    pub(super) named: u32,
    pub(super) head: u32,
    pub(super) tail: u32,
    /// The message of queue 0 that is expected next, or is arriving.
    pub(super) head_msn: u32,
    /// Octets of that message whose effect is applied.
    pub(super) head_offset: u32,
}

impl RecvQueue {
    pub(super) fn new(depth: u32, max_sge: u8, shared: bool) -> Self {
        let entries = depth.max(1).next_power_of_two();
        Self {
            wqes: vec![RecvWqe::default(); entries as usize].into(),
            sges: vec![Sge::default(); entries as usize * usize::from(max_sge)].into(),
            mask: entries - 1,
            depth,
            max_sge: usize::from(max_sge),
            shared,
            named: 0,
            head: 0,
            tail: 0,
            head_msn: 1,
            head_offset: 0,
        }
    }

    pub(super) fn clear(&mut self) {
        (self.head, self.tail) = (0, 0);
        (self.head_msn, self.head_offset) = (1, 0);
        self.named = 0;
    }

    #[inline]
    pub(super) const fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    #[inline]
    pub(super) fn get(&self, index: u32) -> &RecvWqe {
        &self.wqes[slot32(index, self.mask)]
    }

    /// A request and its scatter-gather list.
    #[inline]
    pub(super) fn entry(&self, index: u32) -> (&RecvWqe, &[Sge]) {
        let slot = slot32(index, self.mask);
        let at = slot * self.max_sge;
        let wqe = &self.wqes[slot];
        (wqe, &self.sges[at..at + usize::from(wqe.sge_count)])
    }

    #[inline]
    pub(super) fn push(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if self.shared {
            return Err(PostError::InvalidState);
        }
        if self.len() >= self.depth {
            return Err(PostError::QueueFull);
        }
        if wr.sges.len() > self.max_sge {
            return Err(PostError::TooManySges);
        }
        let slot = slot32(self.tail, self.mask);
        copy_list(&mut self.sges[slot * self.max_sge..], wr.sges);
        self.wqes[slot] = RecvWqe {
            wr_id: wr.wr_id,
            capacity: octets_of(wr.sges),
            sge_count: u8::try_from(wr.sges.len()).map_err(|_| PostError::TooManySges)?,
            shared_queue: 0,
        };
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// The request for message `msn` of queue 0.
    ///
    /// # Errors
    /// None is posted.
    #[inline]
    pub(super) fn for_msn<H: Host>(&mut self, msn: u32, host: &mut H) -> Result<u32, NoSharedRecv> {
        let ahead = msn.wrapping_sub(self.head_msn);
        if ahead >= self.len() {
            if !self.shared {
                return Err(NoSharedRecv::Empty);
            }
            self.pull_shared(ahead, host)?;
        }
        Ok(self.head.wrapping_add(ahead))
    }

    /// Whether requests are taken from a shared receive queue.
    pub(super) const fn is_shared(&self) -> bool {
        self.shared
    }

    /// Takes requests from the shared receive queue until there is one for the message `ahead`
    /// after the expected one.
    #[cold]
    fn pull_shared<H: Host>(&mut self, ahead: u32, host: &mut H) -> Result<(), NoSharedRecv> {
        if ahead >= self.depth {
            return Err(NoSharedRecv::Empty);
        }
        while self.len() <= ahead {
            let slot = slot32(self.tail, self.mask);
            let at = slot * self.max_sge;
            let room = &mut self.sges[at..at + self.max_sge];
            let taken = host.take_shared_recv(self.named, room)?;
            let used = usize::from(taken.sge_count).min(room.len());
            self.wqes[slot] = RecvWqe {
                wr_id: taken.wr_id,
                capacity: room[..used].iter().map(|sge| u64::from(sge.length)).sum(),
                sge_count: u8::try_from(used).unwrap_or(0),
                shared_queue: self.named,
            };
            self.tail = self.tail.wrapping_add(1);
        }
        Ok(())
    }

    /// The expected message is complete: the next one is expected.
    #[inline]
    pub(super) fn pop(&mut self) {
        self.head = self.head.wrapping_add(1);
        self.head_msn = self.head_msn.wrapping_add(1);
        self.head_offset = 0;
    }
}
