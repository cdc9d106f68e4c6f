//! The writer's half of a region.

#![allow(unsafe_code)]

use std::marker::PhantomData;

use urdma_waiting::futex;

use crate::bits::{low16, low32, low8, modulo};
use crate::cell::{CellOctets, Contents, COUNT_MASK};
use crate::layout::{ANSWER_RESERVE, CELL_DATA, LARGE_FRAME, SMALL_FRAME};
use crate::region::OwnRegion;
use crate::steps::{Live, Steps};
use crate::sync::Ordering;

/// What a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A work request: leaves [`ANSWER_RESERVE`] cells empty.
    Work,
    /// An answer, which refuses an incoming message: may use every cell.
    Answer,
}

/// What the writer keeps of a cell until its message is completed.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    owner: u32,
    /// 0 for none, otherwise the number of the frame + 1.
    frame: u16,
}

/// Free frames of one class, each by its number + 1; the one that was freed last is the next.
#[derive(Debug)]
struct FreeFrames {
    free: Box<[u16]>,
    count: usize,
}

impl FreeFrames {
    /// The frames `first..first + count`.
    fn new(first: u32, count: u32) -> Self {
        let free: Box<[u16]> = (first..first + count)
            .rev()
            .map(|number| low16(u64::from(number) + 1))
            .collect();
        Self {
            count: free.len(),
            free,
        }
    }

    #[inline]
    fn top(&self) -> Option<u16> {
        self.free[..self.count].last().copied()
    }

    #[inline]
    fn in_use(&self) -> usize {
        self.free.len() - self.count
    }

    #[inline]
    fn push(&mut self, frame: u16) {
        self.free[self.count] = frame;
        self.count += 1;
    }
}

/// A payload of more octets than this is long.
const LONG_PAYLOAD: usize = LARGE_FRAME / 2;
/// [`Outgoing::begin`] begins a long payload while fewer large frames than this are in use. A
/// writer that has more to send than its reader takes uses all frames that it may in turn, and the
/// lines of so few stay in a second-level cache.
const LONG_FRAMES: usize = 16;

/// How many cells ahead the writer owns the cache lines of its ring, in a stream of messages.
const CELLS_AHEAD: u64 = 8;

/// The writer's half.
///
/// `completed <= freed <= written <= completed + 2 * cells`: the counts of the peer free cells and
/// frames at once, but owners are told only when the messages before these counts were processed
/// (section 5). Otherwise two ends whose cells are all in use could wait for each other for ever,
/// each with messages to take and no room for an answer. Until then at most one answer is written
/// for each cell of the peer.
#[derive(Debug)]
pub struct Outgoing<S: Steps = Live> {
    region: OwnRegion,
    cells: u64,
    written: u64,
    freed: u64,
    completed: u64,
    /// Messages of the incoming region that are settled.
    settled: u64,
    /// `2 * cells` entries, by position.
    sent: Box<[Sent]>,
    small: FreeFrames,
    large: FreeFrames,
    steps: PhantomData<S>,
}

impl Outgoing {
    /// Writes to a new region.
    pub fn new(region: OwnRegion) -> Self {
        Self::with_steps(region, 0)
    }
}

impl<S: Steps> Outgoing<S> {
    /// For tests: with labels, and with positions that exceed 32 bits.
    #[doc(hidden)]
    pub fn with_steps(region: OwnRegion, position: u64) -> Self {
        let config = *region.0.layout().config();
        Self {
            region,
            cells: u64::from(config.cells),
            written: position,
            freed: position,
            completed: position,
            settled: position,
            sent: vec![Sent::default(); 2 * config.cells as usize].into_boxed_slice(),
            small: FreeFrames::new(0, config.small_frames),
            large: FreeFrames::new(config.small_frames, config.large_frames),
            steps: PhantomData,
        }
    }

    /// Messages written so far.
    #[inline]
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Messages whose owners were told that they are settled.
    #[inline]
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// The owners of the messages that are not completed, each with the count of settled messages
    /// that completes it.
    pub fn owners(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        (self.completed..self.written).map(|position| {
            let owner = self.sent[modulo(position, self.sent.len())].owner;
            (position + 1, owner)
        })
    }

