//! A process' operations on its slot: allocate, send, receive, forward, release, park.
//!
//! One thread at a time (`&mut self`, under the caller's lock); a [`Parker`] is for the thread that
//! sleeps without that lock.

mod parker;
mod short;

use std::io;
use std::marker::PhantomData;
use std::time::Duration;

use arrayvec::ArrayVec;

use crate::bits::low8;
use crate::frame::{FrameHeader, HeldFrame, RxFrame, TxFrame};
use crate::futex;
use crate::layout::{Class, FrameIndex, LARGE_CAPACITY, SHORT_RINGS, SMALL_CAPACITY};
use crate::map::Arena;
use crate::park::{self, Bell, Parked};
use crate::pool::{self, Pool};
use crate::ring::{Descriptor, Full, Peek, Ring};
use crate::short::{ShortOctets, Taken, SHORT_CELLS};
use crate::slot::{count, SlotEntry};
use crate::state;
use crate::steps::{Live, Steps};
use crate::sync::Ordering;
use urdma_types::SlotId;

pub use parker::Parker;
use short::{Inbound, Peers, Rings};

/// Stale or corrupt entries that one call of recv skips at most.
const SKIPS_MAX: usize = 64;
/// Short datagrams received before a waiting frame: by then each short ring has had as many turns
/// as it has cells, so everything that the frame's sender had sent earlier has been received.
const PASSED_OVER_MAX: usize = SHORT_RINGS * SHORT_CELLS;
/// Octets of the first small frames that attaching faults in.
const PREFAULT_OCTETS: usize = 64 * 1024;

/// Why a frame was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The receiver's ring is full: retry later.
    #[error("the receiver's ring is full")]
    Full,
    /// The slot is not attached, or its process is dead.
    #[error("no process is attached to the slot")]
    Dead,
}

/// A received datagram.
#[derive(Debug)]
pub enum Arrival {
    /// A datagram that was copied out of a short ring.
    Short {
        /// The slot that published it.
        from: SlotId,
        /// Its length.
        len: usize,
    },
    /// A frame.
    Frame(RxFrame),
}

/// A process' access to its slot; see [`EndpointWith`].
pub type Endpoint = EndpointWith<Live>;

/// A process' access to its slot, with labels between steps for tests.
#[derive(Debug)]
pub struct EndpointWith<S: Steps> {
    arena: Arena,
    me: SlotId,
    pid: u32,
    entry: &'static SlotEntry,
    ring: Ring<'static>,
    head: u64,
    shorts: Inbound,
    /// Short datagrams received since a frame was seen to wait.
    passed_over: usize,
    peers: Peers,
    small: Pool,
    large: Pool,
    steps: PhantomData<fn() -> S>,
}

fn no_such_slot() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the arena has no such slot")
}

impl<S: Steps> EndpointWith<S> {
    /// Takes the slot that urdmad has assigned to this process.
    ///
    /// # Errors
    /// `InvalidInput` when there is no such slot, `AddrInUse` when it is attached or has not been
    /// reset since its owner died.
    pub fn attach(arena: &Arena, me: SlotId) -> io::Result<Self> {
        let (entry, ring) = arena
            .entry(me)
            .zip(arena.ring(me))
            .ok_or_else(no_such_slot)?;
        let shorts = Rings::of(arena, me).ok_or_else(no_such_slot)?;
        let pid = std::process::id();
        entry
            .public
            .pid
            .compare_exchange(0, pid, Ordering::AcqRel, Ordering::Relaxed)
            .map_err(|_| io::Error::new(io::ErrorKind::AddrInUse, "the slot is taken"))?;
        S::at("attach: pid");
        arena.prefault(arena.layout().ring_at(me), ring_octets(arena));
        let (frames_at, frames_octets) = arena.layout().frames_of(me);
        arena.prefault(frames_at, PREFAULT_OCTETS.min(frames_octets));
        let config = arena.layout().config();
        let (small_count, large_count) = (narrow(config.small_frames), narrow(config.large_frames));
        let is_free = |k| free_generation(arena, me, k).is_some();
        let small = Pool::new(
            0,
            small_count,
            narrow(entry.owner.small_used.load(Ordering::Acquire)),
            is_free,
        );
        let large = Pool::new(
            small_count,
            large_count,
            narrow(entry.owner.large_used.load(Ordering::Acquire)),
            is_free,
        );
        let head = ring.find_head();
        entry.owner.head.store(head, Ordering::Relaxed);
        let shorts = Inbound::new(shorts);
        entry.public.forget_readers();
        entry.public.park.store(park::RUNNING, Ordering::SeqCst);
        S::at("attach: running");
        Ok(Self {
            arena: *arena,
            me,
            pid,
            entry,
            ring,
            head,
            shorts,
            passed_over: 0,
            peers: Peers::new(arena),
            small,
            large,
            steps: PhantomData,
        })
    }

