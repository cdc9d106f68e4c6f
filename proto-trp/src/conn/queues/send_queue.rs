//! The send queue: a ring of posted send requests, which become segments.

use super::super::config::{ConnConfig, MAX_MESSAGE_OCTETS};
use super::super::host::Host;
use super::super::num::{low32, slot32};
use super::super::types::{Payload, PostError, SendOp, SendWr, Sge, Status};
use super::lists::{octets_of, Lists};
use super::segment::{next_part, SegmentSource, SegmentSpec};
use super::wqe::{Extra, Kind, Response, SendWqe, NOT_SENT};
use urdma_zeroed::ZeroedSlice;

/// Octets that an atomic returns.
pub(in crate::conn) const ATOMIC_OCTETS: u32 = 8;

/// The send queue: `head <= next <= tail`. The default one has no memory.
#[derive(Debug, Default)]
pub(in crate::conn) struct SendQueue {
    wqes: ZeroedSlice<SendWqe>,
    lists: Lists,
    mask: u32,
    /// Whether requests name a shared receive queue of the peer.
    names_shared_queue: bool,
    /// The oldest request that has not completed.
    head: u32,
    /// The request that is being sent, or is the next to be sent.
    next: u32,
    /// Where the next request is posted.
    tail: u32,
    /// A request that cannot be finished, and the status that it gets once those before it are
    /// done.
    poisoned: Option<(u32, Status)>,
    /// Next message number of queue 0.
    message_msn: u32,
    /// Next message number of queue 1.
    request_msn: u32,
    /// Reads and atomics that were sent and are not answered.
    reads_outstanding: u32,
    /// Their maximum number (ORD); 0 if there are no such requests.
    reads_max: u32,
    /// Makes the identifiers of reads differ between connections.
    cookie: u32,
}

impl SendQueue {
    pub(in crate::conn) fn new(config: &ConnConfig) -> Self {
        let depth = config.sq_depth;
        Self {
            wqes: ZeroedSlice::new(depth as usize),
            lists: Lists::new(depth, config.max_send_sge, config.max_inline),
            mask: depth - 1,
            names_shared_queue: config.names_shared_queue,
            head: 0,
            next: 0,
            tail: 0,
            poisoned: None,
            message_msn: 1,
            request_msn: 1,
            reads_outstanding: 0,
            reads_max: 0,
            cookie: low32(config.seed ^ config.seed >> 32),
        }
    }

    /// Discards every request, and begins to count messages anew.
    pub(in crate::conn) fn reset(&mut self) {
        self.clear();
        (self.message_msn, self.request_msn) = (1, 1);
        self.reads_max = 0;
    }

    /// Discards every request.
    fn clear(&mut self) {
        (self.head, self.next, self.tail) = (0, 0, 0);
        self.poisoned = None;
        self.reads_outstanding = 0;
    }

    /// Sets all counters of an empty queue to `count`, for simulations.
    pub(in crate::conn) fn count_from(&mut self, count: u32) {
        (self.head, self.next, self.tail) = (count, count, count);
        (self.message_msn, self.request_msn) = (count, count);
    }

    /// Sets the maximum number of reads and atomics that are not answered (ORD).
    pub(in crate::conn) fn limit_reads(&mut self, max: u32) {
        self.reads_max = max;
    }

    /// What the identifiers of reads are made from.
    pub(in crate::conn) const fn cookie(&self) -> u32 {
        self.cookie
    }

    /// The index of the oldest request, if there is one.
    #[inline]
    pub(in crate::conn) const fn oldest(&self) -> Option<u32> {
        if self.is_empty() {
            None
        } else {
            Some(self.head)
        }
    }

    /// The index of the oldest request, or of the one that is posted next.
    #[inline]
    pub(in crate::conn) const fn head(&self) -> u32 {
        self.head
    }

    /// The index of the request that is being sent, or is the next to be sent.
    #[inline(always)]
    pub(in crate::conn) const fn next(&self) -> u32 {
        self.next
    }

    /// Requests of which not all was sent.
    #[inline(always)]
    pub(in crate::conn) const fn unsent(&self) -> u32 {
        self.tail.wrapping_sub(self.next)
    }

