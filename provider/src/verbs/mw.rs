//! Memory windows, as objects.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;

use rdma_core_sys::verbs::{
    ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_mw_type, ibv_pd, ibv_qp, IBV_MW_TYPE_1,
    IBV_MW_TYPE_2,
};

use super::errno::VerbsError;
use super::ffi;
use super::pd::ProtectionDomain;
use super::post;
use super::qp::QueuePair;
use crate::engine::{Engine, Payload, SendOp, SendWr, WindowBind};

/// A memory window; libibverbs' part first.
#[repr(C)]
struct MemoryWindow {
    verbs: UnsafeCell<ibv_mw>,
    engine: Arc<Engine>,
    /// The key that it began with, which names it for ever.
    key: u32,
}

/// `ibv_alloc_mw`
pub(super) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    ffi::pointer(|| {
        if !matches!(kind, IBV_MW_TYPE_1 | IBV_MW_TYPE_2) {
            return Err(VerbsError::Invalid);
        }
        // SAFETY: libibverbs passes a protection domain of ours, whose context is set.
        let (domain, context) = unsafe { (ProtectionDomain::from_ptr(pd), (*pd).context) };
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
        Ok(Box::into_raw(object).cast())
    })
}

/// `ibv_dealloc_mw`
pub(super) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    ffi::status(|| {
        // SAFETY: libibverbs passes a window of ours; its public part is the first field.
        let object = unsafe { &*mw.cast::<MemoryWindow>() };
        object.engine.dealloc_window(object.key)?;
        // SAFETY: the object came out of a box, and the engine has forgotten the window.
        drop(unsafe { Box::from_raw(mw.cast::<MemoryWindow>()) });
        Ok(())
    })
}

/// `ibv_bind_mw`, for windows of type 1: the window's key is the new one when this returns.
pub(super) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    ffi::status(|| {
        // SAFETY: libibverbs passes objects of ours, the application its attributes.
        let (object, window, bind) = unsafe { (QueuePair::from_ptr(qp), &mut *mw, &*bind) };
        if window.type_ != IBV_MW_TYPE_1 {
            return Err(VerbsError::Invalid);
        }
        let key = window.rkey & !0xff | window.rkey.wrapping_add(1) & 0xff;
        // SAFETY: the application's attributes name a region that lives, or none.
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

/// The operation that gives the window `key` and what `info` says.
///
/// # Safety
/// The region of `info` is null or lives.
pub(super) unsafe fn binding(key: u32, info: &ibv_mw_bind_info) -> SendOp {
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
