//! Memory windows, as objects.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;

use rdma_core_sys::verbs::{
    ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_mw_type, ibv_pd, ibv_qp, ibv_send_wr, IBV_MW_TYPE_1,
    IBV_MW_TYPE_2,
};

use super::errno::VerbsError;
use super::ffi;
use super::mr::MemoryRegion;
use super::objects::{self, Object};
use super::pd::ProtectionDomain;
use super::post;
use super::qp::QueuePair;
use urdma_engine::{Engine, Payload, SendOp, SendWr, WindowBind};

/// A memory window; libibverbs' part first.
#[repr(C)]
struct MemoryWindow {
    verbs: UnsafeCell<ibv_mw>,
    engine: Arc<Engine>,
    /// The key that it began with, which names it for ever.
    key: u32,
}

// SAFETY: the public part is the first field, and has nothing to drop.
unsafe impl Object for MemoryWindow {
    type Public = ibv_mw;
}

/// `ibv_alloc_mw`
pub(super) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    ffi::pointer(|| {
        if !matches!(kind, IBV_MW_TYPE_1 | IBV_MW_TYPE_2) {
            return Err(VerbsError::Invalid);
        }
        // SAFETY: libibverbs calls through the context of what the application names.
        let ((owner, domain), context) =
            unsafe { (objects::named::<ProtectionDomain>(pd)?, (*pd).context) };
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
    // SAFETY: libibverbs calls through the context of what the application has done with.
    ffi::status(|| unsafe { objects::destroy(mw, release) })
}

/// `ibv_bind_mw`, for windows of type 1: the window's key is the new one when this returns.
pub(super) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    ffi::status(|| {
        // SAFETY: libibverbs calls through the window's context, and the application passes its
        // attributes.
        let (object, window, bind) = unsafe {
            let (owner, window) = objects::named::<MemoryWindow>(mw)?;
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
        // SAFETY: the attributes name a region that was found, or none.
        let op = unsafe { binding(key, &bind.bind_info) };
        let wr = SendWr {
            wr_id: bind.wr_id,
            op,
            imm: None,
            flags: post::send_flags(bind.send_flags, object.sq_sig_all)?,
            shared_queue: 0,
            payload: Payload::Sges(&[]),
        };
        object.engine.post_send(&object.qp, &wr)?;
        window.rkey = key;
        Ok(())
    })
}

/// Bits of a key that a binding chooses; the others say which window it is.
const TAG: u32 = 0xff;

/// The key of the window whose key is `rkey`, once it is bound with the tag of `wanted`.
const fn key_with(rkey: u32, wanted: u32) -> u32 {
    rkey & !TAG | wanted & TAG
}

/// The operation that gives the window `key` and what `info` says.
///
/// # Safety
/// The region of `info` is null or lives.
unsafe fn binding(key: u32, info: &ibv_mw_bind_info) -> SendOp {
    // SAFETY: the caller's promise.
    let lkey = unsafe { info.mr.as_ref() }.map_or(0, |region| region.lkey);
    SendOp::BindWindow(WindowBind {
        key,
        lkey,
        access: info.mw_access_flags,
        addr: info.addr,
        len: info.length,
    })
}

/// A request that binds a window of type 2.
#[derive(Debug)]
pub(super) struct BindRequest {
    window: *mut ibv_mw,
    key: u32,
    op: SendOp,
}

/// What a request with the opcode `IBV_WR_BIND_MW` asks for. Of the key that the application wants
/// only the tag counts, as with other providers.
///
/// # Errors
/// [`VerbsError::Invalid`]: it names no window of type 2; those of type 1 have a call of their own.
pub(super) fn bind_request(request: &ibv_send_wr) -> Result<BindRequest, VerbsError> {
    // SAFETY: with this opcode the application has filled in this member, whose objects live.
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
    /// What the engine is to do.
    pub(super) fn op(&self) -> SendOp {
        self.op
    }

    /// The request has been posted: stores the new key in the window's public structure. If the
    /// binding fails later, that key opens nothing, and still names the window in the next binding.
    pub(super) fn note_posted(&self) {
        // SAFETY: the window lives, as when the request was looked at in the same call.
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
