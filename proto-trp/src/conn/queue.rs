//! The send and receive queues: rings of posted work requests, with scatter-gather lists and inline
//! data.

use super::config::{ConnConfig, MAX_MESSAGE_OCTETS};
use super::host::{Host, ProtectionError};
use super::num::{low32, slot32};
use super::types::{NoSharedRecv, Payload, PostError, RecvWr, SendOp, SendWr, Sge, Status};
use super::wqe::{Extra, Kind, Response, SendWqe};
use urdma_zeroed::{zeroed, ZeroedSlice};

/// What of the requests of a queue their entries have no room for.
#[derive(Debug, Default)]
pub(super) struct Lists {
    /// Scatter-gather lists that have not just one element.
    sges: ZeroedSlice<Sge>,
    /// Inline data.
    inline: ZeroedSlice<u8>,
    /// None until there is a request that needs it, then one for each entry.
    extras: ZeroedSlice<Extra>,
    max_sge: usize,
    max_inline: usize,
}

impl Lists {
    fn new(entries: u32, max_sge: u8, max_inline: u32) -> Self {
        let (entries, max_sge) = (entries as usize, usize::from(max_sge));
        let max_inline = max_inline as usize;
        Self {
            sges: ZeroedSlice::new(entries * max_sge),
            inline: ZeroedSlice::new(entries * max_inline),
            extras: ZeroedSlice::default(),
            max_sge,
            max_inline,
        }
    }

    /// The list of the request in `slot`, which has `count` elements.
    fn sges(&self, slot: usize, count: u8) -> &[Sge] {
        let at = slot * self.max_sge;
        &self.sges[at..at + usize::from(count)]
    }

    /// Room for the list of the request in `slot`.
    fn room(&mut self, slot: usize) -> &mut [Sge] {
        let at = slot * self.max_sge;
        &mut self.sges[at..at + self.max_sge]
    }

    /// Stores a list; returns the number of its elements.
    #[inline(never)]
    fn push(&mut self, slot: usize, sges: &[Sge]) -> Result<u8, PostError> {
        let count = u8::try_from(sges.len()).map_err(|_| PostError::TooManySges)?;
        let room = self.room(slot).get_mut(..sges.len());
        room.ok_or(PostError::TooManySges)?.copy_from_slice(sges);
        Ok(count)
    }

    /// Stores inline data; returns its length in octets.
    #[inline(never)]
    fn push_inline(&mut self, slot: usize, parts: &[&[u8]]) -> Result<u32, PostError> {
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

    /// Stores inline data of one part, which is not too long.
    #[inline(always)]
    fn keep_inline(&mut self, slot: usize, parts: &[&[u8]]) {
        if let [part] = parts {
            let at = slot * self.max_inline;
            self.inline[at..at + part.len()].copy_from_slice(part);
        }
    }

    /// Stores what the entry has no room for.
    #[inline(never)]
    fn keep(&mut self, slot: usize, mask: u32, wr: &SendWr<'_>) {
        if self.extras.is_empty() {
            self.extras = ZeroedSlice::new(mask as usize + 1);
        }
        self.extras[slot] = Extra {
            op: wr.op,
            imm: wr.imm,
            shared_queue: wr.shared_queue,
        };
    }

    /// Copies octets of a request from `offset` on to `payload`; false if the local memory may not
    /// be read.
    #[inline(always)]
    #[must_use]
    pub(super) fn copy_payload<H: Host>(
        &self,
        wqe: &SendWqe,
        slot: usize,
        offset: u32,
        payload: &mut [u8],
        host: &mut H,
    ) -> bool {
        if payload.is_empty() {
            return true;
        }
        if !wqe.has_one_sge() {
            return self.copy_other(wqe, slot, offset, payload, host);
        }
        let sges = std::slice::from_ref(&wqe.sge);
        host.gather(sges, u64::from(offset), payload).is_ok()
    }

    /// As [`Lists::copy_payload`], of a request that has not just one element.
    #[inline(never)]
    fn copy_other<H: Host>(
        &self,
        wqe: &SendWqe,
        slot: usize,
        offset: u32,
        payload: &mut [u8],
        host: &mut H,
    ) -> bool {
        if wqe.is_inline() {
            let from = slot * self.max_inline + offset as usize;
            payload.copy_from_slice(&self.inline[from..from + payload.len()]);
            return true;
        }
        let sges = self.sges(slot, wqe.sge_count());
        host.gather(sges, u64::from(offset), payload).is_ok()
    }
}

/// The send queue: `head <= next <= tail`. The default one has no memory.
#[derive(Debug, Default)]
pub(super) struct SendQueue {
    wqes: ZeroedSlice<SendWqe>,
    lists: Lists,
    mask: u32,
    /// Whether requests name a shared receive queue of the peer.
    names_shared_queue: bool,
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
    pub(super) fn new(config: &ConnConfig) -> Self {
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
        let wqe = &self.wqes[slot];
        if wqe.has_one_sge() {
            return std::slice::from_ref(&wqe.sge);
        }
        self.lists.sges(slot, wqe.sge_count())
    }

    /// The operation of a request.
    #[inline]
    pub(super) fn op(&self, index: u32) -> SendOp {
        let wqe = self.get(index);
        match wqe.kind {
            Kind::PlainSend => SendOp::Send,
            Kind::PlainWrite => SendOp::Write {
                remote: wqe.remote(),
            },
            _ => self.extra(index).op,
        }
    }

    /// What of a request its entry has no room for.
    #[inline]
    pub(super) fn extra(&self, index: u32) -> Extra {
        let slot = slot32(index, self.mask);
        self.lists.extras.get(slot).copied().unwrap_or(Extra::NONE)
    }

