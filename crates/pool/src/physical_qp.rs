//! A shared queue pair: what is posted to it, and which virtual queue pairs have something to send.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::config::Config;
use crate::fault::{Fault, Faults};
use crate::per_element::PerElement;
use crate::queued::Queued;
use crate::ring::Ring;
use crate::slots::Id;
use crate::types::{LocalRegionId, NodeId, PhysicalId, PhysicalState, Status, VirtualId};

/// A work request that is posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlight {
    /// Whose it is; it may have been closed.
    pub(crate) of: VirtualId,
    /// Where it goes.
    pub(crate) node: NodeId,
    /// The regions of its elements.
    pub(crate) locals: PerElement<LocalRegionId>,
    pub(crate) carries: Carries,
}

/// What a work request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carries {
    /// A one-sided request.
    Request,
    /// A Send, or its last segment.
    Send,
    /// A segment of a Send that is not the last one: it uses local memory for itself.
    Part,
    /// A message of the pool itself.
    Own,
}

impl Carries {
    #[inline(always)]
    pub(crate) fn of(queued: &Queued) -> Self {
        match queued.operation.is_send() {
            true => Self::Send,
            false => Self::Request,
        }
    }
}

/// A virtual queue pair that has something to send: the virtual time at which its next request
/// begins, and its slot and generation.
type Turn = Reverse<(u64, u32, u32)>;

/// What nodes may have executed of the requests behind one that has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Executed {
    /// Nothing: the node has refused it.
    Nothing,
    /// Those that go to the same node, up to the first that goes to another one: an initiator sends
    /// nothing to a node before all requests to the one before are complete.
    SameNode,
    /// Anything.
    Any,
}

/// Why a queue pair is failing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cause {
    /// The status of the first completion in error.
    pub(crate) status: Status,
    /// Whose request it was; none if that was flushed.
    pub(crate) of: Option<VirtualId>,
    /// The node that has not taken it, if it was a message.
    pub(crate) untold: Option<NodeId>,
    /// What became of those behind it.
    pub(crate) executed: Executed,
}

/// A shared queue pair.
///
/// ```text
///    Down       -- a request --> Connecting
///    Connecting -- connected --> Ready
///    Connecting -- unreachable --> Down; requests end with RetryExceeded
///    Down, Connecting -- its node asks for it --> Accepting
///    Accepting  -- connected --> Ready
///    Accepting  -- abandoned --> Connecting, or Down if it has no member
///    Ready      -- completion in error, request refused, event --> Failing
///    Ready, Connecting, Accepting -- no member, and its node is removed or another one needs its
///                         place --> Failing; the replacement is for another node
///    Failing    -- destroyed --> Connecting, with the next generation
///    Failing    -- destroyed, and two took no request --> Down; requests end with RetryExceeded
/// ```
#[derive(Debug)]
pub(crate) struct PhysicalQp {
    /// To which node it is connected; none of an initiator, which reaches each.
    pub(crate) node: Option<NodeId>,
    slot: u16,
    generation: u16,
    pub(crate) state: PhysicalState,
    /// What is posted, in order.
    pub(crate) in_flight: Ring<InFlight>,
    /// The regions of the elements of these that are not the first one.
    pub(crate) other_locals: VecDeque<LocalRegionId>,
    /// The number of the oldest of these.
    oldest: u32,
    /// Of those in flight, the ones that begin before all that were posted later: number and start.
    /// One that was posted when nothing was in flight is left out: it is the first that ends.
    earliest: VecDeque<(u32, u64)>,
    /// Work requests since the last that was signaled.
    pub(crate) unsignaled: u32,
    turns: BinaryHeap<Turn>,
    /// Turns of virtual queue pairs that have been closed.
    stale_turns: usize,
    /// The virtual time, in octets: the earliest beginning of a request in flight. No request
    /// begins at 0, which is the pool's own turn.
    pub(crate) time: u64,
    pub(crate) cause: Option<Cause>,
    /// Nothing was posted to it since it was connected.
    pub(crate) is_unused: bool,
    /// How many in a row, this one included, have refused their first work request.
    pub(crate) refusals: u8,
    /// Virtual queue pairs that are bound to it.
    pub(crate) members: u32,
    /// When the last of them was closed, by the pool's count.
    pub(crate) idle_since: u64,
    /// Whether it is in the pool's list of those that may post.
    pub(crate) is_active: bool,
}

