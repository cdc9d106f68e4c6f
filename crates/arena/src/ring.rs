//! A slot's inbound ring: bounded, many producers, one consumer.
//!
//! A cell is one 64-bit word, `lap:32 | generation:8 | frame + 1:24`; a frame field of 0 means
//! empty. Position `p` lies in cell `p mod n` and belongs to lap `p / n`. A producer finds the cell
//! at the tail `(lap, empty)` and swaps in `(lap, descriptor)`: that one compare-and-swap both
//! claims and publishes. Then the tail is moved, by the producer or by the next one that finds it
//! behind; so a producer that dies at any point leaves the ring usable. The consumer empties a cell
//! by storing `(lap + 1, empty)`. There is no shared head: it is the least position that is not yet
//! emptied. All zeroes is an empty ring.

use crate::bits::{low32, low8, modulo};
use crate::layout::FrameIndex;
use crate::steps::Steps;
use crate::sync::{AtomicU64, Ordering};

/// What a ring entry says: which frame, and the low octet of its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The frame; as read from memory, unvalidated.
    pub frame: FrameIndex,
    /// Low octet of the generation it was published with.
    pub generation_low: u8,
}

/// The ring has no empty cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// What the consumer finds at its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peek {
    /// Nothing.
    Empty,
    /// An entry.
    Entry(Descriptor),
    /// A word that no producer of this crate writes there.
    Corrupt,
}

const FRAME_MASK: u64 = 0xff_ffff;

#[inline]
const fn lap_of(word: u64) -> u32 {
    low32(word >> 32)
}

#[inline]
const fn is_empty_word(word: u64) -> bool {
    word & FRAME_MASK == 0
}

#[inline]
fn entry_word(lap: u32, descriptor: Descriptor) -> u64 {
    u64::from(lap) << 32
        | u64::from(descriptor.generation_low) << 24
        | u64::from(descriptor.frame.bits() + 1)
}

#[inline]
const fn empty_word(lap: u32) -> u64 {
    (lap as u64) << 32
}

#[inline]
fn descriptor_of(word: u64) -> Descriptor {
    Descriptor {
        frame: FrameIndex::from_bits(low32(word & FRAME_MASK).wrapping_sub(1)),
        generation_low: low8(word >> 24),
    }
}

/// A view of one ring: its cells (a power of two of them) and its tail.
#[derive(Clone, Copy, Debug)]
pub struct Ring<'a> {
    cells: &'a [AtomicU64],
    tail: &'a AtomicU64,
    shift: u32,
}

impl<'a> Ring<'a> {
    /// A view over `cells`, whose number is a power of two and at least 2.
    #[inline]
    pub fn new(cells: &'a [AtomicU64], tail: &'a AtomicU64) -> Self {
        debug_assert!(cells.len().is_power_of_two() && cells.len() >= 2);
        Self {
            cells,
            tail,
            shift: cells.len().trailing_zeros(),
        }
    }

    #[inline]
    fn cell(&self, position: u64) -> &'a AtomicU64 {
        &self.cells[modulo(position, self.cells.len())]
    }

    #[inline]
    fn lap(&self, position: u64) -> u32 {
        low32(position >> self.shift)
    }

    /// Appends an entry. Any thread of any process.
    ///
    /// # Errors
    /// [`Full`], also when the ring's words make no sense.
    #[inline]
    pub fn push<S: Steps>(&self, descriptor: Descriptor) -> Result<(), Full> {
        // Each failed round means that another producer made progress; the bound matters only when
        // a process corrupts the ring.
        for _ in 0..4 * self.cells.len() {
            let tail = self.tail.load(Ordering::Acquire);
            let lap = self.lap(tail);
            S::at("ring: tail seen");
            // Without reading the cell first: the polling consumer would have to give up the cache
            // line twice.
            let claimed = self.cell(tail).compare_exchange(
                empty_word(lap),
                entry_word(lap, descriptor),
                Ordering::SeqCst,
                Ordering::Acquire,
            );
            let Err(seen) = claimed else {
                S::at("ring: entry published");
                self.advance(tail);
                S::at("ring: tail moved");
                return Ok(());
            };
            let ahead = lap_of(seen).wrapping_sub(lap) as i32;
            if ahead < 0 {
                return Err(Full);
            }
            self.advance(tail);
        }
        Err(Full)
    }

    /// Advances a tail that lags; a lost race means that another producer did it.
    #[inline]
    fn advance(&self, tail: u64) {
        let _ = self.tail.compare_exchange(
            tail,
            tail.wrapping_add(1),
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
    }

    /// The entry at the consumer's position. The consumer only.
    #[inline]
    pub fn peek(&self, head: u64) -> Peek {
        let word = self.cell(head).load(Ordering::Acquire);
        if lap_of(word) != self.lap(head) {
            return Peek::Corrupt;
        }
        if is_empty_word(word) {
            return if word == empty_word(self.lap(head)) {
                Peek::Empty
            } else {
                Peek::Corrupt
            };
        }
        Peek::Entry(descriptor_of(word))
    }

    /// Whether the consumer at `head` has nothing to do: called between announcing that it parks
    /// and parking.
    #[inline]
    pub fn is_empty_at(&self, head: u64) -> bool {
        self.cell(head).load(Ordering::SeqCst) == empty_word(self.lap(head))
    }

    /// Empties the cell at the consumer's position, which then is `head + 1`. The consumer only.
    #[inline]
    pub fn clear(&self, head: u64) {
        self.cell(head).store(
            empty_word(self.lap(head).wrapping_add(1)),
            Ordering::Release,
        );
    }

    /// Empties a corrupt cell at the consumer's position, without moving on. The consumer only.
    #[cold]
    pub fn repair(&self, head: u64) {
        self.cell(head)
            .store(empty_word(self.lap(head)), Ordering::Release);
    }

    /// The consumer's position, from the cells: the least position that is not yet emptied.
    pub fn find_head(&self) -> u64 {
        let tail = self.tail.load(Ordering::Acquire);
        let tail_lap = self.lap(tail);
        let base = (tail >> self.shift) << self.shift;
        let mut least = i64::MAX;
        for (index, cell) in self.cells.iter().enumerate() {
            let ahead = lap_of(cell.load(Ordering::Acquire)).wrapping_sub(tail_lap) as i32;
            let relative = (i64::from(ahead) << self.shift) + index as i64;
            least = least.min(relative);
        }
        base.wrapping_add_signed(least)
    }

    /// Whether some cell holds `descriptor`.
    pub fn contains(&self, descriptor: Descriptor) -> bool {
        let wanted = entry_word(0, descriptor);
        self.cells
            .iter()
            .any(|cell| cell.load(Ordering::Acquire) & 0xffff_ffff == wanted)
    }

    /// Approximate number of entries between the consumer's position and the tail.
    pub fn backlog(&self, head: u64) -> u64 {
        self.tail
            .load(Ordering::Relaxed)
            .wrapping_sub(head)
            .min(self.cells.len() as u64)
    }
}