    /// Messages of the incoming region that were settled.
    #[inline]
    pub fn settled(&self) -> u64 {
        self.settled
    }

    /// Whether there is a cell for a message.
    #[inline]
    pub fn has_room(&self, kind: Kind) -> bool {
        let uncompleted = self.written - self.completed;
        match kind {
            // C4-4
            //# It has room for a message of work requests while fewer than cells − 16 of its
            //# messages are not completed, and for an answer (section 7) while fewer than cells are
            //# not settled.
            Kind::Work => uncompleted < self.cells - u64::from(ANSWER_RESERVE),
            Kind::Answer => self.written - self.freed < self.cells && uncompleted < 2 * self.cells,
        }
    }

    /// How many messages of work requests with `payload_octets` octets in a frame there is room
    /// for, and how many there is at most.
    pub fn room(&self, payload_octets: usize) -> (u64, u64) {
        let cells = self.cells - u64::from(ANSWER_RESERVE);
        let free_cells = cells.saturating_sub(self.written - self.completed);
        let large = (self.large.count, self.large.free.len());
        let frames = match payload_octets {
            0 => return (free_cells, cells),
            1..=SMALL_FRAME => (self.small.count + large.0, self.small.free.len() + large.1),
            _ => large,
        };
        (free_cells.min(frames.0 as u64), cells.min(frames.1 as u64))
    }