impl PhysicalQp {
    pub(crate) fn new(slot: u16, node: Option<NodeId>) -> Self {
        Self {
            node,
            slot,
            generation: 0,
            state: PhysicalState::Down,
            in_flight: Ring::default(),
            other_locals: VecDeque::new(),
            oldest: 0,
            earliest: VecDeque::new(),
            unsignaled: 0,
            turns: BinaryHeap::new(),
            stale_turns: 0,
            time: 1,
            cause: None,
            is_unused: true,
            refusals: 0,
            members: 0,
            idle_since: 0,
            is_active: false,
        }
    }

    pub(crate) fn id(&self) -> PhysicalId {
        PhysicalId {
            slot: self.slot,
            generation: self.generation,
        }
    }

    /// Becomes its replacement, to which nothing is posted yet.
    pub(crate) fn renew(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        self.oldest = 0;
        self.unsignaled = 0;
        self.cause = None;
        self.is_unused = true;
        self.earliest.clear();
    }

    /// The number of the next that is posted.
    fn next_number(&self) -> u32 {
        let posted = u32::try_from(self.in_flight.len()).unwrap_or(u32::MAX);
        self.oldest.wrapping_add(posted)
    }

    /// What the next one that is posted has as `wr_id`.
    #[inline(always)]
    pub(crate) fn next_wr_id(&self) -> u64 {
        let number = u64::from(self.next_number());
        u64::from(self.slot) << 48 | u64::from(self.generation) << 32 | number
    }

    /// Notes a work request that is posted, which begins at `start` and has the next `wr_id`. The
    /// caller adds its regions.
    #[inline(always)]
    pub(crate) fn push(&mut self, in_flight: InFlight, start: u64) {
        if self.in_flight.is_empty() {
            self.begin_first(start);
        } else {
            self.note_start(start);
        }
        self.in_flight.push_back(in_flight);
    }

    /// Whether it takes a work request, and has none in flight.
    #[inline(always)]
    pub(crate) fn may_take_alone(&self) -> bool {
        self.state == PhysicalState::Ready && self.in_flight.is_empty()
    }

    /// Notes that a work request begins at `start` while none is in flight.
    #[inline(always)]
    pub(crate) fn begin_first(&mut self, start: u64) {
        self.time = self.time.max(start);
    }

    /// Notes that it is complete: the next one has the next number.
    #[inline(always)]
    pub(crate) fn end_lone(&mut self) {
        self.oldest = self.oldest.wrapping_add(1);
    }

    /// Notes that the next one begins at `start`, behind others in flight.
    fn note_start(&mut self, start: u64) {
        while self.earliest.back().is_some_and(|last| last.1 >= start) {
            self.earliest.pop_back();
        }
        self.earliest.push_back((self.next_number(), start));
    }

    /// The last one was refused: takes it back, and counts a refusal of the first one. The region
    /// of each of its elements is given to `each`. The node of one that was a message.
    pub(crate) fn note_refused(
        &mut self,
        faults: Faults,
        each: impl FnMut(LocalRegionId),
    ) -> Option<NodeId> {
        let last = self.take_back(each);
        if self.is_unused && !faults.has(Fault::RefusalsRepeated) {
            self.refusals += 1;
        }
        let message = last.filter(|last| last.carries != Carries::Request);
        message.map(|last| last.node)
    }

    /// Takes the last one back, which was not posted.
    fn take_back(&mut self, each: impl FnMut(LocalRegionId)) -> Option<InFlight> {
        let last = self.in_flight.pop_back();
        if let Some(last) = &last {
            last.locals.take_newest(&mut self.other_locals, each);
        }
        let number = self.next_number();
        if self.earliest.back().is_some_and(|last| last.0 == number) {
            self.earliest.pop_back();
        }
        last
    }

