//! Sizes and offsets of everything in the arena, and the header that declares them.

use crate::bits::{low16, low32, low8};
use urdma_types::SlotId;

/// Slots of an instance: 0 is urdmad, 1..=253 are processes.
pub const MAX_SLOTS: u16 = 254;
/// Where a datagram begins in its frame.
pub const FRAME_DATA_OFFSET: usize = FRAME_HEADER + FRAME_HEADROOM;
/// Octets before the datagram that are free for link, network and UDP headers.
pub const FRAME_HEADROOM: usize = 64;
/// Octets at the head of a frame: state word, length, metadata.
pub const FRAME_HEADER: usize = 64;
/// Largest datagram of a small frame, in octets.
pub const SMALL_CAPACITY: usize = SMALL_STRIDE - FRAME_DATA_OFFSET;
/// Largest datagram of a large frame, in octets: 64 KB of payload and its headers, so that a
/// message of that length, the usual unit of streams, needs one frame. (No UDP datagram is longer
/// than 65,535, so longer ones stay in the host.)
pub const LARGE_CAPACITY: usize = 65_536 + 64;

pub(crate) const SMALL_STRIDE: usize = 2048;
pub(crate) const LARGE_STRIDE: usize = FRAME_DATA_OFFSET + LARGE_CAPACITY;
pub(crate) const SLOT_ENTRY: usize = 256;
pub(crate) const HEADER_OCTETS: usize = 4096;
/// Short rings of a slot: as many senders may have one at a time.
pub(crate) const SHORT_RINGS: usize = 8;
/// Octets of a short ring: see [`crate::short`].
pub(crate) const SHORT_RING: usize = 128 * (1 + 16);
/// Octets of one delivery record, and of those of a slot: one for each index of a queue pair.
pub(crate) const DELIVERY_RECORD: usize = 8;
const DELIVERY_STRIDE: usize = DELIVERY_RECORD << 16;
const PAGE: usize = 4096;
/// `urdmaARN`, little-endian.
const MAGIC: u64 = u64::from_le_bytes(*b"urdmaARN");
const VERSION: u32 = 4;

/// How large an arena is; memory is used only as frames are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaConfig {
    /// Slots, 2..=254, slot 0 included.
    pub slots: u16,
    /// Cells of each slot's inbound ring, a power of two, 2..=65,536.
    pub ring_cells: u32,
    /// Small frames each slot owns, 1..=32,768.
    pub small_frames: u32,
    /// Large frames each slot owns, 1..=32,768 and together with the small ones at most 65,535.
    pub large_frames: u32,
}

impl Default for ArenaConfig {
    fn default() -> Self {
        Self {
            slots: MAX_SLOTS,
            ring_cells: 1024,
            small_frames: 512,
            large_frames: 512,
        }
    }
}

/// The two sizes of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// 2 KB: acknowledgements, short messages.
    Small,
    /// A datagram of any length.
    Large,
}

/// A frame's number: `owner slot << 16 | number within the slot`, 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameIndex(u32);

impl FrameIndex {
    /// The `k`-th frame of `owner`.
    #[inline]
    pub const fn new(owner: SlotId, k: u16) -> Self {
        Self((owner.number() as u32) << 16 | k as u32)
    }

    /// From its 24-bit form, unvalidated.
    #[inline]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits & 0xff_ffff)
    }

    /// The 24-bit form.
    #[inline]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Index of the owning slot, unvalidated.
    #[inline]
    pub const fn owner_index(self) -> u8 {
        low8((self.0 >> 16) as u64)
    }

    /// Number within the owner's frames, unvalidated.
    #[inline]
    pub const fn k(self) -> u16 {
        low16(self.0 as u64)
    }
}

/// Why a memfd is not an arena of this version.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LayoutError {
    /// The configuration is outside its ranges.
    #[error("arena configuration out of range: {0}")]
    Config(&'static str),
    /// The header is not one.
    #[error("not an arena (bad magic)")]
    Magic,
    /// Another version made it.
    #[error("arena of version {0}, this program knows version {VERSION}")]
    Version(u32),
    /// The file's length is not what its header says.
    #[error("arena of {file} octets whose header needs {header}")]
    Length {
        /// Octets of the file.
        file: u64,
        /// Octets that the header asks for.
        header: u64,
    },
}

