//! The receive queue: a ring of posted receive requests.

use super::super::host::{Host, ProtectionError};
use super::super::num::slot32;
use super::super::types::{Completion, CompletionOp, NoSharedRecv, PostError, RecvWr, Sge, Status};
use super::lists::{octets_of, Lists};
use urdma_zeroed::{zeroed, ZeroedSlice};

/// A posted receive request.
#[derive(Clone, Copy, Debug)]
struct RecvWqe {
    wr_id: u64,
    /// Capacity of its scatter-gather list, in octets.
    capacity: u64,
    /// The first element of its list.
    sge: Sge,
    sge_count: u8,
    /// The shared receive queue that it was taken from; 0 if there is only one, or none.
    shared_queue: u32,
}

zeroed!(RecvWqe);

/// Why a part of a message is not received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::conn) enum RecvError {
    /// No receive request is posted for the message.
    NotReady,
    /// The peer has named no shared receive queue, or one that does not exist.
    NoQueue,
    /// The message is not the one that is expected.
    WrongMessage,
    /// The part does not continue the message.
    WrongOffset,
    /// The message is longer than the list of its receive request.
    TooLong,
    /// The list of the receive request may not be written to.
    NoAccess,
}

/// The receive queue, or the requests taken from the shared receive queue. The request at `head`
/// belongs to message `head_msn`. The default one has no memory.
#[derive(Debug, Default)]
pub(in crate::conn) struct RecvQueue {
    wqes: ZeroedSlice<RecvWqe>,
    lists: Lists,
    mask: u32,
    depth: u32,
    shared: bool,
    /// The shared receive queue that the peer named last.
    named: u32,
    head: u32,
    tail: u32,
    /// The message of queue 0 that is expected next, or is arriving.
    head_msn: u32,
    /// Octets of that message whose effect is applied.
    head_offset: u32,
}

impl RecvQueue {
    pub(in crate::conn) fn new(depth: u32, max_sge: u8, shared: bool) -> Self {
        let entries = depth.max(1).next_power_of_two();
        Self {
            wqes: ZeroedSlice::new(entries as usize),
            lists: Lists::new(entries, max_sge, 0),
            mask: entries - 1,
            depth,
            shared,
            named: 0,
            head: 0,
            tail: 0,
            head_msn: 1,
            head_offset: 0,
        }
    }

    pub(in crate::conn) fn clear(&mut self) {
        (self.head, self.tail) = (0, 0);
        (self.head_msn, self.head_offset) = (1, 0);
        self.named = 0;
    }

    #[inline]
    pub(in crate::conn) const fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    #[inline]
    fn get(&self, index: u32) -> &RecvWqe {
        &self.wqes[slot32(index, self.mask)]
    }

    /// The only element of the oldest request, if there is one with one element, and it is of no
    /// shared queue.
    #[inline(always)]
    pub(in crate::conn) fn oldest_plain(&self) -> Option<Sge> {
        let wqe = self.get(self.head);
        let is_plain = self.has_own() && wqe.sge_count == 1;
        is_plain.then_some(wqe.sge)
    }

    /// Whether there is a request, and it is of no shared queue.
    #[inline(always)]
    pub(in crate::conn) const fn has_own(&self) -> bool {
        !self.shared && self.head != self.tail
    }

    /// Sets all counters of an empty queue to `count`, for simulations.
    pub(in crate::conn) fn count_from(&mut self, count: u32) {
        (self.head, self.tail, self.head_msn) = (count, count, count);
    }

    /// The peer has named this shared receive queue.
    #[inline]
    pub(in crate::conn) fn name(&mut self, queue: u32) {
        self.named = queue;
    }

    /// The message of queue 0 that is expected next, or is arriving.
    #[inline]
    pub(in crate::conn) const fn expected(&self) -> u32 {
        self.head_msn
    }

    /// Octets of that message that have arrived.
    #[inline(always)]
    pub(in crate::conn) const fn arrived_octets(&self) -> u32 {
        self.head_offset
    }

