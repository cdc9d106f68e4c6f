//! Memory regions as objects.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use rdma_core_sys::private::verbs_mr;
use rdma_core_sys::verbs::{
    ibv_dm, ibv_mr, ibv_pd, ibv_sge, IBV_ACCESS_HUGETLB, IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_ON_DEMAND, IBV_ACCESS_RELAXED_ORDERING, IBV_ACCESS_REMOTE_ATOMIC,
    IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_REREG_MR_CHANGE_ACCESS,
    IBV_REREG_MR_CHANGE_PD, IBV_REREG_MR_CHANGE_TRANSLATION, IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH,
    IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE,
    IB_UVERBS_ADVISE_MR_FLAG_FLUSH,
};

use urdma_kernel::uverbs::MrRequest;
use urdma_kernel::Kind;

use super::backend::Counterpart;
use super::context;
use super::dm::{DeviceMemory, DevicePages};
use super::errno::VerbsError;
use super::ffi;
use super::objects::Object;
use super::pd::ProtectionDomain;
use urdma_engine::{Access, Engine, EngineError, MrChange, MrKeys, Sge};

/// libibverbs' `enum ibv_mr_type`: how it handles fork when a region is deregistered.
const MR_PLAIN: c_int = 0;
const MR_NULL: c_int = 1;
const MR_IMPORTED: c_int = 2;

/// A memory region; the public structure of libibverbs is its first field.
#[repr(C)]
pub(super) struct MemoryRegion {
    verbs: UnsafeCell<verbs_mr>,
    engine: Arc<Engine>,
    lkey: u32,
    /// The device memory that contains the region.
    device: Option<Arc<DevicePages>>,
    /// Pins the pages in the kernel; only for a plain region without on-demand paging.
    pins: Mutex<Option<Arc<Counterpart>>>,
}

// SAFETY: the public structure is the first field of the first field and has no destructor.
unsafe impl Object for MemoryRegion {
    type Public = ibv_mr;
}

impl MemoryRegion {
    /// A region of `pd`; also sets the fields that not every libibverbs sets.
    fn create(
        pd: *mut ibv_pd,
        keys: MrKeys,
        length: usize,
        (mr_type, access): (c_int, c_int),
        device: Option<Arc<DevicePages>>,
        pins: Option<Arc<Counterpart>>,
    ) -> Result<*mut ibv_mr, VerbsError> {
        // SAFETY: the callers have looked the protection domain up; its context is set.
        let (context, owner) = unsafe { ((*pd).context, context::context_of(pd)) };
        let public = ibv_mr {
            context,
            pd,
            length,
            handle: keys.lkey,
            lkey: keys.lkey,
            rkey: keys.rkey,
            ..ibv_mr::default()
        };
        let object = Box::new(Self {
            verbs: UnsafeCell::new(verbs_mr {
                ibv_mr: public,
                mr_type,
                access,
            }),
            engine: owner.engine.clone(),
            lkey: keys.lkey,
            device,
            pins: Mutex::new(pins),
        });
        owner.objects.add(object)
    }
}

/// `ibv_reg_mr` and `ibv_reg_mr_iova`; libibverbs sets context, domain, address and length.
pub(super) unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    ffi::pointer(|| {
        // SAFETY: libibverbs calls through the context of the object that the application passes.
        let (_, domain) = unsafe { context::named::<ProtectionDomain>(pd)? };
        let rights = region_rights(access.cast_unsigned())?;
        let iova = if rights.contains(Access::ZERO_BASED) {
            0
        } else {
            iova
        };
        let is_everything = addr.is_null() && length == usize::MAX;
        // The whole address space, with on-demand paging only ("implicit").
        let octets = if is_everything && rights.contains(Access::ON_DEMAND) {
            domain.engine.info().limits.max_mr_octets
        } else {
            length as u64
        };
        let keys = domain
            .engine
            .register_mr(domain.pd, addr as u64, octets, iova, rights)?;
        let pins = pin(domain, addr as u64, octets, access, keys.lkey).inspect_err(|_| {
            // The key is not in use yet, so nothing can prevent this.
            let _ = domain.engine.deregister_mr(keys.lkey);
        })?;
        let kind = (MR_PLAIN, access);
        MemoryRegion::create(pd, keys, length, kind, None, pins)
    })
}

/// `ibv_alloc_null_mr`
pub(super) unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    ffi::pointer(|| {
        // SAFETY: libibverbs calls through the context of the object that the application passes.
        let (_, domain) = unsafe { context::named::<ProtectionDomain>(pd)? };
        let keys = domain.engine.register_null_mr(domain.pd)?;
        let kind = (MR_NULL, 0);
        MemoryRegion::create(pd, keys, 0, kind, None, None)
    })
}