    /// Room for a message with `payload_octets` octets outside of its cell; None if there is no
    /// cell or, now, no frame for it. More than half of [`LARGE_FRAME`] octets get a frame while
    /// fewer than 16 large ones are in use.
    ///
    /// # Panics
    /// When the payload is longer than [`LARGE_FRAME`].
    #[inline]
    pub fn begin(&mut self, kind: Kind, payload_octets: usize) -> Option<Room<'_, S>> {
        if payload_octets > LONG_PAYLOAD && self.large.in_use() >= LONG_FRAMES {
            return None;
        }
        let frame = self.frame_for(kind, payload_octets)?;
        Some(self.room_with(frame, payload_octets))
    }

    /// The frame for such a message, 0 for none; None if there is no cell or frame.
    ///
    /// # Panics
    /// As [`Outgoing::begin`].
    #[inline(always)]
    pub(crate) fn frame_for(&self, kind: Kind, payload_octets: usize) -> Option<u16> {
        if !self.has_room(kind) {
            return None;
        }
        match payload_octets {
            0 => Some(0),
            1..=SMALL_FRAME => self.small.top().or_else(|| self.large.top()),
            _ => {
                assert!(
                    payload_octets <= LARGE_FRAME,
                    "a payload longer than a frame"
                );
                self.large.top()
            }
        }
    }

    /// The room that was left, with what was written.
    ///
    /// # Panics
    /// When something was published or freed since.
    #[inline(always)]
    pub fn resume(&mut self, left: Left) -> Room<'_, S> {
        assert!(
            (self.written, self.freed) == (left.written, left.freed),
            "a room that is not there any more"
        );
        Room {
            outgoing: self,
            frame: left.frame,
            payload_octets: left.payload_octets,
        }
    }

    /// Room for a message of a work request that has nothing outside of its cell; None if there is
    /// no cell.
    #[inline(always)]
    pub fn begin_in_cell(&mut self) -> Option<Room<'_, S>> {
        self.has_room(Kind::Work).then(|| self.room_with(0, 0))
    }

    #[inline(always)]
    pub(crate) fn room_with(&mut self, frame: u16, payload_octets: usize) -> Room<'_, S> {
        // A reader that polls has taken the lines of its next cell back.
        let region = &self.region.0;
        region.cell(self.written).prefetch_write();
        region.cell(self.written + CELLS_AHEAD).prefetch_write();
        Room {
            outgoing: self,
            frame,
            payload_octets,
        }
    }

    /// The position that the low 32 bits of the peer's `settled` stand for; None if it is not ahead
    /// of what was completed, or ahead of what was written.
    #[inline]
    pub fn position_of(&self, settled: u32) -> Option<u64> {
        self.ahead_by(settled.wrapping_sub(low32(self.completed)))
    }

    /// As [`Outgoing::position_of`], for the count of a cell, which has 24 bits.
    #[inline]
    pub fn position_of_count(&self, count: u32) -> Option<u64> {
        self.ahead_by(count.wrapping_sub(low32(self.completed)) & COUNT_MASK)
    }

    #[inline]
    fn ahead_by(&self, messages: u32) -> Option<u64> {
        let position = self.completed + u64::from(messages);
        // C5-4: what is behind is far ahead in this arithmetic.
        (messages > 0 && position <= self.written).then_some(position)
    }

    /// Frees the cells and frames of all messages before `position`, if they are not yet.
    ///
    /// # Panics
    /// When the position is ahead of what was written.
    #[inline]
    pub fn free_to(&mut self, position: u64) {
        assert!(position <= self.written, "settled before it was written");
        while self.freed < position {
            let at = modulo(self.freed, self.sent.len());
            self.free_frame(self.sent[at].frame);
            self.freed += 1;
        }
    }

    /// As [`Outgoing::free_to`], and hands the owner of each of these messages to `completed`, in
    /// the order in which they were written.
    ///
    /// # Panics
    /// When the position is ahead of what was written.
    pub fn settle_to(&mut self, position: u64, mut completed: impl FnMut(u32)) {
        let mut before = self.completed;
        while let Some((owner, end)) = self.settle_run(position) {
            (before..end).for_each(|_| completed(owner));
            before = end;
        }
    }

    /// Frees what the next messages before `position` use, as many as have the same owner; returns
    /// the owner, and the position behind the last of them. None if there is no such message.
    ///
    /// # Panics
    /// When the position is ahead of what was written.
    #[inline(always)]
    pub fn settle_run(&mut self, position: u64) -> Option<(u32, u64)> {
        assert!(position <= self.written, "settled before it was written");
        if self.completed >= position {
            return None;
        }
        let mut sent = self.sent[modulo(self.completed, self.sent.len())];
        let owner = sent.owner;
        loop {
            if self.freed == self.completed {
                self.free_frame(sent.frame);
                self.freed += 1;
            }
            self.completed += 1;
            if self.completed >= position {
                break;
            }
            sent = self.sent[modulo(self.completed, self.sent.len())];
            if sent.owner != owner {
                break;
            }
        }
        Some((owner, self.completed))
    }

    /// Cells and frames before this position are free.
    #[inline]
    pub fn freed(&self) -> u64 {
        self.freed
    }

    #[inline(always)]
    fn free_frame(&mut self, frame: u16) {
        if frame != 0 {
            self.push_frame(frame);
        }
    }

    #[inline(never)]
    fn push_frame(&mut self, frame: u16) {
        if usize::from(frame) <= self.small.free.len() {
            self.small.push(frame);
        } else {
            self.large.push(frame);
        }
    }

    /// Stores the counts: `settled` messages of the incoming region are settled.
    #[inline]
    pub fn store_counts(&mut self, settled: u64) {
        self.settled = settled;
        let counts = u64::from(low32(settled)) << 32 | u64::from(low32(self.written));
        // C5-2: the answers were written before.
        self.region.0.counts().store(counts, Ordering::Release);
        S::at("counts: stored");
    }

    /// Changes the bell and wakes the peer, if it waits on it.
    #[cold]
    pub fn ring_bell(&self) {
        let bell = self.region.0.bell();
        // Only this process writes it.
        let rung = bell.load(Ordering::Relaxed).wrapping_add(1);
        bell.store(rung, Ordering::Release);
        S::at("bell: changed");
        futex::wake(bell);
    }

    /// Stores the count of settled messages at which the peer shall wake this process.
    #[inline]
    pub fn store_wake_at(&self, settled: u64) {
        let wake_at = self.region.0.wake_at();
        wake_at.store(low32(settled), Ordering::Relaxed);
    }
}

/// A room that was left before it was published.
#[derive(Clone, Copy, Debug)]
pub struct Left {
    frame: u16,
    payload_octets: usize,
    /// The state of the writer's half.
    written: u64,
    freed: u64,
}

