//! Shared receive queues, as objects; posting to them is in [`super::post`].

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::ptr::addr_of_mut;
use std::sync::Arc;

use rdma_core_sys::verbs::{
    ibv_pd, ibv_srq, ibv_srq_attr, ibv_srq_init_attr, IBV_SRQ_LIMIT, IBV_SRQ_MAX_WR,
};

use urdma_kernel::Kind;

use super::device::Context;
use super::door::Events;
use super::errno::VerbsError;
use super::event::Unacknowledged;
use super::ffi;
use super::pd::ProtectionDomain;
use crate::engine::{Engine, Srq, SrqConfig};

/// A shared receive queue; libibverbs' part first.
#[repr(C)]
pub(super) struct SharedReceiveQueue {
    verbs: UnsafeCell<ibv_srq>,
    pub(super) engine: Arc<Engine>,
    pub(super) srq: Arc<Srq>,
    pub(super) unacknowledged: Unacknowledged,
    pub(super) events: Events,
}

impl SharedReceiveQueue {
    /// The object that contains what the application calls a shared receive queue.
    ///
    /// # Safety
    /// `srq` came from this file and lives while the reference does.
    #[inline]
    pub(super) unsafe fn from_ptr<'a>(srq: *mut ibv_srq) -> &'a Self {
        // SAFETY: the caller's promise; the public part is the first field.
        unsafe { &*srq.cast() }
    }

    /// A queue as `attr` wants it.
    fn create(
        context: &Context,
        pd: &ProtectionDomain,
        attr: &ibv_srq_attr,
    ) -> Result<Box<Self>, VerbsError> {
        let mut memory = Box::<Self>::new_uninit();
        let cookie = memory.as_mut_ptr() as u64;
        let events = context.door.events(Kind::Srq);
        let srq = context.engine.create_srq(SrqConfig {
            pd: pd.pd,
            max_wr: attr.max_wr.max(1),
            max_sge: attr.max_sge.max(1),
            // A limit is armed by ibv_modify_srq alone.
            limit: 0,
            cookie,
            events: events.sink(),
        })?;
        if let (Some(kernel), Some(domain)) = (events.counterpart(), &pd.kernel) {
            let domain = domain.handle()?;
            kernel.make(|uverbs| uverbs.create_srq(cookie, domain))?;
        }
        Ok(Box::write(
            memory,
            Self {
                verbs: UnsafeCell::new(ibv_srq::default()),
                engine: context.engine.clone(),
                srq,
                unacknowledged: Unacknowledged::default(),
                events,
            },
        ))
    }

    fn answer(&self) -> ibv_srq_attr {
        let (max_wr, srq_limit) = self.srq.size_and_limit();
        ibv_srq_attr {
            max_wr,
            max_sge: self.srq.max_sge(),
            srq_limit,
        }
    }
}

/// `ibv_create_srq`, and `ibv_create_srq_ex` for a basic queue; libibverbs fills in context, domain, lock and counter.
pub(super) unsafe extern "C" fn create_srq(
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    ffi::pointer(|| {
        // SAFETY: libibverbs passes a protection domain of ours, whose context it has set, and the application its attributes.
        let (context, domain, attr) = unsafe {
            (
                Context::from_ptr((*pd).context),
                ProtectionDomain::from_ptr(pd),
                &mut (*attr).attr,
            )
        };
        let object = SharedReceiveQueue::create(context, domain, attr)?;
        *attr = object.answer();
        Ok(Box::into_raw(object).cast())
    })
}

/// `ibv_modify_srq`
pub(super) unsafe extern "C" fn modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    ffi::status(|| {
        // SAFETY: libibverbs passes a queue of ours, the application its attributes.
        let (object, attr) = unsafe { (SharedReceiveQueue::from_ptr(srq), &*attr) };
        let mask = mask.cast_unsigned();
        if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
            return Err(VerbsError::Invalid);
        }
        let given = |bit, value| (mask & bit != 0).then_some(value);
        object.engine.modify_srq(
            &object.srq,
            given(IBV_SRQ_MAX_WR, attr.max_wr),
            given(IBV_SRQ_LIMIT, attr.srq_limit),
        )?;
        Ok(())
    })
}

/// `ibv_query_srq`
pub(super) unsafe extern "C" fn query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    ffi::status(|| {
        // SAFETY: libibverbs passes a queue of ours, the application room for the answer.
        unsafe { attr.write(SharedReceiveQueue::from_ptr(srq).answer()) };
        Ok(())
    })
}

/// `ibv_destroy_srq`: waits until the application has acknowledged the events that it has read.
pub(super) unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    ffi::status(|| {
        // SAFETY: libibverbs passes a queue of ours.
        let object = unsafe { SharedReceiveQueue::from_ptr(srq) };
        object.engine.destroy_srq(&object.srq)?;
        // SAFETY: the context outlives its objects, by the contract of ibv_close_device.
        let read_end = unsafe { (*(*srq).context).async_fd };
        object.events.retire(read_end, srq as u64);
        // SAFETY: libibverbs has initialized the lock, and the counter is what it guards.
        unsafe {
            object.unacknowledged.wait(
                addr_of_mut!((*srq).mutex),
                addr_of_mut!((*srq).cond),
                addr_of_mut!((*srq).events_completed),
            );
        }
        // SAFETY: the object came out of a box, the engine has forgotten it, and no event of it is on its way.
        drop(unsafe { Box::from_raw(srq.cast::<SharedReceiveQueue>()) });
        Ok(())
    })
}
