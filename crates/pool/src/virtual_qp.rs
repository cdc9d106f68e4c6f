//! A virtual queue pair: its send queue, its completions, and what it has in flight.

use std::collections::VecDeque;
use std::slice;

use crate::config::Config;
use crate::end::End;
use crate::error::PostError;
use crate::fault::{Fault, Faults};
use crate::per_element::PerElement;
use crate::queued::{last_offset, Checked, Keys, PostedCounts, Queued, Segment};
use crate::regions::{check_shape, Piece, Regions};
use crate::ring::Ring;
use crate::types::{
    Access, Completion, Element, LocalRegionId, NodeId, Operation, Request, Status, UserId,
    VirtualState,
};

/// A virtual queue pair. It is bound to one shared queue pair, so that its requests stay in order.
///
/// ```text
///    Ready -- a request of its own fails, or has an unknown outcome --> Error
///    Ready -- the node cannot be reached, with requests --> Error
///    Error -- reset --> Ready
///    any   -- close --> none; the generation of the slot grows
/// ```
#[derive(Debug)]
pub(crate) struct VirtualQp {
    pub(crate) user: UserId,
    pub(crate) node: NodeId,
    /// The slot of its shared queue pair.
    pub(crate) physical: u16,
    /// Which operations it has.
    pub(crate) operations: Access,
    pub(crate) state: VirtualState,
    /// Its requests; the first `posted.requests` of them are posted.
    queue: Ring<Queued>,
    /// The elements of all of them that are not the first one, in order.
    others: VecDeque<Piece>,
    posted: PostedCounts,
    /// Octets of the Send that would be posted next that are, in segments.
    begun_octets: u32,
    /// Segments in flight, without those that are the last of a Send.
    parts: u32,
    /// Sends that are complete, modulo 2^32.
    completed_sends: u32,
    completions: Ring<Completion>,
    depth: u32,
    /// Requests that may be posted; none while it is to switch.
    in_flight_max: u32,
    /// The slot of the shared queue pair to which it switches when nothing is in flight.
    pub(crate) moving: Option<u16>,
    /// When its last request ends in the virtual time of the shared queue pair.
    pub(crate) finish: u64,
    /// Whether it is in the shared queue pair's queue of those that have something to send.
    pub(crate) is_listed: bool,
    /// What it has beside one-sided operations.
    pub(crate) end: Option<Box<End>>,
}

impl VirtualQp {
    pub(crate) fn new(
        user: UserId,
        node: NodeId,
        physical: u16,
        (depth, in_flight_max): (u32, u32),
        operations: Access,
    ) -> Self {
        Self {
            user,
            node,
            physical,
            operations,
            state: VirtualState::Ready,
            queue: Ring::default(),
            others: VecDeque::new(),
            posted: PostedCounts::default(),
            begun_octets: 0,
            parts: 0,
            completed_sends: 0,
            completions: Ring::default(),
            depth,
            in_flight_max,
            moving: None,
            finish: 0,
            is_listed: false,
            end: None,
        }
    }

    /// Check 2: whether all places are taken, by requests and by completions that were not polled.
    /// Each request keeps its place until its completion is polled, so neither queue overflows.
    pub(crate) fn is_full(&self, faults: Faults) -> bool {
        let waiting = match faults.has(Fault::CompletionsUncounted) {
            true => 0,
            false => self.completions.len(),
        };
        self.queue.len() + waiting >= self.depth as usize
    }

    /// Whether a request may be posted with which it has no other, nor a completion that was not
    /// polled.
    #[inline(always)]
    pub(crate) fn may_post_alone(&self) -> bool {
        self.queue.is_empty() && self.completions.is_empty() && self.moving.is_none()
    }

    /// Requests that are not complete.
    pub(crate) fn outstanding(&self) -> usize {
        let ended = self.end.as_ref().map_or(0, |end| end.unposted.len());
        self.queue.len() + ended
    }

