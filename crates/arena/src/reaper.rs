//! urdmad's operations on slots: reclaim the frames of dead processes, reset a slot for its next
//! process, account for every frame.

use crate::bits::low8;
use crate::frame::FrameHeader;
use crate::futex;
use crate::layout::FrameIndex;
use crate::map::Arena;
use crate::park;
use crate::ring::{Descriptor, Peek};
use crate::slot::SlotEntry;
use crate::state::{self, FrameState, Word};
use crate::sync::{fence, Ordering};
use urdma_types::SlotId;

/// The result of reaping a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReapReport {
    /// Entries that were in its ring.
    pub ring_entries: u32,
    /// Frames in flight to it.
    pub to_dead: u32,
    /// Frames it held.
    pub held: u32,
    /// Frames it had published but not put into a ring, or put into the ring of another dead slot.
    pub unfinished: u32,
    /// Frames with an invalid state word; freed if the dead slot owned them.
    pub corrupt: u32,
}

/// The states of all frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accounting {
    /// All frames of the arena.
    pub total: u64,
    /// FREE, including those never used.
    pub free: u64,
    /// HELD, by holder.
    pub held: Vec<u64>,
    /// IN_FLIGHT, by receiver.
    pub in_flight: Vec<u64>,
    /// Invalid state words.
    pub corrupt: u64,
    /// Frames that were used at least once; only these have memory.
    pub used: u64,
}

impl Accounting {
    /// Whether every frame is FREE.
    pub fn all_free(&self) -> bool {
        self.free == self.total
    }
}

/// A violation of the invariants of a quiescent arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// An invalid state word.
    #[error("frame {0:?}: the state word makes no sense")]
    State(FrameIndex),
    /// A slot without a process holds a frame.
    #[error("frame {frame:?} is with slot {slot:?}, which no process uses")]
    WithoutOwner {
        /// The frame.
        frame: FrameIndex,
        /// The slot.
        slot: SlotId,
    },
    /// A frame is in flight but not in its receiver's ring.
    #[error("frame {frame:?} is in flight to {to:?} but not in its ring")]
    NotInRing {
        /// The frame.
        frame: FrameIndex,
        /// The receiver.
        to: SlotId,
    },
    /// A ring holds a word that no producer writes.
    #[error("ring of slot {0:?}: a corrupt word")]
    Ring(SlotId),
}

/// urdmad's view: there must be only one, in the process that owns slot 0.
#[derive(Debug)]
pub struct Reaper {
    arena: Arena,
}

impl Reaper {
    /// For the process that made the arena.
    pub fn new(arena: &Arena) -> Self {
        Self { arena: *arena }
    }

