//! Address handles.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;

use rdma_core_sys::verbs::{ibv_ah, ibv_ah_attr, ibv_pd};

use super::context;
use super::ffi;
use super::objects::Object;
use super::pd::ProtectionDomain;
use super::qp::attributes;
use urdma_engine::{AddressHandle, Engine};

/// An address handle; the public structure of libibverbs is its first field.
#[repr(C)]
pub(super) struct Handle {
    verbs: UnsafeCell<ibv_ah>,
    engine: Arc<Engine>,
    pub(super) handle: Arc<AddressHandle>,
}

// SAFETY: the public structure is the first field and has no destructor.
unsafe impl Object for Handle {
    type Public = ibv_ah;
}

impl Handle {
    /// The object whose public structure is `ah`; `None` for null.
    ///
    /// # Safety
    /// `ah` is null or came from [`create_ah`] and lives while the reference does.
    pub(super) unsafe fn from_ptr<'a>(ah: *mut ibv_ah) -> Option<&'a Self> {
        // SAFETY: by the caller's promise; the public structure is the first field.
        unsafe { ah.cast::<Self>().as_ref() }
    }
}

/// `ibv_create_ah`; libibverbs sets the context and the protection domain.
pub(super) unsafe extern "C" fn create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    ffi::pointer(|| {
        // SAFETY: libibverbs calls through the context of the object that the application passes
        // together with its attributes.
        let ((context, domain), attr) =
            unsafe { (context::named::<ProtectionDomain>(pd)?, &*attr) };
        context.refuse_on_rnic()?;
        let engine = &domain.engine;
        let (destination, sgid_index) = attributes::address(attr, engine.info())?;
        let traffic_class = attr.grh.traffic_class;
        let handle = engine.create_ah(domain.pd, sgid_index, destination, traffic_class)?;
        let object = Box::new(Handle {
            verbs: UnsafeCell::new(ibv_ah {
                handle: context.objects.next_handle(),
                ..ibv_ah::default()
            }),
            engine: engine.clone(),
            handle,
        });
        context.objects.add(object)
    })
}

/// `ibv_destroy_ah`
pub(super) unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    let release = |object: &Handle| Ok(object.engine.destroy_ah(&object.handle)?);
    // SAFETY: libibverbs calls through the context of the object, which the application uses no
    // longer.
    ffi::status(|| unsafe { context::destroy(ah, release) })
}
