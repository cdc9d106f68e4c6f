//! The copies of libibverbs in this process. Each has its own drivers, devices and private
//! functions.
//!
//! There can be several: a Python wheel contains one under another name, in addition to the
//! distribution's. The plugin therefore links none. It looks for their functions in every loaded
//! object, registers with each copy whose private ABI is known, and keeps the data that its devices
//! need per copy.

use std::ffi::{c_int, c_void, CStr, CString};
use std::fmt;
use std::mem::{size_of, transmute_copy};
use std::ops::Range;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rdma_core_sys::abi::{self, PrivateAbi};
use rdma_core_sys::private::{
    verbs_context_ops, verbs_device, verbs_device_ops, InitAndAllocContext, RegisterDriver, SetOps,
    UninitContext,
};
use rdma_core_sys::verbs::{ibv_context, ibv_device, verbs_context};

use super::loaded::Objects;
use super::qp::layout;

/// A private function that every libibverbs exports under the same name.
const SET_OPS: &CStr = c"verbs_set_ops";
/// Private ABIs are numbered by the version of rdma-core. These numbers are tried to name an
/// unknown one in the error message.
const CONCEIVABLE_ABIS: std::ops::Range<u32> = 1..1000;

/// A copy of libibverbs with which the plugin is registered.
#[repr(C)]
pub(super) struct Library {
    /// The operations that this copy calls. Its devices point here, and thereby to their copy; must
    /// be the first field.
    driver: verbs_device_ops,
    abi: &'static PrivateAbi,
    operations: Vec<*const c_void>,
    register_driver: RegisterDriver,
    init_and_alloc_context: InitAndAllocContext,
    set_ops: SetOps,
    uninit_context: UninitContext,
    comp_mask_offset: Option<usize>,
}

/// Why a context could not be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoContext {
    /// libibverbs failed and has set errno.
    Refused,
    /// The layout of the context is not that of the copy's private ABI.
    UnknownLayout,
}

impl Library {
    /// The copy to which a device belongs.
    ///
    /// # Safety
    /// `device` belongs to this plugin, and libibverbs lists it.
    pub(super) unsafe fn of_device(device: *mut ibv_device) -> &'static Self {
        // SAFETY: the device points to the operations with which libibverbs found it. They are the
        // first field of a `Library`, which is never freed.
        unsafe { &*(*device.cast::<verbs_device>()).ops.cast::<Self>() }
    }

    /// The offset at which this copy looks for the mask of a queue pair's extended calls; `None` if
    /// it is unknown.
    pub(super) fn comp_mask_offset(&self) -> Option<usize> {
        self.comp_mask_offset
    }

    /// Creates a context whose public structure is followed by `room_octets` for the plugin, and
    /// returns the public structure. Takes ownership of `cmd_fd`, also on failure.
    ///
    /// # Safety
    /// `device` belongs to this copy.
    pub(super) unsafe fn make_context(
        &self,
        device: *mut ibv_device,
        cmd_fd: c_int,
        room_octets: usize,
        driver_id: u32,
    ) -> Result<*mut ibv_context, NoContext> {
        let private_octets = self.abi.context_offset;
        let verbs_octets = private_octets + size_of::<ibv_context>();
        let alloc_size = verbs_octets + room_octets;
        // SAFETY: by the caller's promise; the allocation begins with room for the context.
        let context: *mut c_void = unsafe {
            (self.init_and_alloc_context)(device, cmd_fd, alloc_size, null_mut(), driver_id)
        };
        if context.is_null() {
            return Err(NoContext::Refused);
        }
        // SAFETY: within the allocation.
        let public: *mut ibv_context = unsafe { context.byte_add(private_octets) }.cast();
        // SAFETY: the last word of the private part, which libibverbs has initialized, is the size
        // of the whole.
        if unsafe { public.cast::<usize>().sub(1).read() } != verbs_octets {
            // SAFETY: libibverbs has just created it.
            unsafe { self.free_context(public) };
            return Err(NoContext::UnknownLayout);
        }
        // SAFETY: the context is initialized, and the table is that of its ABI.
        unsafe { (self.set_ops)(context.cast(), self.operations.as_ptr().cast()) };
        Ok(public)
    }

    /// The `verbs_context` around this public structure.
    ///
    /// # Safety
    /// `public` came from [`Library::make_context`] of this copy.
    pub(super) unsafe fn verbs_context(&self, public: *mut ibv_context) -> *mut verbs_context {
        // SAFETY: the private part is in front of the public one.
        unsafe { public.byte_sub(self.abi.context_offset) }.cast()
    }

    /// The error message for a context of unknown layout.
    pub(super) fn unknown_layout(&self) -> String {
        format!(
            "libibverbs with the private provider ABI {} has a layout of contexts that this urdma \
             does not know",
            self.abi.number
        )
    }

    /// Closes and frees a context.
    ///
    /// # Safety
    /// `public` came from [`Library::make_context`] of this copy and is not used afterwards.
    pub(super) unsafe fn free_context(&self, public: *mut ibv_context) {
        // SAFETY: by the caller's promise.
        let context = unsafe { self.verbs_context(public) };
        // SAFETY: this copy of libibverbs has initialised the context, which is not used again.
        unsafe { (self.uninit_context)(context) };
        // SAFETY: libibverbs allocated it with calloc.
        unsafe { libc::free(context.cast()) };
    }
}

