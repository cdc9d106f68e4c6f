//! The state word of a frame: its holder.
//!
//! ```text
//! 63            32 31    24 23    16 15     8 7      0
//! |  generation   |  kind  |  from  |   to   |   0    |
//!
//!            alloc (owner)            publish (holder)
//!    FREE ------------------> HELD(s) ------------------> IN_FLIGHT(s, d)
//!     ^                        |  ^                          |     |
//!     +---- release (holder) --+  +------ take (d) ----------+     |
//!     +---- reaper (s or d dead) ----------------------------------+
//! ```
//! Only `take` and the reaper can meet on one word, so only they compare and swap; every other
//! transition is made by the only process that may touch the frame, with a plain store. `publish`
//! counts the generation up, so each ring entry names one publication. All zeroes is FREE, so that
//! a new arena needs no initialisation.

use crate::bits::{low32, low8};
use crate::sync::{AtomicU64, Ordering};
use urdma_types::SlotId;

/// The meaning of a state word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameState {
    /// Free: the owner may allocate it.
    Free,
    /// Held by a slot, being written or read.
    Held(SlotId),
    /// Published to `to`, not yet received.
    InFlight {
        /// The sender.
        from: SlotId,
        /// The receiver.
        to: SlotId,
    },
    /// No state that this crate writes: the word was corrupted.
    Invalid,
}

const KIND_FREE: u64 = 0;
const KIND_HELD: u64 = 1;
const KIND_IN_FLIGHT: u64 = 2;

/// A copied state word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word(u64);

impl Word {
    #[inline]
    const fn new(generation: u32, kind: u64, from: u8, to: u8) -> Self {
        Self((generation as u64) << 32 | kind << 24 | (from as u64) << 16 | (to as u64) << 8)
    }

    /// FREE.
    #[inline]
    pub const fn free(generation: u32) -> Self {
        Self::new(generation, KIND_FREE, 0, 0)
    }

    /// HELD(holder).
    #[inline]
    pub const fn held(generation: u32, holder: SlotId) -> Self {
        Self::new(generation, KIND_HELD, holder.number(), 0)
    }

    /// IN_FLIGHT(from, to).
    #[inline]
    pub const fn in_flight(generation: u32, from: SlotId, to: SlotId) -> Self {
        Self::new(generation, KIND_IN_FLIGHT, from.number(), to.number())
    }

    /// From memory, unvalidated.
    #[inline]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Its representation in memory.
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Whether it is FREE.
    #[inline]
    pub const fn is_free(self) -> bool {
        low32(self.0) == 0
    }

    /// How often the frame has been published, modulo 2^32.
    #[inline]
    pub const fn generation(self) -> u32 {
        low32(self.0 >> 32)
    }

    /// Decodes it.
    #[inline]
    pub const fn state(self) -> FrameState {
        let (from, to) = (low8(self.0 >> 16), low8(self.0 >> 8));
        let rest_is_zero = self.0 & 0xff == 0;
        match ((self.0 >> 24) & 0xff, SlotId::new(from), SlotId::new(to)) {
            (KIND_FREE, Some(SlotId::DAEMON), Some(SlotId::DAEMON)) if rest_is_zero => {
                FrameState::Free
            }
            (KIND_HELD, Some(holder), Some(SlotId::DAEMON)) if rest_is_zero => {
                FrameState::Held(holder)
            }
            (KIND_IN_FLIGHT, Some(from), Some(to)) if rest_is_zero => {
                FrameState::InFlight { from, to }
            }
            _ => FrameState::Invalid,
        }
    }
}

/// Reads a state word once.
#[inline]
pub fn load(word: &AtomicU64) -> Word {
    Word::from_bits(word.load(Ordering::Acquire))
}

/// Makes a frame that only the caller may touch HELD(holder); the caller is its owner and has seen
/// it FREE.
#[inline]
pub fn hold(word: &AtomicU64, generation: u32, holder: SlotId) {
    word.store(Word::held(generation, holder).bits(), Ordering::Relaxed);
}

/// The holder publishes: HELD(from) becomes IN_FLIGHT(from, to); returns the new generation.
#[inline]
pub fn publish(word: &AtomicU64, generation: u32, from: SlotId, to: SlotId) -> u32 {
    let next = generation.wrapping_add(1);
    word.store(Word::in_flight(next, from, to).bits(), Ordering::Release);
    next
}

/// The sender takes its publication back; false when the receiver or the reaper was first.
#[inline]
pub fn unpublish(word: &AtomicU64, generation: u32, from: SlotId, to: SlotId) -> bool {
    swap(
        word,
        Word::in_flight(generation, from, to),
        Word::held(generation, from),
    )
}

/// The receiver takes the frame that a ring entry named: the sender and the full generation, or
/// `None` when the entry is stale.
#[inline]
pub fn take(word: &AtomicU64, generation_low: u8, me: SlotId) -> Option<(SlotId, u32)> {
    let seen = load(word);
    let (from, generation) = (SlotId::new(low8(seen.bits() >> 16))?, seen.generation());
    let named = Word::in_flight(generation, from, me);
    if seen != named || generation & 0xff != u32::from(generation_low) {
        return None;
    }
    swap(word, seen, Word::held(generation, me)).then_some((from, generation))
}

/// The holder returns the frame to its owner.
#[inline]
pub fn release(word: &AtomicU64, generation: u32) {
    word.store(Word::free(generation).bits(), Ordering::Release);
}

/// The reaper frees a frame if no one has changed it since `seen` was read.
#[inline]
pub fn reap(word: &AtomicU64, seen: Word) -> bool {
    swap(word, seen, Word::free(seen.generation()))
}

#[inline]
fn swap(word: &AtomicU64, seen: Word, next: Word) -> bool {
    word.compare_exchange(
        seen.bits(),
        next.bits(),
        Ordering::AcqRel,
        Ordering::Relaxed,
    )
    .is_ok()
}