    /// This process' slot.
    #[inline]
    pub fn slot(&self) -> SlotId {
        self.me
    }

    /// The arena.
    #[inline]
    pub fn arena(&self) -> Arena {
        self.arena
    }

    /// Publishes how peers can check that they can read this process' memory: `word` lies at the
    /// address `at` as long as the process lives.
    pub fn show_witness(&self, at: u64, word: u64) {
        self.entry.public.show_witness(at, word);
    }

    /// Publishes that this process can read the memory of the process in `slot`.
    pub fn set_reads(&self, slot: SlotId, reads: bool) {
        self.entry.public.set_reads(slot, reads);
    }

    /// For the thread that sleeps until a datagram arrives.
    pub fn parker(&self) -> Parker {
        Parker {
            entry: self.entry,
            ring: self.ring,
            shorts: self.shorts.rings,
        }
    }

    /// A frame for a datagram of up to `len` octets. `None`, which is counted, when this slot has
    /// no free frame of that class (receivers hold them all) or `len` is above [`LARGE_CAPACITY`].
    #[inline]
    pub fn alloc(&mut self, len: usize) -> Option<TxFrame> {
        let class = if len <= SMALL_CAPACITY {
            Class::Small
        } else {
            Class::Large
        };
        if len > LARGE_CAPACITY {
            return None;
        }
        let (arena, me) = (self.arena, self.me);
        let pool = match class {
            Class::Small => &mut self.small,
            Class::Large => &mut self.large,
        };
        let Some(taken) = pool.take(|k| free_generation(&arena, me, k).is_some()) else {
            count(&self.entry.owner.exhausted, 1);
            return None;
        };
        let k = match taken {
            pool::Taken::Used(k) => k,
            pool::Taken::Fresh(k, used) => {
                self.first_use(class, used);
                k
            }
        };
        let index = FrameIndex::new(me, k);
        // A warm frame was FREE when checked and only this slot allocates it: this refuses only a
        // frame whose words were corrupted.
        let (header, generation) = free_generation(&arena, me, k)?;
        state::hold(&header.state, generation, me);
        S::at("alloc: held");
        Some(TxFrame::new(HeldFrame::new(
            header,
            index,
            generation,
            self.arena.layout().capacity(k),
        )))
    }

    /// Records that one more frame of the class is used, before it is.
    #[cold]
    fn first_use(&mut self, class: Class, used: u16) {
        let word = match class {
            Class::Small => &self.entry.owner.small_used,
            Class::Large => &self.entry.owner.large_used,
        };
        word.store(u32::from(used), Ordering::Release);
        S::at("alloc: use counted");
    }

    /// Sends the first `len` octets of `frame` and the datagrams that were added behind them, and
    /// wakes the receiver if it sleeps.
    ///
    /// # Errors
    /// The frame is returned: [`SendError::Full`], to be sent again unchanged, or
    /// [`SendError::Dead`].
    ///
    /// # Panics
    /// When `len` is above the frame's capacity, or the frame is another slot's.
    #[inline]
    pub fn send(
        &mut self,
        to: SlotId,
        frame: TxFrame,
        len: usize,
    ) -> Result<(), (TxFrame, SendError)> {
        let Some((entry, ring)) = self.target(to) else {
            return Err((frame, SendError::Dead));
        };
        let held = self.publish(ring, entry, to, frame, len)?;
        S::at("send: published");
        match park::ring_after_rmw(&entry.public.park) {
            Bell::Running => {}
            Bell::MustWake => self.wake_now(entry),
            Bell::Vacant => {
                // The receiver died: takes the frame back, unless the receiver or the reaper has
                // it.
                if state::unpublish(&held.header.state, held.generation, self.me, to) {
                    return Err((TxFrame::new(held), SendError::Dead));
                }
            }
        }
        Ok(())
    }