/// Offsets computed from a validated configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    config: ArenaConfig,
    rings_at: usize,
    ring_stride: usize,
    shorts_at: usize,
    deliveries_at: usize,
    frames_at: usize,
    small_octets: usize,
    slot_frames_stride: usize,
    total: usize,
}

/// From one slot's short rings to the next one's.
const SHORT_STRIDE: usize = page_up(SHORT_RINGS * SHORT_RING);

const fn page_up(octets: usize) -> usize {
    octets.div_ceil(PAGE) * PAGE
}

impl Layout {
    /// Offsets for `config`.
    ///
    /// # Errors
    /// [`LayoutError::Config`] when a value is out of its range.
    pub fn new(config: &ArenaConfig) -> Result<Self, LayoutError> {
        let err = |what| Err(LayoutError::Config(what));
        if !(2..=MAX_SLOTS).contains(&config.slots) {
            return err("slots must be 2..=254");
        }
        if !config.ring_cells.is_power_of_two() || !(2..=65_536).contains(&config.ring_cells) {
            return err("ring_cells must be a power of two in 2..=65536");
        }
        if !(1..=32_768).contains(&config.small_frames)
            || !(1..=32_768).contains(&config.large_frames)
        {
            return err("small_frames and large_frames must be 1..=32768");
        }
        if config.small_frames + config.large_frames > 65_535 {
            return err("small_frames and large_frames must not exceed 65535 together");
        }
        let slots = usize::from(config.slots);
        let rings_at = page_up(HEADER_OCTETS + slots * SLOT_ENTRY);
        let ring_stride = config.ring_cells as usize * 8;
        let shorts_at = page_up(rings_at + slots * ring_stride);
        let deliveries_at = shorts_at + slots * SHORT_STRIDE;
        let frames_at = deliveries_at + slots * DELIVERY_STRIDE;
        let small_octets = config.small_frames as usize * SMALL_STRIDE;
        let slot_frames_stride =
            page_up(small_octets + config.large_frames as usize * LARGE_STRIDE);
        let total = frames_at + slots * slot_frames_stride;
        Ok(Self {
            config: *config,
            rings_at,
            ring_stride,
            shorts_at,
            deliveries_at,
            frames_at,
            small_octets,
            slot_frames_stride,
            total,
        })
    }

    /// The header of a new arena, as 64-bit words.
    pub fn header(&self) -> [u64; 4] {
        let c = &self.config;
        [
            MAGIC,
            u64::from(VERSION) | u64::from(c.slots) << 32,
            u64::from(c.ring_cells) | u64::from(c.small_frames) << 32,
            u64::from(c.large_frames),
        ]
    }

    /// Validates a copied header against the length of the file.
    ///
    /// # Errors
    /// Whatever makes it not an arena of this version.
    pub fn from_header(header: [u64; 4], file_octets: u64) -> Result<Self, LayoutError> {
        if header[0] != MAGIC {
            return Err(LayoutError::Magic);
        }
        let low = low32;
        let high = |word: u64| low32(word >> 32);
        if low(header[1]) != VERSION {
            return Err(LayoutError::Version(low(header[1])));
        }
        let slots = u16::try_from(high(header[1]))
            .map_err(|_| LayoutError::Config("slots must be 2..=254"))?;
        if high(header[3]) != 0 {
            return Err(LayoutError::Config("reserved bits are set"));
        }
        let layout = Self::new(&ArenaConfig {
            slots,
            ring_cells: low(header[2]),
            small_frames: high(header[2]),
            large_frames: low(header[3]),
        })?;
        if layout.total as u64 != file_octets {
            return Err(LayoutError::Length {
                file: file_octets,
                header: layout.total as u64,
            });
        }
        Ok(layout)
    }

    /// The configuration these offsets came from.
    #[inline]
    pub fn config(&self) -> &ArenaConfig {
        &self.config
    }

