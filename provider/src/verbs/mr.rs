//! Protection domains and memory regions.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

use rdma_core_sys::private::verbs_mr;
use rdma_core_sys::verbs::{
    ibv_context, ibv_mr, ibv_pd, IBV_ACCESS_HUGETLB, IBV_ACCESS_RELAXED_ORDERING,
};

use super::device::Context;
use super::errno::VerbsError;
use super::ffi;
use crate::engine::{Access, Engine, Pd};

/// A protection domain; libibverbs' part first.
#[repr(C)]
pub(super) struct ProtectionDomain {
    verbs: UnsafeCell<ibv_pd>,
    pub(super) engine: Arc<Engine>,
    pub(super) pd: Pd,
}

impl ProtectionDomain {
    /// The object that contains what the application calls a protection domain.
    ///
    /// # Safety
    /// `pd` came from [`alloc_pd`] and lives while the reference does.
    pub(super) unsafe fn from_ptr<'a>(pd: *mut ibv_pd) -> &'a Self {
        // SAFETY: the caller's promise; the public part is the first field.
        unsafe { &*pd.cast() }
    }
}

/// `ibv_alloc_pd`; libibverbs fills in the context.
pub(super) unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    ffi::pointer(|| {
        // SAFETY: libibverbs passes an open context of ours.
        let context = unsafe { Context::from_ptr(context) };
        let pd = context.engine.alloc_pd()?;
        let verbs = ibv_pd {
            handle: pd.number(),
            ..ibv_pd::default()
        };
        let object = Box::new(ProtectionDomain {
            verbs: UnsafeCell::new(verbs),
            engine: context.engine.clone(),
            pd,
        });
        Ok(Box::into_raw(object).cast())
    })
}

/// `ibv_dealloc_pd`
pub(super) unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    ffi::status(|| {
        // SAFETY: libibverbs passes a protection domain of ours.
        let object = unsafe { ProtectionDomain::from_ptr(pd) };
        object.engine.dealloc_pd(object.pd)?;
        // SAFETY: the object came out of a box, and with the engine's consent nobody uses it any more.
        drop(unsafe { Box::from_raw(pd.cast::<ProtectionDomain>()) });
        Ok(())
    })
}

/// A memory region; libibverbs' part first.
#[repr(C)]
struct MemoryRegion {
    verbs: UnsafeCell<verbs_mr>,
    engine: Arc<Engine>,
    lkey: u32,
}

/// `ibv_reg_mr` and `ibv_reg_mr_iova`; libibverbs fills in context, domain, address and length.
pub(super) unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    ffi::pointer(|| {
        // SAFETY: libibverbs passes a protection domain of ours.
        let pd = unsafe { ProtectionDomain::from_ptr(pd) };
        let rights = region_rights(access)?;
        populate(addr as usize, length, rights.contains(Access::LOCAL_WRITE))?;
        let keys = pd
            .engine
            .register_mr(pd.pd, addr as u64, length as u64, iova, rights)?;
        let public = ibv_mr {
            handle: keys.lkey,
            lkey: keys.lkey,
            rkey: keys.rkey,
            ..ibv_mr::default()
        };
        let object = Box::new(MemoryRegion {
            verbs: UnsafeCell::new(verbs_mr {
                ibv_mr: public,
                mr_type: 0,
                access,
            }),
            engine: pd.engine.clone(),
            lkey: keys.lkey,
        });
        Ok(Box::into_raw(object).cast())
    })
}

/// `ibv_dereg_mr`
pub(super) unsafe extern "C" fn dereg_mr(mr: *mut verbs_mr) -> c_int {
    ffi::status(|| {
        // SAFETY: libibverbs passes a region of ours; its public part is the first field.
        let object = unsafe { &*mr.cast::<MemoryRegion>() };
        object.engine.deregister_mr(object.lkey)?;
        // SAFETY: the object came out of a box, and the engine has forgotten the region.
        drop(unsafe { Box::from_raw(mr.cast::<MemoryRegion>()) });
        Ok(())
    })
}