    #[inline]
    pub(in crate::conn) const fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    #[inline]
    pub(in crate::conn) const fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Whether more than half of the queue is outstanding.
    #[inline]
    pub(in crate::conn) const fn is_half_full(&self) -> bool {
        self.len() > self.mask / 2
    }

    #[inline]
    pub(in crate::conn) fn get(&self, index: u32) -> &SendWqe {
        &self.wqes[slot32(index, self.mask)]
    }

    #[inline]
    fn get_mut(&mut self, index: u32) -> &mut SendWqe {
        &mut self.wqes[slot32(index, self.mask)]
    }

    /// The scatter-gather list of a request.
    #[inline]
    pub(in crate::conn) fn sges(&self, index: u32) -> &[Sge] {
        let slot = slot32(index, self.mask);
        let wqe = &self.wqes[slot];
        if wqe.has_one_sge() {
            return std::slice::from_ref(&wqe.sge);
        }
        self.lists.sges(slot, wqe.sge_count())
    }

    /// The operation of a request.
    #[inline]
    pub(in crate::conn) fn op(&self, index: u32) -> SendOp {
        let wqe = self.get(index);
        match wqe.kind {
            Kind::PlainSend => SendOp::Send,
            Kind::PlainWrite => SendOp::Write {
                remote: wqe.remote(),
            },
            Kind::Read => SendOp::Read {
                remote: wqe.remote(),
            },
            _ => self.extra(index).op,
        }
    }

    /// What of a request its entry has no room for.
    #[inline]
    pub(in crate::conn) fn extra(&self, index: u32) -> Extra {
        self.lists.extra(slot32(index, self.mask))
    }

    /// The immediate data of a request.
    #[inline]
    pub(in crate::conn) fn imm(&self, index: u32) -> Option<u32> {
        if self.get(index).kind.fits_entry() {
            return None;
        }
        self.extra(index).imm
    }

    /// The shared receive queue of the peer that a request names, or 0.
    #[inline]
    pub(in crate::conn) fn shared_queue(&self, index: u32) -> u32 {
        if self.names_shared_queue {
            self.extra(index).shared_queue
        } else {
            0
        }
    }

    /// A request, its slot, and what the entries have no room for.
    #[inline]
    pub(in crate::conn) fn entry(&mut self, index: u32) -> (&mut SendWqe, usize, &Lists) {
        let slot = slot32(index, self.mask);
        (&mut self.wqes[slot], slot, &self.lists)
    }

    /// Whether a request must not be sent because it, or one before it, cannot be finished.
    #[inline]
    pub(in crate::conn) fn is_stopped_at(&self, index: u32) -> bool {
        self.poisoned.is_some_and(|(poisoned, _)| {
            index.wrapping_sub(self.head) >= poisoned.wrapping_sub(self.head)
        })
    }

    /// Whether some request cannot be finished.
    #[inline]
    pub(in crate::conn) const fn is_stopped(&self) -> bool {
        self.poisoned.is_some()
    }

    /// A request cannot be finished: it fails with `status` when those before it are done.
    #[cold]
    pub(in crate::conn) fn stop_at(&mut self, index: u32, status: Status) {
        // The response to an earlier request may fail after a later request did.
        if !self.is_stopped_at(index) {
            self.poisoned = Some((index, status));
        }
    }

    /// The status of the oldest request if it cannot be finished, and its turn has come.
    pub(in crate::conn) fn failed(&self) -> Option<Status> {
        let (index, status) = self.poisoned?;
        (index == self.head).then_some(status)
    }

    /// Whether the peer may still respond to a request.
    #[inline]
    const fn is_outstanding(&self, index: u32) -> bool {
        index.wrapping_sub(self.head) < self.next.wrapping_sub(self.head)
    }