    /// The immediate data of a request.
    #[inline]
    pub(super) fn imm(&self, index: u32) -> Option<u32> {
        if self.get(index).kind.is_plain() {
            return None;
        }
        self.extra(index).imm
    }

    /// The shared receive queue of the peer that a request names, or 0.
    #[inline]
    pub(super) fn shared_queue(&self, index: u32) -> u32 {
        if self.names_shared_queue {
            self.extra(index).shared_queue
        } else {
            0
        }
    }

    /// A request, its slot, and what the entries have no room for.
    #[inline]
    pub(super) fn entry(&mut self, index: u32) -> (&mut SendWqe, usize, &Lists) {
        let slot = slot32(index, self.mask);
        (&mut self.wqes[slot], slot, &self.lists)
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
    #[inline(always)]
    pub(super) fn push(&mut self, wr: &SendWr<'_>) -> Result<u32, PostError> {
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
            self.lists.keep(slot, self.mask, wr);
        }
        self.wqes[slot] = SendWqe::new(wr, kind, length, sge_count);
        self.tail = self.tail.wrapping_add(1);
        Ok(length)
    }

    /// The oldest request, which is removed, if it is done when everything before sequence number
    /// `una` is acknowledged.
    // RFC5040-5.5-4, RFC5040-5.5-5
    #[inline(always)]
    pub(super) fn pop_done(&mut self, una: u64) -> Option<&SendWqe> {
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
    pub(super) fn awaited(&self) -> Option<u64> {
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

    /// Whether nothing waits to be sent, and there is room for one more.
    #[inline(always)]
    pub(super) const fn is_all_sent(&self) -> bool {
        self.next == self.tail && self.len() <= self.mask
    }

    /// Octets of inline data that a request may have.
    #[inline(always)]
    pub(super) const fn max_inline(&self) -> usize {
        self.lists.max_inline
    }

    /// Stores a Send or Write that [`Connection::fits_cell`] has checked.
    ///
    /// [`Connection::fits_cell`]: super::connection::Connection::fits_cell
    #[inline(always)]
    pub(super) fn push_plain(&mut self, wr: &SendWr<'_>, octets: usize) -> &mut SendWqe {
        let slot = slot32(self.tail, self.mask);
        self.tail = self.tail.wrapping_add(1);
        if let Payload::Inline(parts) = wr.payload {
            self.lists.keep_inline(slot, parts);
        }
        let wqe = &mut self.wqes[slot];
        *wqe = SendWqe::new(wr, Kind::of_plain(wr), low32(octets as u64), 0);
        wqe
    }

    /// The last posted request is a read or atomic.
    pub(super) fn expect_answer(&mut self) {
        self.get_mut(self.tail.wrapping_sub(1)).response = Response::Awaited;
    }

    /// Makes the last posted request fail in its turn.
    #[cold]
    pub(super) fn fail_last(&mut self, status: Status) {
        self.get_mut(self.tail.wrapping_sub(1)).fails = Some(status);
    }
}

/// Length of a scatter-gather list.
#[inline(never)]
fn octets_of(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.length)).sum()
}

/// Length of a message, at most 2^31 octets.
#[inline]
fn checked_length(octets: u64) -> Result<u32, PostError> {
    // RFC5041-5.2-2
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

/// A posted receive request.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecvWqe {
    pub(super) wr_id: u64,
    /// Capacity of its scatter-gather list, in octets.
    pub(super) capacity: u64,
    /// The first element of its list.
    sge: Sge,
    sge_count: u8,
    /// The shared receive queue that it was taken from; 0 if there is only one, or none.
    pub(super) shared_queue: u32,
}

zeroed!(RecvWqe);

/// The receive queue, or the requests taken from the shared receive queue. The request at `head`
/// belongs to message `head_msn`. The default one has no memory.
#[derive(Debug, Default)]
pub(super) struct RecvQueue {
    wqes: ZeroedSlice<RecvWqe>,
    lists: Lists,
    mask: u32,
    depth: u32,
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

    /// The only element of the oldest request, if there is one with one element, and it is of no
    /// shared queue.
    #[inline(always)]
    pub(super) fn oldest_plain(&self) -> Option<Sge> {
        let wqe = self.get(self.head);
        let is_plain = !self.shared && self.head != self.tail && wqe.sge_count == 1;
        is_plain.then_some(wqe.sge)
    }

    /// Copies `len` octets of `body` from `at` to `offset` in the receive buffer of a request.
    #[inline(always)]
    pub(super) fn scatter<H: Host>(
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
    pub(super) fn push(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
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
    pub(super) const fn ahead(&self, ahead: u32) -> u32 {
        self.head.wrapping_add(ahead)
    }

    /// Whether requests are taken from a shared receive queue.
    pub(super) const fn is_shared(&self) -> bool {
        self.shared
    }

    /// Takes requests from the shared receive queue, if there is one, until there is a request for
    /// the message `ahead` after the expected one.
    ///
    /// # Errors
    /// There is none.
    #[cold]
    pub(super) fn pull_shared<H: Host>(
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
    pub(super) const fn expects(&self, msn: u32, offset: u32) -> bool {
        msn == self.head_msn && offset == self.head_offset
    }

    /// The expected message is complete: the next one is expected.
    #[inline]
    pub(super) fn pop(&mut self) {
        self.head = self.head.wrapping_add(1);
        self.head_msn = self.head_msn.wrapping_add(1);
        self.head_offset = 0;
    }
}