    /// Sends without checking whether the receiver sleeps: [`EndpointWith::ring_doorbell`] must
    /// follow, once for a burst.
    ///
    /// # Errors
    /// As [`EndpointWith::send`].
    ///
    /// # Panics
    /// As [`EndpointWith::send`].
    #[inline]
    pub fn send_quiet(
        &mut self,
        to: SlotId,
        frame: TxFrame,
        len: usize,
    ) -> Result<(), (TxFrame, SendError)> {
        let Some((entry, ring)) = self.target(to) else {
            return Err((frame, SendError::Dead));
        };
        if entry.public.park.load(Ordering::Relaxed) == park::VACANT {
            return Err((frame, SendError::Dead));
        }
        self.publish(ring, entry, to, frame, len).map(|_| ())
    }

    /// Whether [`EndpointWith::send_short`] may send to `to` now: a short ring has room, and the
    /// last frame sent there has been received, so that no datagram overtakes it. The first call
    /// takes a free short ring of that slot, if there is one. To be called shortly before the send,
    /// since it moves the cell's cache lines from the receiver's CPU.
    #[inline]
    pub fn may_send_short(&mut self, to: SlotId) -> bool {
        self.peers.may_send(&self.arena, self.me, to)
    }

    /// Sends the first `len` octets without a frame and without checking whether the receiver
    /// sleeps: [`EndpointWith::ring_doorbell`] must follow. Only to a slot whose process receives
    /// by [`EndpointWith::recv_any`].
    ///
    /// # Errors
    /// [`SendError::Dead`], or [`SendError::Full`] unless [`EndpointWith::may_send_short`] has just
    /// returned true.
    ///
    /// # Panics
    /// When `len` is 0 or above [`crate::SHORT_CAPACITY`].
    #[inline]
    pub fn send_short(
        &mut self,
        to: SlotId,
        octets: &ShortOctets,
        len: usize,
    ) -> Result<(), SendError> {
        let Some(entry) = self.arena.entry(to) else {
            return Err(SendError::Dead);
        };
        if entry.public.park.load(Ordering::Relaxed) == park::VACANT {
            return Err(SendError::Dead);
        }
        let Some(producer) = self.peers.producer(to) else {
            return Err(SendError::Full);
        };
        producer
            .push::<S>(self.me, octets, len)
            .map_err(|Full| SendError::Full)?;
        count(&self.entry.owner.sent, 1);
        Ok(())
    }

    /// Wakes the receiver at `to` if it sleeps.
    #[inline]
    pub fn ring_doorbell(&mut self, to: SlotId) {
        if let Some(entry) = self.arena.entry(to) {
            if park::ring(&entry.public.park) == Bell::MustWake {
                self.wake_now(entry);
            }
        }
    }

    #[cold]
    fn wake_now(&mut self, entry: &'static SlotEntry) {
        S::at("bell: running");
        futex::wake(&entry.public.park);
        count(&self.entry.owner.wakes, 1);
    }

    #[inline]
    fn target(&self, to: SlotId) -> Option<(&'static SlotEntry, Ring<'static>)> {
        self.arena.entry(to).zip(self.arena.ring(to))
    }

    /// HELD -> IN_FLIGHT, then into the ring; on failure the frame is HELD again.
    #[inline]
    fn publish(
        &mut self,
        ring: Ring<'static>,
        entry: &'static SlotEntry,
        to: SlotId,
        mut frame: TxFrame,
        len: usize,
    ) -> Result<HeldFrame, (TxFrame, SendError)> {
        frame.set_len(len);
        let followers = frame.followers();
        let mut held = frame.into_held();
        assert_eq!(
            held.index.owner_index(),
            self.me.number(),
            "frame of another slot"
        );
        held.generation = state::publish(&held.header.state, held.generation, self.me, to);
        S::at("send: in flight");
        match self.enqueue(ring, &held) {
            Ok(()) => {
                count(&self.entry.owner.sent, 1);
                self.peers.note_frame(to, &held);
                Ok(held)
            }
            Err(Full) => {
                if !state::unpublish(&held.header.state, held.generation, self.me, to) {
                    // Only the reaper can have changed it, and it returned the frame to this slot.
                    state::hold(&held.header.state, held.generation, self.me);
                }
                let frame = TxFrame::with_followers(held, followers);
                Err((frame, self.full_or_dead(entry)))
            }
        }
    }