    /// Whether there is a request for the expected message; one is taken from the shared receive
    /// queue if need be.
    pub(in crate::conn) fn is_ready<H: Host>(&mut self, host: &mut H) -> bool {
        self.len() > 0 || self.pull_shared(0, host).is_ok()
    }

    /// Whether there is a request for a message.
    ///
    /// # Errors
    /// There is none.
    #[inline]
    pub(in crate::conn) fn find<H: Host>(
        &mut self,
        msn: u32,
        host: &mut H,
    ) -> Result<(), RecvError> {
        self.index_of(msn, host).map(|_| ())
    }

    /// The request of a message of queue 0.
    #[inline]
    fn index_of<H: Host>(&mut self, msn: u32, host: &mut H) -> Result<u32, RecvError> {
        let ahead = msn.wrapping_sub(self.head_msn);
        if ahead >= self.len() {
            self.take_up_to(ahead, host)?;
        }
        Ok(self.head.wrapping_add(ahead))
    }

    /// A message of queue 0 is none of those for which receive requests have been taken.
    #[cold]
    fn take_up_to<H: Host>(&mut self, ahead: u32, host: &mut H) -> Result<(), RecvError> {
        if ahead.cast_signed() < 0 {
            return Err(RecvError::WrongMessage);
        }
        self.pull_shared(ahead, host).map_err(|error| match error {
            NoSharedRecv::Empty => RecvError::NotReady,
            NoSharedRecv::NoQueue => RecvError::NoQueue,
        })
    }

    /// Places `len` octets of `body` from `at`, a part of a message from `offset` on, into the
    /// receive request of the message.
    ///
    /// # Errors
    /// Nothing was placed.
    #[inline(always)]
    pub(in crate::conn) fn place<H: Host>(
        &mut self,
        msn: u32,
        offset: u32,
        (at, len): (usize, usize),
        body: &H::Body,
        host: &mut H,
    ) -> Result<(), RecvError> {
        // RFC5040-5.3-2
        //# A Send consumes one untagged buffer, also when it has no octets.
        let index = self.index_of(msn, host)?;
        let end = u64::from(offset) + len as u64;
        // RFC5041-7.1-1
        //# An untagged segment is placed only if its queue number, its MSN, and its message offset
        //# and length fit the buffer.
        if end > self.get(index).capacity {
            return Err(RecvError::TooLong);
        }
        if len > 0 {
            self.scatter(index, u64::from(offset), (at, len), body, host)
                .map_err(|_| RecvError::NoAccess)?;
        }
        Ok(())
    }

    /// Begins a message, whatever has arrived of another one.
    pub(in crate::conn) fn begin(&mut self, msn: u32) {
        (self.head_msn, self.head_offset) = (msn, 0);
    }

    /// Counts a part of the expected message.
    ///
    /// # Errors
    /// The part does not continue it.
    #[inline]
    pub(in crate::conn) fn advance(
        &mut self,
        msn: u32,
        offset: u32,
        len: u32,
    ) -> Result<(), RecvError> {
        // RFC5041-7.1-1
        //# An untagged segment is placed only if its queue number, its MSN, and its message offset
        //# and length fit the buffer.
        if msn != self.head_msn {
            return Err(RecvError::WrongMessage);
        }
        // R10-3, RFC5041-7.1-1
        //# **Messages of queue 0.** The segments of a message MUST follow one another by message
        //# offset without gap or overlap.
        //# An untagged segment is placed only if its queue number, its MSN, and its message offset
        //# and length fit the buffer.
        if offset != self.head_offset {
            return Err(RecvError::WrongOffset);
        }
        self.count(len);
        Ok(())
    }

    /// Counts a part of the expected message that continues it.
    #[inline(always)]
    pub(in crate::conn) fn count(&mut self, len: u32) {
        self.head_offset += len;
    }

