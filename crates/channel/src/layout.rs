//! Sizes and offsets of a region, and the header that declares them.

use urdma_memfd::{HeaderError, PAGE};

use crate::bits::low32;

/// Octets of a message that its cell holds at most.
pub const CELL_DATA: usize = 112;
/// Cells that messages of work requests leave to answers.
pub const ANSWER_RESERVE: u32 = if cfg!(loom) { 1 } else { 16 };
/// Octets of a small frame.
pub const SMALL_FRAME: usize = 2048;
/// Octets of a large frame, and of the longest payload.
pub const LARGE_FRAME: usize = 65_536;

/// Octets of the header.
pub(crate) const HEADER: usize = 28;
/// Octets of a cell.
pub(crate) const CELL: usize = 128;
/// Cells of the largest ring.
pub(crate) const CELLS_MAX: u32 = 4096;

/// Cells whose memory is there from the beginning: a process that makes one connection uses a few.
/// The pages of the others, of 32 cells each, come with the first message in them. A page takes 4
/// us to make and 2 to free, whether it is used or not.
const FIRST_CELLS: usize = 16;
const CELLS_MIN: u32 = if cfg!(loom) { 2 } else { 32 };
/// Frames of one class. A reader that looks at a frame may be the one whose memory is charged for
/// it, so this bounds what a hostile writer can charge it for.
const FRAMES_MAX: u32 = 1024;
const RING_MIN: u32 = 384;
const RING_MAX: u32 = 8192;
/// `urdmaCHN`, little-endian.
const MAGIC: u64 = u64::from_le_bytes(*b"urdmaCHN");
const VERSION: u32 = 1;

/// How large a region is. Its frames take memory only when they are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelConfig {
    /// Cells of the ring, a power of two, 32..=4096; default 256. [`ANSWER_RESERVE`] of them
    /// are left to answers.
    pub cells: u32,
    /// Frames of [`SMALL_FRAME`] octets, 0..=1024; default 64.
    pub small_frames: u32,
    /// Frames of [`LARGE_FRAME`] octets, 0..=1024; default 64.
    pub large_frames: u32,
}

impl ChannelConfig {
    /// Between a process and urdmad, for the packets of a port: a region holds what a port delivers
    /// while the process waits for a processor.
    pub const PACKETS: Self = Self {
        cells: 1024,
        small_frames: 512,
        large_frames: 64,
    };
}

impl Default for ChannelConfig {
    fn default() -> Self {
        Self {
            cells: 256,
            small_frames: 64,
            large_frames: 64,
        }
    }
}

/// Offsets computed from validated values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    config: ChannelConfig,
    ring: u32,
    frames: usize,
    large: usize,
    total: usize,
}

impl Layout {
    /// Offsets for `config`. Regions of different writers should differ in `stagger`, for example
    /// the writer's slot: it places the ring, so that the rings that one process reads are in
    /// different sets of the first-level cache.
    ///
    /// # Errors
    /// [`HeaderError::Range`] when a value is out of its range.
    pub fn new(config: &ChannelConfig, stagger: u8) -> Result<Self, HeaderError> {
        const PLACES: u32 = (RING_MAX - RING_MIN) / low32(CELL as u64) + 1;
        let place = u32::from(stagger) % PLACES;
        Self::with_ring(config, RING_MIN + place * low32(CELL as u64))
    }

    fn with_ring(config: &ChannelConfig, ring: u32) -> Result<Self, HeaderError> {
        let &ChannelConfig {
            cells,
            small_frames,
            large_frames,
        } = config;
        if !cells.is_power_of_two() || !(CELLS_MIN..=CELLS_MAX).contains(&cells) {
            return Err(HeaderError::Range(
                "cells must be a power of two in 32..=4096",
            ));
        }
        if small_frames > FRAMES_MAX || large_frames > FRAMES_MAX {
            return Err(HeaderError::Range("frames of a class must be 0..=1024"));
        }
        if !ring.is_multiple_of(low32(CELL as u64)) || !(RING_MIN..=RING_MAX).contains(&ring) {
            return Err(HeaderError::Range(
                "the ring must begin at a multiple of 128 in 384..=8192",
            ));
        }
        let frames = (ring as usize + cells as usize * CELL).next_multiple_of(PAGE);
        let large = frames + small_frames as usize * SMALL_FRAME;
        Ok(Self {
            config: *config,
            ring,
            frames,
            large,
            total: large + large_frames as usize * LARGE_FRAME,
        })
    }

    /// The header of a new region.
    pub fn encode(&self) -> [u8; HEADER] {
        let c = &self.config;
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&MAGIC.to_le_bytes());
        let words = [VERSION, c.cells, c.small_frames, c.large_frames, self.ring];
        for (room, word) in header[8..].chunks_exact_mut(4).zip(words) {
            room.copy_from_slice(&word.to_le_bytes());
        }
        header
    }

    /// Validates a copied header against the length of the file.
    ///
    /// # Errors
    /// Whatever makes it not a region of this version.
    pub fn decode(header: &[u8; HEADER], file_octets: u64) -> Result<Self, HeaderError> {
        let word = |at: usize| {
            let mut octets = [0; 4];
            octets.copy_from_slice(&header[at..at + 4]);
            u32::from_le_bytes(octets)
        };
        if u64::from(word(0)) | u64::from(word(4)) << 32 != MAGIC {
            return Err(HeaderError::Magic);
        }
        if word(8) != VERSION {
            return Err(HeaderError::Version {
                found: word(8),
                known: VERSION,
            });
        }
        let config = ChannelConfig {
            cells: word(12),
            small_frames: word(16),
            large_frames: word(20),
        };
        let layout = Self::with_ring(&config, word(24))?;
        if layout.total as u64 != file_octets {
            return Err(HeaderError::Length {
                file: file_octets,
                header: layout.total as u64,
            });
        }
        Ok(layout)
    }

    /// The values these offsets came from.
    #[inline]
    pub fn config(&self) -> &ChannelConfig {
        &self.config
    }

    /// Offset of the ring.
    #[inline]
    pub fn ring(&self) -> usize {
        self.ring as usize
    }

    /// Octets of the header and of the first cells, which have memory from the beginning.
    pub(crate) fn first(&self) -> usize {
        (self.ring() + FIRST_CELLS * CELL).min(self.frames)
    }

    /// Offset of the frames.
    #[inline]
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Octets of the region.
    #[inline]
    pub fn total(&self) -> usize {
        self.total
    }

    /// Offset and octets of a frame, None when there is no such frame. Small frames come first.
    #[inline]
    pub fn frame(&self, number: u32) -> Option<(usize, usize)> {
        let small = self.config.small_frames;
        if number < small {
            let at = self.frames + number as usize * SMALL_FRAME;
            return Some((at, SMALL_FRAME));
        }
        let number = number - small;
        let at = self.large + number as usize * LARGE_FRAME;
        (number < self.config.large_frames).then_some((at, LARGE_FRAME))
    }
}
