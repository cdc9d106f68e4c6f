//! Protection domains and memory regions: who may touch which octets.
//!
//! A key is `index << 14 | random part`: the region is found by index in one step, and a key of an earlier region with the same index, or a
//! guessed one, does not match. Indices of ended regions are used again last.

use std::collections::VecDeque;

use proto_trp::conn::ProtectionError;

use super::types::{Access, EngineError, MrKeys, Pd, LIMITS};

/// Bits of a key that are random.
const RANDOM_BITS: u32 = 14;
/// Freed indices that must pile up before one is used again.
const REUSE_DELAY: usize = 64;

/// One region.
#[derive(Clone, Copy, Debug)]
struct Region {
    /// 0 when there is none.
    key: u32,
    pd: u32,
    access: Access,
    addr: u64,
    len: u64,
    iova: u64,
}

const NO_REGION: Region = Region {
    key: 0,
    pd: 0,
    access: Access::empty(),
    addr: 0,
    len: 0,
    iova: 0,
};

/// All regions of the process.
#[derive(Debug)]
pub(super) struct MrTable {
    regions: Vec<Region>,
    free: VecDeque<u32>,
    random: fn() -> u32,
    count: u32,
}

impl MrTable {
    /// An empty table whose keys are made with `random`.
    pub(super) fn new(random: fn() -> u32) -> Self {
        Self {
            // Index 0 is never used, so that no key is 0.
            regions: vec![NO_REGION],
            free: VecDeque::new(),
            random,
            count: 0,
        }
    }

    /// Regions that exist.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Adds a region.
    pub(super) fn register(
        &mut self,
        pd: Pd,
        addr: u64,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<MrKeys, EngineError> {
        let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if access.intersects(writes) && !access.contains(Access::LOCAL_WRITE) {
            return Err(EngineError::Invalid);
        }
        if len > LIMITS.max_mr_octets || wraps(addr, len) || wraps(iova, len) {
            return Err(EngineError::Invalid);
        }
        let index = self.take_index()?;
        let key = index << RANDOM_BITS | (self.random)() & ((1 << RANDOM_BITS) - 1);
        self.regions[index as usize] = Region {
            key,
            pd: pd.0,
            access,
            addr,
            len,
            iova,
        };
        self.count += 1;
        Ok(MrKeys {
            lkey: key,
            rkey: key,
        })
    }

    fn take_index(&mut self) -> Result<u32, EngineError> {
        let room = self.regions.len() <= LIMITS.max_mr as usize;
        if self.free.len() > REUSE_DELAY || !room {
            return self.free.pop_front().ok_or(EngineError::NoMemory);
        }
        let index = u32::try_from(self.regions.len()).map_err(|_| EngineError::NoMemory)?;
        self.regions.push(NO_REGION);
        Ok(index)
    }

    /// Removes a region and gives its protection domain.
    pub(super) fn deregister(&mut self, key: u32) -> Result<Pd, EngineError> {
        let index = key >> RANDOM_BITS;
        match self.regions.get_mut(index as usize) {
            Some(region) if region.key == key && key != 0 => {
                let pd = Pd(region.pd);
                *region = NO_REGION;
                self.free.push_back(index);
                self.count -= 1;
                Ok(pd)
            }
            _ => Err(EngineError::Invalid),
        }
    }

    /// Where `len` octets at `at` of region `key` lie, if `pd` has the region and it grants `needed`.
    #[inline]
    pub(super) fn check(
        &self,
        key: u32,
        at: u64,
        len: u64,
        pd: Pd,
        needed: Access,
    ) -> Result<u64, ProtectionError> {
        let region = match self.regions.get((key >> RANDOM_BITS) as usize) {
            Some(region) if region.key == key && key != 0 => region,
            _ => return Err(ProtectionError::InvalidStag),
        };
        if region.pd != pd.0 {
            return Err(ProtectionError::NotAssociated);
        }
        if !region.access.contains(needed) {
            return Err(ProtectionError::Access);
        }
        if wraps(at, len) {
            return Err(ProtectionError::Wrap);
        }
        match at.checked_sub(region.iova) {
            Some(offset) if offset <= region.len && len <= region.len - offset => {
                Ok(region.addr + offset)
            }
            _ => Err(ProtectionError::Bounds),
        }
    }
}

/// Whether `len` octets at `at` run over the end of the address space.
#[inline]
fn wraps(at: u64, len: u64) -> bool {
    len > 0 && at.checked_add(len - 1).is_none()
}

/// The protection domains with how many objects use each.
#[derive(Debug, Default)]
pub(super) struct PdTable {
    users: Vec<Option<u32>>,
    free: VecDeque<u32>,
}

impl PdTable {
    /// A new one.
    pub(super) fn alloc(&mut self) -> Result<Pd, EngineError> {
        if self.users.len() < LIMITS.max_pd as usize {
            self.users.push(Some(0));
            return u32::try_from(self.users.len())
                .map(Pd)
                .map_err(|_| EngineError::NoMemory);
        }
        let number = self.free.pop_front().ok_or(EngineError::NoMemory)?;
        self.users[number as usize - 1] = Some(0);
        Ok(Pd(number))
    }

    fn entry(&mut self, pd: Pd) -> Result<&mut Option<u32>, EngineError> {
        (pd.0 as usize)
            .checked_sub(1)
            .and_then(|index| self.users.get_mut(index))
            .filter(|users| users.is_some())
            .ok_or(EngineError::Invalid)
    }

    /// Gives one back that nobody uses.
    pub(super) fn dealloc(&mut self, pd: Pd) -> Result<(), EngineError> {
        let entry = self.entry(pd)?;
        if *entry != Some(0) {
            return Err(EngineError::Busy);
        }
        *entry = None;
        self.free.push_back(pd.0);
        Ok(())
    }

