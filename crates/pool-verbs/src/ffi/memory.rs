//! Registered memory.

use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;

use rdma_core_sys::verbs;
use urdma_node_table::Region;
use urdma_pool::Sge;

use super::Domain;
use crate::error::Error;

/// A cache line.
#[repr(C, align(64))]
#[derive(Clone)]
struct Line([u64; LINE_WORDS]);

const LINE_WORDS: usize = 8;

/// Memory of the caller that is to be registered.
#[derive(Debug)]
pub struct Foreign {
    start: NonNull<u8>,
    len_octets: usize,
}

impl Foreign {
    /// So many octets from an address on; none if there are none, or the end has no address.
    ///
    /// # Safety
    /// The memory is allocated until the client or the node with which it is registered is dropped,
    /// or until [`crate::Client::deregister`] succeeds for it. Peers and devices access it at any
    /// time, so that nothing else borrows it.
    pub unsafe fn new(start: NonNull<u8>, len_octets: usize) -> Option<Self> {
        let end = start.addr().get().checked_add(len_octets);
        let is_possible = len_octets > 0 && end.is_some();
        is_possible.then_some(Self { start, len_octets })
    }
}

/// Registered memory.
#[derive(Debug)]
pub(crate) struct Memory {
    region: *mut verbs::ibv_mr,
    /// The device accesses it, too: it is never borrowed, only copied.
    start: *mut u8,
    len_octets: usize,
    /// The box of what starts there, unless it is the caller's.
    lines: Option<*mut [Line]>,
    _domain: Rc<Domain>,
}

/// What peers that are told the key may do.
const ALL_RIGHTS: verbs::ibv_access_flags = verbs::IBV_ACCESS_LOCAL_WRITE
    | verbs::IBV_ACCESS_REMOTE_WRITE
    | verbs::IBV_ACCESS_REMOTE_READ
    | verbs::IBV_ACCESS_REMOTE_ATOMIC;

impl Memory {
    /// Registers `len_octets`, zero at first. A peer that is told the key has every right.
    pub(crate) fn new(domain: &Rc<Domain>, len_octets: usize) -> Result<Self, Error> {
        Self::allocate(domain, len_octets, ALL_RIGHTS)
    }

    /// The same that peers may only read.
    pub(crate) fn read_only(domain: &Rc<Domain>, len_octets: usize) -> Result<Self, Error> {
        Self::allocate(domain, len_octets, verbs::IBV_ACCESS_REMOTE_READ)
    }

    /// The same for this process alone.
    pub(crate) fn own(domain: &Rc<Domain>, len_octets: usize) -> Result<Self, Error> {
        Self::allocate(domain, len_octets, verbs::IBV_ACCESS_LOCAL_WRITE)
    }

    /// Registers memory of the caller, for peers, too, with every right.
    pub(crate) fn offer(domain: &Rc<Domain>, memory: &Foreign) -> Result<Self, Error> {
        Self::register(domain, memory, ALL_RIGHTS)
    }

    /// Registers memory of the caller for this process alone.
    pub(crate) fn local(domain: &Rc<Domain>, memory: &Foreign) -> Result<Self, Error> {
        Self::register(domain, memory, verbs::IBV_ACCESS_LOCAL_WRITE)
    }

    fn allocate(
        domain: &Rc<Domain>,
        len_octets: usize,
        rights: verbs::ibv_access_flags,
    ) -> Result<Self, Error> {
        let line = Line([0; LINE_WORDS]);
        let lines = vec![line; len_octets.div_ceil(size_of::<Line>())].into_boxed_slice();
        let lines = Box::into_raw(lines);
        let start = NonNull::new(lines.cast()).ok_or(Error::Memory)?;
        match Self::register(domain, &Foreign { start, len_octets }, rights) {
            Ok(mut registered) => {
                registered.lines = Some(lines);
                Ok(registered)
            }
            Err(error) => {
                // SAFETY: it was just made from a box.
                drop(unsafe { Box::from_raw(lines) });
                Err(error)
            }
        }
    }

