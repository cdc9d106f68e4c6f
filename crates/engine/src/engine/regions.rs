//! Calls on protection domains, memory regions and memory windows.

use proto_trp::conn::Sge;

use super::unmapped;
use crate::engine::Engine;
use crate::memory::populate::populate;
use crate::objects::mr::{MrChange, MrTable, Place};
use crate::types::{Access, EngineError, MrKeys, Pd};

impl Engine {
    /// A new protection domain.
    ///
    /// # Errors
    /// There are too many, or the device is gone.
    pub fn alloc_pd(&self) -> Result<Pd, EngineError> {
        self.usable()?;
        let _lanes = self.lanes.lock();
        let pd = self.shard.lock().process.pds.alloc()?;
        self.copy_pd_to_lanes(pd, usize::MAX);
        Ok(pd)
    }

    /// The protection domain with this number.
    ///
    /// # Errors
    /// [`EngineError::Invalid`]: there is none.
    pub fn find_pd(&self, number: u32) -> Result<Pd, EngineError> {
        self.usable()?;
        self.shard.lock().process.pds.find(number)
    }

    /// Ends a protection domain.
    ///
    /// # Errors
    /// [`EngineError::Busy`] while regions or queue pairs use it.
    pub fn dealloc_pd(&self, pd: Pd) -> Result<(), EngineError> {
        self.not_forked()?;
        let _lanes = self.lanes.lock();
        self.remove_pd_from_lanes(pd)?;
        let outcome = self.shard.lock().process.pds.dealloc(pd);
        if outcome == Err(EngineError::Busy) {
            self.copy_pd_to_lanes(pd, usize::MAX);
        }
        outcome
    }

