//! Protection domains and memory regions: which octets an access may touch.
//!
//! A key is `index << 14 | random part`. The region is found by its index in one step; the key of
//! an earlier region with the same index, or a guessed key, does not match. Indices of deregistered
//! regions are reused last. Memory windows (`window.rs`) are in the same table.
//!
//! The fast check grants access to memory that was present at registration. Regions whose pages may
//! be missing, the null region, and windows that belong to one queue pair are refused by it;
//! [`MrTable::find`], which callers use after a refusal, knows them.

use std::collections::VecDeque;

use proto_trp::conn::ProtectionError;

use crate::types::{Access, EngineError, MrKeys, Pd, LIMITS};

const _: () = assert!(LIMITS.max_mr + LIMITS.max_mw + 1 == 1 << INDEX_BITS);

/// Bits of a key that are random.
const RANDOM_BITS: u32 = 14;
/// The other bits.
pub(super) const INDEX_BITS: u32 = 32 - RANDOM_BITS;
/// Number of freed indices above which one is used again.
const REUSE_DELAY: usize = 64;

/// One region or window, as far as the fast check looks at it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    /// 0 when there is none.
    pub(super) key: u32,
    pub(crate) pd: u32,
    /// What is granted without a further look.
    pub(crate) access: Access,
    pub(super) addr: u64,
    pub(crate) len: u64,
    pub(super) iova: u64,
}

/// What a key stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nothing.
    Free,
    /// Memory that was there at registration.
    Memory,
    /// Memory whose pages may be missing when they are touched.
    OnDemand,
    /// No memory: reads as zeroes, writes are discarded.
    Null,
    /// A memory window.
    Window(Window),
}

/// A memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Window {
    /// Bound by requests of a queue pair, for this queue pair, and to be invalidated before it is
    /// bound again (type 2).
    pub(crate) is_type_2: bool,
    /// Index of the region that it opens, 0 while it is not bound.
    pub(super) region: u32,
    /// The queue pair that may use a bound one of type 2.
    pub(super) qpn: u32,
}

/// The fields that only [`MrTable::find`] needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Detail {
    pub(crate) kind: Kind,
    pub(crate) access: Access,
    /// Windows that are bound to it.
    pub(super) windows: u32,
}

/// A region as it is copied to the tables of lanes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MrCopy {
    region: Region,
    detail: Detail,
}

/// Where the octets of an access are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// At this address.
    Memory(u64),
    /// At this address, if they are there at all.
    OnDemand(u64),
    /// Nowhere.
    Null,
}

const NO_DETAIL: Detail = Detail {
    kind: Kind::Free,
    access: Access::empty(),
    windows: 0,
};

pub(super) const NO_REGION: Region = Region {
    key: 0,
    pd: 0,
    access: Access::empty(),
    addr: 0,
    len: 0,
    iova: 0,
};

/// All regions of the process.
#[derive(Debug)]
pub(crate) struct MrTable {
    pub(crate) regions: Vec<Region>,
    pub(super) details: Vec<Detail>,
    free: VecDeque<u32>,
    random: fn() -> u32,
    count: u32,
    pub(super) windows: u32,
}

impl MrTable {
    /// An empty table whose keys are made with `random`.
    pub(crate) fn new(random: fn() -> u32) -> Self {
        Self {
            // Index 0 is never used, so that no key is 0.
            regions: vec![NO_REGION],
            details: vec![NO_DETAIL],
            free: VecDeque::new(),
            random,
            count: 0,
            windows: 0,
        }
    }