    fn register(
        domain: &Rc<Domain>,
        memory: &Foreign,
        rights: verbs::ibv_access_flags,
    ) -> Result<Self, Error> {
        let Foreign { start, len_octets } = *memory;
        let (at, access) = (start.as_ptr().cast(), rights.cast_signed());
        // SAFETY: the domain lives, and the memory until the region is deregistered.
        let region = unsafe { verbs::ibv_reg_mr(domain.raw, at, len_octets, access) };
        match region.is_null() {
            true => Err(Error::of("ibv_reg_mr")),
            false => Ok(Self {
                region,
                start: start.as_ptr(),
                len_octets,
                lines: None,
                _domain: Rc::clone(domain),
            }),
        }
    }

    pub(crate) fn addr(&self) -> u64 {
        self.start.expose_provenance() as u64
    }

    pub(crate) fn len_octets(&self) -> usize {
        self.len_octets
    }

    /// The local and the remote key.
    pub(crate) fn keys(&self) -> (u32, u32) {
        // SAFETY: the region is registered.
        unsafe { ((*self.region).lkey, (*self.region).rkey) }
    }

    /// The word of 8 octets at an index.
    ///
    /// # Panics
    /// If it is beyond the memory, or the memory is the caller's.
    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        assert!(self.lines.is_some() && index < self.len_octets / size_of::<u64>());
        // SAFETY: the word is in the allocation, which is aligned, and nothing borrows it but so.
        unsafe { AtomicU64::from_ptr(self.start.cast::<u64>().add(index)) }
    }

    /// The region, as peers name it.
    pub(crate) fn region(&self) -> Region {
        Region {
            rkey: self.keys().1,
            addr: self.addr(),
            len_octets: self.len_octets as u64,
        }
    }

    fn at(&self, offset: usize, len: usize) -> Result<*mut u8, Error> {
        let end = offset.checked_add(len);
        if end.is_none_or(|end| end > self.len_octets) {
            return Err(Error::Memory);
        }
        // SAFETY: the offset is in the allocation.
        Ok(unsafe { self.start.add(offset) })
    }

    /// Copies octets out of it.
    pub(crate) fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), Error> {
        let from = self.at(offset, to.len())?;
        for (n, octet) in to.iter_mut().enumerate() {
            // SAFETY: the range is in the allocation; the device may write it meanwhile.
            *octet = unsafe { from.add(n).read_volatile() };
        }
        Ok(())
    }

    /// Copies octets into other memory. The device accesses neither range until this returns.
    pub(crate) fn copy(&self, offset: usize, to: (&Self, usize), len: usize) -> Result<(), Error> {
        let (from, to) = (self.at(offset, len)?, to.0.at(to.1, len)?);
        // SAFETY: both ranges are in their allocations, which may be one.
        unsafe { std::ptr::copy(from, to, len) };
        Ok(())
    }

    /// The element of a range.
    pub(crate) fn element(&self, offset: usize, len_octets: u32) -> Sge {
        Sge {
            addr: self.addr() + offset as u64,
            len_octets,
            lkey: self.keys().0,
        }
    }

    /// Copies octets into it.
    pub(crate) fn write(&self, offset: usize, from: &[u8]) -> Result<(), Error> {
        let to = self.at(offset, from.len())?;
        for (n, octet) in from.iter().enumerate() {
            // SAFETY: the range is in the allocation; the device may read it meanwhile.
            unsafe { to.add(n).write_volatile(*octet) };
        }
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the region is registered; no device accesses the memory from then on.
        unsafe { verbs::ibv_dereg_mr(self.region) };
        if let Some(lines) = self.lines {
            // SAFETY: it was made from a box, and nothing uses it any more.
            drop(unsafe { Box::from_raw(lines) });
        }
    }
}