    /// Completes the request of the expected message. Inlined, so that the host knows the
    /// operation.
    #[inline(always)]
    pub(in crate::conn) fn complete<H: Host>(
        &mut self,
        op: CompletionOp,
        byte_len: u32,
        solicited: bool,
        (imm, invalidated): (Option<u32>, Option<u32>),
        host: &mut H,
    ) {
        let wqe = self.get(self.head);
        // RFC5041-5.4-2, RFC5041-5.4-3: the length, and the immediate or the STag.
        // Made in each branch: the rare one stores it, the other one need not.
        let completion = || Completion {
            wr_id: wqe.wr_id,
            status: Status::Success,
            op,
            byte_len,
            imm,
            invalidated,
            solicited,
        };
        match wqe.shared_queue {
            0 => host.complete(completion()),
            queue => host.complete_shared(queue, completion()),
        }
        self.pop();
    }

    /// Takes the oldest request, whose message is complete; returns the application's identifier.
    #[inline(always)]
    pub(in crate::conn) fn take_oldest(&mut self) -> u64 {
        let wr_id = self.get(self.head).wr_id;
        self.pop();
        wr_id
    }

    /// Ends every request, the oldest with this status, all others flushed.
    #[cold]
    pub(in crate::conn) fn flush<H: Host>(&mut self, oldest: Option<Status>, host: &mut H) {
        let mut status = oldest.unwrap_or(Status::WorkRequestFlushed);
        while self.len() > 0 {
            let wqe = self.get(self.head);
            let completion = Completion {
                wr_id: wqe.wr_id,
                status,
                op: CompletionOp::Recv,
                byte_len: 0,
                imm: None,
                invalidated: None,
                solicited: true,
            };
            match wqe.shared_queue {
                0 => host.complete(completion),
                queue => host.complete_shared(queue, completion),
            }
            status = Status::WorkRequestFlushed;
            self.pop();
        }
    }

    /// Copies `len` octets of `body` from `at` to `offset` in the receive buffer of a request.
    #[inline(always)]
    fn scatter<H: Host>(
        &self,
        index: u32,
        offset: u64,
        (at, len): (usize, usize),
        body: &H::Body,
        host: &mut H,
    ) -> Result<(), ProtectionError> {
        let wqe = self.get(index);
        if wqe.sge_count != 1 {
            return self.scatter_other(index, offset, (at, len), body, host);
        }
        host.scatter(std::slice::from_ref(&wqe.sge), offset, body, at, len)
    }

    /// As [`RecvQueue::scatter`], for a list that has not just one element.
    #[inline(never)]
    fn scatter_other<H: Host>(
        &self,
        index: u32,
        offset: u64,
        (at, len): (usize, usize),
        body: &H::Body,
        host: &mut H,
    ) -> Result<(), ProtectionError> {
        let slot = slot32(index, self.mask);
        let sges = self.lists.sges(slot, self.wqes[slot].sge_count);
        host.scatter(sges, offset, body, at, len)
    }

    #[inline(always)]
    pub(in crate::conn) fn push(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if self.shared {
            return Err(PostError::InvalidState);
        }
        if self.len() >= self.depth {
            return Err(PostError::QueueFull);
        }
        let [sge] = wr.sges else {
            return self.push_list(wr);
        };
        self.put(RecvWqe {
            wr_id: wr.wr_id,
            capacity: u64::from(sge.length),
            sge: *sge,
            sge_count: 1,
            shared_queue: 0,
        });
        Ok(())
    }

    /// As [`RecvQueue::push`], of a request that has not just one element.
    #[inline(never)]
    fn push_list(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let sge_count = self.lists.push(slot32(self.tail, self.mask), wr.sges)?;
        self.put(RecvWqe {
            wr_id: wr.wr_id,
            capacity: octets_of(wr.sges),
            sge: Sge::default(),
            sge_count,
            shared_queue: 0,
        });
        Ok(())
    }