/// `ibv_reg_dm_mr`: addresses are relative to the first octet of the region.
pub(super) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    ffi::pointer(|| {
        // SAFETY: libibverbs calls through the context of the object that the application passes.
        let (domain, pages) = unsafe {
            let (owner, domain) = context::named::<ProtectionDomain>(pd)?;
            (domain, owner.objects.find::<DeviceMemory>(dm)?.pages())
        };
        let rights = region_rights(access)?;
        if !rights.contains(Access::ZERO_BASED) || rights.contains(Access::ON_DEMAND) {
            return Err(VerbsError::Invalid);
        }
        let addr = pages.range(offset, length)?;
        let keys = domain
            .engine
            .register_mr(domain.pd, addr as u64, length as u64, 0, rights)?;
        let kind = (MR_NULL, access.cast_signed());
        let pages = Some(pages.clone());
        MemoryRegion::create(pd, keys, length, kind, pages, None)
    })
}

/// `ibv_rereg_mr`; libibverbs then sets domain, address and length in the public structure.
pub(super) unsafe extern "C" fn rereg_mr(
    mr: *mut verbs_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    ffi::status(|| {
        // SAFETY: libibverbs calls through the context of the object that the application passes;
        // libibverbs' own structure of a region begins with the public one.
        let (owner, object) = unsafe { context::named::<MemoryRegion>(mr.cast())? };
        let flags = flags.cast_unsigned();
        let given = |bit| flags & bit != 0;
        if object.device.is_some() || (given(IBV_REREG_MR_CHANGE_TRANSLATION) && length == 0) {
            return Err(VerbsError::Invalid);
        }
        // SAFETY: libibverbs writes these fields only between calls with the region, and the
        // application does not destroy the domain meanwhile.
        let (domain, before) = unsafe {
            let before = &*object.verbs.get();
            let changes_pd = given(IBV_REREG_MR_CHANGE_PD);
            let pd = if changes_pd { pd } else { before.ibv_mr.pd };
            (owner.objects.find::<ProtectionDomain>(pd)?, before)
        };
        let change = MrChange {
            pd: given(IBV_REREG_MR_CHANGE_PD).then_some(domain.pd),
            translation: given(IBV_REREG_MR_CHANGE_TRANSLATION).then_some((
                addr as u64,
                length as u64,
                addr as u64,
            )),
            access: given(IBV_REREG_MR_CHANGE_ACCESS)
                .then(|| region_rights(access.cast_unsigned()))
                .transpose()?,
        };
        let (start, octets) = match change.translation {
            Some((start, octets, _)) => (start, octets),
            None => (before.ibv_mr.addr as u64, before.ibv_mr.length as u64),
        };
        let access = if change.access.is_some() {
            access
        } else {
            before.access
        };
        let pins = pin(domain, start, octets, access, object.lkey)?;
        object.engine.reregister_mr(object.lkey, &change)?;
        *object.pins.lock().unwrap_or_else(PoisonError::into_inner) = pins;
        Ok(())
    })
}

/// `ibv_import_mr`: another object for a region of this process; the region ends with either
/// object. The new object has no address.
pub(super) unsafe extern "C" fn import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    ffi::pointer(|| {
        // SAFETY: libibverbs calls through the context of the object that the application passes.
        let (_, domain) = unsafe { context::named::<ProtectionDomain>(pd)? };
        let (octets, keys) = domain.engine.find_mr(domain.pd, handle)?;
        let length = usize::try_from(octets).map_err(|_| VerbsError::Invalid)?;
        let kind = (MR_IMPORTED, 0);
        MemoryRegion::create(pd, keys, length, kind, None, None)
    })
}

/// `ibv_unimport_mr`: destroys the object, not the region.
pub(super) unsafe extern "C" fn unimport_mr(mr: *mut ibv_mr) {
    // SAFETY: libibverbs calls through the context of the object, which the application uses no
    // longer. The call returns nothing.
    let _ = unsafe { context::destroy::<MemoryRegion>(mr, |_| Ok(())) };
}

/// `ibv_dereg_mr`
pub(super) unsafe extern "C" fn dereg_mr(mr: *mut verbs_mr) -> c_int {
    let release = |object: &MemoryRegion| Ok(object.engine.deregister_mr(object.lkey)?);
    // SAFETY: libibverbs calls through the context of the object, which the application uses no
    // longer; libibverbs' own structure of a region begins with the public one.
    ffi::status(|| unsafe { context::destroy(mr.cast(), release) })
}

/// The access rights that are passed to the kernel; they decide whether pages must be writable.
const PINNED_RIGHTS: u32 = IBV_ACCESS_LOCAL_WRITE
    | IBV_ACCESS_REMOTE_WRITE
    | IBV_ACCESS_REMOTE_READ
    | IBV_ACCESS_REMOTE_ATOMIC;

