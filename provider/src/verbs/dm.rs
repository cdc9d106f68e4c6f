//! Device memory: ordinary memory that the application accesses only through copies and work
//! requests.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rdma_core_sys::verbs::{ibv_alloc_dm_attr, ibv_context, ibv_dm};

use super::context::{self, Context};
use super::errno::VerbsError;
use super::ffi;
use super::objects::Object;

/// Maximum length of one allocation.
pub(super) const MAX_DM_OCTETS: u64 = 1 << 26;
/// Offset and length of copies must be multiples of this, as programs know it from devices.
const COPY_UNIT: usize = 4;
/// Largest alignment, as a power of two: a page.
const MAX_LOG_ALIGN: u32 = 12;

/// Zeroed pages of this process, unmapped when neither device memory nor a region uses them.
#[derive(Debug)]
pub(super) struct DevicePages {
    start: *mut u8,
    octets: usize,
}

// SAFETY: the value owns the pages, which are only copied to and from.
unsafe impl Send for DevicePages {}
// SAFETY: the value owns the pages, which are only copied to and from; concurrent copies of the
// same octets are the application's responsibility, as with any memory.
unsafe impl Sync for DevicePages {}

impl DevicePages {
    fn new(octets: usize) -> Result<Arc<Self>, VerbsError> {
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a new anonymous mapping affects no other.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), octets, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(VerbsError::NoMemory);
        }
        Ok(Arc::new(Self {
            start: start.cast(),
            octets,
        }))
    }

    /// As [`DevicePages::range`], for copies, which are in units of [`COPY_UNIT`].
    fn words(&self, offset: u64, length: usize) -> Result<*mut u8, VerbsError> {
        if !offset.is_multiple_of(COPY_UNIT as u64) || !length.is_multiple_of(COPY_UNIT) {
            return Err(VerbsError::Invalid);
        }
        self.range(offset, length)
    }

    /// The address of `length` octets from `offset`.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`]: beyond the end.
    pub(super) fn range(&self, offset: u64, length: usize) -> Result<*mut u8, VerbsError> {
        let offset = usize::try_from(offset).map_err(|_| VerbsError::Invalid)?;
        if offset > self.octets || length > self.octets - offset {
            return Err(VerbsError::Invalid);
        }
        // SAFETY: within the pages by the check above.
        Ok(unsafe { self.start.add(offset) })
    }
}

impl Drop for DevicePages {
    fn drop(&mut self) {
        // SAFETY: the value owns the mapping, and its address is not in use any more.
        unsafe { libc::munmap(self.start.cast(), self.octets) };
    }
}

/// Device memory; the public structure of libibverbs is its first field, followed by a second
/// handle.
#[repr(C)]
pub(super) struct DeviceMemory {
    verbs: ibv_dm,
    kept_handle: u32,
    pages: Arc<DevicePages>,
}

// SAFETY: the public structure is the first field and has no destructor.
unsafe impl Object for DeviceMemory {
    type Public = ibv_dm;
}

impl DeviceMemory {
    fn new(context: *mut ibv_context, handle: u32, pages: Arc<DevicePages>) -> Box<Self> {
        Box::new(Self {
            verbs: ibv_dm {
                context,
                memcpy_to_dm: Some(memcpy_to_dm),
                memcpy_from_dm: Some(memcpy_from_dm),
                handle,
                ..ibv_dm::default()
            },
            kept_handle: handle,
            pages,
        })
    }

    /// Allocates device memory with the attributes `attr`.
    fn alloc(context: *mut ibv_context, attr: &ibv_alloc_dm_attr) -> Result<Box<Self>, VerbsError> {
        if attr.comp_mask != 0 {
            return Err(VerbsError::NotSupported);
        }
        let fits = (1..=MAX_DM_OCTETS).contains(&(attr.length as u64));
        if !fits || attr.log_align_req > MAX_LOG_ALIGN {
            return Err(VerbsError::Invalid);
        }
        let pages = DevicePages::new(attr.length)?;
        let handle = HANDLES.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        by_handle().insert(handle, Arc::downgrade(&pages));
        Ok(Self::new(context, handle, pages))
    }

    /// Another object for device memory of this process.
    fn import(context: *mut ibv_context, handle: u32) -> Result<Box<Self>, VerbsError> {
        let pages = by_handle().get(&handle).and_then(Weak::upgrade);
        let pages = pages.ok_or(VerbsError::Invalid)?;
        Ok(Self::new(context, handle, pages))
    }

    /// Releases the memory, unless a region or another object uses it.
    fn release(&self) -> Result<(), VerbsError> {
        if Arc::strong_count(&self.pages) > 1 {
            return Err(VerbsError::Busy);
        }
        by_handle().remove(&self.kept_handle);
        Ok(())
    }

    /// The address of its pages.
    pub(super) fn pages(&self) -> &Arc<DevicePages> {
        &self.pages
    }
}

/// The device memory of this process by handle, for imports.
static BY_HANDLE: Mutex<BTreeMap<u32, Weak<DevicePages>>> = Mutex::new(BTreeMap::new());

/// The number of handles assigned so far.
static HANDLES: AtomicU32 = AtomicU32::new(0);

fn by_handle() -> MutexGuard<'static, BTreeMap<u32, Weak<DevicePages>>> {
    BY_HANDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `ibv_alloc_dm`
pub(super) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    ffi::pointer(|| {
        // SAFETY: libibverbs passes an open context of this plugin, the application its attributes.
        let (owner, attr) = unsafe { (Context::from_ptr(context), &*attr) };
        owner.objects.add(DeviceMemory::alloc(context, attr)?)
    })
}