    /// The number of the Send that would be posted next.
    pub(crate) fn next_sequence(&self) -> u32 {
        self.completed_sends.wrapping_add(self.posted.sends)
    }

    /// Checks a one-sided request, whose local memory is used from now on, but for that of an only
    /// element: the caller notes its use.
    #[inline(always)]
    pub(crate) fn check(
        &mut self,
        request: &Request,
        elements: &[Element],
        (config, regions): (&Config, &mut Regions),
        faults: Faults,
    ) -> Result<Checked, PostError> {
        let remote = self.check_remote(request, elements, (config, regions), faults)?;
        self.use_elements(request, remote, (elements, regions), faults)
    }

    /// Checks a one-sided request of one element; the caller notes the use of its local memory.
    #[inline(always)]
    pub(crate) fn check_one(
        &self,
        request: &Request,
        element: &Element,
        (config, regions): (&Config, &mut Regions),
        faults: Faults,
    ) -> Result<Keys, PostError> {
        let elements = slice::from_ref(element);
        let (remote, _) = self.check_remote(request, elements, (config, regions), faults)?;
        if self.is_full(faults) {
            return Err(PostError::QueueFull);
        }
        let by = (self.user, request.operation);
        let local = regions.check_element(by, element, faults)?;
        Ok(Keys { remote, local })
    }

    /// Checks what a one-sided request has beside its local memory; its remote key and its length.
    #[inline(always)]
    fn check_remote(
        &self,
        request: &Request,
        elements: &[Element],
        (config, regions): (&Config, &Regions),
        faults: Faults,
    ) -> Result<(u32, u32), PostError> {
        if self.state != VirtualState::Ready {
            return Err(PostError::InvalidState);
        }
        if !self.operations.permits(request.operation) {
            return Err(PostError::Operation);
        }
        let len_octets = check_shape(request, elements, config, faults)?;
        let rkey = regions.check_remote(self.node, request, len_octets, faults)?;
        Ok((rkey, len_octets))
    }

    /// Uses the local memory of a request with its remote key and length, if there is a place for
    /// it, and it may use that memory; the caller notes the use of an only element.
    #[inline(always)]
    pub(crate) fn use_elements(
        &mut self,
        request: &Request,
        (rkey, len_octets): (u32, u32),
        (elements, regions): (&[Element], &mut Regions),
        faults: Faults,
    ) -> Result<Checked, PostError> {
        if self.is_full(faults) {
            return Err(PostError::QueueFull);
        }
        let by = (self.user, request.operation);
        let pieces = match elements {
            [only] => {
                let lkey = regions.check_element(by, only, faults)?;
                PerElement::new(Some(Piece::new(only, lkey)), 0)
            }
            _ => self.use_list(by, (elements, regions), faults)?,
        };
        Ok(Checked {
            rkey,
            len_octets,
            pieces,
        })
    }

    /// Uses the local memory of another number of elements than one.
    #[inline(never)]
    fn use_list(
        &mut self,
        by: (UserId, Operation),
        (elements, regions): (&[Element], &mut Regions),
        faults: Faults,
    ) -> Result<PerElement<Piece>, PostError> {
        let before = self.others.len();
        let lkey = regions
            .use_elements(by, elements, faults, |other| self.others.push_back(other))
            .inspect_err(|_| self.others.truncate(before))?;
        let first = elements.first().map(|first| Piece::new(first, lkey));
        let others = u32::try_from(elements.len().saturating_sub(1)).unwrap_or(u32::MAX);
        Ok(PerElement::new(first, others))
    }

    /// Appends a request that was checked.
    #[inline(always)]
    pub(crate) fn push(&mut self, queued: Queued) {
        self.queue.push_back(queued);
    }

    /// The request that would be posted next, if one may be.
    #[inline]
    pub(crate) fn next(&self, faults: Faults) -> Option<&Queued> {
        let next = self.queue.get(self.posted.requests as usize)?;
        self.may_post(faults).then_some(next)
    }