    /// Octets of the whole arena.
    #[inline]
    pub fn total(&self) -> usize {
        self.total
    }

    /// Frames that each slot owns.
    #[inline]
    pub fn frames_per_slot(&self) -> u32 {
        self.config.small_frames + self.config.large_frames
    }

    /// Class of a slot's `k`-th frame.
    #[inline]
    pub fn class(&self, k: u16) -> Class {
        if u32::from(k) < self.config.small_frames {
            Class::Small
        } else {
            Class::Large
        }
    }

    /// Largest datagram of a slot's `k`-th frame, in octets.
    #[inline]
    pub fn capacity(&self, k: u16) -> u32 {
        match self.class(k) {
            Class::Small => low32(SMALL_CAPACITY as u64),
            Class::Large => low32(LARGE_CAPACITY as u64),
        }
    }

    /// Offset of a slot's entry in the slot table.
    #[inline]
    pub fn slot_at(&self, slot: SlotId) -> usize {
        HEADER_OCTETS + usize::from(slot.number()) * SLOT_ENTRY
    }

    /// Offset of a slot's ring.
    #[inline]
    pub fn ring_at(&self, slot: SlotId) -> usize {
        self.rings_at + usize::from(slot.number()) * self.ring_stride
    }

    /// Offset of a slot's short rings.
    #[inline]
    pub fn shorts_at(&self, slot: SlotId) -> usize {
        self.shorts_at + usize::from(slot.number()) * SHORT_STRIDE
    }

    /// Offset of the delivery record of a slot's queue pair.
    #[inline]
    pub fn delivery_at(&self, slot: SlotId, index: u16) -> usize {
        self.deliveries_at
            + usize::from(slot.number()) * DELIVERY_STRIDE
            + usize::from(index) * DELIVERY_RECORD
    }

    /// Where a slot's delivery records begin, and how many octets they take.
    #[inline]
    pub fn deliveries_of(&self, slot: SlotId) -> (usize, usize) {
        (self.delivery_at(slot, 0), DELIVERY_STRIDE)
    }

    /// The part of the arena that is neither delivery records nor frames, in octets.
    #[inline]
    pub fn fixed_octets(&self) -> usize {
        self.deliveries_at
    }

    /// Where the pages lie that no frame of a slot touches of which so many small and large ones
    /// have been used: two ranges, each an offset and a length in octets.
    pub fn unused_frames(&self, slot: SlotId, small: u32, large: u32) -> [(usize, usize); 2] {
        let (begin, octets) = self.frames_of(slot);
        let large_begin = begin + self.small_octets;
        let range = |from: usize, to: usize| {
            (
                page_up(from),
                (to / PAGE * PAGE).saturating_sub(page_up(from)),
            )
        };
        [
            range(begin + small as usize * SMALL_STRIDE, large_begin),
            range(large_begin + large as usize * LARGE_STRIDE, begin + octets),
        ]
    }

    /// Where a slot's frames begin, and how many octets they take.
    #[inline]
    pub fn frames_of(&self, slot: SlotId) -> (usize, usize) {
        (
            self.frames_at + usize::from(slot.number()) * self.slot_frames_stride,
            self.slot_frames_stride,
        )
    }

    /// Whether `slot` exists in this arena.
    #[inline]
    pub fn has_slot(&self, slot: SlotId) -> bool {
        u16::from(slot.number()) < self.config.slots
    }

    /// Offset of a frame whose index is valid, otherwise None.
    #[inline]
    pub fn frame_at(&self, index: FrameIndex) -> Option<usize> {
        let (owner, k) = (u16::from(index.owner_index()), u32::from(index.k()));
        if owner >= self.config.slots || k >= self.frames_per_slot() {
            return None;
        }
        let base = self.frames_at + usize::from(owner) * self.slot_frames_stride;
        let small = self.config.small_frames;
        Some(if k < small {
            base + k as usize * SMALL_STRIDE
        } else {
            base + self.small_octets + (k - small) as usize * LARGE_STRIDE
        })
    }
}