    /// The place among those in flight of the request with a number, if it is there.
    pub(crate) fn place_of(&self, number: u32) -> Option<usize> {
        let place = number.wrapping_sub(self.oldest) as usize;
        (place < self.in_flight.len()).then_some(place)
    }

    /// Whether there is a place for one more work request.
    #[inline(always)]
    pub(crate) fn has_room(&self, config: &Config, faults: Faults) -> bool {
        let has_place = self.in_flight.len() < config.sq_depth as usize
            || faults.has(Fault::SendQueueUnbounded);
        self.state == PhysicalState::Ready && has_place
    }

    /// Whether a virtual queue pair with this many in flight, whose next request begins at `start`,
    /// is not too far ahead of its share.
    #[inline(always)]
    pub(crate) fn is_permitted(
        &self,
        start: u64,
        posted: usize,
        config: &Config,
        faults: Faults,
    ) -> bool {
        if self.in_flight.is_empty() {
            return true;
        }
        let limit = match self.in_flight.len() == posted {
            true => config.in_flight_octets_max,
            false => config.lead_octets_max,
        };
        start.saturating_sub(self.time) <= limit || faults.has(Fault::LeadUnbounded)
    }

    /// Takes the oldest out. The caller releases its regions.
    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<InFlight> {
        let oldest = self.in_flight.pop_front()?;
        if self
            .earliest
            .front()
            .is_some_and(|first| first.0 == self.oldest)
        {
            self.earliest.pop_front();
        }
        if let Some((_, start)) = self.earliest.front() {
            self.time = self.time.max(*start);
        }
        self.oldest = self.oldest.wrapping_add(1);
        Some(oldest)
    }

    /// Gives a virtual queue pair a turn.
    pub(crate) fn add_turn(&mut self, start: u64, of: VirtualId) {
        let Id { slot, generation } = of.0;
        self.turns.push(Reverse((start, slot, generation)));
    }

    /// Whether anything waits for its turn.
    #[inline]
    pub(crate) fn has_turns(&self) -> bool {
        !self.turns.is_empty()
    }

    /// The next turn.
    pub(crate) fn first_turn(&self) -> Option<(u64, VirtualId)> {
        let Reverse((start, slot, generation)) = *self.turns.peek()?;
        Some((start, VirtualId(Id { slot, generation })))
    }

    pub(crate) fn end_turn(&mut self) {
        self.turns.pop();
    }

    /// Notes that the virtual queue pair of a turn was closed. `is_open` tells which are not.
    pub(crate) fn note_closed_turn(&mut self, is_open: impl Fn(VirtualId) -> bool) {
        self.stale_turns += 1;
        if self.stale_turns * 2 > self.turns.len() {
            self.turns.retain(|Reverse((_, slot, generation))| {
                is_open(VirtualId(Id {
                    slot: *slot,
                    generation: *generation,
                }))
            });
            self.stale_turns = 0;
        }
    }

    /// Takes all turns.
    pub(crate) fn take_turns(&mut self) -> impl Iterator<Item = VirtualId> + use<> {
        self.stale_turns = 0;
        let turns = std::mem::take(&mut self.turns).into_iter();
        turns.map(|Reverse((_, slot, generation))| VirtualId(Id { slot, generation }))
    }

    /// Notes that the turn of a closed one has come.
    pub(crate) fn skip_closed_turn(&mut self) {
        self.stale_turns = self.stale_turns.saturating_sub(1);
        self.end_turn();
    }
}

/// The parts of the number of a work request: slot, generation, number.
pub(crate) fn parts_of(wr_id: u64) -> (u16, u16, u32) {
    let [s1, s0, g1, g0, number @ ..] = wr_id.to_be_bytes();
    (
        u16::from_be_bytes([s1, s0]),
        u16::from_be_bytes([g1, g0]),
        u32::from_be_bytes(number),
    )
}