    /// Whether a request that is appended may be posted before it needs a turn.
    #[inline(always)]
    pub(crate) fn may_post_newest(&self, faults: Faults) -> bool {
        !self.is_waiting() && self.may_post(faults)
    }

    #[inline(always)]
    fn may_post(&self, faults: Faults) -> bool {
        let is_unbounded = faults.has(Fault::InFlightUnbounded) && self.moving.is_none();
        self.posted.requests < self.in_flight_max || is_unbounded
    }

    /// Whether it may need a turn, or may switch.
    #[inline(always)]
    pub(crate) fn is_waiting(&self) -> bool {
        self.queue.len() > self.posted.requests as usize || self.moving.is_some()
    }

    /// Posts nothing until it has switched to another shared queue pair.
    pub(crate) fn begin_move(&mut self, to: u16) {
        (self.moving, self.in_flight_max) = (Some(to), 0);
    }

    /// Posts again, to the queue pair to which it is bound; the one to which it was to switch.
    pub(crate) fn end_move(&mut self, in_flight_max: u32) -> Option<u16> {
        self.in_flight_max = in_flight_max;
        self.moving.take()
    }

    /// What the next message has of the Send that would be posted next, if none has more than
    /// `most` octets.
    pub(crate) fn next_segment(&self, next: &Queued, most: u32) -> Segment {
        match next.len_octets - self.begun_octets > most {
            true => Segment::Part,
            false if self.begun_octets > 0 => Segment::Last,
            false => Segment::Whole,
        }
    }

    /// Octets of the Send that would be posted next that are posted.
    pub(crate) fn begun_octets(&self) -> u32 {
        self.begun_octets
    }

    /// Notes that a segment of the next Send is posted, which is not the last one.
    pub(crate) fn note_part_posted(&mut self, len_octets: u32) {
        self.begun_octets += len_octets;
        self.parts += 1;
    }

    /// Notes that the segment that was posted last was refused by the queue pair.
    pub(crate) fn note_part_refused(&mut self, len_octets: u32) {
        self.begun_octets -= len_octets;
        self.parts -= 1;
    }

    /// Notes that the oldest segment is complete that is not the last one of its Send.
    pub(crate) fn retire_part(&mut self) {
        self.parts -= 1;
    }

