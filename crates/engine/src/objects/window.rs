//! Memory windows: keys that open a part of a region to peers for a time.
//!
//! A window of type 1 is bound by `ibv_bind_mw`, any number of times, and opens its range to every
//! queue pair of its protection domain. One of type 2 is bound by a work request for the queue pair
//! that carries the request, and must be invalidated, by this end or by the peer, before it is
//! bound again. The low eight bits of a window's key are the application's, the others identify the
//! window.

use proto_trp::conn::{ProtectionError, WindowBind};

use super::mr::{Kind, MrTable, Region, Window, NO_REGION};
use crate::types::{Access, EngineError, Pd, LIMITS};

/// Bits of a window's key that change with every binding.
const TAG_BITS: u32 = 8;

impl MrTable {
    /// Adds a window that is not bound, and gives its key.
    pub(crate) fn alloc_window(&mut self, pd: Pd, is_type_2: bool) -> Result<u32, EngineError> {
        if self.windows >= LIMITS.max_mw {
            return Err(EngineError::NoMemory);
        }
        let window = Window {
            is_type_2,
            ..Window::default()
        };
        let unbound = Region {
            pd: pd.number(),
            ..NO_REGION
        };
        let keys = self.add(unbound, Kind::Window(window))?;
        self.windows += 1;
        Ok(keys.rkey)
    }

    /// The window that a key, whatever its tag, belongs to.
    fn window_of(&self, key: u32) -> Option<(usize, Window)> {
        let index = (key >> (32 - super::mr::INDEX_BITS)) as usize;
        let same = self.regions.get(index)?.key >> TAG_BITS == key >> TAG_BITS;
        match self.details[index].kind {
            Kind::Window(window) if same => Some((index, window)),
            _ => None,
        }
    }

    /// Removes a window, bound or not, and gives its protection domain.
    pub(crate) fn dealloc_window(&mut self, key: u32) -> Result<Pd, EngineError> {
        let (index, _) = self.window_of(key).ok_or(EngineError::Invalid)?;
        self.close(index);
        self.windows -= 1;
        Ok(Pd(self.take_out(index).pd))
    }

    /// Takes the range away from a window; its key stays.
    fn close(&mut self, index: usize) {
        let Kind::Window(window) = self.details[index].kind else {
            return;
        };
        if window.region != 0 {
            self.details[window.region as usize].windows -= 1;
        }
        self.details[index].kind = Kind::Window(Window {
            is_type_2: window.is_type_2,
            ..Window::default()
        });
        self.details[index].access = Access::empty();
        let region = &mut self.regions[index];
        (region.access, region.addr, region.len, region.iova) = (Access::empty(), 0, 0, 0);
    }

    /// Binds a window for a queue pair; one of type 1 with a length of 0 is only closed.
    ///
    /// # Errors
    /// Nothing has changed.
    pub(crate) fn bind(
        &mut self,
        bind: &WindowBind,
        pd: Pd,
        qpn: u32,
    ) -> Result<(), ProtectionError> {
        let (index, window) = self
            .window_of(bind.key)
            .ok_or(ProtectionError::InvalidStag)?;
        if self.regions[index].pd != pd.number() {
            return Err(ProtectionError::NotAssociated);
        }
        if window.is_type_2 && (window.region != 0 || bind.len == 0) {
            return Err(ProtectionError::InvalidStag);
        }
        let opened = match bind.len {
            0 => None,
            _ => Some(self.opening(bind, pd)?),
        };
        self.close(index);
        self.regions[index].key = bind.key;
        let Some((parent, addr, access)) = opened else {
            return Ok(());
        };
        let parent_kind = self.details[parent].kind;
        self.details[parent].windows += 1;
        self.details[index].access = access;
        self.details[index].kind = Kind::Window(Window {
            is_type_2: window.is_type_2,
            region: u32::try_from(parent).unwrap_or(0),
            qpn,
        });
        let is_zero_based = bind.access & Access::ZERO_BASED.bits() != 0;
        let region = &mut self.regions[index];
        region.addr = addr;
        region.len = bind.len;
        region.iova = if is_zero_based { 0 } else { bind.addr };
        if !window.is_type_2 && parent_kind == Kind::Memory {
            region.access = access;
        }
        Ok(())
    }

