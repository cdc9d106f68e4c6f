//! Objects that all lanes of a process have (`daemon::lanes`).

use super::Engine;
use crate::objects::mr::MrCopy;
use crate::types::{EngineError, Pd};

impl Engine {
    /// Copies a region that was made or changed to all lanes; the list of lanes is locked.
    pub(super) fn copy_region_to_lanes(&self, copy: Option<&MrCopy>) {
        if let Some(copy) = copy {
            for lane in self.lanes.others() {
                lane.shard.lock().process.regions.put_copy(copy);
            }
        }
    }

    /// Removes a protection domain from all lanes; the list of lanes is locked.
    ///
    /// # Errors
    /// [`EngineError::Busy`]: a queue pair of a lane is in it; all lanes have it as before.
    pub(super) fn remove_pd_from_lanes(&self, pd: Pd) -> Result<(), EngineError> {
        for (index, lane) in self.lanes.others().enumerate() {
            let withdrawn = lane.shard.lock().process.pds.withdraw(pd);
            if withdrawn == Err(EngineError::Busy) {
                self.copy_pd_to_lanes(pd, index);
                return withdrawn;
            }
        }
        Ok(())
    }

    /// Copies a protection domain to the first `count` lanes; the list of lanes is locked.
    pub(super) fn copy_pd_to_lanes(&self, pd: Pd, count: usize) {
        for lane in self.lanes.others().take(count) {
            lane.shard.lock().process.pds.put(pd);
        }
    }
}
