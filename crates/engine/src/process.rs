//! What queue pairs reach of their process: memory regions, protection domains, events.

use super::mr::{MrTable, PdTable};
use super::note::Note;
use super::random::random_u32;

/// What the queue pairs of a process use in common.
pub(super) struct Process {
    pub(super) regions: MrTable,
    pub(super) pds: PdTable,
    /// Events to deliver when the lock is free.
    pub(super) notes: Vec<Note>,
    pub(super) cq_count: u32,
    pub(super) srq_count: u32,
}

impl Process {
    /// A process without objects.
    pub(super) fn new() -> Self {
        Self {
            regions: MrTable::new(random_u32),
            pds: PdTable::default(),
            notes: Vec::new(),
            cq_count: 0,
            srq_count: 0,
        }
    }
}
