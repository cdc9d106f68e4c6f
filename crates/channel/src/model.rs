//! A region in the model checker's memory.

use std::ptr::NonNull;

use loom::sync::Arc;

use crate::bits::modulo;
use crate::cell::Cell;
use crate::layout::{ChannelConfig, Layout};
use crate::sync::{AtomicU32, AtomicU64};

#[derive(Debug)]
struct Memory {
    counts: AtomicU64,
    wake_at: AtomicU32,
    bell: AtomicU32,
    cells: Vec<Cell>,
}

/// As the region of a mapped memfd, without frames.
#[derive(Debug)]
pub(crate) struct Region {
    memory: Arc<Memory>,
    layout: Layout,
}

impl Region {
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn counts(&self) -> &AtomicU64 {
        &self.memory.counts
    }

    pub(crate) fn wake_at(&self) -> &AtomicU32 {
        &self.memory.wake_at
    }

    pub(crate) fn bell(&self) -> &AtomicU32 {
        &self.memory.bell
    }

    pub(crate) fn cell(&self, position: u64) -> &Cell {
        &self.memory.cells[modulo(position, self.memory.cells.len())]
    }

    pub(crate) fn at(&self, _offset: usize) -> NonNull<u8> {
        unreachable!("the model has no frames")
    }
}

/// A region for its writer.
#[derive(Debug)]
pub struct OwnRegion(pub(crate) Region);

/// A region for its reader.
#[derive(Debug)]
pub struct PeerRegion(pub(crate) Region);

impl OwnRegion {
    /// A region with `cells` cells, for both ends.
    pub fn model(cells: u32) -> (Self, PeerRegion) {
        let config = ChannelConfig {
            cells,
            small_frames: 0,
            large_frames: 0,
        };
        let layout = Layout::new(&config, 0).expect("a valid number of cells");
        let memory = Arc::new(Memory {
            counts: AtomicU64::new(0),
            wake_at: AtomicU32::new(0),
            bell: AtomicU32::new(0),
            cells: (0..cells).map(|_| Cell::default()).collect(),
        });
        let region = || Region {
            memory: memory.clone(),
            layout,
        };
        (Self(region()), PeerRegion(region()))
    }
}