/// The load addresses of the copies that were found.
static FOUND: Mutex<Vec<usize>> = Mutex::new(Vec::new());
/// How many objects had been loaded when all were searched the last time.
static SEARCHED: AtomicU64 = AtomicU64::new(0);

/// Registers the plugin with every loaded copy of libibverbs that it is not registered with; prints
/// to standard error which copies it cannot serve.
pub(super) fn register_with_all(driver: &verbs_device_ops, ops: &verbs_context_ops) {
    let objects = Objects::loaded(SET_OPS);
    if objects.loads == SEARCHED.load(Ordering::Acquire) {
        return;
    }
    for name in objects.names() {
        let Some(copy) = Candidate::find(&objects, name) else {
            continue;
        };
        if is_known(copy.at.start) {
            continue;
        }
        // The dynamic linker is not called while the list is locked: a thread inside the dynamic
        // linker may be about to take this lock.
        let met = copy.library(driver, ops);
        let mut list = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
        if list.contains(&copy.at.start) {
            continue;
        }
        list.push(copy.at.start);
        // The copy is kept loaded: its devices and contexts need it, and its address must not be
        // reused while it is in the list.
        std::mem::forget(copy);
        match met {
            Ok(library) => {
                let library = Box::leak(Box::new(library));
                // SAFETY: the table is never freed. A copy searches its drivers only after it has
                // listed sysfs, during which the stand-in calls this function. So no thread reads
                // the copy's list while this call extends it.
                unsafe { (library.register_driver)(&library.driver) };
            }
            Err(reason) => eprintln!("urdma: {reason}"),
        }
    }
    SEARCHED.store(objects.loads, Ordering::Release);
}

/// Whether the copy at this address has been found before.
fn is_known(start: usize) -> bool {
    let list = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    list.contains(&start)
}

/// A loaded object that is a libibverbs; the handle keeps it loaded.
struct Candidate {
    handle: *mut c_void,
    name: CString,
    /// Its addresses.
    at: Range<usize>,
}

