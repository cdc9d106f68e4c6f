//! A short ring: one producer, one consumer, and the datagram itself in the cell.
//!
//! A cell is two cache lines: a word `position + 1:32 | 0:16 | from:8 | octets:8`, then the
//! datagram. The producer writes the datagram and then, with one store, the word; a datagram whose
//! producer dies before that store is never received. The consumer copies the datagram out and
//! increments `consumed`, which the producer reads only when it knows of no empty cell. So a short
//! message moves two adjacent lines from one CPU to the other and nothing else. All zeroes is an
//! empty ring.
//!
//! A new producer or consumer needs no stored position: [`ShortRing::end`] finds it in the cells.

use crate::bits::{low32, low8, modulo};
use crate::layout::SHORT_RINGS;
use crate::ring::Full;
use crate::steps::Steps;
use crate::sync::{prefetch_read, prefetch_write, AtomicU32, AtomicU64, Ordering, UnsafeCell};
use urdma_types::SlotId;

/// Longest datagram, in octets.
pub const SHORT_CAPACITY: usize = 120;
/// Cells of a ring, a power of two.
pub const SHORT_CELLS: usize = if cfg!(loom) { 2 } else { 16 };
/// Octets of the datagram in the cell's first line.
const FIRST_LINE: usize = 56;

/// Room for a datagram.
pub type ShortOctets = [u8; SHORT_CAPACITY];

#[derive(Debug)]
#[repr(C, align(128))]
struct Cell {
    word: AtomicU64,
    octets: UnsafeCell<ShortOctets>,
}

/// The consumed count, on a line that the producer does not write.
#[derive(Debug, Default)]
#[repr(C, align(128))]
struct Consumed(AtomicU32);

/// See the module.
#[derive(Debug)]
#[repr(C)]
pub struct ShortRing {
    consumed: Consumed,
    cells: [Cell; SHORT_CELLS],
}

// SAFETY: the octets of a cell are written only by the producer, between its claim of an empty cell
// and the store of the word, and read only by the consumer, between its load of that word and the
// store of `consumed`.
unsafe impl Sync for ShortRing {}

#[cfg(not(loom))]
const _: () = assert!(size_of::<ShortRing>() == crate::layout::SHORT_RING);

/// All short rings of a slot.
pub type Shorts = [ShortRing; SHORT_RINGS];

impl Default for ShortRing {
    fn default() -> Self {
        Self {
            consumed: Consumed::default(),
            cells: std::array::from_fn(|_| Cell {
                word: AtomicU64::new(0),
                octets: UnsafeCell::new([0; SHORT_CAPACITY]),
            }),
        }
    }
}

/// What the consumer finds at its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Nothing.
    Empty,
    /// The length of a datagram, at most [`SHORT_CAPACITY`], which was copied out.
    Short {
        /// The slot that published it.
        from: SlotId,
        /// Octets.
        len: usize,
    },
    /// A word that no producer writes; it was skipped.
    Corrupt,
}

/// The position of a word's entry, counted from 1.
#[inline]
const fn sequence(word: u64) -> u32 {
    low32(word >> 32)
}

impl ShortRing {
    #[inline]
    fn cell(&self, position: u32) -> &Cell {
        &self.cells[modulo(position as u64, SHORT_CELLS)]
    }

    /// The position behind the last entry.
    fn end(&self, consumed: u32) -> u32 {
        let room = low32(SHORT_CELLS as u64);
        let published = (1..=room).rev().find(|ahead| {
            let sequence_there = consumed.wrapping_add(*ahead);
            let cell = self.cell(sequence_there.wrapping_sub(1));
            sequence(cell.word.load(Ordering::Acquire)) == sequence_there
        });
        consumed.wrapping_add(published.unwrap_or(0))
    }

    /// Whether an entry waits: called between announcing that the consumer parks and parking.
    #[inline]
    pub fn has_entry(&self) -> bool {
        let head = self.consumed.0.load(Ordering::Relaxed);
        let there = sequence(self.cell(head).word.load(Ordering::SeqCst));
        // Not only the next one: another thread of the consumer may have moved on meanwhile.
        there.wrapping_sub(head) as i32 > 0
    }