    #[inline]
    fn enqueue(&self, ring: Ring<'static>, held: &HeldFrame) -> Result<(), Full> {
        ring.push::<S>(Descriptor {
            frame: held.index,
            generation_low: low8(held.generation.into()),
        })
    }

    #[cold]
    fn full_or_dead(&mut self, entry: &'static SlotEntry) -> SendError {
        if entry.public.park.load(Ordering::Relaxed) == park::VACANT {
            return SendError::Dead;
        }
        count(&self.entry.owner.full, 1);
        SendError::Full
    }

    /// Publishes a received frame to another slot, unchanged, and wakes that slot if it sleeps. The
    /// frame is consumed in any case: on an error it goes back to its owner.
    ///
    /// # Errors
    /// [`SendError::Full`] or [`SendError::Dead`].
    #[inline]
    pub fn forward(&mut self, to: SlotId, frame: RxFrame) -> Result<(), SendError> {
        let Some((entry, ring)) = self.target(to) else {
            return Err(SendError::Dead);
        };
        let mut held = frame.into_held();
        held.generation = state::publish(&held.header.state, held.generation, self.me, to);
        S::at("forward: in flight");
        let give_back = |held: &HeldFrame| {
            if state::unpublish(&held.header.state, held.generation, self.me, to) {
                state::release(&held.header.state, held.generation);
            }
        };
        if self.enqueue(ring, &held) == Err(Full) {
            give_back(&held);
            return Err(self.full_or_dead(entry));
        }
        S::at("forward: published");
        match park::ring_after_rmw(&entry.public.park) {
            Bell::Running => {}
            Bell::MustWake => self.wake_now(entry),
            Bell::Vacant => {
                give_back(&held);
                return Err(SendError::Dead);
            }
        }
        count(&self.entry.owner.sent, 1);
        Ok(())
    }

    /// The next datagram, if there is one.
    #[inline]
    pub fn recv(&mut self) -> Option<RxFrame> {
        for _ in 0..SKIPS_MAX {
            let descriptor = match self.ring.peek(self.head) {
                Peek::Entry(descriptor) => descriptor,
                Peek::Empty => {
                    self.tidy();
                    return None;
                }
                Peek::Corrupt => {
                    self.repair();
                    return None;
                }
            };
            let taken = self.take(descriptor);
            S::at("recv: taken");
            self.step_over();
            if taken.is_some() {
                count(&self.entry.owner.received, 1);
                return taken;
            }
        }
        None
    }

    /// The next short datagram, in `octets`, or the next frame. Datagrams of one slot are received
    /// in the order in which they were sent, if each frame is released before the next call.
    #[inline]
    pub fn recv_any(&mut self, octets: &mut ShortOctets) -> Option<Arrival> {
        if let Some(short) = self.recv_short(octets) {
            return Some(short);
        }
        if self.ring.peek(self.head) != Peek::Empty {
            // A short datagram that was sent before that frame may have arrived since the first
            // check.
            if let Some(short) = self.recv_short(octets) {
                return Some(short);
            }
        }
        self.passed_over = 0;
        self.recv().map(Arrival::Frame)
    }

    /// The next short datagram, unless a frame has waited behind too many of them.
    #[inline]
    pub fn recv_short(&mut self, octets: &mut ShortOctets) -> Option<Arrival> {
        if self.passed_over == PASSED_OVER_MAX {
            return None;
        }
        match self.shorts.take(octets) {
            Taken::Empty => None,
            Taken::Short { from, len } => {
                S::at("recv: short taken");
                count(&self.entry.owner.received, 1);
                let passes = self.ring.peek(self.head) != Peek::Empty;
                self.passed_over = if passes { self.passed_over + 1 } else { 0 };
                Some(Arrival::Short { from, len })
            }
            Taken::Corrupt => {
                self.count_corrupt();
                None
            }
        }
    }

    /// Receives datagrams as far as `burst` has room; returns their number.
    #[inline]
    pub fn recv_burst<const N: usize>(&mut self, burst: &mut ArrayVec<RxFrame, N>) -> usize {
        let before = burst.len();
        self.prefetch_burst(burst.remaining_capacity());
        while !burst.is_full() {
            match self.recv() {
                Some(frame) => burst.push(frame),
                None => break,
            }
        }
        burst.len() - before
    }

    /// Prefetches the frames that the next `room` entries name.
    #[inline]
    fn prefetch_burst(&self, room: usize) {
        for ahead in 0..room as u64 {
            if !self.prefetch(self.head.wrapping_add(ahead)) {
                break;
            }
        }
    }

