//! How two engines open a channel: through urdmad, or directly if they have none and are in one
//! process.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use urdma_channel::{PeerPage, PeerRegion, RegionError};
use urdma_types::SlotId;

use super::channels::Offer;
use super::engine::Engine;
use super::types::EngineError;

/// The engines of this process that have no urdmad.
static WITHOUT_DAEMON: Mutex<Vec<Weak<Engine>>> = Mutex::new(Vec::new());

/// Lets other engines of this process find one that has no urdmad.
pub(super) fn register(engine: &Arc<Engine>) {
    if engine.control.is_none() {
        let mut engines = WITHOUT_DAEMON
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        engines.retain(|engine| engine.strong_count() > 0);
        engines.push(Arc::downgrade(engine));
    }
}

impl Engine {
    /// Makes sure that there is a channel to a slot, if there can be one.
    ///
    /// # Errors
    /// [`EngineError::NoMemory`]: its memory cannot be created.
    pub(super) fn open_channel(&self, slot: SlotId) -> Result<(), EngineError> {
        if !self.has_channels || slot == SlotId::DAEMON {
            return Ok(());
        }
        let peer = self.engine_without_daemon(slot);
        if self.control.is_none() && peer.is_none() {
            return Ok(());
        }
        let offer = self.shard.lock().channels.create(slot);
        let Some(offer) = offer.map_err(no_memory)? else {
            return Ok(());
        };
        self.make_offer(slot, peer, offer)
    }

    fn make_offer(
        &self,
        slot: SlotId,
        peer: Option<Arc<Engine>>,
        offer: Offer,
    ) -> Result<(), EngineError> {
        if slot == self.info.slot {
            // Both ends are this process.
            return self.attach_channel(slot, self.generation(slot), offer.region, offer.page);
        }
        if let Some(peer) = peer {
            let own = self.info.slot;
            peer.take_offer(own, self.generation(own), vec![offer.region, offer.page]);
            let generation = self.generation(slot);
            self.shard.lock().channels.passed(slot, generation);
        } else if let Some(control) = self.daemon() {
            // If it cannot be sent, urdmad is gone.
            let _ = control.offer_channel(slot.number(), offer.region.as_fd(), offer.page.as_fd());
        }
        Ok(())
    }

    /// The process in `slot` has offered its region and its page.
    pub(super) fn take_offer(&self, slot: SlotId, generation: u32, fds: Vec<OwnedFd>) {
        let Ok([region, page]) = <[OwnedFd; 2]>::try_from(fds) else {
            return;
        };
        // A peer whose memory is unusable is one that never answers.
        if self.open_channel(slot).is_ok() {
            let _ = self.attach_channel(slot, generation, region, page);
        }
    }

    fn attach_channel(
        &self,
        slot: SlotId,
        generation: u32,
        region: OwnedFd,
        page: OwnedFd,
    ) -> Result<(), EngineError> {
        let region = PeerRegion::open(region).map_err(no_memory)?;
        let page = PeerPage::open(page).map_err(no_memory)?;
        let mut shard = self.shard.lock();
        shard.channels.attach(slot, generation, (region, page));
        shard.channels.note_doorbell(slot);
        shard.progress(&self.info);
        drop(shard);
        // Messages may have waited in the region.
        self.sleep_control.kick();
        Ok(())
    }

    /// No process has the slot.
    pub(super) fn offer_refused(&self, slot: SlotId) {
        let generation = self.generation(slot);
        self.shard.lock().channels.passed(slot, generation);
        self.peer_slot_gone(slot, generation);
    }

    fn generation(&self, slot: SlotId) -> u32 {
        self.shard.lock().endpoint.arena().generation(slot)
    }

    /// The engine in a slot of the same arena, if this one has no urdmad.
    fn engine_without_daemon(&self, slot: SlotId) -> Option<Arc<Engine>> {
        if self.control.is_some() {
            return None;
        }
        if slot == self.info.slot {
            return self.myself.upgrade();
        }
        let engines: Vec<_> = WITHOUT_DAEMON
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        engines
            .into_iter()
            .find(|engine| engine.info.slot == slot && self.shares_arena_with(engine))
    }

    fn shares_arena_with(&self, other: &Engine) -> bool {
        let arena_of = |engine: &Engine| engine.shard.lock().endpoint.arena().fd().as_raw_fd();
        arena_of(self) == arena_of(other)
    }
}

fn no_memory(_: RegionError) -> EngineError {
    EngineError::NoMemory
}