    /// The region that a binding opens, the address of its first octet, and the rights that it
    /// grants.
    fn opening(&self, bind: &WindowBind, pd: Pd) -> Result<(usize, u64, Access), ProtectionError> {
        let access = Access::from_bits(bind.access)
            // Programs name local write too, which a window neither needs nor grants.
            .map(|access| access - Access::ZERO_BASED - Access::LOCAL_WRITE)
            .filter(|access| Access::REMOTE.contains(*access))
            .ok_or(ProtectionError::Access)?;
        let parent = self
            .index_of(bind.lkey)
            .ok_or(ProtectionError::InvalidStag)?;
        let (region, detail) = (&self.regions[parent], &self.details[parent]);
        if region.pd != pd.number() {
            return Err(ProtectionError::NotAssociated);
        }
        let mut needed = Access::MW_BIND;
        if access.intersects(Access::REMOTE_CHANGE) {
            needed |= Access::LOCAL_WRITE;
        }
        if !detail.access.contains(needed) || !matches!(detail.kind, Kind::Memory | Kind::OnDemand)
        {
            return Err(ProtectionError::Access);
        }
        let addr = region.place(bind.addr, bind.len)?;
        Ok((parent, addr, access))
    }

    /// Takes the range away from a bound window of type 2 of a queue pair; nothing else can be
    /// invalidated.
    pub(crate) fn invalidate(&mut self, key: u32, pd: Pd, qpn: u32) -> Result<(), ProtectionError> {
        // RFC5040-7.2-2
        //# The receiver checks that an STag to be invalidated exists and belongs to the stream.
        let index = self.index_of(key).ok_or(ProtectionError::InvalidStag)?;
        if self.regions[index].pd != pd.number() {
            return Err(ProtectionError::NotAssociated);
        }
        match self.details[index].kind {
            Kind::Window(window) if window.is_type_2 && window.region == 0 => {
                Err(ProtectionError::InvalidStag)
            }
            Kind::Window(window) if window.is_type_2 && window.qpn == qpn => {
                self.close(index);
                Ok(())
            }
            Kind::Window(window) if window.is_type_2 => Err(ProtectionError::NotAssociated),
            // RFC5040-8.1.1-7
            //# A peer cannot invalidate an STag that several streams share.
            _ => Err(ProtectionError::CannotInvalidate),
        }
    }

