//! Device memory: ordinary memory that the application reaches only through copies and work requests.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rdma_core_sys::verbs::{ibv_alloc_dm_attr, ibv_context, ibv_dm};

use super::errno::VerbsError;
use super::ffi;

/// Octets of one allocation at most.
pub(super) const MAX_DM_OCTETS: u64 = 1 << 26;
/// Copies begin at multiples of so many octets, and are of so many: what programs know from devices.
const COPY_UNIT: usize = 4;
/// Largest alignment, as a power of two: that of a page.
const MAX_LOG_ALIGN: u32 = 12;

/// Zeroed pages of this process, given back when neither the device memory nor a region uses them.
#[derive(Debug)]
pub(super) struct DevicePages {
    start: *mut u8,
    octets: usize,
}

// SAFETY: the pages belong to the value alone, and are only copied to and from.
unsafe impl Send for DevicePages {}
// SAFETY: as above; concurrent copies of the same octets are the application's affair, as with any memory.
unsafe impl Sync for DevicePages {}

impl DevicePages {
    fn new(octets: usize) -> Result<Arc<Self>, VerbsError> {
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a new anonymous mapping disturbs nothing.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), octets, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(VerbsError::NoMemory);
        }
        Ok(Arc::new(Self {
            start: start.cast(),
            octets,
        }))
    }

    /// As [`DevicePages::range`], for copies, which are of whole words.
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
        // SAFETY: within the pages as just checked.
        Ok(unsafe { self.start.add(offset) })
    }
}

impl Drop for DevicePages {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and nobody has its address any more.
        unsafe { libc::munmap(self.start.cast(), self.octets) };
    }
}

/// Device memory; libibverbs' part first, with a second handle behind the public one.
#[repr(C)]
struct DeviceMemory {
    verbs: ibv_dm,
    kept_handle: u32,
    pages: Arc<DevicePages>,
}

impl DeviceMemory {
    fn create(context: *mut ibv_context, handle: u32, pages: Arc<DevicePages>) -> *mut ibv_dm {
        let object = Box::new(Self {
            verbs: ibv_dm {
                context,
                memcpy_to_dm: Some(memcpy_to_dm),
                memcpy_from_dm: Some(memcpy_from_dm),
                handle,
                ..ibv_dm::default()
            },
            kept_handle: handle,
            pages,
        });
        Box::into_raw(object).cast()
    }
}

/// The device memory of this process by handle, so that it can be imported.
static BY_HANDLE: Mutex<BTreeMap<u32, Weak<DevicePages>>> = Mutex::new(BTreeMap::new());

/// Handles that were given so far.
static HANDLES: AtomicU32 = AtomicU32::new(0);

fn by_handle() -> MutexGuard<'static, BTreeMap<u32, Weak<DevicePages>>> {
    BY_HANDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The pages of device memory.
///
/// # Safety
/// `dm` came from this file and lives while the reference does.
pub(super) unsafe fn pages<'a>(dm: *mut ibv_dm) -> &'a Arc<DevicePages> {
    // SAFETY: the caller's promise; the public part is the first field.
    unsafe { &(*dm.cast::<DeviceMemory>()).pages }
}

/// `ibv_alloc_dm`
pub(super) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    ffi::pointer(|| {
        // SAFETY: the application passes its attributes.
        let attr = unsafe { &*attr };
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
        Ok(DeviceMemory::create(context, handle, pages))
    })
}

/// `ibv_import_dm`: another object for the same memory.
pub(super) unsafe extern "C" fn import_dm(context: *mut ibv_context, handle: u32) -> *mut ibv_dm {
    ffi::pointer(|| {
        let pages = by_handle().get(&handle).and_then(Weak::upgrade);
        let pages = pages.ok_or(VerbsError::Invalid)?;
        Ok(DeviceMemory::create(context, handle, pages))
    })
}

/// `ibv_unimport_dm`
pub(super) unsafe extern "C" fn unimport_dm(dm: *mut ibv_dm) {
    // SAFETY: libibverbs passes what import_dm put into a box, and nobody uses it any more.
    drop(unsafe { Box::from_raw(dm.cast::<DeviceMemory>()) });
}

