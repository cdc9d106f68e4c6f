//! What queue pairs reach of their process: memory regions, protection domains, events.

use super::mr::{MrTable, PdTable};
use super::note::Note;
use crate::random::random_u32;

/// What the queue pairs of a process use in common.
pub(crate) struct Process {
    pub(crate) regions: MrTable,
    pub(crate) pds: PdTable,
    /// Events to deliver when the lock is free.
    pub(crate) notes: Vec<Note>,
    pub(crate) cq_count: u32,
    pub(crate) srq_count: u32,
}

impl Process {
    /// A process without objects.
    pub(crate) fn new() -> Self {
        Self {
            regions: MrTable::new(random_u32),
            pds: PdTable::default(),
            notes: Vec::new(),
            cq_count: 0,
            srq_count: 0,
        }
    }
}
