//! Memory windows as objects.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;

use rdma_core_sys::verbs::{
    ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_mw_type, ibv_pd, ibv_qp, ibv_send_wr, IBV_MW_TYPE_1,
    IBV_MW_TYPE_2,
};

use super::context;
use super::errno::VerbsError;
use super::ffi;
use super::mr::MemoryRegion;
use super::objects::Object;
use super::pd::ProtectionDomain;
use super::qp::request;
use super::qp::structure::QueuePair;
use urdma_engine::{Engine, Payload, SendOp, SendWr, WindowBind};

/// A memory window; the public structure of libibverbs is its first field.
#[repr(C)]
struct MemoryWindow {
    verbs: UnsafeCell<ibv_mw>,
    engine: Arc<Engine>,
    /// The key at allocation, which identifies the window throughout its life.
    key: u32,
}

// SAFETY: the public structure is the first field and has no destructor.
unsafe impl Object for MemoryWindow {
    type Public = ibv_mw;
}

/// `ibv_alloc_mw`
pub(super) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    ffi::pointer(|| {
        if !matches!(kind, IBV_MW_TYPE_1 | IBV_MW_TYPE_2) {
            return Err(VerbsError::Invalid);
        }
        // SAFETY: libibverbs calls through the context of the object that the application passes.
        let ((owner, domain), context) =
            unsafe { (context::named::<ProtectionDomain>(pd)?, (*pd).context) };
        let key = domain
            .engine
            .alloc_window(domain.pd, kind == IBV_MW_TYPE_2)?;
        let object = Box::new(MemoryWindow {
            verbs: UnsafeCell::new(ibv_mw {
                context,
                pd,
                rkey: key,
                handle: key,
                type_: kind,
            }),
            engine: domain.engine.clone(),
            key,
        });
        owner.objects.add(object)
    })
}

/// `ibv_dealloc_mw`
pub(super) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    let release = |object: &MemoryWindow| Ok(object.engine.dealloc_window(object.key)?);
    // SAFETY: libibverbs calls through the context of the object, which the application uses no
    // longer.
    ffi::status(|| unsafe { context::destroy(mw, release) })
}

/// `ibv_bind_mw`, for type 1 windows: on return the window has its new key.
pub(super) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    ffi::status(|| {
        // SAFETY: libibverbs calls through the window's context, and the application passes its
        // attributes.
        let (object, window, bind) = unsafe {
            let (owner, window) = context::named::<MemoryWindow>(mw)?;
            let object = owner.objects.find::<QueuePair>(qp)?;
            owner
                .objects
                .find_if_any::<MemoryRegion>((*bind).bind_info.mr)?;
            (object, &mut *window.verbs.get(), &*bind)
        };
        if window.type_ != IBV_MW_TYPE_1 {
            return Err(VerbsError::Invalid);
        }
        let key = key_with(window.rkey, window.rkey.wrapping_add(1));
        // SAFETY: the attributes name a region that was looked up, or none.
        let op = unsafe { binding(key, &bind.bind_info) };
        let wr = SendWr {
            wr_id: bind.wr_id,
            op,
            imm: None,
            flags: request::send_flags(bind.send_flags, object.sq_sig_all)?,
            shared_queue: 0,
            payload: Payload::Sges(&[]),
        };
        object.engine.post_send(&object.qp, &wr)?;
        window.rkey = key;
        Ok(())
    })
}

/// The bits of a key that a binding chooses; the other bits identify the window.
const TAG: u32 = 0xff;

/// The key of the window with key `rkey` after a binding with the tag of `wanted`.
const fn key_with(rkey: u32, wanted: u32) -> u32 {
    rkey & !TAG | wanted & TAG
}

/// The operation that binds the window to `key` and `info`.
///
/// # Safety
/// The region of `info` is null or lives.
unsafe fn binding(key: u32, info: &ibv_mw_bind_info) -> SendOp {
    // SAFETY: by the caller's promise.
    let lkey = unsafe { info.mr.as_ref() }.map_or(0, |region| region.lkey);
    SendOp::BindWindow(WindowBind {
        key,
        lkey,
        access: info.mw_access_flags,
        addr: info.addr,
        len: info.length,
    })
}

/// A request that binds a type 2 window.
#[derive(Debug)]
pub(super) struct BindRequest {
    window: *mut ibv_mw,
    key: u32,
    op: SendOp,
}

/// The binding that a request with the opcode `IBV_WR_BIND_MW` asks for. Only the tag of the wanted
/// key is used, as with other providers.
///
/// # Errors
/// [`VerbsError::Invalid`]: the window is not of type 2; type 1 windows are bound by `ibv_bind_mw`.
pub(super) fn bind_request(request: &ibv_send_wr) -> Result<BindRequest, VerbsError> {
    // SAFETY: with this opcode the application has set this member, whose objects live.
    unsafe {
        let bind = &request.__bindgen_anon_2.bind_mw;
        match bind.mw.as_ref() {
            Some(window) if window.type_ == IBV_MW_TYPE_2 => {
                let key = key_with(window.rkey, bind.rkey);
                Ok(BindRequest {
                    window: bind.mw,
                    key,
                    op: binding(key, &bind.bind_info),
                })
            }
            _ => Err(VerbsError::Invalid),
        }
    }
}

impl BindRequest {
    /// The engine's operation.
    pub(super) fn op(&self) -> SendOp {
        self.op
    }

    /// Stores the new key in the window's public structure, once the request is posted. If the
    /// binding fails later, the key gives no access, and still identifies the window in the next
    /// binding.
    pub(super) fn note_posted(&self) {
        // SAFETY: the window lives, as it did when the same call checked the request.
        unsafe { (*self.window).rkey = self.key };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdma_core_sys::verbs::{ibv_mr, IBV_WR_BIND_MW};

    #[test]
    fn bind_request_takes_the_tag_alone_and_windows_of_type_2_alone() {
        let mut region = ibv_mr {
            lkey: 5,
            ..ibv_mr::default()
        };
        let mut window = ibv_mw {
            type_: IBV_MW_TYPE_2,
            rkey: 0x1122_3344,
            ..ibv_mw::default()
        };
        let mut wr = ibv_send_wr {
            opcode: IBV_WR_BIND_MW,
            ..ibv_send_wr::default()
        };
        wr.__bindgen_anon_2.bind_mw.mw = &raw mut window;
        wr.__bindgen_anon_2.bind_mw.rkey = 0xffff_ff09;
        wr.__bindgen_anon_2.bind_mw.bind_info = ibv_mw_bind_info {
            mr: &raw mut region,
            addr: 0x1000,
            length: 16,
            mw_access_flags: 2,
        };
        let bind = bind_request(&wr).unwrap();
        let bound = SendOp::BindWindow(WindowBind {
            key: 0x1122_3309,
            lkey: 5,
            access: 2,
            addr: 0x1000,
            len: 16,
        });
        assert_eq!(bind.op(), bound);
        assert_eq!(window.rkey, 0x1122_3344);
        bind.note_posted();
        assert_eq!(window.rkey, 0x1122_3309);
        let mut type_1 = ibv_mw {
            type_: IBV_MW_TYPE_1,
            ..ibv_mw::default()
        };
        wr.__bindgen_anon_2.bind_mw.mw = &raw mut type_1;
        assert_eq!(bind_request(&wr).unwrap_err(), VerbsError::Invalid);
        wr.__bindgen_anon_2.bind_mw.mw = std::ptr::null_mut();
        assert_eq!(bind_request(&wr).unwrap_err(), VerbsError::Invalid);
    }
}