    /// Prefetches the frame that [`EndpointWith::recv`] returns next, if it has arrived: to be
    /// called before the previous one is parsed.
    #[inline]
    pub fn prefetch_next(&self) {
        self.prefetch(self.head);
    }

    /// Prefetches the frame that the entry at `position` names; false when there is none yet.
    #[inline]
    fn prefetch(&self, position: u64) -> bool {
        let Peek::Entry(descriptor) = self.ring.peek(position) else {
            return false;
        };
        if let Some(header) = self.arena.frame_header(descriptor.frame) {
            header.prefetch_for_receiver();
        }
        true
    }

    #[inline]
    fn take(&mut self, descriptor: Descriptor) -> Option<RxFrame> {
        let Some(header) = self.arena.frame_header(descriptor.frame) else {
            self.count_corrupt();
            return None;
        };
        header.prefetch_for_receiver();
        let Some((from, generation)) =
            state::take(&header.state, descriptor.generation_low, self.me)
        else {
            self.count_stale();
            return None;
        };
        S::at("recv: held");
        let capacity = self.arena.layout().capacity(descriptor.frame.k());
        match RxFrame::new(
            HeldFrame::new(header, descriptor.frame, generation, capacity),
            from,
        ) {
            Ok(frame) => Some(frame),
            Err(held) => {
                state::release(&held.header.state, held.generation);
                self.count_corrupt();
                None
            }
        }
    }

    #[inline]
    fn step_over(&mut self) {
        self.ring.clear(self.head);
        S::at("recv: cell emptied");
        self.head = self.head.wrapping_add(1);
        self.entry.owner.head.store(self.head, Ordering::Relaxed);
    }

    #[cold]
    fn count_stale(&mut self) {
        count(&self.entry.owner.stale, 1);
    }

    #[cold]
    fn count_corrupt(&mut self) {
        count(&self.entry.owner.corrupt, 1);
    }

    #[cold]
    fn repair(&mut self) {
        self.count_corrupt();
        self.ring.repair(self.head);
    }

    /// Nothing has arrived: prepares the next frame to send.
    #[inline]
    fn tidy(&mut self) {
        let (arena, me) = (self.arena, self.me);
        let mut ready = None;
        self.small.tidy(|k| {
            ready = free_generation(&arena, me, k).map(|(header, _)| header);
            ready.is_some()
        });
        if let Some(header) = ready {
            header.prefetch_for_sender();
        }
    }

    /// Returns a received frame to its owner; dropping it does the same.
    #[inline]
    pub fn release(&mut self, frame: RxFrame) {
        drop(frame);
        S::at("release: free");
    }

    /// Whether this slot's rings have entries.
    #[inline]
    pub fn has_work(&self) -> bool {
        !self.ring.is_empty_at(self.head) || self.shorts.rings.have_entry()
    }

    /// Frames of this slot that receivers hold, or held at the last check: small, large.
    pub fn outstanding(&self) -> (usize, usize) {
        (self.small.outstanding(), self.large.outstanding())
    }

    /// Sleeps until a datagram arrives, `timeout` has passed (`None`: no limit) or the slot is
    /// declared dead; see [`Parker::park`].
    pub fn park(&mut self, timeout: Option<Duration>) -> Parked {
        self.parker().park(timeout, || false)
    }
}

impl<S: Steps> Drop for EndpointWith<S> {
    /// Marks the slot vacant for senders. urdmad does the rest when it detects that the process has
    /// ended.
    fn drop(&mut self) {
        if std::process::id() == self.pid
            && self.entry.public.pid.load(Ordering::Relaxed) == self.pid
        {
            self.entry.public.park.store(park::VACANT, Ordering::SeqCst);
            futex::wake(&self.entry.public.park);
        }
    }
}

fn ring_octets(arena: &Arena) -> usize {
    arena.layout().config().ring_cells as usize * 8
}

/// A count that the layout bounds by 65,535; a corrupted value is cut there.
fn narrow(count: u32) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX)
}

/// A frame's header and generation if it is FREE.
#[inline]
fn free_generation(arena: &Arena, owner: SlotId, k: u16) -> Option<(&'static FrameHeader, u32)> {
    let header = arena.frame_header(FrameIndex::new(owner, k))?;
    let word = state::load(&header.state);
    word.is_free().then_some((header, word.generation()))
}
