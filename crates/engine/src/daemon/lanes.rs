//! Lanes: further engines of a process, each with its own slot, channels, lock and thread.
//!
//! Two threads that use queue pairs of two lanes share no lock. A thread domain of verbs is a lane.
//! Queue pairs belong to one lane. Completion queues and shared receive queues have their own locks
//! and serve queue pairs of all lanes. Protection domains and regions are created in the first
//! engine and copied to every lane, so that keys mean the same everywhere. Memory windows and
//! extended reliable connections belong to the first engine.
//!
//! Lock order: the list of lanes, then one engine's lock at a time.

use std::sync::{Arc, PoisonError};

use crate::daemon::attach::{attach_anew, LeaseWish, Parts};
use crate::engine::Engine;
use crate::types::{EngineError, LeaseState};

impl Engine {
    /// A lane that no other caller has. None when there are `LANES_MAX`, the instance has no slot
    /// left, or no lease where the process has one: the caller then stays with this engine.
    pub fn take_lane(&self) -> Option<Arc<Engine>> {
        let mut idle = self.lanes.lock();
        idle.retain(|lane| lane.is_usable());
        if let Some(lane) = idle.pop() {
            return Some(lane);
        }
        let wish = match self.info.lease {
            LeaseState::Leased => LeaseWish::Require,
            LeaseState::NotAsked | LeaseState::Forwarded(_) => LeaseWish::Never,
        };
        let run_dir = self.run_dir.as_ref()?;
        self.add_lane(|| attach_anew(run_dir, wish, Some(&self.lanes)).ok())
    }

    /// As [`Engine::take_lane`], in a slot that no one else uses; needs no urdmad.
    ///
    /// # Errors
    /// [`EngineError::NoMemory`]: there are as many as there can be, or it cannot start.
    pub fn start_lane(&self, parts: Parts) -> Result<Arc<Engine>, EngineError> {
        let _lanes = self.lanes.lock();
        let lane = self.add_lane(|| {
            let (state, lanes) = (LeaseState::NotAsked, Some(&self.lanes));
            crate::daemon::attach::start(parts, None, state, None, lanes).ok()
        });
        lane.ok_or(EngineError::NoMemory)
    }

    /// Makes a lane, if there is a place for one, and copies the shared objects to it; the list of
    /// lanes is locked.
    fn add_lane(&self, make: impl FnOnce() -> Option<Arc<Engine>>) -> Option<Arc<Engine>> {
        let place = self.lanes.made.iter().find(|made| made.get().is_none())?;
        let lane = self.out_of_regions(make)?;
        self.copy_objects_to(&lane);
        let mut kept = self
            .lanes
            .kept
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        kept.push(Arc::clone(&lane));
        // The list of lanes is held, so the place is still free.
        place.set(Arc::downgrade(&lane)).ok()?;
        Some(lane)
    }

    /// Returns a lane, whose objects have been destroyed.
    pub fn give_lane(&self, lane: Arc<Engine>) {
        self.lanes.lock().push(lane);
    }

    /// Copies the shared objects to a new lane; the list of lanes is locked.
    fn copy_objects_to(&self, lane: &Engine) {
        let shard = self.shard.lock();
        let regions = shard.process.regions.copies();
        let domains = shard.process.pds.existing();
        drop(shard);
        let mut new = lane.shard.lock();
        domains.for_each(|pd| new.process.pds.put(pd));
        for region in regions {
            new.process.regions.put_copy(&region);
        }
    }
}