    /// Messages and requests in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.posted.requests as usize + self.parts as usize
    }

    /// Whether the Send with this number is the request that would be posted next.
    pub(crate) fn is_next_send(&self, sequence: u32) -> bool {
        let next = self.queue.get(self.posted.requests as usize);
        next.is_some_and(|next| next.operation.is_send()) && self.next_sequence() == sequence
    }

    /// Whether a Send with this number may not be complete.
    pub(crate) fn may_have_send(&self, sequence: u32) -> bool {
        (sequence.wrapping_sub(self.completed_sends) as usize) < self.queue.len()
    }

    /// The elements of the request that would be posted next.
    pub(crate) fn next_pieces(
        &self,
        pieces: PerElement<Piece>,
    ) -> impl Iterator<Item = Piece> + use<'_> {
        pieces.all(&self.others, self.posted.others)
    }

    /// Notes that the next request is posted.
    #[inline(always)]
    pub(crate) fn note_posted(&mut self, queued: &Queued) {
        self.posted.add(queued);
        self.begun_octets = 0;
    }

    /// Notes that the request that was posted last was refused by the queue pair, which may
    /// be the last segment of a Send, if none has more than `most` octets.
    pub(crate) fn note_refused(&mut self, most: u32) {
        let last = (self.posted.requests as usize).wrapping_sub(1);
        let Some(queued) = self.queue.get(last) else {
            return;
        };
        self.posted.subtract(queued);
        if queued.operation.is_send() {
            self.begun_octets = last_offset(queued.len_octets, most);
        }
    }

    /// Completes the oldest request.
    #[inline(always)]
    pub(crate) fn retire(&mut self, faults: Faults) {
        let Some(queued) = self.queue.pop_front() else {
            return;
        };
        self.posted.subtract(&queued);
        let sends = u32::from(queued.operation.is_send());
        self.completed_sends = self.completed_sends.wrapping_add(sends);
        queued.pieces.take_oldest(&mut self.others, drop);
        if queued.is_signaled || faults.has(Fault::SignaledForAll) {
            self.completions
                .push_back(queued.completion(Status::Success));
        }
    }

    /// Adds the completion of a request that is not in the queue.
    pub(crate) fn complete(&mut self, completion: Completion) {
        self.completions.push_back(completion);
    }

    /// The next completion.
    #[inline]
    pub(crate) fn poll(&mut self) -> Option<Completion> {
        self.completions.pop_front().or_else(|| self.poll_ended())
    }

    /// The completion of the next request that was not posted when the other end was closed: it
    /// follows those of the requests that were.
    fn poll_ended(&mut self) -> Option<Completion> {
        let is_idle = self.queue.is_empty() && self.parts == 0;
        let end = self.end.as_mut().filter(|_| is_idle)?;
        let queued = end.unposted.pop_front()?;
        let status = std::mem::replace(&mut end.unposted_status, Status::Flushed);
        Some(queued.completion(status))
    }

    /// Enters Error while requests may be posted, whose completions follow: those that are not end
    /// after them, the oldest with `status`.
    pub(crate) fn fail_unposted(&mut self, status: Status, mut release: impl FnMut(LocalRegionId)) {
        self.unposted().for_each(&mut release);
        let posted = self.posted.requests as usize;
        self.others.truncate(self.posted.others as usize);
        if let Some(end) = &mut self.end {
            end.unposted_status = status;
            end.unposted.extend(self.queue.behind(posted));
        }
        self.queue.truncate(posted);
        self.begun_octets = 0;
        self.state = VirtualState::Error;
    }

    /// Whether requests are posted that must not be repeated.
    pub(crate) fn has_posted_effects(&self) -> bool {
        self.posted.effects > 0
    }

    /// Has all requests posted again, a Send from its first segment on.
    pub(crate) fn repeat(&mut self, faults: Faults) {
        (self.posted, self.parts) = (PostedCounts::default(), 0);
        if !faults.has(Fault::SegmentsNotRepeated) {
            self.begun_octets = 0;
        }
    }

    /// Enters Error: the oldest request ends with `status`, those behind it are flushed. The region
    /// of each element is given to `release`.
    pub(crate) fn fail(
        &mut self,
        status: Status,
        faults: Faults,
        mut release: impl FnMut(LocalRegionId),
    ) {
        let ending = match faults.has(Fault::QueueKept) {
            true => self.posted.requests as usize,
            false => self.queue.len(),
        };
        let mut ends_with = match faults.has(Fault::CauseFlushed) {
            true => Status::Flushed,
            false => status,
        };
        for queued in (0..ending).map_while(|_| self.queue.pop_front()) {
            self.completions.push_back(queued.completion(ends_with));
            let pieces = queued.pieces;
            pieces.take_oldest(&mut self.others, |piece| release(piece.local));
            ends_with = Status::Flushed;
            if let Some(end) = &mut self.end {
                end.unposted_status = Status::Flushed;
            }
        }
        self.repeat(faults);
        self.state = VirtualState::Error;
    }

    /// The regions of the elements that are not posted.
    pub(crate) fn unposted(&self) -> impl Iterator<Item = LocalRegionId> + use<'_> {
        let mut at = self.posted.others;
        let unposted = self.queue.behind(self.posted.requests as usize);
        unposted.flat_map(move |queued| {
            let pieces = queued.pieces.all(&self.others, at);
            at += queued.pieces.others();
            pieces.map(|piece| piece.local)
        })
    }
}
