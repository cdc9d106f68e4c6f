//! Domains of extended reliable connections (XRC) as objects.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::Arc;

use rdma_core_sys::verbs::{
    ibv_context, ibv_xrcd, ibv_xrcd_init_attr, IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS,
};

use super::context::{self, Context};
use super::errno::VerbsError;
use super::ffi;
use super::objects::Object;
use urdma_engine::{FileId, XrcDomain};

/// An XRC domain; the public structure of libibverbs is its first field.
#[repr(C)]
pub(super) struct XrcDomainObject {
    verbs: UnsafeCell<ibv_xrcd>,
    pub(super) domain: Arc<XrcDomain>,
}

// SAFETY: the public structure is the first field and has no destructor.
unsafe impl Object for XrcDomainObject {
    type Public = ibv_xrcd;
}

/// The identity of an open file (device and inode), however it was opened; `None` for -1.
fn file_of(fd: c_int) -> Result<Option<FileId>, VerbsError> {
    if fd == -1 {
        return Ok(None);
    }
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: there is room for the answer.
    if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
        return Err(VerbsError::last_os_error());
    }
    // SAFETY: fstat has initialized it.
    let stat = unsafe { stat.assume_init() };
    Ok(Some((stat.st_dev, stat.st_ino)))
}

/// `ibv_open_xrcd`
pub(super) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    ffi::pointer(|| {
        // SAFETY: libibverbs passes an open context of this plugin, the application its attributes.
        let (owner, attr) = unsafe { (Context::from_ptr(context), &*attr) };
        owner.refuse_on_rnic()?;
        let both = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
        if attr.comp_mask & !both != 0 {
            return Err(VerbsError::NotSupported);
        }
        if attr.comp_mask != both || attr.oflags & !(libc::O_CREAT | libc::O_EXCL) != 0 {
            return Err(VerbsError::Invalid);
        }
        let domain = owner.engine.open_xrc_domain(
            file_of(attr.fd)?,
            attr.oflags & libc::O_CREAT != 0,
            attr.oflags & libc::O_EXCL != 0,
        )?;
        let object = Box::new(XrcDomainObject {
            verbs: UnsafeCell::new(ibv_xrcd { context }),
            domain,
        });
        owner.objects.add(object)
    })
}

/// `ibv_close_xrcd`
pub(super) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    let release = |object: &XrcDomainObject| Ok(object.domain.close()?);
    // SAFETY: libibverbs calls through the context of the object, which the application uses no
    // longer.
    ffi::status(|| unsafe { context::destroy(xrcd, release) })
}