    /// Checks and stores a request; returns the length of its message in octets.
    #[inline(always)]
    pub(in crate::conn) fn push(&mut self, wr: &SendWr<'_>) -> Result<u32, PostError> {
        if self.len() > self.mask {
            return Err(PostError::QueueFull);
        }
        let slot = slot32(self.tail, self.mask);
        let (length, sge_count) = match wr.payload {
            Payload::Sges([sge]) => (checked_length(sge.length.into())?, 1),
            Payload::Sges(sges) => {
                let count = self.lists.push(slot, sges)?;
                (checked_length(octets_of(sges))?, count)
            }
            Payload::Inline(parts) => (self.lists.push_inline(slot, parts)?, 0),
        };
        let kind = Kind::of(wr);
        if !kind.is_plain() || self.names_shared_queue {
            check_operation(wr, length)?;
            if !kind.fits_entry() || self.names_shared_queue {
                self.lists.keep(slot, self.mask, wr);
            }
        }
        self.wqes[slot] = SendWqe::new(wr, kind, length, sge_count);
        self.tail = self.tail.wrapping_add(1);
        Ok(length)
    }

    /// The oldest request, which is removed, if it is done when everything before sequence number
    /// `una` is acknowledged.
    // RFC5040-5.5-4, RFC5040-5.5-5
    //# A Send or a Write is not complete before DDP has completed it (rule 14).
    //# Work requests complete in the order in which they were posted (rules 11 and 15).
    #[inline(always)]
    pub(in crate::conn) fn pop_done(&mut self, una: u64) -> Option<&SendWqe> {
        if self.head == self.next {
            return None;
        }
        let wqe = &self.wqes[slot32(self.head, self.mask)];
        if !wqe.is_done(una) {
            return None;
        }
        self.head = self.head.wrapping_add(1);
        Some(wqe)
    }

    /// Everything before this sequence number is acknowledged when the next request completes that
    /// is reported, or may be sent. `None` if there is none, or it is to be answered first.
    pub(in crate::conn) fn awaited(&self) -> Option<u64> {
        if self.poisoned.is_some() || self.next != self.tail {
            return Some(0);
        }
        let mut end = 0;
        let mut index = self.head;
        while index != self.next {
            let wqe = self.get(index);
            if wqe.is_unanswered() {
                return None;
            }
            end = end.max(wqe.end);
            if wqe.flags.signaled {
                return Some(end);
            }
            index = index.wrapping_add(1);
        }
        None
    }

    /// Completes the requests at the head that are done when everything before `una` is
    /// acknowledged.
    #[inline(always)]
    pub(in crate::conn) fn complete_before<H: Host>(&mut self, una: u64, host: &mut H) {
        while let Some(wqe) = self.pop_done(una) {
            if wqe.flags.signaled {
                host.complete(wqe.completion(Status::Success));
            }
        }
    }

    /// Ends every request: the blamed one with its status, all others flushed.
    #[cold]
    pub(in crate::conn) fn flush<H: Host>(&mut self, blame: Option<(u32, Status)>, host: &mut H) {
        for ahead in 0..self.len() {
            let index = self.head.wrapping_add(ahead);
            let status = match blame {
                Some((blamed, status)) if blamed == index => status,
                _ => Status::WorkRequestFlushed,
            };
            host.complete(self.get(index).completion(status));
        }
        self.clear();
    }

    /// The requests that have begun, oldest first.
    pub(in crate::conn) fn begun(&self) -> impl Iterator<Item = (u32, &SendWqe)> {
        (0..self.len())
            .map(|ahead| self.head.wrapping_add(ahead))
            .map(|index| (index, self.get(index)))
            .take_while(|(_, wqe)| wqe.started)
    }

    /// Whether a request has begun.
    pub(in crate::conn) fn has_begun(&self) -> bool {
        self.begun().next().is_some()
    }

    /// The requests of which all was sent, oldest first.
    pub(in crate::conn) fn sent(&self) -> impl Iterator<Item = (u32, &SendWqe)> {
        (0..self.next.wrapping_sub(self.head))
            .map(|ahead| self.head.wrapping_add(ahead))
            .map(|index| (index, self.get(index)))
    }