    /// Marks `slot` as vacant for senders, and wakes all threads that sleep there.
    pub fn mark_dead(&mut self, slot: SlotId) {
        if let Some(entry) = self.arena.entry(slot) {
            entry.public.park.store(park::VACANT, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            futex::wake(&entry.public.park);
        }
    }

    /// Reclaims all frames that the dead process of `slot` held or was to receive. Other processes
    /// may run meanwhile.
    ///
    /// Frames that running processes hold are not reclaimed, independent of their owner. May be
    /// repeated.
    pub fn reap(&mut self, slot: SlotId) -> ReapReport {
        let mut report = ReapReport::default();
        self.mark_dead(slot);
        self.drain(slot, &mut report);
        for entry in self.arena.slots().filter_map(|to| self.arena.entry(to)) {
            entry.owner.shorts.orphan(slot);
        }
        self.for_each_used(|this, index, header| {
            let seen = state::load(&header.state);
            let counter = match seen.state() {
                FrameState::Held(holder) if holder == slot => &mut report.held,
                FrameState::InFlight { to, .. } if to == slot => &mut report.to_dead,
                FrameState::InFlight { from, to }
                    if from == slot && !this.will_be_taken(index, seen, to) =>
                {
                    &mut report.unfinished
                }
                FrameState::Invalid if index.owner_index() == slot.number() => &mut report.corrupt,
                _ => return,
            };
            if state::reap(&header.state, seen) {
                *counter += 1;
            }
        });
        self.wake_all();
        report
    }

    /// Whether a live receiver has the entry in its ring. The sender is dead, so entries can only
    /// vanish, and only after the state word changed.
    fn will_be_taken(&self, frame: FrameIndex, seen: Word, to: SlotId) -> bool {
        let descriptor = Descriptor {
            frame,
            generation_low: low8(seen.generation().into()),
        };
        self.arena.is_alive(to)
            && self
                .arena
                .ring(to)
                .is_some_and(|ring| ring.contains(descriptor))
    }

    /// Empties the ring of a dead slot; its frames are found by their state words.
    fn drain(&self, slot: SlotId, report: &mut ReapReport) {
        let Some((entry, ring)) = self.arena.entry(slot).zip(self.arena.ring(slot)) else {
            return;
        };
        let mut head = ring.find_head();
        // Live senders that have not yet noticed may add entries; each costs them one frame for a
        // time, never more than a ring.
        for _ in 0..2 * self.arena.layout().config().ring_cells {
            match ring.peek(head) {
                Peek::Entry(_) => report.ring_entries += 1,
                Peek::Empty => break,
                Peek::Corrupt => ring.repair(head),
            }
            ring.clear(head);
            head = head.wrapping_add(1);
        }
        entry.owner.head.store(head, Ordering::Relaxed);
    }

    /// A sender may have died between changing a park word and the wake-up call: wake every sleeper
    /// once.
    fn wake_all(&self) {
        for slot in self.arena.slots() {
            if let Some(entry) = self.arena.entry(slot).filter(|_| self.arena.is_alive(slot)) {
                let _ = park::ring(&entry.public.park);
                futex::wake(&entry.public.park);
            }
        }
    }

    /// How often `slot` has been assigned anew.
    pub fn generation(&self, slot: SlotId) -> u32 {
        self.arena.generation(slot)
    }

    /// Resets the slot of a dead process for the next one; returns how many of its frames live
    /// processes still hold.
    ///
    /// Memory of the slot's frames is returned to the system when none is held.
    pub fn reset(&mut self, slot: SlotId) -> u32 {
        self.reap(slot);
        let Some(entry) = self.arena.entry(slot) else {
            return 0;
        };
        let mut held = 0;
        self.for_each_used_of(slot, |_, _, header| {
            held += u32::from(state::load(&header.state).state() != FrameState::Free);
        });
        if held == 0 {
            let (at, octets) = self.arena.layout().frames_of(slot);
            self.arena.punch_hole(at, octets);
            entry.owner.small_used.store(0, Ordering::Relaxed);
            entry.owner.large_used.store(0, Ordering::Relaxed);
        }
        let owner = &entry.owner;
        for word in [
            &owner.sent,
            &owner.received,
            &owner.exhausted,
            &owner.full,
            &owner.stale,
            &owner.corrupt,
            &owner.wakes,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        entry.public.epoch.fetch_add(1, Ordering::Release);
        entry.public.pid.store(0, Ordering::Release);
        held
    }

    /// Returns memory to the system that no frame accounts for: a program that reads all of the
    /// arena, or locks its memory, allocates every page of it.
    ///
    /// Only memory of free slots, to which no process may attach meanwhile: the process of a slot
    /// uses further frames at any time.
    pub fn give_back_unused(&mut self, is_free: impl Fn(SlotId) -> bool) {
        let layout = self.arena.layout();
        if self.arena.resident_octets() <= self.accounted_octets(&is_free) {
            return;
        }
        for slot in self.arena.slots().filter(|slot| is_free(*slot)) {
            let Some(entry) = self.arena.entry(slot) else {
                continue;
            };
            let [small, large] = self.used_of(entry);
            for (at, octets) in layout.unused_frames(slot, small, large) {
                self.arena.punch_hole(at, octets);
            }
            // Peers of the slot's previous process may still read its delivery records.
            if entry.public.epoch.load(Ordering::Relaxed) == 0 {
                let (at, octets) = layout.deliveries_of(slot);
                self.arena.punch_hole(at, octets);
            }
        }
    }

    /// Octets of memory that the arena may take: all of the slots that are not free, and the used
    /// frames of the others.
    fn accounted_octets(&self, is_free: impl Fn(SlotId) -> bool) -> u64 {
        let layout = self.arena.layout();
        let of_slot = |slot| {
            let entry = self.arena.entry(slot)?;
            let (_, deliveries) = layout.deliveries_of(slot);
            let (_, frames) = layout.frames_of(slot);
            if !is_free(slot) {
                return Some(frames + deliveries);
            }
            let [small, large] = self.used_of(entry);
            let unused: usize = layout
                .unused_frames(slot, small, large)
                .iter()
                .map(|(_, octets)| octets)
                .sum();
            let was_used = entry.public.epoch.load(Ordering::Relaxed) > 0;
            Some(frames - unused + if was_used { deliveries } else { 0 })
        };
        let of_slots: usize = self.arena.slots().filter_map(of_slot).sum();
        (layout.fixed_octets() + of_slots) as u64
    }

    /// How many small and large frames of a slot were ever used, within what there is.
    fn used_of(&self, entry: &SlotEntry) -> [u32; 2] {
        let config = self.arena.layout().config();
        let owner = &entry.owner;
        [
            (&owner.small_used, config.small_frames),
            (&owner.large_used, config.large_frames),
        ]
        .map(|(used, frames)| used.load(Ordering::Acquire).min(frames))
    }

    /// The states of all frames now; exact while no process is active.
    pub fn account(&self) -> Accounting {
        let slots = usize::from(self.arena.layout().config().slots);
        let total = slots as u64 * u64::from(self.arena.layout().frames_per_slot());
        let mut sum = Accounting {
            total,
            free: 0,
            held: vec![0; slots],
            in_flight: vec![0; slots],
            corrupt: 0,
            used: 0,
        };
        self.for_each_used(|_, _, header| {
            sum.used += 1;
            match state::load(&header.state).state() {
                FrameState::Free => sum.free += 1,
                FrameState::Held(holder) => bump(&mut sum.held, holder, &mut sum.corrupt),
                FrameState::InFlight { to, .. } => bump(&mut sum.in_flight, to, &mut sum.corrupt),
                FrameState::Invalid => sum.corrupt += 1,
            }
        });
        sum.free += total - sum.used;
        sum
    }

    /// Checks all invariants that hold while no process is active.
    ///
    /// # Errors
    /// The first violation found.
    pub fn verify(&self) -> Result<(), Violation> {
        let mut first = None;
        self.for_each_used(|this, frame, header| {
            let seen = state::load(&header.state);
            let violation = match seen.state() {
                FrameState::Free => None,
                FrameState::Invalid => Some(Violation::State(frame)),
                FrameState::Held(slot) => {
                    (!this.arena.is_alive(slot)).then_some(Violation::WithoutOwner { frame, slot })
                }
                FrameState::InFlight { to, .. } if !this.arena.is_alive(to) => {
                    Some(Violation::WithoutOwner { frame, slot: to })
                }
                FrameState::InFlight { to, .. } => (!this.will_be_taken(frame, seen, to))
                    .then_some(Violation::NotInRing { frame, to }),
            };
            first = first.or(violation);
        });
        for slot in self.arena.slots() {
            let Some(ring) = self.arena.ring(slot) else {
                continue;
            };
            if first.is_none() && ring.peek(ring.find_head()) == Peek::Corrupt {
                first = Some(Violation::Ring(slot));
            }
        }
        first.map_or(Ok(()), Err)
    }

    fn for_each_used(&self, mut visit: impl FnMut(&Self, FrameIndex, &'static FrameHeader)) {
        for slot in self.arena.slots() {
            self.for_each_used_of(slot, &mut visit);
        }
    }

    fn for_each_used_of(
        &self,
        slot: SlotId,
        mut visit: impl FnMut(&Self, FrameIndex, &'static FrameHeader),
    ) {
        let Some(entry) = self.arena.entry(slot) else {
            return;
        };
        let small_frames = self.arena.layout().config().small_frames;
        let [small, large] = self.used_of(entry);
        for k in (0..small).chain(small_frames..small_frames + large) {
            let Ok(k) = u16::try_from(k) else { continue };
            let index = FrameIndex::new(slot, k);
            if let Some(header) = self.arena.frame_header(index) {
                visit(self, index, header);
            }
        }
    }
}

fn bump(counts: &mut [u64], slot: SlotId, corrupt: &mut u64) {
    match counts.get_mut(usize::from(slot.number())) {
        Some(count) => *count += 1,
        None => *corrupt += 1,
    }
}