/// Has the kernel pin a region's pages, if the domain has a kernel counterpart. Regions with
/// on-demand paging and of length 0 are not pinned.
fn pin(
    domain: &ProtectionDomain,
    start: u64,
    length: u64,
    access: c_int,
    key: u32,
) -> Result<Option<Arc<Counterpart>>, VerbsError> {
    let access = access.cast_unsigned();
    let Some(domain) = domain
        .kernel
        .as_ref()
        .filter(|_| access & IBV_ACCESS_ON_DEMAND == 0 && length > 0)
    else {
        return Ok(None);
    };
    let region = domain.sibling(Kind::Mr);
    let request = MrRequest {
        pd: domain.handle()?,
        start,
        length,
        access: access & PINNED_RIGHTS,
        key,
    };
    region.make(|uverbs| uverbs.reg_mr(&request))?;
    Ok(Some(region))
}

/// `ibv_advise_mr`: brings pages of on-demand regions into memory; pages of other regions are
/// resident. Without the flush flag the call does not wait for pages, so unmapped ranges are no
/// error.
pub(super) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: c_uint,
    flags: u32,
    sg_list: *mut ibv_sge,
    count: u32,
) -> c_int {
    ffi::status(|| {
        // SAFETY: libibverbs calls through the context of the object that the application passes.
        let (_, domain) = unsafe { context::named::<ProtectionDomain>(pd)? };
        if flags & !IB_UVERBS_ADVISE_MR_FLAG_FLUSH != 0 || sg_list.is_null() || count == 0 {
            return Err(VerbsError::Invalid);
        }
        let (write, waits) = match advice {
            IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH => {
                (false, flags & IB_UVERBS_ADVISE_MR_FLAG_FLUSH != 0)
            }
            IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE => {
                (true, flags & IB_UVERBS_ADVISE_MR_FLAG_FLUSH != 0)
            }
            // Resident pages only: pages that are not resident are no error.
            IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => (false, false),
            _ => return Err(VerbsError::NotSupported),
        };
        for index in 0..count as usize {
            // SAFETY: the application passes a list of `count` elements.
            let sge = unsafe { &*sg_list.add(index) };
            let sge = Sge {
                addr: sge.addr,
                length: sge.length,
                lkey: sge.lkey,
            };
            match domain.engine.prefetch(domain.pd, &sge, write) {
                Err(EngineError::Fault) if !waits => {}
                // As in the man page: unknown key, or a range or right that the region does not
                // have.
                Err(EngineError::Invalid) => return Err(VerbsError::System(libc::EFAULT)),
                outcome => outcome?,
            }
        }
        Ok(())
    })
}

/// `IBV_ACCESS_FLUSH_GLOBAL` and `IBV_ACCESS_FLUSH_PERSISTENT`, which older headers lack: peers may
/// flush the region. The device has no FLUSH.
const FLUSH: u32 = 1 << 8 | 1 << 9;

/// The rights that `qp_access_flags` give; `None` if a flag is not supported. Those to flush give
/// nothing: as on hardware without FLUSH, they are accepted.
pub(super) fn queue_pair_rights(flags: u32) -> Option<Access> {
    rights_of(flags & !FLUSH)
}

/// The rights in `ibv_access_flags`; `None` if a flag is not supported.
fn rights_of(flags: u32) -> Option<Access> {
    // Both hints leave the contents of memory unchanged and can be ignored.
    Access::from_bits(flags & !(IBV_ACCESS_HUGETLB | IBV_ACCESS_RELAXED_ORDERING))
        .filter(|rights| !rights.contains(Access::LOCAL))
}

/// The rights that `ibv_access_flags` ask for, validated.
///
/// # Errors
/// [`VerbsError::NotSupported`] for flags that the device does not support; [`VerbsError::Invalid`]
/// for remote write or atomics without local write.
fn region_rights(access: u32) -> Result<Access, VerbsError> {
    let rights = rights_of(access).ok_or(VerbsError::NotSupported)?;
    if rights.intersects(Access::REMOTE_CHANGE) && !rights.contains(Access::LOCAL_WRITE) {
        return Err(VerbsError::Invalid);
    }
    Ok(rights)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn queue_pair_rights_accept_and_ignore_those_to_flush() {
        assert_eq!(queue_pair_rights(FLUSH | 2), Some(Access::REMOTE_WRITE));
        assert_eq!(queue_pair_rights(1 << 10), None);
    }

    #[test]
    fn region_rights_of_unknown_flags_is_not_supported() {
        for access in [1 << 8, 1 << 9, 1 << 30, 1 << 31] {
            assert_eq!(region_rights(access), Err(VerbsError::NotSupported));
        }
        assert_eq!(region_rights(1 << 20 | 1 << 7), Ok(Access::empty()));
        assert_eq!(region_rights(1 << 6), Ok(Access::ON_DEMAND));
    }
}