    /// The next segment of the request whose turn it is, with at most the given octets of payload;
    /// `starts` if a request may begin. `None` if there is none, or the fence or the limit of reads
    /// (ORD) makes it wait.
    #[inline(always)]
    pub(in crate::conn) fn next_segment(
        &self,
        max_tagged: u32,
        max_untagged: u32,
        starts: bool,
    ) -> Option<SegmentSpec> {
        // RFC5040-5.5-3, RFC5041-5.3-1, RFC7306-5.2.1-4, RFC7306-6.3-5
        //# Messages are sent in the order in which the application posted the work requests (rule
        //# 13).
        //# Messages are sent in the order in which they were submitted.
        //# A requester sends Atomic Requests in the order of the work requests.
        //# Immediate Data is sent in the order of the work requests.
        let index = self.next;
        if index == self.tail || self.is_stopped_at(index) {
            return None;
        }
        let wqe = self.get(index);
        let is_ready = wqe.started || starts && self.may_start(wqe);
        if !is_ready {
            return None;
        }
        if wqe.kind.is_plain() {
            return Some(next_part(index, wqe, max_tagged, max_untagged));
        }
        let source = if wqe.is_local() {
            SegmentSource::Local(index)
        } else if wqe.is_request() {
            SegmentSource::Request(index)
        } else if wqe.kind == Kind::WriteImm && wqe.progress == wqe.length {
            SegmentSource::Immediate(index)
        } else {
            return Some(next_part(index, wqe, max_tagged, max_untagged));
        };
        Some(SegmentSpec {
            source,
            offset: 0,
            len: 0,
            last: true,
        })
    }

    /// Whether the fence and the limit of reads let a request start.
    #[inline]
    fn may_start(&self, wqe: &SendWqe) -> bool {
        wqe.kind.is_plain()
            || (!wqe.flags.fence || self.reads_outstanding == 0)
                && (!wqe.is_request() || self.may_read())
    }

    /// Begins a request, if it has not begun: its message gets the next number of its queue.
    #[inline]
    pub(in crate::conn) fn start(&mut self, index: u32) {
        let wqe = &mut self.wqes[slot32(index, self.mask)];
        if wqe.started {
            return;
        }
        if wqe.is_request() {
            wqe.started = true;
            // RFC5041-4.3-3
            //# The MSN of a queue begins with 1, grows by one for each message, and wraps to 0.
            wqe.msn = self.request_msn;
            self.request_msn = self.request_msn.wrapping_add(1);
            self.reads_outstanding += 1;
        } else {
            wqe.start_message(&mut self.message_msn);
        }
    }

    /// Records a segment that was sent; `end` is one past its number.
    #[inline]
    pub(in crate::conn) fn note_sent(&mut self, spec: &SegmentSpec, end: u64) {
        match spec.source {
            SegmentSource::Message(index) => {
                if self.get_mut(index).advance(spec.len, spec.last, end) {
                    self.pass(index);
                }
            }
            SegmentSource::Immediate(index) | SegmentSource::Request(index) => {
                self.get_mut(index).end = end;
                self.pass(index);
            }
            SegmentSource::Local(_) | SegmentSource::Response(_) | SegmentSource::Void => {}
        }
    }

    /// All of a request was sent: it is the turn of the next one.
    #[inline(always)]
    pub(in crate::conn) fn pass(&mut self, index: u32) {
        self.next = index.wrapping_add(1);
    }

    /// Rewinds to `progress` octets in the request with this index, which has begun, as if nothing
    /// after that had been sent.
    pub(in crate::conn) fn rewind(&mut self, index: u32, progress: u32) {
        let refused = self.get_mut(index);
        (refused.end, refused.progress) = (NOT_SENT, progress);
        refused.forget_last();
        let mut later = index.wrapping_add(1);
        while later != self.tail && self.get(later).started {
            let wqe = &mut self.wqes[slot32(later, self.mask)];
            later = later.wrapping_add(1);
            if wqe.is_local() {
                // Local requests are not repeated.
                continue;
            }
            (wqe.started, wqe.end, wqe.progress) = (false, NOT_SENT, 0);
            if wqe.is_request() {
                // An answered one is no longer counted.
                self.reads_outstanding -= u32::from(wqe.is_unanswered());
                wqe.response = Response::Awaited;
                // R7.9-7
                //# MSNs and message offsets MUST be the same as before.
                self.request_msn = self.request_msn.wrapping_sub(1);
            } else if wqe.has_msn() {
                // R7.9-7
                //# MSNs and message offsets MUST be the same as before.
                self.message_msn = self.message_msn.wrapping_sub(1);
            }
        }
        self.next = index;
    }