/// `ibv_free_dm`; not while a region or an imported object uses the memory.
pub(super) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    ffi::status(|| {
        // SAFETY: libibverbs passes device memory of ours.
        if Arc::strong_count(unsafe { pages(dm) }) > 1 {
            return Err(VerbsError::Busy);
        }
        // SAFETY: the object came out of a box, and nobody else uses its pages.
        let object = unsafe { Box::from_raw(dm.cast::<DeviceMemory>()) };
        by_handle().remove(&object.kept_handle);
        Ok(())
    })
}

/// `ibv_memcpy_to_dm`
unsafe extern "C" fn memcpy_to_dm(
    dm: *mut ibv_dm,
    offset: u64,
    from: *const c_void,
    length: usize,
) -> c_int {
    ffi::status(|| {
        // SAFETY: the application passes device memory of ours.
        let to = unsafe { pages(dm) }.words(offset, length)?;
        // SAFETY: `to` is good for `length` octets, and the application says so of `from`.
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
        // SAFETY: the application passes device memory of ours.
        let from = unsafe { pages(dm) }.words(offset, length)?;
        // SAFETY: `from` is good for `length` octets, and the application says so of `to`.
        unsafe { std::ptr::copy(from.cast_const(), to.cast(), length) };
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alloc(length: usize, log_align_req: u32, comp_mask: u32) -> *mut ibv_dm {
        let mut attr = ibv_alloc_dm_attr {
            length,
            log_align_req,
            comp_mask,
        };
        // SAFETY: the context is only stored.
        unsafe { alloc_dm(std::ptr::null_mut(), &raw mut attr) }
    }

    #[test]
    fn copies_reach_every_octet_and_none_beyond() {
        let dm = alloc(100, 3, 0);
        let mut back = [9u8; 4];
        // SAFETY: the device memory lives, and the arrays are as long as said.
        unsafe {
            assert_eq!(memcpy_to_dm(dm, 96, b"abcd".as_ptr().cast(), 4), 0);
            assert_eq!(memcpy_from_dm(back.as_mut_ptr().cast(), dm, 96, 4), 0);
            for (offset, length) in [(97, 4), (96, 3), (100, 4), (u64::MAX - 3, 4), (0, 104)] {
                let from = b"abcd".as_ptr().cast();
                assert_eq!(memcpy_to_dm(dm, offset, from, length), libc::EINVAL);
                let to = back.as_mut_ptr().cast();
                assert_eq!(memcpy_from_dm(to, dm, offset, length), libc::EINVAL);
            }
            assert_eq!(free_dm(dm), 0);
        }
        assert_eq!(&back, b"abcd");
    }

    #[test]
    fn imported_memory_is_the_same_until_both_are_gone() {
        let dm = alloc(64, 0, 0);
        let mut back = [0u8; 4];
        // SAFETY: the objects live until they are given back, and the arrays are as long as said.
        unsafe {
            let handle = (*dm).handle;
            let imported = import_dm(std::ptr::null_mut(), handle);
            assert_eq!(memcpy_to_dm(dm, 8, b"abcd".as_ptr().cast(), 4), 0);
            assert_eq!(memcpy_from_dm(back.as_mut_ptr().cast(), imported, 8, 4), 0);
            assert_eq!(free_dm(dm), libc::EBUSY);
            unimport_dm(imported);
            assert_eq!(free_dm(dm), 0);
            assert!(import_dm(std::ptr::null_mut(), handle).is_null());
        }
        assert_eq!(&back, b"abcd");
    }

    #[test]
    fn allocation_beyond_the_limits_is_refused() {
        let limit = usize::try_from(MAX_DM_OCTETS).unwrap();
        for (length, align, mask) in [(0, 0, 0), (limit + 1, 0, 0), (8, 13, 0), (8, 0, 1)] {
            assert!(alloc(length, align, mask).is_null());
        }
        let dm = alloc(limit, 12, 0);
        // SAFETY: the device memory lives.
        unsafe {
            let kept = pages(dm).clone();
            assert_eq!(free_dm(dm), libc::EBUSY);
            drop(kept);
            assert_eq!(free_dm(dm), 0);
        }
    }
}