    /// Regions that exist.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Adds a region; with [`Access::ON_DEMAND`] its pages may come and go.
    pub(crate) fn register(
        &mut self,
        pd: Pd,
        addr: u64,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<MrKeys, EngineError> {
        check_rights(access)?;
        if len > LIMITS.max_mr_octets || wraps(addr, len) || wraps(iova, len) {
            return Err(EngineError::Invalid);
        }
        let kind = if access.contains(Access::ON_DEMAND) {
            Kind::OnDemand
        } else {
            Kind::Memory
        };
        // RFC5040-8.1.1-4, RFC5041-8.3-1
        //# The application can associate a buffer with an STag, and end that.
        //# Section 8.3 asks for the same protection as RFC 5040 section 8.1.1: range, validity and
        //# association of an STag are the application's to set and to revoke.
        let region = Region {
            key: 0,
            pd: pd.0,
            access,
            addr,
            len,
            iova,
        };
        self.add_region(region, kind)
    }

    /// Adds the region that is no memory; peers cannot use it.
    pub(crate) fn register_null(&mut self, pd: Pd) -> Result<MrKeys, EngineError> {
        let everywhere = Region {
            key: 0,
            pd: pd.0,
            access: Access::LOCAL_WRITE,
            addr: 0,
            len: u64::MAX,
            iova: 0,
        };
        self.add_region(everywhere, Kind::Null)
    }

    fn add_region(&mut self, region: Region, kind: Kind) -> Result<MrKeys, EngineError> {
        if self.count >= LIMITS.max_mr {
            return Err(EngineError::NoMemory);
        }
        let keys = self.add(region, kind)?;
        self.count += 1;
        Ok(keys)
    }

    /// Gives a region or window an index and a key.
    pub(crate) fn add(&mut self, region: Region, kind: Kind) -> Result<MrKeys, EngineError> {
        let index = self.take_index()?;
        // RFC5040-8.1.1-8
        //# STags are hard to predict.
        let key = index << RANDOM_BITS | (self.random)() & ((1 << RANDOM_BITS) - 1);
        self.put(index, Region { key, ..region }, kind);
        Ok(MrKeys {
            lkey: key,
            rkey: key,
        })
    }

    /// Stores what the key at `index` stands for from now on.
    fn put(&mut self, index: u32, region: Region, kind: Kind) {
        let access = match kind {
            Kind::Free | Kind::Window(_) => region.access,
            Kind::Memory | Kind::OnDemand | Kind::Null => region.access | Access::LOCAL,
        };
        let granted = match kind {
            Kind::Memory => access,
            _ => Access::empty(),
        };
        self.details[index as usize] = Detail {
            kind,
            access,
            windows: 0,
        };
        self.regions[index as usize] = Region {
            access: granted,
            ..region
        };
    }

    fn take_index(&mut self) -> Result<u32, EngineError> {
        let room = self.regions.len() < 1 << INDEX_BITS;
        if self.free.len() > REUSE_DELAY || !room {
            return self.free.pop_front().ok_or(EngineError::NoMemory);
        }
        let index = u32::try_from(self.regions.len()).map_err(|_| EngineError::NoMemory)?;
        self.regions.push(NO_REGION);
        self.details.push(NO_DETAIL);
        Ok(index)
    }

    /// The index of a key that exists.
    pub(super) fn index_of(&self, key: u32) -> Option<usize> {
        let index = (key >> RANDOM_BITS) as usize;
        (self.regions.get(index)?.key == key && key != 0).then_some(index)
    }

    /// The index of a key that exists and is a region's.
    fn region_of(&self, key: u32) -> Result<usize, EngineError> {
        self.index_of(key)
            .filter(|&index| !matches!(self.details[index].kind, Kind::Window(_)))
            .ok_or(EngineError::Invalid)
    }

    /// Takes what is at `index` out.
    pub(super) fn take_out(&mut self, index: usize) -> Region {
        self.details[index] = NO_DETAIL;
        // An index has as many bits as a key has room for.
        self.free.push_back(u32::try_from(index).unwrap_or(0));
        std::mem::replace(&mut self.regions[index], NO_REGION)
    }

    /// Removes a region that no window opens, and gives its protection domain.
    pub(crate) fn deregister(&mut self, key: u32) -> Result<Pd, EngineError> {
        let index = self.region_of(key)?;
        if self.details[index].windows > 0 {
            return Err(EngineError::Busy);
        }
        self.count -= 1;
        // RFC5040-8.1.1-6, RFC5041-8.3-1
        //# A buffer is not written after its remote access was revoked.
        //# Section 8.3 asks for the same protection as RFC 5040 section 8.1.1: range, validity and
        //# association of an STag are the application's to set and to revoke.
        Ok(Pd(self.take_out(index).pd))
    }

    /// The end of a region that has this octet, and whose memory was there at registration.
    pub(crate) fn end_of_memory_at(&self, address: u64) -> Option<u64> {
        let mut all = self.regions.iter().zip(&self.details);
        let found = all.find(|(region, detail)| {
            let offset = address.checked_sub(region.addr);
            detail.kind == Kind::Memory && offset.is_some_and(|offset| offset < region.len)
        });
        found.map(|(region, _)| region.addr + region.len)
    }

    /// Whether a region has any of these octets of the program's memory.
    pub(crate) fn has_memory_in(&self, address: usize, octets: usize) -> bool {
        let (address, octets) = (address as u64, octets as u64);
        let mut all = self.regions.iter().zip(&self.details);
        all.any(|(region, detail)| {
            matches!(detail.kind, Kind::Memory | Kind::OnDemand)
                && region.addr < address.saturating_add(octets)
                && address < region.addr.saturating_add(region.len)
        })
    }

    /// The memory of a region: its address and octets; none for a region without memory.
    pub(crate) fn memory_of(&self, key: u32) -> Option<(u64, u64)> {
        let index = self.region_of(key).ok()?;
        let region = &self.regions[index];
        (self.details[index].kind == Kind::Memory).then_some((region.addr, region.len))
    }

    /// The rights of a region.
    pub(crate) fn access_of(&self, key: u32) -> Result<Access, EngineError> {
        let index = self.region_of(key)?;
        Ok(self.details[index].access - Access::LOCAL)
    }

    /// The length of a region of a protection domain in octets.
    pub(crate) fn length_of(&self, pd: Pd, key: u32) -> Result<u64, EngineError> {
        let region = &self.regions[self.region_of(key)?];
        if region.pd != pd.0 {
            return Err(EngineError::Invalid);
        }
        Ok(region.len)
    }

    /// Changes a region that no window opens: what is `None` stays, and so does the key. Gives the
    /// protection domain of before.
    pub(crate) fn reregister(&mut self, key: u32, change: &MrChange) -> Result<Pd, EngineError> {
        let access = change.access.unwrap_or(self.access_of(key)?);
        let index = self.region_of(key)?;
        let (region, detail) = (self.regions[index], self.details[index]);
        if detail.windows > 0 {
            return Err(EngineError::Busy);
        }
        check_rights(access)?;
        let translation = (region.addr, region.len, region.iova);
        let (addr, len, iova) = change.translation.unwrap_or(translation);
        let keeps_kind = access.contains(Access::ON_DEMAND) == (detail.kind == Kind::OnDemand);
        let fits = len <= LIMITS.max_mr_octets && !wraps(addr, len) && !wraps(iova, len);
        if detail.kind == Kind::Null || !keeps_kind || !fits {
            return Err(EngineError::Invalid);
        }
        let changed = Region {
            key,
            pd: change.pd.map_or(region.pd, |pd| pd.0),
            access,
            addr,
            len,
            iova,
        };
        self.put(key >> RANDOM_BITS, changed, detail.kind);
        Ok(Pd(region.pd))
    }

    /// The region with this key, for the table of a lane.
    pub(crate) fn copy_of(&self, key: u32) -> Option<MrCopy> {
        let index = self.region_of(key).ok()?;
        Some(MrCopy {
            region: self.regions[index],
            detail: self.details[index],
        })
    }

    /// All regions, for the table of a lane.
    pub(crate) fn copies(&self) -> Vec<MrCopy> {
        let keys = self.regions.iter().map(|region| region.key);
        keys.filter_map(|key| self.copy_of(key)).collect()
    }

    /// Takes in a region of another table, or what it is now.
    pub(crate) fn put_copy(&mut self, copy: &MrCopy) {
        let index = (copy.region.key >> RANDOM_BITS) as usize;
        let len = self.regions.len().max(index + 1);
        self.regions.resize(len, NO_REGION);
        self.details.resize(len, NO_DETAIL);
        self.regions[index] = copy.region;
        self.details[index] = copy.detail;
    }

    /// Removes a region of another table.
    pub(crate) fn drop_copy(&mut self, key: u32) {
        if let Some(index) = self.index_of(key) {
            self.regions[index] = NO_REGION;
            self.details[index] = NO_DETAIL;
        }
    }

    /// Where `len` octets at `at` of region `key` lie, if `pd` has the region and it grants
    /// `needed`.
    #[inline(always)]
    pub(crate) fn check(
        &self,
        key: u32,
        at: u64,
        len: u64,
        pd: Pd,
        needed: Access,
    ) -> Result<u64, ProtectionError> {
        let region = match self.regions.get((key >> RANDOM_BITS) as usize) {
            // RFC5040-7.2-3, RFC5041-7.1-2
            //# The responder checks that the source STag of a Read Request exists and belongs to
            //# the stream, and that the octets are within its range and do not wrap.
            //# A tagged segment is placed only if its STag is valid for the stream and has a
            //# buffer, and the octets are within it and do not wrap.
            Some(region) if region.key == key && key != 0 => region,
            _ => return Err(ProtectionError::InvalidStag),
        };
        // RFC5040-8.1.1-1, RFC5041-8.2-1
        //# A stream of one protection domain cannot use an STag of another.
        //# A segment whose STag belongs to another protection domain is not placed, and the error
        //# is reported.
        if region.pd != pd.0 {
            return Err(ProtectionError::NotAssociated);
        }
        // RFC5040-8.1.1-5
        //# The application can grant and revoke the rights to read and to write a buffer.
        if !region.access.contains(needed) {
            return Err(ProtectionError::Access);
        }
        // RFC5040-8.1.1-3
        //# A peer cannot access memory outside of the buffer that the STag stands for.
        region.place_of_access(at, len)
    }

    /// As [`MrTable::check`], for keys of every kind; `qpn` is the queue pair that asks.
    #[cold]
    pub(crate) fn find(
        &self,
        key: u32,
        at: u64,
        len: u64,
        (pd, qpn): (Pd, u32),
        needed: Access,
    ) -> Result<Place, ProtectionError> {
        let index = self.index_of(key).ok_or(ProtectionError::InvalidStag)?;
        let (region, detail) = (&self.regions[index], &self.details[index]);
        if region.pd != pd.0 {
            return Err(ProtectionError::NotAssociated);
        }
        let memory = match detail.kind {
            Kind::Window(window) if window.region == 0 => return Err(ProtectionError::InvalidStag),
            // RFC5040-8.1.1-2, RFC5041-8.2-2
            //# An STag that is limited to one stream cannot be used by another.
            //# A segment whose STag is bound to another stream is not placed, and the error is
            //# reported.
            Kind::Window(window) if window.is_type_2 && window.qpn != qpn => {
                return Err(ProtectionError::NotAssociated)
            }
            Kind::Window(window) => self.details[window.region as usize].kind,
            kind => kind,
        };
        if !detail.access.contains(needed) {
            return Err(ProtectionError::Access);
        }
        let address = region.place_of_access(at, len)?;
        Ok(match memory {
            Kind::OnDemand => Place::OnDemand(address),
            Kind::Null => Place::Null,
            Kind::Free | Kind::Memory | Kind::Window(_) => Place::Memory(address),
        })
    }
}

impl Region {
    /// Where `len` octets at `at` are.
    #[inline(always)]
    pub(super) fn place(&self, at: u64, len: u64) -> Result<u64, ProtectionError> {
        match at.checked_sub(self.iova) {
            // What is within a region does not wrap, since regions do not.
            Some(offset) if offset <= self.len && len <= self.len - offset => {
                Ok(self.addr + offset)
            }
            _ => Err(ProtectionError::Bounds),
        }
    }