    /// Executes a local request; one that was executed before a rewind is not executed again.
    ///
    /// # Errors
    /// The status that it fails with.
    #[cold]
    pub(in crate::conn) fn execute<H: Host>(
        &mut self,
        index: u32,
        host: &mut H,
    ) -> Result<(), Status> {
        let op = self.op(index);
        let wqe = self.get_mut(index);
        wqe.started = true;
        match op {
            _ if wqe.is_sent() => {}
            _ if wqe.fails.is_some() => wqe.fails.map_or(Ok(()), Err)?,
            // Both are InfiniBand's memory management operation error.
            SendOp::LocalInvalidate { stag } => host
                .invalidate_local(stag)
                .map_err(|_| Status::WindowBindError)?,
            SendOp::BindWindow(bind) => host
                .bind_window(&bind)
                .map_err(|_| Status::WindowBindError)?,
            _ => {}
        }
        wqe.end = 0;
        self.pass(index);
        Ok(())
    }

    /// The identifier by which the response to a read or atomic names it.
    #[inline]
    pub(in crate::conn) const fn id(&self, index: u32) -> u32 {
        index ^ self.cookie
    }

    /// The request with this identifier, if it is a read or atomic that was sent and is not
    /// answered, and the peer has accepted everything before number `accepted`, itself included.
    #[inline]
    pub(in crate::conn) fn awaiting(&self, id: u32, accepted: u64) -> Option<u32> {
        let index = id ^ self.cookie;
        let wqe = self.get(index);
        let waits = self.is_outstanding(index) && wqe.is_unanswered() && wqe.end <= accepted;
        waits.then_some(index)
    }

    /// Records a part of the response to a read. Returns whether the response is complete.
    #[inline]
    #[must_use]
    pub(in crate::conn) fn note_response(&mut self, index: u32, len: u32, last: bool) -> bool {
        let wqe = self.get_mut(index);
        wqe.progress = wqe.progress.saturating_add(len);
        if last {
            wqe.response = Response::LastSeen;
        }
        // RFC5040-5.5-6
        //# A Read is not complete before its whole response has arrived (rule 19).
        let is_complete = wqe.response == Response::LastSeen && wqe.progress >= wqe.length;
        if is_complete {
            self.note_answered(index);
        }
        is_complete
    }

    /// A read or atomic has its complete response.
    #[inline]
    pub(in crate::conn) fn note_answered(&mut self, index: u32) {
        // RFC5040-5.2.2-3, RFC7306-5.2.2-3
        //# A Read Response is delivered to the application, as the completion of its read.
        //# An Atomic Response is delivered to the application, as the completion of its atomic.
        self.get_mut(index).response = Response::None;
        self.reads_outstanding -= 1;
    }

    /// Whether nothing waits to be sent, and there is room for one more.
    #[inline(always)]
    pub(in crate::conn) const fn is_all_sent(&self) -> bool {
        self.next == self.tail && self.len() <= self.mask
    }

    /// Octets of inline data that a request may have.
    #[inline(always)]
    pub(in crate::conn) const fn max_inline(&self) -> usize {
        self.lists.max_inline()
    }

    /// Stores and begins a Send or Write that [`Connection::fits_cell`] has checked.
    ///
    /// [`Connection::fits_cell`]: crate::conn::Connection::fits_cell
    #[inline(always)]
    pub(in crate::conn) fn push_plain(&mut self, wr: &SendWr<'_>, octets: usize) -> &mut SendWqe {
        let slot = slot32(self.tail, self.mask);
        self.tail = self.tail.wrapping_add(1);
        if let Payload::Inline(parts) = wr.payload {
            self.lists.keep_inline(slot, parts);
        }
        let wqe = &mut self.wqes[slot];
        *wqe = SendWqe::new(wr, Kind::of_plain(wr), low32(octets as u64), 0);
        wqe.start_message(&mut self.message_msn);
        wqe
    }

