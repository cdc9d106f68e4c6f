//! A region of a channel: what its writer and its reader make of the memory.

#![allow(unsafe_code)]

use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use urdma_memfd::{Mapping, MemoryError};

use crate::bits::modulo;
use crate::cell::Cell;
use crate::layout::{ChannelConfig, Layout, CELL};
use crate::sync::{AtomicU32, AtomicU64};

/// Offset of the counts.
const COUNTS_AT: usize = 128;
/// Offset of `wake_at`.
const WAKE_AT_AT: usize = 256;
/// Offset of the writer's bell.
const BELL_AT: usize = 260;

/// A mapped region, for either end.
///
/// The references that it gives lead to atomics and cells, which are valid in any bit pattern and
/// may change at any time.
#[derive(Debug)]
pub(crate) struct Region {
    mapping: Mapping,
    layout: Layout,
}

impl Region {
    #[inline(always)]
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// `settled:32 | written:32`.
    #[inline(always)]
    pub(crate) fn counts(&self) -> &AtomicU64 {
        // SAFETY: an aligned word before the ring, within the mapping.
        unsafe { self.mapping.at(COUNTS_AT).cast().as_ref() }
    }

    #[inline(always)]
    pub(crate) fn wake_at(&self) -> &AtomicU32 {
        // SAFETY: an aligned word before the ring, within the mapping.
        unsafe { self.mapping.at(WAKE_AT_AT).cast().as_ref() }
    }

    /// The word that the writer changes to wake the reader.
    #[inline(always)]
    pub(crate) fn bell(&self) -> &AtomicU32 {
        // SAFETY: an aligned word before the ring, within the mapping.
        unsafe { self.mapping.at(BELL_AT).cast().as_ref() }
    }

    /// The cell of a position.
    #[inline(always)]
    pub(crate) fn cell(&self, position: u64) -> &Cell {
        let number = modulo(position, self.layout.config().cells as usize);
        let at = self.layout.ring() + number * CELL;
        // SAFETY: a cell of the ring, at a multiple of 128 within the mapping.
        unsafe { self.mapping.at(at).cast().as_ref() }
    }

    /// The address at `offset`, which must be within the region.
    #[inline(always)]
    pub(crate) fn at(&self, offset: usize) -> NonNull<u8> {
        self.mapping.at(offset)
    }
}

/// A region that this process writes.
#[derive(Debug)]
pub struct OwnRegion(pub(crate) Region);

impl OwnRegion {
    /// Creates a region. The descriptor is for its reader; the region does not need it. For
    /// `stagger`, see [`Layout::new`].
    ///
    /// # Errors
    /// [`MemoryError::Header`] for a configuration out of range, otherwise what a system call says.
    pub fn create(config: &ChannelConfig, stagger: u8) -> Result<(Self, OwnedFd), MemoryError> {
        let layout = Layout::new(config, stagger)?;
        let header = layout.encode();
        let (mapping, fd) =
            Mapping::create(c"urdma-channel", layout.total(), &header, layout.first())?;
        Ok((Self(Region { mapping, layout }), fd))
    }
}

/// A region that another process writes.
#[derive(Debug)]
pub struct PeerRegion(pub(crate) Region);

impl PeerRegion {
    /// Maps a region read-only, if it is one. Closes the descriptor.
    ///
    /// # Errors
    /// Whatever makes it unusable: its kind, its seals, its header; or what a system call says.
    pub fn open(fd: OwnedFd) -> Result<Self, MemoryError> {
        let (mapping, layout) = Mapping::open(fd, |header, octets| {
            let layout = Layout::decode(header, octets)?;
            Ok((layout, layout.first()))
        })?;
        Ok(Self(Region { mapping, layout }))
    }
}