    #[inline(always)]
    fn put(&mut self, wqe: RecvWqe) {
        self.wqes[slot32(self.tail, self.mask)] = wqe;
        self.tail = self.tail.wrapping_add(1);
    }

    /// Whether requests are taken from a shared receive queue.
    pub(in crate::conn) const fn is_shared(&self) -> bool {
        self.shared
    }

    /// Takes requests from the shared receive queue, if there is one, until there is a request for
    /// the message `ahead` after the expected one.
    ///
    /// # Errors
    /// There is none.
    #[cold]
    fn pull_shared<H: Host>(&mut self, ahead: u32, host: &mut H) -> Result<(), NoSharedRecv> {
        if !self.shared || ahead >= self.depth {
            return Err(NoSharedRecv::Empty);
        }
        while self.len() <= ahead {
            let slot = slot32(self.tail, self.mask);
            let room = self.lists.room(slot);
            let taken = host.take_shared_recv(self.named, room)?;
            let used = usize::from(taken.sge_count).min(room.len());
            let wqe = RecvWqe {
                wr_id: taken.wr_id,
                capacity: octets_of(&room[..used]),
                sge: room.first().copied().unwrap_or_default(),
                sge_count: u8::try_from(used).unwrap_or(0),
                shared_queue: self.named,
            };
            self.put(wqe);
        }
        Ok(())
    }

    /// Whether `offset` in message `msn` of queue 0 is the next octet that is expected.
    #[inline]
    pub(in crate::conn) const fn expects(&self, msn: u32, offset: u32) -> bool {
        msn == self.head_msn && offset == self.head_offset
    }

    /// The expected message is complete: the next one is expected.
    #[inline]
    fn pop(&mut self) {
        self.head = self.head.wrapping_add(1);
        self.head_msn = self.head_msn.wrapping_add(1);
        self.head_offset = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Rights, SimHost};

    /// A queue with two requests of 8 octets, and their memory.
    fn queue() -> (RecvQueue, SimHost, u32) {
        let (mut queue, mut host) = (RecvQueue::new(4, 1, false), SimHost::default());
        let key = host.register(vec![0; 16], Rights::ALL);
        for wr_id in 0..2 {
            let sges = &[SimHost::sge(key, 8 * wr_id, 8)];
            queue.push(&RecvWr { wr_id, sges }).unwrap();
        }
        (queue, host, key)
    }

    #[test]
    fn parts_of_messages_are_placed_in_the_requests_of_their_numbers() {
        let (mut queue, mut host, key) = queue();
        let body = &[1, 2, 3, 4][..];
        assert_eq!(queue.place(2, 4, (0, 4), body, &mut host), Ok(()));
        assert_eq!(queue.place(1, 0, (2, 2), body, &mut host), Ok(()));
        let wanted = [3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4];
        assert_eq!(host.octets(key), wanted);
        let mut place = |msn, offset| queue.place(msn, offset, (0, 4), body, &mut host);
        assert_eq!(place(3, 0), Err(RecvError::NotReady));
        assert_eq!(place(0, 0), Err(RecvError::WrongMessage));
        assert_eq!(place(1, 5), Err(RecvError::TooLong));
    }

    #[test]
    fn parts_count_in_order_only() {
        let (mut queue, mut host, _) = queue();
        assert_eq!(queue.advance(1, 0, 4), Ok(()));
        assert_eq!(queue.advance(1, 0, 4), Err(RecvError::WrongOffset));
        assert_eq!(queue.advance(2, 4, 4), Err(RecvError::WrongMessage));
        assert_eq!((queue.expected(), queue.arrived_octets()), (1, 4));
        queue.complete(CompletionOp::Recv, 4, false, (None, None), &mut host);
        assert!(queue.expects(2, 0));
        queue.flush(Some(Status::LocalAccessError), &mut host);
        let done = host
            .completions
            .iter()
            .map(|done| (done.wr_id, done.status));
        assert!(done.eq([(0, Status::Success), (1, Status::LocalAccessError)]));
    }
}