/// `ibv_import_dm`: another object for the same memory.
pub(super) unsafe extern "C" fn import_dm(context: *mut ibv_context, handle: u32) -> *mut ibv_dm {
    ffi::pointer(|| {
        // SAFETY: libibverbs passes an open context of this plugin.
        let owner = unsafe { Context::from_ptr(context) };
        owner.objects.add(DeviceMemory::import(context, handle)?)
    })
}

/// `ibv_unimport_dm`
pub(super) unsafe extern "C" fn unimport_dm(dm: *mut ibv_dm) {
    // SAFETY: libibverbs calls through the context of the object, which the application uses no
    // longer. The call returns nothing.
    let _ = unsafe { context::destroy::<DeviceMemory>(dm, |_| Ok(())) };
}

/// `ibv_free_dm`; fails while a region or an imported object uses the memory.
pub(super) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    // SAFETY: libibverbs calls through the context of the object, which the application uses no
    // longer.
    ffi::status(|| unsafe { context::destroy(dm, DeviceMemory::release) })
}

/// The pages of device memory for a copy; copies look nothing up.
///
/// # Safety
/// `dm` is device memory of this plugin and lives while the reference does.
unsafe fn pages<'a>(dm: *mut ibv_dm) -> &'a Arc<DevicePages> {
    // SAFETY: by the caller's promise; the public structure is the first field.
    unsafe { &*dm.cast::<DeviceMemory>() }.pages()
}

/// `ibv_memcpy_to_dm`
unsafe extern "C" fn memcpy_to_dm(
    dm: *mut ibv_dm,
    offset: u64,
    from: *const c_void,
    length: usize,
) -> c_int {
    ffi::status(|| {
        // SAFETY: the application passes device memory of this plugin.
        let to = unsafe { pages(dm) }.words(offset, length)?;
        // SAFETY: `to` has `length` octets, and the application guarantees the same of `from`.
        unsafe { std::ptr::copy(from.cast(), to, length) };
        Ok(())
    })
}

/// `ibv_memcpy_from_dm`
unsafe extern "C" fn memcpy_from_dm(
    to: *mut c_void,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
) -> c_int {
    ffi::status(|| {
        // SAFETY: the application passes device memory of this plugin.
        let from = unsafe { pages(dm) }.words(offset, length)?;
        // SAFETY: `from` has `length` octets, and the application guarantees the same of `to`.
        unsafe { std::ptr::copy(from.cast_const(), to.cast(), length) };
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alloc(length: usize, log_align_req: u32, comp_mask: u32) -> Option<Box<DeviceMemory>> {
        let attr = ibv_alloc_dm_attr {
            length,
            log_align_req,
            comp_mask,
        };
        // The context is only stored.
        DeviceMemory::alloc(std::ptr::null_mut(), &attr).ok()
    }

    fn public(memory: &mut DeviceMemory) -> *mut ibv_dm {
        std::ptr::from_mut(memory).cast()
    }

    #[test]
    fn copies_reach_every_octet_and_none_beyond() {
        let mut memory = alloc(100, 3, 0).unwrap();
        let dm = public(&mut memory);
        let mut back = [9u8; 4];
        // SAFETY: the device memory lives, and the arrays have the given lengths.
        unsafe {
            assert_eq!(memcpy_to_dm(dm, 96, b"abcd".as_ptr().cast(), 4), 0);
            assert_eq!(memcpy_from_dm(back.as_mut_ptr().cast(), dm, 96, 4), 0);
            for (offset, length) in [(97, 4), (96, 3), (100, 4), (u64::MAX - 3, 4), (0, 104)] {
                let from = b"abcd".as_ptr().cast();
                assert_eq!(memcpy_to_dm(dm, offset, from, length), libc::EINVAL);
                let to = back.as_mut_ptr().cast();
                assert_eq!(memcpy_from_dm(to, dm, offset, length), libc::EINVAL);
            }
        }
        assert_eq!(&back, b"abcd");
        assert_eq!(memory.release(), Ok(()));
    }

    #[test]
    fn imported_memory_is_the_same_until_both_are_gone() {
        let import = |handle| DeviceMemory::import(std::ptr::null_mut(), handle);
        let mut memory = alloc(64, 0, 0).unwrap();
        let handle = memory.verbs.handle;
        let mut imported = import(handle).unwrap();
        let mut back = [0u8; 4];
        let (dm, other) = (public(&mut memory), public(&mut imported));
        // SAFETY: both objects live, and the arrays have the given lengths.
        unsafe {
            assert_eq!(memcpy_to_dm(dm, 8, b"abcd".as_ptr().cast(), 4), 0);
            assert_eq!(memcpy_from_dm(back.as_mut_ptr().cast(), other, 8, 4), 0);
        }
        assert_eq!(&back, b"abcd");
        assert_eq!(memory.release(), Err(VerbsError::Busy));
        drop(imported);
        assert_eq!(memory.release(), Ok(()));
        drop(memory);
        assert!(import(handle).is_err());
    }

    #[test]
    fn allocation_beyond_the_limits_is_refused() {
        let limit = usize::try_from(MAX_DM_OCTETS).unwrap();
        for (length, align, mask) in [(0, 0, 0), (limit + 1, 0, 0), (8, 13, 0), (8, 0, 1)] {
            assert!(alloc(length, align, mask).is_none());
        }
        let memory = alloc(limit, 12, 0).unwrap();
        let kept = memory.pages().clone();
        assert_eq!(memory.release(), Err(VerbsError::Busy));
        drop(kept);
        assert_eq!(memory.release(), Ok(()));
    }
}