/// The rights that `ibv_access_flags` ask for.
///
/// # Errors
/// [`VerbsError::NotSupported`] for flags of things the device does not have; [`VerbsError::Invalid`] for remote write or atomics
/// without local write.
fn region_rights(access: c_int) -> Result<Access, VerbsError> {
    // Neither hint changes what memory holds, so ignoring them is correct.
    let asked = access.cast_unsigned() & !(IBV_ACCESS_HUGETLB | IBV_ACCESS_RELAXED_ORDERING);
    let rights = Access::from_bits(asked).ok_or(VerbsError::NotSupported)?;
    if rights.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
        && !rights.contains(Access::LOCAL_WRITE)
    {
        return Err(VerbsError::Invalid);
    }
    Ok(rights)
}

/// Makes sure that the pages of a region are there and grant the rights asked for, as pinning does in a kernel driver: a peer's
/// request must not be what finds a hole.
fn populate(addr: usize, length: usize, write: bool) -> Result<(), VerbsError> {
    let end = addr.checked_add(length).ok_or(VerbsError::Invalid)?;
    if length == 0 {
        return Err(VerbsError::Invalid);
    }
    let advice = if write {
        libc::MADV_POPULATE_WRITE
    } else {
        libc::MADV_POPULATE_READ
    };
    let page = page_octets();
    let start = addr & !(page - 1);
    loop {
        // SAFETY: populating changes no content, and a range that is not mapped is an error, not a fault.
        if unsafe { libc::madvise(start as *mut c_void, end - start, advice) } == 0 {
            return Ok(());
        }
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => {}
            // Kernels before 5.14 do not know the advice; others say so of memory without the right.
            Some(libc::EINVAL) if !knows_advice(advice) => return Ok(()),
            _ => return Err(VerbsError::Fault),
        }
    }
}

/// Whether the kernel knows an advice, which it tells even about no memory at all.
fn knows_advice(advice: c_int) -> bool {
    // SAFETY: the range is empty.
    unsafe { libc::madvise(std::ptr::null_mut(), 0, advice) == 0 }
}

fn page_octets() -> usize {
    // SAFETY: sysconf has no precondition.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mapping of `pages` pages that is unmapped at the end.
    struct Mapping(*mut c_void, usize);

    impl Mapping {
        fn new(pages: usize, protection: c_int) -> Self {
            let octets = pages * page_octets();
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: an anonymous mapping at an address of the kernel's choice.
            let start =
                unsafe { libc::mmap(std::ptr::null_mut(), octets, protection, flags, -1, 0) };
            assert_ne!(start, libc::MAP_FAILED);
            Self(start, octets)
        }
    }

    impl Drop for Mapping {
        fn drop(&mut self) {
            // SAFETY: the mapping is ours.
            unsafe { libc::munmap(self.0, self.1) };
        }
    }

    #[test]
    fn region_rights_of_remote_write_without_local_write_is_invalid() {
        for access in [2, 8, 10, 6] {
            assert_eq!(region_rights(access), Err(VerbsError::Invalid));
            assert!(region_rights(access | 1).is_ok());
        }
        assert_eq!(region_rights(4), Ok(Access::REMOTE_READ));
        assert_eq!(region_rights(0), Ok(Access::empty()));
    }

    #[test]
    fn region_rights_of_unknown_flags_is_not_supported() {
        for access in [1 << 4, 1 << 5, 1 << 6, 1 << 8, 1 << 30] {
            assert_eq!(region_rights(access), Err(VerbsError::NotSupported));
        }
        assert_eq!(region_rights(1 << 20 | 1 << 7), Ok(Access::empty()));
    }

    #[test]
    fn populate_mapped_memory_is_taken() {
        let memory = Mapping::new(2, libc::PROT_READ | libc::PROT_WRITE);
        assert_eq!(populate(memory.0 as usize + 5, 100, true), Ok(()));
    }

    #[test]
    fn populate_memory_without_the_right_or_the_mapping_is_a_fault() {
        let read_only = Mapping::new(1, libc::PROT_READ);
        assert_eq!(populate(read_only.0 as usize, 8, false), Ok(()));
        assert_eq!(
            populate(read_only.0 as usize, 8, true),
            Err(VerbsError::Fault)
        );
        let hole = {
            let gone = Mapping::new(1, libc::PROT_READ);
            gone.0 as usize
        };
        assert_eq!(populate(hole, 8, false), Err(VerbsError::Fault));
    }

    #[test]
    fn populate_nothing_or_beyond_the_end_is_invalid() {
        assert_eq!(populate(0x1000, 0, false), Err(VerbsError::Invalid));
        assert_eq!(populate(usize::MAX, 2, false), Err(VerbsError::Invalid));
    }
}