    /// Registers `len` octets at `addr`, which peers and scatter-gather lists address from `iova`
    /// on.
    ///
    /// # Errors
    /// [`EngineError::Invalid`]: wraps round, or remote write or atomics without local write;
    /// [`EngineError::Fault`]: not mapped so; [`EngineError::NoMemory`]: too many regions.
    pub fn register_mr(
        &self,
        pd: Pd,
        addr: u64,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<MrKeys, EngineError> {
        self.usable()?;
        if !access.contains(Access::ON_DEMAND) {
            populate(addr, len, access.contains(Access::LOCAL_WRITE))?;
            unmapped::begin();
        }
        self.add_region(pd, |regions| regions.register(pd, addr, len, iova, access))
    }

    /// The length in octets of a region of a protection domain, and its keys.
    ///
    /// # Errors
    /// [`EngineError::Invalid`]: there is none.
    pub fn find_mr(&self, pd: Pd, lkey: u32) -> Result<(u64, MrKeys), EngineError> {
        self.usable()?;
        let len = self.shard.lock().process.regions.length_of(pd, lkey)?;
        // The key is the same for both.
        Ok((len, MrKeys { lkey, rkey: lkey }))
    }

    /// Registers the null region, which reads as zeroes and discards what is written.
    ///
    /// # Errors
    /// [`EngineError::NoMemory`]: too many regions.
    pub fn register_null_mr(&self, pd: Pd) -> Result<MrKeys, EngineError> {
        self.usable()?;
        self.add_region(pd, |regions| regions.register_null(pd))
    }

    /// Makes a region of `pd`, and copies it to all lanes.
    fn add_region(
        &self,
        pd: Pd,
        make: impl FnOnce(&mut MrTable) -> Result<MrKeys, EngineError>,
    ) -> Result<MrKeys, EngineError> {
        let _lanes = self.lanes.lock();
        let mut shard = self.shard.lock();
        let keys = shard.in_domain(pd, |shard| make(&mut shard.process.regions))?;
        let copy = shard.process.regions.copy_of(keys.lkey);
        drop(shard);
        self.copy_region_to_lanes(copy.as_ref());
        Ok(keys)
    }

    /// Changes a region, which keeps its keys.
    ///
    /// # Errors
    /// [`EngineError::Busy`] while windows are bound to it; else as [`Engine::register_mr`].
    /// Nothing has changed.
    pub fn reregister_mr(&self, lkey: u32, change: &MrChange) -> Result<(), EngineError> {
        self.usable()?;
        let before = self.shard.lock().process.regions.access_of(lkey)?;
        let access = change.access.unwrap_or(before);
        if !access.contains(Access::ON_DEMAND) {
            if let Some((addr, len, _)) = change.translation {
                populate(addr, len, access.contains(Access::LOCAL_WRITE))?;
            }
        }
        let _lanes = self.lanes.lock();
        let mut shard = self.shard.lock();
        if let Some(pd) = change.pd {
            shard.process.pds.acquire(pd)?;
        }
        let memory = shard.process.regions.memory_of(lkey);
        let outcome = shard.process.regions.reregister(lkey, change);
        if let Some(pd) = change.pd {
            shard.process.pds.release(*outcome.as_ref().unwrap_or(&pd));
        }
        let copy = shard.process.regions.copy_of(lkey);
        drop(shard);
        self.copy_region_to_lanes(copy.as_ref());
        if outcome.is_ok() && change.translation.is_some() {
            unmapped::release(memory);
        }
        outcome.map(|_| ())
    }

    /// Brings the pages of a part of a region into memory, for writing if `write`; those of a
    /// region without on-demand paging are present.
    ///
    /// # Errors
    /// [`EngineError::Invalid`]: no such region, or not that part of it; [`EngineError::Fault`]:
    /// there is a hole.
    pub fn prefetch(&self, pd: Pd, sge: &Sge, write: bool) -> Result<(), EngineError> {
        self.usable()?;
        let needed = if write {
            Access::LOCAL_WRITE
        } else {
            Access::LOCAL
        };
        let len = u64::from(sge.length);
        let found =
            self.shard
                .lock()
                .process
                .regions
                .find(sge.lkey, sge.addr, len, (pd, 0), needed);
        match found {
            Ok(Place::OnDemand(addr)) => populate(addr, len, write),
            Ok(Place::Memory(_) | Place::Null) => Ok(()),
            Err(_) => Err(EngineError::Invalid),
        }
    }

    /// One more user of a protection domain.
    ///
    /// # Errors
    /// [`EngineError::Invalid`]: it has ended.
    pub fn share_pd(&self, pd: Pd) -> Result<(), EngineError> {
        self.usable()?;
        self.shard.lock().process.pds.acquire(pd)
    }

    /// Undoes [`Engine::share_pd`].
    ///
    /// # Errors
    /// [`EngineError::Forked`].
    pub fn unshare_pd(&self, pd: Pd) -> Result<(), EngineError> {
        self.not_forked()?;
        self.shard.lock().process.pds.release(pd);
        Ok(())
    }

    /// Ends a region; its memory is not accessed after this returns.
    ///
    /// # Errors
    /// [`EngineError::Invalid`]: there is no such region; [`EngineError::Busy`]: windows are bound
    /// to it.
    pub fn deregister_mr(&self, lkey: u32) -> Result<(), EngineError> {
        self.not_forked()?;
        let _lanes = self.lanes.lock();
        let mut shard = self.shard.lock();
        let memory = shard.process.regions.memory_of(lkey);
        let pd = shard.process.regions.deregister(lkey)?;
        shard.process.pds.release(pd);
        drop(shard);
        for lane in self.lanes.others() {
            lane.shard.lock().process.regions.drop_copy(lkey);
        }
        unmapped::release(memory);
        Ok(())
    }

    /// A new memory window that is not bound; gives its key.
    ///
    /// # Errors
    /// [`EngineError::NoMemory`] when there are too many.
    pub fn alloc_window(&self, pd: Pd, is_type_2: bool) -> Result<u32, EngineError> {
        self.usable()?;
        let mut shard = self.shard.lock();
        shard.process.pds.acquire(pd)?;
        let key = shard.process.regions.alloc_window(pd, is_type_2);
        if key.is_err() {
            shard.process.pds.release(pd);
        }
        key
    }

    /// Ends a memory window, bound or not.
    ///
    /// # Errors
    /// [`EngineError::Invalid`]: there is no such window.
    pub fn dealloc_window(&self, key: u32) -> Result<(), EngineError> {
        self.not_forked()?;
        let mut shard = self.shard.lock();
        let pd = shard.process.regions.dealloc_window(key)?;
        shard.process.pds.release(pd);
        Ok(())
    }
}
