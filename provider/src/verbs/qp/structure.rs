//! The structure of a queue pair; the calls that create, modify, query and destroy it are in
//! [`super::calls`].

use std::cell::UnsafeCell;
use std::mem::{offset_of, ManuallyDrop};
use std::sync::{Arc, Mutex};

use rdma_core_sys::private::VERBS_QP_RESERVE;
use rdma_core_sys::verbs::{ibv_ah_attr, ibv_qp};

use super::super::backend::Events;
use super::super::event::Unacknowledged;
use super::super::objects::Object;
use super::builder::Builder;
use super::layout::Part;
use super::rnic::Rnic;
use super::transitions::Service;
use urdma_abi::dv::DvQpEx;
use urdma_engine::{Engine, Qp};

/// Room for a `verbs_qp` of any libibverbs. The octets behind the plain `ibv_qp` are zero, which
/// means in every layout that the queue pair has no extended calls, unless they have been installed
/// ([`super::post_ex`]).
#[repr(C)]
pub(super) union VerbsPart {
    pub(in crate::verbs) qp: ManuallyDrop<ibv_qp>,
    pub(super) all: Part,
}

/// A queue pair; the public structure of libibverbs is its first field.
#[repr(C)]
pub(in crate::verbs) struct QueuePair {
    pub(super) verbs: UnsafeCell<VerbsPart>,
    /// What `urdmadv_qp_ex_from_ibv_qp_ex` returns.
    pub(in crate::verbs) dv: DvQpEx,
    pub(in crate::verbs) engine: Arc<Engine>,
    pub(in crate::verbs) qp: Arc<Qp>,
    pub(in crate::verbs) service: Service,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline: u32,
    /// Whether every send request is signaled.
    pub(in crate::verbs) sq_sig_all: bool,
    pub(in crate::verbs) unacknowledged: Unacknowledged,
    /// The requests that the extended calls are building.
    pub(super) builder: Builder,
    pub(super) events: Events,
    pub(in crate::verbs) rnic: Option<Rnic>,
    /// The address vector that was set last; locked while the queue pair is modified.
    pub(in crate::verbs) address: Mutex<Option<ibv_ah_attr>>,
}

// SAFETY: the public structure begins the first field, which has no destructor.
unsafe impl Object for QueuePair {
    type Public = ibv_qp;
}

impl QueuePair {
    /// The object whose public structure is `qp`.
    ///
    /// # Safety
    /// `qp` is a queue pair of this plugin and lives while the reference does.
    #[inline]
    pub(in crate::verbs) unsafe fn from_ptr<'a>(qp: *mut ibv_qp) -> &'a Self {
        // SAFETY: by the caller's promise; the public structure is the first field.
        unsafe { &*qp.cast() }
    }

    /// The object that has this structure.
    ///
    /// # Safety
    /// `dv` is in a queue pair of this plugin that lives while the reference does.
    #[inline]
    pub(super) unsafe fn from_dv<'a>(dv: *mut DvQpEx) -> &'a Self {
        // SAFETY: by the caller's promise.
        unsafe { &*dv.byte_sub(offset_of!(Self, dv)).cast() }
    }
}

const _: () = {
    assert!(size_of::<VerbsPart>() == VERBS_QP_RESERVE);
    assert!(offset_of!(QueuePair, verbs) == 0);
};