    /// One more object uses it.
    pub(super) fn acquire(&mut self, pd: Pd) -> Result<(), EngineError> {
        let entry = self.entry(pd)?;
        *entry = entry.map(|users| users + 1);
        Ok(())
    }

    /// One object less uses it.
    pub(super) fn release(&mut self, pd: Pd) {
        if let Ok(entry) = self.entry(pd) {
            *entry = entry.map(|users| users.saturating_sub(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PD: Pd = Pd(1);
    const ALL: Access = Access::all();

    fn table() -> MrTable {
        MrTable::new(|| 0x2a5a_5a5a)
    }

    fn region(access: Access, addr: u64, len: u64, iova: u64) -> (MrTable, u32) {
        let mut table = table();
        let keys = table.register(PD, addr, len, iova, access).unwrap();
        (table, keys.lkey)
    }

    #[test]
    fn check_inside_the_region_gives_the_address() {
        let (table, key) = region(ALL, 0x10_000, 100, 0x500);
        assert_eq!(table.check(key, 0x500, 100, PD, ALL), Ok(0x10_000));
        assert_eq!(table.check(key, 0x563, 1, PD, ALL), Ok(0x10_063));
        assert_eq!(table.check(key, 0x564, 0, PD, ALL), Ok(0x10_064));
    }

    #[test]
    fn check_matrix_of_bad_ranges_is_refused() {
        let (table, key) = region(ALL, 0x10_000, 100, 0x500);
        for (at, len, error) in [
            (0x4ff, 1, ProtectionError::Bounds),
            (0x500, 101, ProtectionError::Bounds),
            (0x563, 2, ProtectionError::Bounds),
            (0x565, 0, ProtectionError::Bounds),
            (0, u64::MAX, ProtectionError::Bounds),
            (0x500, u64::MAX, ProtectionError::Wrap),
            (u64::MAX, 2, ProtectionError::Wrap),
            (u64::MAX, 1, ProtectionError::Bounds),
            (u64::MAX - 10, 100, ProtectionError::Wrap),
        ] {
            assert_eq!(
                table.check(key, at, len, PD, ALL),
                Err(error),
                "{at:#x} {len}"
            );
        }
    }

    #[test]
    fn check_at_the_end_of_the_address_space_does_not_overflow() {
        let (table, key) = region(ALL, u64::MAX - 9, 10, u64::MAX - 9);
        assert_eq!(table.check(key, u64::MAX, 1, PD, ALL), Ok(u64::MAX));
        assert_eq!(
            table.check(key, u64::MAX, 2, PD, ALL),
            Err(ProtectionError::Wrap)
        );
        assert_eq!(
            table.check(key, 0, 1, PD, ALL),
            Err(ProtectionError::Bounds)
        );
    }

    #[test]
    fn check_with_a_missing_right_is_refused_for_every_right() {
        let rights = [
            Access::LOCAL_WRITE,
            Access::REMOTE_WRITE,
            Access::REMOTE_READ,
            Access::REMOTE_ATOMIC,
        ];
        for missing in rights {
            let access = match missing {
                Access::LOCAL_WRITE => Access::REMOTE_READ,
                other => ALL - other,
            };
            let (table, key) = region(access, 0x1000, 8, 0x1000);
            assert_eq!(
                table.check(key, 0x1000, 8, PD, missing),
                Err(ProtectionError::Access)
            );
            assert!(table.check(key, 0x1000, 8, PD, access).is_ok());
        }
    }

    #[test]
    fn check_with_another_pd_or_key_is_refused() {
        let (mut table, key) = region(ALL, 0x1000, 8, 0x1000);
        assert_eq!(
            table.check(key, 0x1000, 8, Pd(2), ALL),
            Err(ProtectionError::NotAssociated)
        );
        for bad in [0, 1, key ^ 1, key + (1 << RANDOM_BITS), u32::MAX] {
            assert_eq!(
                table.check(bad, 0x1000, 8, PD, ALL),
                Err(ProtectionError::InvalidStag)
            );
        }
        table.deregister(key).unwrap();
        assert_eq!(
            table.check(key, 0x1000, 8, PD, ALL),
            Err(ProtectionError::InvalidStag)
        );
        assert_eq!(table.deregister(key), Err(EngineError::Invalid));
    }

    #[test]
    fn register_of_impossible_regions_is_refused() {
        let mut table = table();
        for (addr, len, iova, access) in [
            (u64::MAX, 2, 0, ALL),
            (0, 2, u64::MAX, ALL),
            (0, LIMITS.max_mr_octets + 1, 0, ALL),
            (0, 8, 0, Access::REMOTE_WRITE),
            (0, 8, 0, Access::REMOTE_ATOMIC),
        ] {
            assert_eq!(
                table.register(PD, addr, len, iova, access),
                Err(EngineError::Invalid)
            );
        }
        assert_eq!(table.count(), 0);
    }

    #[test]
    fn register_after_deregister_uses_another_index() {
        let (mut table, key) = region(ALL, 0, 8, 0);
        table.deregister(key).unwrap();
        let again = table.register(PD, 0, 8, 0, ALL).unwrap().lkey;
        assert_ne!(again >> RANDOM_BITS, key >> RANDOM_BITS);
    }

    #[test]
    fn pd_in_use_is_not_given_back() {
        let mut pds = PdTable::default();
        let pd = pds.alloc().unwrap();
        pds.acquire(pd).unwrap();
        assert_eq!(pds.dealloc(pd), Err(EngineError::Busy));
        pds.release(pd);
        assert_eq!(pds.dealloc(pd), Ok(()));
        assert_eq!(pds.dealloc(pd), Err(EngineError::Invalid));
        assert_eq!(pds.acquire(pd), Err(EngineError::Invalid));
    }
}