    /// Skips all entries; returns the consumer's position. For a consumer that succeeds another
    /// one.
    pub fn skip(&self) -> u32 {
        let head = self.end(self.consumed.0.load(Ordering::Relaxed));
        self.consumed.0.store(head, Ordering::Release);
        head
    }

    /// Copies the datagram at the consumer's position out and moves on. The consumer only.
    #[inline]
    pub fn take(&self, head: &mut u32, out: &mut ShortOctets) -> Taken {
        let cell = self.cell(*head);
        // Both lines come together, when the word has changed.
        prefetch_read(std::ptr::from_ref(cell).cast::<u8>().wrapping_add(64));
        let word = cell.word.load(Ordering::Acquire);
        let next = head.wrapping_add(1);
        if sequence(word) != next {
            return Taken::Empty;
        }
        let len = usize::from(low8(word));
        let from = SlotId::new(low8(word >> 8)).filter(|_| (1..=SHORT_CAPACITY).contains(&len));
        if from.is_some() {
            // SAFETY: the producer leaves the octets alone until `consumed` says that they were
            // read.
            cell.octets.with(|octets| unsafe { copy(octets, out, len) });
        }
        *head = next;
        self.consumed.0.store(next, Ordering::Release);
        from.map_or(Taken::Corrupt, |from| Taken::Short { from, len })
    }
}

/// The producer's end of a ring.
#[derive(Debug)]
pub struct Producer<'a> {
    ring: &'a ShortRing,
    tail: u32,
    /// The consumed count when it was last read.
    consumed: u32,
}

impl<'a> Producer<'a> {
    /// Continues where the last producer of this ring ended.
    pub fn new(ring: &'a ShortRing) -> Self {
        let consumed = ring.consumed.0.load(Ordering::Acquire);
        Self {
            ring,
            tail: ring.end(consumed),
            consumed,
        }
    }

    /// Whether there is an empty cell.
    #[inline]
    pub fn has_room(&mut self) -> bool {
        self.has_empty() || {
            self.consumed = self.ring.consumed.0.load(Ordering::Acquire);
            self.has_empty()
        }
    }

    /// Prefetches for writing the cell that is written next: to be called shortly before
    /// [`Producer::push`], since a polling consumer takes the line back soon.
    #[inline]
    pub fn prefetch(&self) {
        let at = std::ptr::from_ref(self.ring.cell(self.tail)).cast::<u8>();
        prefetch_write(at);
        prefetch_write(at.wrapping_add(64));
    }

    #[inline]
    fn has_empty(&self) -> bool {
        self.tail.wrapping_sub(self.consumed) < low32(SHORT_CELLS as u64)
    }

    /// Appends the first `len` octets.
    ///
    /// # Errors
    /// [`Full`], also when the consumer's count is invalid.
    ///
    /// # Panics
    /// When `len` is 0 or above [`SHORT_CAPACITY`].
    #[inline]
    pub fn push<S: Steps>(
        &mut self,
        from: SlotId,
        octets: &ShortOctets,
        len: usize,
    ) -> Result<(), Full> {
        assert!((1..=SHORT_CAPACITY).contains(&len), "not a short datagram");
        if !self.has_room() {
            return Err(Full);
        }
        let cell = self.ring.cell(self.tail);
        // SAFETY: the consumer leaves an empty cell's octets alone until its word names this
        // position.
        cell.octets
            .with_mut(|room| unsafe { copy(octets, room, len) });
        S::at("short: written");
        self.tail = self.tail.wrapping_add(1);
        let word = u64::from(self.tail) << 32 | u64::from(from.number()) << 8 | len as u64;
        cell.word.store(word, Ordering::Release);
        S::at("short: published");
        Ok(())
    }
}

/// Copies the first `len` octets, and some of those behind them: copies of a fixed length are a few
/// vector moves.
///
/// # Safety
/// `from` is readable, `to` writable, and they do not overlap.
#[inline]
unsafe fn copy(from: *const ShortOctets, to: *mut ShortOctets, len: usize) {
    let (from, to) = (from.cast::<u8>(), to.cast::<u8>());
    if len <= FIRST_LINE {
        // SAFETY: within both.
        unsafe { std::ptr::copy_nonoverlapping(from, to, FIRST_LINE) };
    } else {
        // SAFETY: as said above.
        unsafe { std::ptr::copy_nonoverlapping(from, to, SHORT_CAPACITY) };
    }
}
