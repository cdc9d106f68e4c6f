//! The receive queue: a ring of posted receive requests.

use super::super::host::{Host, ProtectionError};
use super::super::num::slot32;
use super::super::types::{NoSharedRecv, PostError, RecvWr, Sge};
use super::lists::{octets_of, Lists};
use urdma_zeroed::{zeroed, ZeroedSlice};

/// A posted receive request.
#[derive(Clone, Copy, Debug)]
pub(in crate::conn) struct RecvWqe {
    pub(in crate::conn) wr_id: u64,
    /// Capacity of its scatter-gather list, in octets.
    pub(in crate::conn) capacity: u64,
    /// The first element of its list.
    sge: Sge,
    sge_count: u8,
    /// The shared receive queue that it was taken from; 0 if there is only one, or none.
    pub(in crate::conn) shared_queue: u32,
}

zeroed!(RecvWqe);

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
    pub(in crate::conn) named: u32,
    pub(in crate::conn) head: u32,
    pub(in crate::conn) tail: u32,
    /// The message of queue 0 that is expected next, or is arriving.
    pub(in crate::conn) head_msn: u32,
    /// Octets of that message whose effect is applied.
    pub(in crate::conn) head_offset: u32,
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
    pub(in crate::conn) fn get(&self, index: u32) -> &RecvWqe {
        &self.wqes[slot32(index, self.mask)]
    }

    /// The only element of the oldest request, if there is one with one element, and it is of no
    /// shared queue.
    #[inline(always)]
    pub(in crate::conn) fn oldest_plain(&self) -> Option<Sge> {
        let wqe = self.get(self.head);
        let is_plain = !self.shared && self.head != self.tail && wqe.sge_count == 1;
        is_plain.then_some(wqe.sge)
    }

    /// Copies `len` octets of `body` from `at` to `offset` in the receive buffer of a request.
    #[inline(always)]
    pub(in crate::conn) fn scatter<H: Host>(
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

    /// The request for the message `ahead` after the expected one; there may be none.
    #[inline]
    pub(in crate::conn) const fn ahead(&self, ahead: u32) -> u32 {
        self.head.wrapping_add(ahead)
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
    pub(in crate::conn) fn pull_shared<H: Host>(
        &mut self,
        ahead: u32,
        host: &mut H,
    ) -> Result<(), NoSharedRecv> {
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
    pub(in crate::conn) fn pop(&mut self) {
        self.head = self.head.wrapping_add(1);
        self.head_msn = self.head_msn.wrapping_add(1);
        self.head_offset = 0;
    }
}