    /// The request that was pushed last as a plain one has immediate data. Returns the message
    /// number of that of a Write.
    pub(in crate::conn) fn keep_last(&mut self, wr: &SendWr<'_>) -> Option<u32> {
        let slot = slot32(self.tail.wrapping_sub(1), self.mask);
        self.lists.keep(slot, self.mask, wr);
        let wqe = &mut self.wqes[slot];
        wqe.kind = Kind::of(wr);
        if wqe.kind != Kind::WriteImm {
            return None;
        }
        wqe.start_message(&mut self.message_msn);
        Some(wqe.msn)
    }

    /// Whether the limit of reads (ORD) lets one start.
    #[inline(always)]
    pub(in crate::conn) const fn may_read(&self) -> bool {
        self.reads_outstanding < self.reads_max
    }

    /// Stores and begins a read or atomic that [`Connection::fits_request`] has checked, whose
    /// request is the message before position `end`. Returns its index.
    ///
    /// [`Connection::fits_request`]: crate::conn::Connection::fits_request
    #[inline(always)]
    pub(in crate::conn) fn push_request(&mut self, wr: &SendWr<'_>, end: u64) -> u32 {
        let index = self.tail;
        let length = match wr.payload {
            Payload::Sges([sge]) => sge.length,
            _ => 0,
        };
        self.tail = index.wrapping_add(1);
        let slot = slot32(index, self.mask);
        let kind = if matches!(wr.op, SendOp::Read { .. }) {
            Kind::Read
        } else {
            self.lists.keep(slot, self.mask, wr);
            Kind::of(wr)
        };
        let wqe = &mut self.wqes[slot];
        *wqe = SendWqe::new(wr, kind, length, 1);
        (wqe.response, wqe.end) = (Response::Awaited, end);
        self.start(index);
        index
    }

    /// Every request was sent.
    #[inline(always)]
    pub(in crate::conn) fn pass_all(&mut self) {
        self.next = self.tail;
    }

    /// The last posted request is a read or atomic. One that cannot succeed fails when its turn
    /// comes, as with a device that finds the fault when it executes the request. Nothing reaches
    /// the peer.
    #[inline]
    pub(in crate::conn) fn judge_last(&mut self, op: &SendOp, octets: u32) {
        let brings_word = matches!(op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. });
        let fails = if self.reads_max == 0 {
            // UC has no such requests.
            Some(Status::LocalQpOperationError)
        } else if brings_word && octets != ATOMIC_OCTETS {
            Some(Status::LocalLengthError)
        } else {
            None
        };
        let wqe = self.get_mut(self.tail.wrapping_sub(1));
        match fails {
            None => wqe.response = Response::Awaited,
            fails => wqe.fails = fails,
        }
    }
}

/// Length of a message, at most 2^31 octets.
#[inline]
fn checked_length(octets: u64) -> Result<u32, PostError> {
    // RFC5041-5.2-2
    //# A message is shorter than 2^32 octets.
    if octets > MAX_MESSAGE_OCTETS {
        return Err(PostError::MessageTooLong);
    }
    Ok(low32(octets))
}

