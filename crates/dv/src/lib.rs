//! `liburdmadv.so`: the calls of `infiniband/urdmadv.h`, passed on to the provider that drives the
//! device (doc/adr/0021-urdmadv.md).
//!
//! The provider is where the functions of an open context are. The library thus finds the one that
//! libibverbs has loaded, wherever `urdma run` or the configuration of libibverbs has it, and links
//! none: a program with it also starts where urdma is not in use.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_void, CStr};
use std::mem::{transmute, MaybeUninit};
use std::ptr::null_mut;

use rdma_core_sys::private::verbs_device;
use rdma_core_sys::verbs::{ibv_context, ibv_device, ibv_qp, ibv_qp_ex, ibv_qp_init_attr_ex};
use urdma_abi::dv::{CreateQp, DvInitAttr, DvQpEx, LastError, QpEx, CREATE_QP, LAST_ERROR, QP_EX};

/// The name with which the provider registers with libibverbs.
const PROVIDER: &CStr = c"urdma";
const NOT_OURS: &CStr = c"the device is not one of urdma, or of a version without urdmadv";

/// The loaded object that has an address; its file and where it begins.
fn object_of(address: *const c_void) -> Option<(*const c_char, *mut c_void)> {
    let mut found = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: there is room for the answer, and any address may be asked for.
    if unsafe { libc::dladdr(address, found.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: dladdr has filled it in.
    let found = unsafe { found.assume_init() };
    Some((found.dli_fname, found.dli_fbase))
}

/// The function with a name in the provider that drives a context; `None` for another provider.
///
/// # Safety
/// `context` is null or an open context.
unsafe fn function(context: *mut ibv_context, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: by the caller's promise.
    let poll_cq = unsafe { context.as_ref() }?.ops.poll_cq?;
    let (file, base) = object_of(poll_cq as *const c_void)?;
    // SAFETY: the name of a loaded object; RTLD_NOLOAD loads nothing.
    let handle = unsafe { libc::dlopen(file, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return None;
    }
    // SAFETY: a valid handle and a C string.
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    // SAFETY: the open context keeps its provider loaded.
    unsafe { libc::dlclose(handle) };
    // A function of an object on which the provider depends is none of its own.
    let (_, owner) = object_of(address)?;
    (owner == base).then_some(address)
}

fn set_errno(value: i32) {
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() = value };
}

/// `urdmadv_is_supported`
///
/// # Safety
/// `device` is null or in a list of libibverbs.
#[no_mangle]
pub unsafe extern "C" fn urdmadv_is_supported(device: *mut ibv_device) -> bool {
    // SAFETY: a device of libibverbs begins a `verbs_device` of every version, which names the
    // operations of its provider; their name is a C string.
    unsafe {
        let device = device.cast::<verbs_device>();
        !device.is_null() && CStr::from_ptr((*(*device).ops).name) == PROVIDER
    }
}

/// `urdmadv_create_qp`
///
/// # Safety
/// `context` is open, and the attributes are those of the header.
#[no_mangle]
pub unsafe extern "C" fn urdmadv_create_qp(
    context: *mut ibv_context,
    qp_attr: *mut ibv_qp_init_attr_ex,
    attr: *const DvInitAttr,
) -> *mut ibv_qp {
    // SAFETY: by the caller's promise.
    let Some(create) = (unsafe { function(context, CREATE_QP) }) else {
        set_errno(libc::EOPNOTSUPP);
        return null_mut();
    };
    // SAFETY: the provider's function of this name has this type.
    let create = unsafe { transmute::<*mut c_void, CreateQp>(create) };
    // SAFETY: by the caller's promise.
    unsafe { create(context.cast(), qp_attr.cast(), attr) }.cast()
}

/// `urdmadv_qp_ex_from_ibv_qp_ex`
///
/// # Safety
/// `qp` is null or a queue pair with extended calls.
#[no_mangle]
pub unsafe extern "C" fn urdmadv_qp_ex_from_ibv_qp_ex(qp: *mut ibv_qp_ex) -> *mut DvQpEx {
    // SAFETY: by the caller's promise; a plain queue pair begins the structure.
    let context = unsafe { qp.as_ref() }.map(|qp| qp.qp_base.context);
    // SAFETY: a queue pair names its open context.
    let found = context.and_then(|context| unsafe { function(context, QP_EX) });
    let Some(qp_ex) = found else {
        set_errno(libc::EOPNOTSUPP);
        return null_mut();
    };
    // SAFETY: the provider's function of this name has this type.
    let qp_ex = unsafe { transmute::<*mut c_void, QpEx>(qp_ex) };
    // SAFETY: the queue pair is one of that provider.
    unsafe { qp_ex(qp.cast()) }
}

/// `urdmadv_last_error`
///
/// # Safety
/// `context` is null or open.
#[no_mangle]
pub unsafe extern "C" fn urdmadv_last_error(context: *mut ibv_context) -> *const c_char {
    // SAFETY: by the caller's promise.
    let Some(last_error) = (unsafe { function(context, LAST_ERROR) }) else {
        return NOT_OURS.as_ptr();
    };
    // SAFETY: the provider's function of this name has this type.
    let last_error = unsafe { transmute::<*mut c_void, LastError>(last_error) };
    last_error()
}