impl Candidate {
    /// The libibverbs that the object with this name is, or on which it depends, if it resolves its
    /// functions.
    fn find(objects: &Objects, name: &CStr) -> Option<Self> {
        let path = if name.is_empty() {
            null()
        } else {
            name.as_ptr()
        };
        // SAFETY: a C string, or null for the program itself; RTLD_NOLOAD loads nothing.
        let handle = unsafe { libc::dlopen(path, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if handle.is_null() {
            return None;
        }
        let mut copy = Self {
            handle,
            name: name.to_owned(),
            at: 0..0,
        };
        // SAFETY: a valid handle and a C string.
        let marker = unsafe { libc::dlsym(handle, SET_OPS.as_ptr()) };
        let object = objects.of(marker.addr())?;
        copy.at = object.at.clone();
        if !object.name.is_empty() {
            copy.name.clone_from(&object.name);
            copy.hold_itself();
        }
        Some(copy)
    }

    /// Replaces a handle that does not keep the copy loaded by its own: the program's finds each
    /// copy that was loaded with RTLD_GLOBAL. A program that contains a copy is always loaded.
    fn hold_itself(&mut self) {
        // SAFETY: a C string; RTLD_NOLOAD loads nothing.
        let own = unsafe { libc::dlopen(self.name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if !own.is_null() {
            let found = std::mem::replace(&mut self.handle, own);
            // SAFETY: the handle came from dlopen and is not used afterwards.
            unsafe { libc::dlclose(found) };
        }
    }

    /// A function of this object itself, not of another libibverbs that it depends on.
    fn symbol(&self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: a valid handle and a C string.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        self.at.contains(&address.addr()).then_some(address)
    }

    /// # Safety
    /// `F` is the type of the function with this name.
    unsafe fn function<F>(&self, name: &CStr) -> Result<F, Unserved> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let address = self.symbol(name).ok_or_else(|| Unserved::Function {
            path: self.path(),
            name: name.to_string_lossy().into_owned(),
        })?;
        // SAFETY: by the caller's promise.
        Ok(unsafe { transmute_copy(&address) })
    }

    fn path(&self) -> String {
        self.name.to_string_lossy().into_owned()
    }

    /// The registration function of a copy with this private ABI.
    fn registrar(&self, number: u32) -> Option<RegisterDriver> {
        let name = CString::new(format!("verbs_register_driver_{number}")).ok()?;
        // SAFETY: rdma-core declares it with this type in every version that has the number in its
        // name.
        unsafe { self.function(&name).ok() }
    }

    /// The data that is kept of this copy.
    fn library(
        &self,
        driver: &verbs_device_ops,
        ops: &verbs_context_ops,
    ) -> Result<Library, Unserved> {
        let known = abi::KNOWN
            .iter()
            .find_map(|abi| Some((abi, self.registrar(abi.number)?)));
        let (abi, register_driver) = known.ok_or_else(|| self.unknown_abi())?;
        // SAFETY: rdma-core declares the functions with these types in all versions of the known
        // private ABIs.
        unsafe {
            Ok(Library {
                driver: *driver,
                abi,
                operations: abi.operations(ops),
                register_driver,
                init_and_alloc_context: self.function(c"_verbs_init_and_alloc_context")?,
                set_ops: self.function(SET_OPS)?,
                uninit_context: self.function(c"verbs_uninit_context")?,
                comp_mask_offset: layout::comp_mask_offset(self.function(c"ibv_qp_to_qp_ex")?),
            })
        }
    }

    fn unknown_abi(&self) -> Unserved {
        let found = CONCEIVABLE_ABIS
            .clone()
            .find(|&number| self.registrar(number).is_some());
        Unserved::Abi {
            path: self.path(),
            found,
        }
    }
}

/// Why a copy is not served.
#[derive(Debug)]
enum Unserved {
    /// The copy at `path` has no function `name`.
    Function { path: String, name: String },
    /// The copy at `path` has another private provider ABI than the known ones, or none that can be
    /// recognised.
    Abi { path: String, found: Option<u32> },
}

impl fmt::Display for Unserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, found) = match self {
            Self::Function { path, name } => return write!(f, "{path} has no {name}"),
            Self::Abi { path, found } => (path, found),
        };
        match found {
            Some(number) => write!(f, "{path} has the private provider ABI {number}")?,
            None => write!(f, "{path} has no recognisable private provider ABI")?,
        }
        let known = abi::KNOWN.map(|abi| abi.number.to_string()).join(", ");
        write!(
            f,
            ", this urdma serves {known}: programs that use that copy find no device; have them \
             use the system's libibverbs, or install an urdma that knows it (doc/extending.md says \
             how to add one)"
        )
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        // SAFETY: the handle came from dlopen and is not used afterwards.
        unsafe { libc::dlclose(self.handle) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::qp::post_ex;
    use rdma_core_sys::private::VERBS_QP_RESERVE;

    /// The distribution's libibverbs.
    fn system() -> Candidate {
        // SAFETY: a C string; loading libibverbs runs no code of it.
        let handle = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "apt-get install libibverbs1");
        Candidate::find(&Objects::loaded(SET_OPS), c"libibverbs.so.1").unwrap()
    }

    #[test]
    fn libibverbs_loaded_is_found_once() {
        let system = system();
        let objects = Objects::loaded(SET_OPS);
        let found = objects
            .names()
            .filter_map(|name| Candidate::find(&objects, name));
        let found: Vec<_> = found.map(|copy| copy.at.clone()).collect();
        assert_eq!(found, std::slice::from_ref(&system.at));
        assert!(Candidate::find(&objects, c"libc.so.6").is_none());
        assert!(Candidate::find(&objects, c"no such object").is_none());
    }

    #[test]
    fn extended_calls_are_where_the_loaded_libibverbs_looks() {
        let library = system();
        // SAFETY: the type of this function in verbs.h.
        let to_qp_ex: layout::ToQpEx = unsafe { library.function(c"ibv_qp_to_qp_ex") }.unwrap();
        let mut part: layout::Part = [0; VERBS_QP_RESERVE / 8];
        // SAFETY: the part has room for a queue pair of any version.
        let is_extended =
            |part: &mut layout::Part| !unsafe { to_qp_ex(part.as_mut_ptr().cast()) }.is_null();
        assert!(!is_extended(&mut part));
        post_ex::install(&mut part, layout::comp_mask_offset(to_qp_ex)).unwrap();
        assert!(is_extended(&mut part));
    }

    #[test]
    fn libibverbs_without_a_known_abi_is_described() {
        // The program itself exports none of the functions.
        let mut copy = system();
        copy.at = 0..0;
        let sentence = copy.unknown_abi().to_string();
        assert!(sentence.contains("no recognisable private"), "{sentence}");
        assert!(sentence.contains("libibverbs.so.1"), "{sentence}");
    }
}