/// Checks flags and length of an operation.
#[inline(never)]
fn check_operation(wr: &SendWr<'_>, length: u32) -> Result<(), PostError> {
    let inline = matches!(wr.payload, Payload::Inline(_));
    let fits = match wr.op {
        SendOp::Send | SendOp::Write { .. } => true,
        SendOp::SendInvalidate { .. } => wr.imm.is_none(),
        SendOp::Read { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => {
            wr.imm.is_none() && !inline
        }
        SendOp::AtomicWrite { .. } | SendOp::LocalInvalidate { .. } | SendOp::BindWindow(_) => {
            wr.imm.is_none() && !inline && length == 0
        }
    };
    if fits {
        Ok(())
    } else {
        Err(PostError::InvalidRequest)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::types::{RemoteAddr, SendFlags};
    use super::*;
    use crate::sim::{SimHost, SIGNALED};
    use urdma_types::{Qpn, SlotId};

    const READ: SendOp = SendOp::Read {
        remote: RemoteAddr { stag: 1, to: 0 },
    };

    fn queue() -> SendQueue {
        let mut queue = SendQueue::new(&ConnConfig::new(Qpn::new(SlotId::DAEMON, 1)));
        queue.limit_reads(1);
        queue
    }

    /// Posts a request of 8 octets, named by its index.
    fn post(queue: &mut SendQueue, op: SendOp, flags: SendFlags) {
        let wr = SendWr {
            wr_id: queue.tail.into(),
            op,
            imm: None,
            flags,
            shared_queue: 0,
            payload: Payload::Sges(&[SimHost::sge(1, 0, 8)]),
        };
        let octets = queue.push(&wr).unwrap();
        if op.is_request() {
            queue.judge_last(&op, octets);
        }
    }

    /// Sends the next segment with this number.
    fn send(queue: &mut SendQueue, seq: u64) -> Option<SegmentSpec> {
        let spec = queue.next_segment(1024, 1024, true)?;
        queue.start(queue.next());
        queue.note_sent(&spec, seq + 1);
        Some(spec)
    }

    #[test]
    fn rewound_requests_get_the_same_message_numbers_again() {
        let mut queue = queue();
        (0..3).for_each(|_| post(&mut queue, SendOp::Send, SIGNALED));
        post(&mut queue, READ, SIGNALED);
        (0..4).for_each(|seq| assert!(send(&mut queue, seq).is_some()));
        let numbers =
            |queue: &SendQueue| -> Vec<u32> { queue.sent().map(|(_, wqe)| wqe.msn).collect() };
        assert_eq!(numbers(&queue), [1, 2, 3, 1]);
        queue.rewind(1, 0);
        assert_eq!((queue.unsent(), queue.reads_outstanding), (3, 0));
        (4..7).for_each(|seq| assert!(send(&mut queue, seq).is_some()));
        assert_eq!(numbers(&queue), [1, 2, 3, 1]);
    }

    #[test]
    fn fence_and_limit_of_reads_make_requests_wait_for_the_answer() {
        let fence = SendFlags {
            fence: true,
            ..SIGNALED
        };
        for (op, flags) in [(READ, SIGNALED), (SendOp::Send, fence)] {
            let mut queue = queue();
            post(&mut queue, READ, SIGNALED);
            post(&mut queue, op, flags);
            assert!(send(&mut queue, 0).is_some());
            assert!(queue.next_segment(1024, 1024, true).is_none());
            assert!(!queue.note_response(0, 4, false));
            assert!(queue.note_response(0, 4, true));
            assert!(send(&mut queue, 1).is_some());
        }
    }

    #[test]
    fn responses_are_to_reads_that_were_sent_and_accepted() {
        let mut queue = queue();
        post(&mut queue, READ, SIGNALED);
        let id = queue.id(0);
        assert_eq!(queue.awaiting(id, 9), None);
        send(&mut queue, 8);
        assert_eq!(queue.awaiting(id, 8), None);
        assert_eq!(queue.awaiting(id, 9), Some(0));
        queue.note_answered(0);
        assert_eq!(queue.awaiting(id, 9), None);
    }

    #[test]
    fn oldest_request_that_cannot_be_finished_fails_in_its_turn() {
        let (mut queue, mut host) = (queue(), SimHost::default());
        (0..3).for_each(|_| post(&mut queue, SendOp::Send, SIGNALED));
        send(&mut queue, 0);
        queue.stop_at(2, Status::LocalProtectionError);
        queue.stop_at(1, Status::LocalLengthError);
        queue.stop_at(2, Status::LocalProtectionError);
        assert!(queue.next_segment(1024, 1024, true).is_none());
        assert_eq!(queue.failed(), None);
        queue.complete_before(1, &mut host);
        assert_eq!(queue.failed(), Some(Status::LocalLengthError));
        queue.flush(Some((1, Status::LocalLengthError)), &mut host);
        let done = host
            .completions
            .iter()
            .map(|done| (done.wr_id, done.status));
        let wanted = [
            (0, Status::Success),
            (1, Status::LocalLengthError),
            (2, Status::WorkRequestFlushed),
        ];
        assert!(done.eq(wanted));
        assert!(queue.is_empty() && !queue.is_stopped());
    }
}