    /// As [`Region::place`], for an access, which may run over the end of the address space.
    #[inline(always)]
    fn place_of_access(&self, at: u64, len: u64) -> Result<u64, ProtectionError> {
        self.place(at, len).map_err(|error| {
            // RFC5040-7.2-3, RFC5041-7.1-2
            //# The responder checks that the source STag of a Read Request exists and belongs to
            //# the stream, and that the octets are within its range and do not wrap.
            //# A tagged segment is placed only if its STag is valid for the stream and has a
            //# buffer, and the octets are within it and do not wrap.
            if wraps(at, len) {
                ProtectionError::Wrap
            } else {
                error
            }
        })
    }
}

/// Whether peers may change only what this process may.
///
/// # Errors
/// [`EngineError::Invalid`]
fn check_rights(access: Access) -> Result<(), EngineError> {
    if access.intersects(Access::REMOTE_CHANGE) && !access.contains(Access::LOCAL_WRITE) {
        return Err(EngineError::Invalid);
    }
    Ok(())
}

/// A change of a region; `None` leaves what it is about as it was.
#[derive(Clone, Copy, Debug, Default)]
pub struct MrChange {
    /// Protection domain.
    pub pd: Option<Pd>,
    /// Address, octets, and the address that lists and peers use for the first.
    pub translation: Option<(u64, u64, u64)>,
    /// Rights.
    pub access: Option<Access>,
}

/// Whether `len` octets at `at` run over the end of the address space.
#[inline]
fn wraps(at: u64, len: u64) -> bool {
    len > 0 && at.checked_add(len - 1).is_none()
}

/// The protection domains with how many objects use each.
#[derive(Debug, Default)]
pub(crate) struct PdTable {
    users: Vec<Option<u32>>,
    free: VecDeque<u32>,
}

impl PdTable {
    /// A new one.
    pub(crate) fn alloc(&mut self) -> Result<Pd, EngineError> {
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

    /// The one with this number.
    pub(crate) fn find(&self, number: u32) -> Result<Pd, EngineError> {
        let index = (number as usize).checked_sub(1);
        match index.and_then(|index| self.users.get(index)) {
            Some(Some(_)) => Ok(Pd(number)),
            _ => Err(EngineError::Invalid),
        }
    }

    fn entry(&mut self, pd: Pd) -> Result<&mut Option<u32>, EngineError> {
        self.find(pd.0)?;
        Ok(&mut self.users[pd.0 as usize - 1])
    }

    /// Frees one without users.
    pub(crate) fn dealloc(&mut self, pd: Pd) -> Result<(), EngineError> {
        self.withdraw(pd)?;
        self.free.push_back(pd.0);
        Ok(())
    }

    /// Removes one without users.
    pub(crate) fn withdraw(&mut self, pd: Pd) -> Result<(), EngineError> {
        let entry = self.entry(pd)?;
        if *entry != Some(0) {
            return Err(EngineError::Busy);
        }
        *entry = None;
        Ok(())
    }

    /// Takes in one of another table, unless it is there.
    pub(crate) fn put(&mut self, pd: Pd) {
        let Some(index) = (pd.0 as usize).checked_sub(1) else {
            return;
        };
        let len = self.users.len().max(index + 1);
        self.users.resize(len, None);
        self.users[index].get_or_insert(0);
    }

    /// Those that there are.
    pub(crate) fn existing(&self) -> impl Iterator<Item = Pd> {
        let numbered = (1..).zip(self.users.clone());
        numbered.filter_map(|(number, users)| users.map(|_| Pd(number)))
    }

    /// One more object uses it.
    pub(crate) fn acquire(&mut self, pd: Pd) -> Result<(), EngineError> {
        let entry = self.entry(pd)?;
        *entry = entry.map(|users| users + 1);
        Ok(())
    }

    /// One object less uses it.
    pub(crate) fn release(&mut self, pd: Pd) {
        if let Ok(entry) = self.entry(pd) {
            *entry = entry.map(|users| users.saturating_sub(1));
        }
    }
}

#[cfg(test)]
mod tests;
