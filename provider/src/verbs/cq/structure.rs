//! The structure of a completion queue; the calls that create, resize and destroy it are in
//! [`super::calls`].

use std::cell::{Cell, UnsafeCell};
use std::mem::offset_of;
use std::sync::Arc;

use rdma_core_sys::verbs::{ibv_cq, ibv_cq_ex, ibv_wc};

use super::super::backend::Counterpart;
use super::super::event::Unacknowledged;
use super::super::objects::Object;
use urdma_engine::{CompletionSink, Cq, Engine};

/// A completion queue; the public structure of libibverbs is its first field.
#[repr(C)]
pub(in crate::verbs) struct CompletionQueue {
    pub(super) verbs: UnsafeCell<ibv_cq_ex>,
    pub(in crate::verbs) engine: Arc<Engine>,
    pub(in crate::verbs) cq: Arc<Cq>,
    /// The completion that the read calls of `ibv_cq_ex` refer to. The application polls one queue
    /// from one thread at a time.
    pub(super) current: Cell<ibv_wc>,
    pub(super) channel: Option<Arc<dyn CompletionSink>>,
    pub(in crate::verbs) kernel: Option<Arc<Counterpart>>,
    pub(in crate::verbs) unacknowledged: Unacknowledged,
}

// The extended structure begins with the fields of the plain one.
const _: () = {
    assert!(offset_of!(ibv_cq, cqe) == offset_of!(ibv_cq_ex, cqe));
    assert!(offset_of!(ibv_cq, mutex) == offset_of!(ibv_cq_ex, mutex));
    assert!(
        offset_of!(ibv_cq, comp_events_completed) == offset_of!(ibv_cq_ex, comp_events_completed)
    );
};

// SAFETY: the public structure is the first field and has no destructor.
unsafe impl Object for CompletionQueue {
    type Public = ibv_cq;
}

impl CompletionQueue {
    /// The object whose public structure is `cq`.
    ///
    /// # Safety
    /// `cq` is a completion queue of this plugin and lives while the reference does.
    #[inline]
    pub(in crate::verbs) unsafe fn from_ptr<'a>(cq: *mut ibv_cq) -> &'a Self {
        // SAFETY: by the caller's promise; the public structure is the first field.
        unsafe { &*cq.cast() }
    }

    /// As [`Self::from_ptr`], for the extended structure.
    ///
    /// # Safety
    /// As there.
    #[inline]
    pub(super) unsafe fn from_ex_ptr<'a>(cq: *mut ibv_cq_ex) -> &'a Self {
        // SAFETY: by the caller's promise; the public structure is the first field.
        unsafe { &*cq.cast() }
    }

    /// The public structure.
    pub(super) fn verbs(&self) -> *mut ibv_cq_ex {
        self.verbs.get()
    }
}
