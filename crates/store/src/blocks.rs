//! The blocks of a client that no slot names.

use crate::error::OperationError;
use crate::fault::{Fault, Faults};
use crate::geometry::Geometry;
use crate::slot::BlockId;

/// The free blocks of one client, which takes extents of them from the store, and gets the blocks
/// that it replaces or deletes. They are lost to the store with the client.
#[derive(Debug, Default)]
pub struct Blocks {
    free: Vec<BlockId>,
    faults: Faults,
}

impl Blocks {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.free.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.free.is_empty()
    }

    pub(crate) fn take(&mut self) -> Option<BlockId> {
        self.free.pop()
    }

    /// Notes that no slot names the block any more.
    pub(crate) fn give(&mut self, id: BlockId) {
        self.free
            .push(match self.faults.has(Fault::IncarnationKept) {
                true => id,
                false => id.next(),
            });
    }

    /// Adds those of an extent.
    pub(crate) fn add(&mut self, geometry: &Geometry, extent: u64) -> Result<(), OperationError> {
        let per_extent = u64::from(geometry.extent_blocks);
        let first = extent.checked_mul(per_extent);
        let first = first.and_then(|first| u32::try_from(first).ok());
        let first = first.filter(|first| *first < geometry.blocks);
        let first = first.ok_or(OperationError::NoBlock)?;
        let end = first.saturating_add(geometry.extent_blocks);
        let blocks = first..end.min(geometry.blocks);
        self.free.extend(blocks.rev().map(BlockId::first));
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn with(faults: Faults) -> Self {
        Self {
            faults,
            ..Self::default()
        }
    }

    #[cfg(test)]
    pub(crate) fn indices(&self) -> impl Iterator<Item = u32> + '_ {
        self.free.iter().map(|id| id.index)
    }
}