/// Room for one message. Nothing is sent, and nothing is in use, unless it is published.
#[derive(Debug)]
#[must_use = "a message is sent by publishing it"]
pub struct Room<'a, S: Steps = Live> {
    outgoing: &'a mut Outgoing<S>,
    /// 0 for none, otherwise the number of the frame + 1.
    frame: u16,
    payload_octets: usize,
}

impl<'a, S: Steps> Room<'a, S> {
    /// The position of the message.
    #[inline(always)]
    pub fn position(&self) -> u64 {
        self.outgoing.written
    }

    /// Room for what the cell holds of the message, and for its payload; the content of both is
    /// arbitrary.
    #[inline(always)]
    pub fn parts_mut(&mut self) -> (&mut CellOctets, &mut [u8]) {
        let region = &self.outgoing.region.0;
        let cell = region.cell(self.outgoing.written);
        // SAFETY: only this process can write the octets, and the cell is settled, so nothing else
        // here refers to them while this borrows the writer's half.
        let octets = unsafe { &mut *cell.octets() };
        let frame = u32::from(self.frame).checked_sub(1);
        let payload = match frame.and_then(|number| region.layout().frame(number)) {
            // SAFETY: the octets are in a frame, whose length `begin` compared. Only this process
            // writes it, while this borrows the writer's half.
            Some((at, _)) => unsafe {
                std::slice::from_raw_parts_mut(region.at(at).as_ptr(), self.payload_octets)
            },
            None => &mut [],
        };
        (octets, payload)
    }

    /// Room for what the cell holds of the message.
    #[inline(always)]
    pub fn octets_mut(&mut self) -> &mut CellOctets {
        self.parts_mut().0
    }

    /// Room for the payload.
    #[inline]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        self.parts_mut().1
    }

    /// As [`Room::parts_mut`], for as long as the writer's half is borrowed. The room is there
    /// until something else is published or freed, for [`Outgoing::resume`].
    #[inline(always)]
    pub fn leave(mut self) -> (Left, &'a mut CellOctets, &'a mut [u8]) {
        let left = Left {
            frame: self.frame,
            payload_octets: self.payload_octets,
            written: self.outgoing.written,
            freed: self.outgoing.freed,
        };
        let (cell, payload) = self.parts_mut();
        let (cell, payload) = (std::ptr::from_mut(cell), std::ptr::from_mut(payload));
        // SAFETY: as in `parts_mut`; this consumes the borrow of the writer's half, which lasts as
        // long.
        unsafe { (left, &mut *cell, &mut *payload) }
    }

    /// Makes the payload shorter than [`Outgoing::begin`] was told.
    ///
    /// # Panics
    /// When it would not be shorter, or empty.
    #[inline]
    pub fn truncate_payload(&mut self, octets: usize) {
        assert!(
            (1..=self.payload_octets).contains(&octets),
            "a payload is only made shorter"
        );
        self.payload_octets = octets;
    }

    /// Sends the message, whose first `len` octets are in the cell. `owner` will be told when it is
    /// settled. Returns the number of messages written: it is settled when the peer's `settled` has
    /// reached that.
    ///
    /// # Panics
    /// When `len` is above [`CELL_DATA`].
    #[inline(always)]
    pub fn publish(self, len: usize, owner: u32) -> u64 {
        assert!(len <= CELL_DATA, "more octets than a cell holds");
        let Self {
            outgoing, frame, ..
        } = self;
        if frame != 0 {
            if usize::from(frame) <= outgoing.small.free.len() {
                outgoing.small.count -= 1;
            } else {
                outgoing.large.count -= 1;
            }
        }
        let position = outgoing.written;
        let at = modulo(position, outgoing.sent.len());
        outgoing.sent[at] = Sent { owner, frame };
        let contents = Contents {
            len: low8(len as u64),
            count: low32(outgoing.settled),
            frame,
            frame_octets: low32(self.payload_octets as u64),
        };
        let cell = outgoing.region.0.cell(position);
        cell.publish::<S>(position, contents);
        outgoing.written = position + 1;
        outgoing.written
    }
}