    /// Closes the windows of type 2 of a queue pair that has ended. A rare event, so the table is
    /// walked, if the process has windows.
    pub(crate) fn close_windows_of(&mut self, qpn: u32) {
        if self.windows == 0 {
            return;
        }
        for index in 0..self.details.len() {
            let is_its =
                |window: Window| window.is_type_2 && window.region != 0 && window.qpn == qpn;
            if matches!(self.details[index].kind, Kind::Window(window) if is_its(window)) {
                self.close(index);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PD: Pd = Pd(1);
    const QPN: u32 = 0x10_0001;
    const BOUND: u64 = 0x10_010;

    /// A table with a region of 256 octets at 0x10000 with these rights.
    fn table(access: Access) -> (MrTable, u32) {
        let mut table = MrTable::new(|| 0x2a5a_5a5a);
        let keys = table.register(PD, 0x10_000, 256, 0x10_000, access).unwrap();
        (table, keys.lkey)
    }

    fn all() -> Access {
        Access::REMOTE | Access::LOCAL_WRITE | Access::MW_BIND
    }

    fn binding(key: u32, lkey: u32, access: Access) -> WindowBind {
        WindowBind {
            key,
            lkey,
            access: access.bits(),
            addr: BOUND,
            len: 16,
        }
    }

    fn may(table: &MrTable, key: u32, at: u64, len: u64, qpn: u32, needed: Access) -> bool {
        let fast = table.check(key, at, len, PD, needed).is_ok();
        let second = table.find(key, at, len, (PD, qpn), needed).is_ok();
        assert!(
            second || !fast,
            "the fast check granted what the other refuses"
        );
        fast || second
    }

    /// Every right of the window crossed with every operation, inside and around the range, for its
    /// own queue pair and another.
    #[test]
    fn bound_window_grants_exactly_its_rights_in_its_range() {
        for is_type_2 in [false, true] {
            for bits in 0..8 {
                let granted = Access::from_bits_truncate(bits << 1);
                let (mut table, lkey) = table(all());
                let key = table.alloc_window(PD, is_type_2).unwrap();
                table.bind(&binding(key, lkey, granted), PD, QPN).unwrap();
                for needed in [
                    Access::REMOTE_WRITE,
                    Access::REMOTE_READ,
                    Access::REMOTE_ATOMIC,
                ] {
                    for (at, len, inside) in [
                        (BOUND, 16, true),
                        (BOUND + 15, 1, true),
                        (BOUND - 1, 1, false),
                        (BOUND + 16, 1, false),
                        (BOUND, 17, false),
                        (BOUND, u64::MAX, false),
                        (u64::MAX, 2, false),
                    ] {
                        let expected = inside && granted.contains(needed);
                        assert_eq!(may(&table, key, at, len, QPN, needed), expected);
                        let other = may(&table, key, at, len, QPN + 1, needed);
                        assert_eq!(other, expected && !is_type_2);
                    }
                }
                // No window is for scatter-gather lists.
                for local in [Access::LOCAL, Access::LOCAL_WRITE] {
                    assert!(!may(&table, key, BOUND, 1, QPN, local));
                }
                let foreign = table.find(key, BOUND, 1, (Pd(2), QPN), Access::REMOTE_READ);
                assert_eq!(foreign, Err(ProtectionError::NotAssociated));
            }
        }
    }

    #[test]
    fn binding_beyond_the_regions_rights_range_or_domain_is_refused() {
        let write = Access::REMOTE_WRITE;
        let no_write = Access::MW_BIND | Access::REMOTE_READ;
        for (region, access, lkey_flip, addr, len, error) in [
            (
                all() - Access::MW_BIND,
                write,
                0,
                BOUND,
                16,
                ProtectionError::Access,
            ),
            (no_write, write, 0, BOUND, 16, ProtectionError::Access),
            (
                no_write,
                Access::REMOTE_ATOMIC,
                0,
                BOUND,
                16,
                ProtectionError::Access,
            ),
            (
                all(),
                Access::MW_BIND,
                0,
                BOUND,
                16,
                ProtectionError::Access,
            ),
            (all(), write, 1, BOUND, 16, ProtectionError::InvalidStag),
            (all(), write, 0, BOUND, 241, ProtectionError::Bounds),
            (all(), write, 0, 0xffff, 16, ProtectionError::Bounds),
            (all(), write, 0, u64::MAX, 16, ProtectionError::Bounds),
        ] {
            let (mut table, lkey) = table(region);
            let key = table.alloc_window(PD, true).unwrap();
            let bind = WindowBind {
                addr,
                len,
                ..binding(key, lkey ^ lkey_flip, access)
            };
            assert_eq!(table.bind(&bind, PD, QPN), Err(error));
            assert!(!may(&table, key, BOUND, 1, QPN, write));
            let foreign = table.bind(&binding(key, lkey, write), Pd(2), QPN);
            assert_eq!(foreign, Err(ProtectionError::NotAssociated));
        }
        let (mut table, lkey) = table(no_write);
        let key = table.alloc_window(PD, false).unwrap();
        assert_eq!(
            table.bind(&binding(key, lkey, Access::REMOTE_READ), PD, QPN),
            Ok(())
        );
        // Neither a region's key nor a window's is the other.
        let inside = table.bind(&binding(key + 1, key, Access::REMOTE_READ), PD, QPN);
        assert_eq!(inside, Err(ProtectionError::Access));
        let region = table.bind(&binding(lkey, lkey, Access::REMOTE_READ), PD, QPN);
        assert_eq!(region, Err(ProtectionError::InvalidStag));
    }

    #[test]
    fn type_2_is_bound_once_until_it_is_invalidated_by_its_own_queue_pair() {
        let (mut table, lkey) = table(all());
        let key = table.alloc_window(PD, true).unwrap();
        let read = Access::REMOTE_READ;
        let next = key & !0xff | (key + 1) & 0xff;
        let unbound = table.invalidate(key, PD, QPN);
        assert_eq!(unbound, Err(ProtectionError::InvalidStag));
        table.bind(&binding(next, lkey, read), PD, QPN).unwrap();
        assert!(!may(&table, key, BOUND, 1, QPN, read), "the key of before");
        let again = table.bind(&binding(key, lkey, read), PD, QPN);
        assert_eq!(again, Err(ProtectionError::InvalidStag));
        for (key, pd, qpn, error) in [
            (next, PD, QPN + 1, ProtectionError::NotAssociated),
            (next, Pd(2), QPN, ProtectionError::NotAssociated),
            (key, PD, QPN, ProtectionError::InvalidStag),
            (lkey, PD, QPN, ProtectionError::CannotInvalidate),
        ] {
            assert_eq!(table.invalidate(key, pd, qpn), Err(error));
        }
        table.invalidate(next, PD, QPN).unwrap();
        assert!(!may(&table, next, BOUND, 1, QPN, read));
        table.bind(&binding(key, lkey, read), PD, QPN).unwrap();
        table.close_windows_of(QPN + 1);
        assert!(may(&table, key, BOUND, 1, QPN, read));
        table.close_windows_of(QPN);
        assert!(!may(&table, key, BOUND, 1, QPN, read));
    }

    #[test]
    fn type_1_is_bound_again_closed_by_nothing_and_never_invalidated() {
        let (mut table, lkey) = table(all());
        let key = table.alloc_window(PD, false).unwrap();
        let read = Access::REMOTE_READ;
        table.bind(&binding(key, lkey, read), PD, QPN).unwrap();
        let refused = table.invalidate(key, PD, QPN);
        assert_eq!(refused, Err(ProtectionError::CannotInvalidate));
        let next = key & !0xff | (key + 1) & 0xff;
        let zero_based = binding(next, lkey, read | Access::ZERO_BASED);
        table.bind(&zero_based, PD, QPN).unwrap();
        assert!(!may(&table, key, BOUND, 1, QPN, read));
        assert!(may(&table, next, 0, 16, QPN, read) && !may(&table, next, BOUND, 1, QPN, read));
        let nothing = WindowBind {
            len: 0,
            ..binding(key, lkey, read)
        };
        table.bind(&nothing, PD, QPN).unwrap();
        assert!(!may(&table, key, BOUND, 1, QPN, read));
        assert!(!may(&table, next, 0, 1, QPN, read));
    }

    #[test]
    fn region_with_a_bound_window_stays() {
        let (mut table, lkey) = table(all());
        let key = table.alloc_window(PD, false).unwrap();
        table
            .bind(&binding(key, lkey, Access::REMOTE_READ), PD, QPN)
            .unwrap();
        assert_eq!(table.deregister(lkey), Err(EngineError::Busy));
        assert_eq!(table.deregister(key), Err(EngineError::Invalid));
        assert_eq!(table.dealloc_window(lkey), Err(EngineError::Invalid));
        assert_eq!(table.dealloc_window(key), Ok(PD));
        assert!(!may(&table, key, BOUND, 1, QPN, Access::REMOTE_READ));
        assert_eq!(table.deregister(lkey), Ok(PD));
        assert_eq!(table.count(), 0);
    }
}
