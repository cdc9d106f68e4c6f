//! A cell: a word, and behind it a message or its beginning.
//!
//! The word is `position + 1:32 | octets:8 | count:24`. The writer stores it last, so that a cell
//! holds a message or not. A message is composed in its cell: a copy of one that was composed
//! elsewhere waits for the stores before it, so in a stream of messages each would wait for the
//! cache lines of the one before. The reader copies whole vectors: the first line's, or all.

#![allow(unsafe_code)]

use crate::bits::{low16, low32, low8};
use crate::layout::{CELL, CELL_DATA};
use crate::steps::Steps;
use crate::sync::{prefetch_read, prefetch_write, AtomicU64, Ordering, UnsafeCell};

/// Room for what a cell holds of a message.
pub type CellOctets = [u8; CELL_DATA];

/// What is loaded and stored by one instruction; any bit pattern is valid.
#[cfg(target_arch = "x86_64")]
type Vector = std::arch::x86_64::__m128i;
#[cfg(not(target_arch = "x86_64"))]
type Vector = u128;

const VECTORS: usize = CELL_DATA / size_of::<Vector>();
/// Vectors of the message in the cell's first line.
const FIRST_LINE_VECTORS: usize = 3;
const FIRST_LINE: usize = FIRST_LINE_VECTORS * size_of::<Vector>();
/// Octets of a cache line.
const LINE: usize = 64;
/// Bits of the count in a cell's word.
pub(crate) const COUNT_MASK: u32 = 0xff_ffff;

/// What a cell says about its message, unvalidated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Contents {
    /// Octets of the message in the cell.
    pub(crate) len: u8,
    /// Low 24 bits of the writer's `settled`.
    pub(crate) count: u32,
    /// 0 for none, otherwise the number of the frame + 1.
    pub(crate) frame: u16,
    /// Octets of the message in the frame.
    pub(crate) frame_octets: u32,
}

/// See the module. All zeroes is an empty cell.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Cell {
    word: AtomicU64,
    /// `octets in the frame:32 | 0:16 | frame:16`.
    frame: UnsafeCell<u64>,
    octets: UnsafeCell<[Vector; VECTORS]>,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Cell>() == CELL);
#[cfg(loom)]
const _: usize = CELL;

// SAFETY: the word guards the rest: only its region's writer writes it, while the reader does not
// expect it, and the reader validates what it copies.
unsafe impl Sync for Cell {}
// SAFETY: the word guards the rest: only its region's writer writes it, while the reader does not
// expect it, and the reader validates what it copies.
unsafe impl Send for Cell {}

#[cfg(loom)]
impl Default for Cell {
    fn default() -> Self {
        // SAFETY: zeroes are a valid vector.
        let octets = unsafe { std::mem::zeroed() };
        Self {
            word: AtomicU64::new(0),
            frame: UnsafeCell::new(0),
            octets: UnsafeCell::new(octets),
        }
    }
}

/// The high half of the word of the message at `position`.
#[inline(always)]
const fn sequence(position: u64) -> u32 {
    low32(position.wrapping_add(1))
}

impl Cell {
    fn line(&self, line: usize) -> *const u8 {
        std::ptr::from_ref(self)
            .cast::<u8>()
            .wrapping_add(line * LINE)
    }

    /// Prefetches both lines for writing.
    #[inline(always)]
    pub(crate) fn prefetch_write(&self) {
        prefetch_write(self.line(0));
        prefetch_write(self.line(1));
    }

    /// Where the next message is composed. For the writer, while the cell is settled.
    #[inline(always)]
    pub(crate) fn octets(&self) -> *mut CellOctets {
        self.octets.with_mut(|octets| octets.cast())
    }

    /// Publishes the message that was composed. The writer only.
    #[inline(always)]
    pub(crate) fn publish<S: Steps>(&self, position: u64, contents: Contents) {
        let frame = u64::from(contents.frame_octets) << 32 | u64::from(contents.frame);
        // SAFETY: only this process can write the region, and here only its writer's half does.
        self.frame.with_mut(|room| unsafe { room.write(frame) });
        S::at("cell: written");
        let word = u64::from(sequence(position)) << 32
            | u64::from(contents.len) << 24
            | u64::from(contents.count & COUNT_MASK);
        // C4-1
        //# **Writing.** The writer fills the frame, if the message needs one, and the cell behind
        //# its word, and stores the word last, with release semantics.
        self.word.store(word, Ordering::Release);
        S::at("cell: published");
    }

    /// Whether the cell holds the message at `position`.
    #[inline(always)]
    pub(crate) fn holds(&self, position: u64) -> bool {
        low32(self.word.load(Ordering::Acquire) >> 32) == sequence(position)
    }

    /// Copies the message at `position`, if the cell holds it, up to its length or further. The
    /// reader only.
    #[inline(always)]
    pub(crate) fn read(&self, position: u64, out: &mut CellOctets) -> Option<Contents> {
        // Both lines come together, when the word has changed.
        prefetch_read(self.line(1));
        let word = self.word.load(Ordering::Acquire);
        if low32(word >> 32) != sequence(position) {
            return None;
        }
        let len = low8(word >> 24);
        // SAFETY: the cell is mapped. Its writer leaves it alone until it is settled; if it does
        // not, we get other octets, once, since the access is volatile.
        let frame = self.frame.with(|frame| unsafe { frame.read_volatile() });
        self.octets.with(|octets| {
            let octets = octets.cast::<Vector>();
            if usize::from(len) <= FIRST_LINE {
                // SAFETY: the address is that of our cell's vectors.
                unsafe { copy_once::<FIRST_LINE_VECTORS>(octets, out) };
            } else {
                // SAFETY: the address is that of our cell's vectors.
                unsafe { copy_once::<VECTORS>(octets, out) };
            }
        });
        Some(Contents {
            len,
            count: low32(word) & COUNT_MASK,
            frame: low16(frame),
            frame_octets: low32(frame >> 32),
        })
    }
}

/// Copies the first `N` vectors, each by one load that the compiler neither repeats nor omits.
///
/// # Safety
/// `from` leads to the vectors of a mapped cell, whatever another process writes there.
#[inline(always)]
unsafe fn copy_once<const N: usize>(from: *const Vector, out: &mut CellOctets) {
    const { assert!(N <= VECTORS) };
    let out = out.as_mut_ptr().cast::<Vector>();
    for i in 0..N {
        // SAFETY: at most VECTORS vectors, all in the cell, which is aligned.
        let vector = unsafe { from.add(i).read_volatile() };
        // SAFETY: `out` has as many octets as VECTORS vectors.
        unsafe { out.add(i).write_unaligned(vector) };
    }
}
