//! Shared receive queues as objects; posting to them is in [`super::qp::post`].

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::ptr::addr_of_mut;
use std::sync::Arc;

use rdma_core_sys::verbs::{
    ibv_context, ibv_pd, ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex,
    IBV_SRQT_XRC, IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE,
    IBV_SRQ_INIT_ATTR_XRCD, IBV_SRQ_LIMIT, IBV_SRQ_MAX_WR,
};

use urdma_kernel::Kind;

use super::backend::Events;
use super::context::{self, Context};
use super::cq::structure::CompletionQueue;
use super::errno::VerbsError;
use super::event::Unacknowledged;
use super::ffi;
use super::objects::Object;
use super::pd::ProtectionDomain;
use super::xrc::XrcDomainObject;
use urdma_engine::{Engine, Srq, SrqConfig, XrcMembership};

/// A shared receive queue; the public structure of libibverbs is its first field.
#[repr(C)]
pub(super) struct SharedReceiveQueue {
    verbs: UnsafeCell<ibv_srq>,
    pub(super) engine: Arc<Engine>,
    pub(super) srq: Arc<Srq>,
    /// The domain of an XRC shared receive queue.
    xrc: Option<XrcMembership>,
    pub(super) unacknowledged: Unacknowledged,
    pub(super) events: Events,
}

// SAFETY: the public structure is the first field and has no destructor.
unsafe impl Object for SharedReceiveQueue {
    type Public = ibv_srq;
}

impl SharedReceiveQueue {
    /// The object whose public structure is `srq`.
    ///
    /// # Safety
    /// `srq` came from this file and lives while the reference does.
    #[inline]
    pub(super) unsafe fn from_ptr<'a>(srq: *mut ibv_srq) -> &'a Self {
        // SAFETY: by the caller's promise; the public structure is the first field.
        unsafe { &*srq.cast() }
    }

    /// A queue with the attributes `attr`; an XRC queue if it gets a domain and a completion queue.
    fn create(
        context: &Context,
        pd: &ProtectionDomain,
        verbs: ibv_srq,
        attr: &ibv_srq_attr,
        xrc: Option<(&XrcDomainObject, &CompletionQueue)>,
    ) -> Result<Box<Self>, VerbsError> {
        let mut memory = Box::<Self>::new_uninit();
        let engine = &context.engine;
        let cookie = memory.as_mut_ptr() as u64;
        let events = context.backend.events(Kind::Srq);
        let config = SrqConfig {
            pd: pd.pd,
            max_wr: attr.max_wr.max(1),
            max_sge: attr.max_sge.max(1),
            // A limit is armed by ibv_modify_srq only.
            limit: 0,
            cookie,
            events: events.sink(),
        };
        let (srq, xrc) = match xrc {
            None => (engine.create_srq(config)?, None),
            Some((xrcd, cq)) => {
                let (srq, xrc) = engine.create_xrc_srq(&xrcd.domain, &cq.cq, config)?;
                (srq, Some(xrc))
            }
        };
        if let (Some(kernel), Some(domain)) = (events.counterpart(), &pd.kernel) {
            let domain = domain.handle()?;
            kernel.make(|uverbs| uverbs.create_srq(cookie, domain))?;
        }
        Ok(Box::write(
            memory,
            Self {
                verbs: UnsafeCell::new(ibv_srq {
                    handle: context.objects.next_handle(),
                    ..verbs
                }),
                engine: engine.clone(),
                srq,
                xrc,
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

/// `ibv_create_srq`, and `ibv_create_srq_ex` for a basic queue; libibverbs sets context, domain,
/// lock and counter.
pub(super) unsafe extern "C" fn create_srq(
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    ffi::pointer(|| {
        // SAFETY: libibverbs calls through the context of the object that the application passes
        // together with its attributes.
        let ((context, domain), attr) =
            unsafe { (context::named::<ProtectionDomain>(pd)?, &mut (*attr).attr) };
        let verbs = ibv_srq::default();
        let object = SharedReceiveQueue::create(context, domain, verbs, attr, None)?;
        *attr = object.answer();
        context.objects.add(object)
    })
}

/// `ibv_create_srq_ex` for an XRC queue; libibverbs calls [`create_srq`] for the other supported
/// kinds.
pub(super) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    ffi::pointer(|| {
        // SAFETY: libibverbs passes an open context of this plugin, the application its attributes.
        let (owner, attr) = unsafe { (Context::from_ptr(context), &mut *attr) };
        let all = IBV_SRQ_INIT_ATTR_TYPE
            | IBV_SRQ_INIT_ATTR_PD
            | IBV_SRQ_INIT_ATTR_CQ
            | IBV_SRQ_INIT_ATTR_XRCD;
        let has_type = attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE != 0;
        if attr.comp_mask & !all != 0 || !has_type || attr.srq_type != IBV_SRQT_XRC {
            return Err(VerbsError::NotSupported);
        }
        if attr.comp_mask != all {
            return Err(VerbsError::Invalid);
        }
        // SAFETY: the application does not destroy the objects during the call.
        let (domain, xrcd, cq) = unsafe {
            (
                owner.objects.find::<ProtectionDomain>(attr.pd)?,
                owner.objects.find::<XrcDomainObject>(attr.xrcd)?,
                owner.objects.find::<CompletionQueue>(attr.cq)?,
            )
        };
        let verbs = ibv_srq {
            context,
            srq_context: attr.srq_context,
            pd: attr.pd,
            // The static initializers of pthread.h.
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            cond: libc::PTHREAD_COND_INITIALIZER,
            ..ibv_srq::default()
        };
        let xrc = Some((xrcd, cq));
        let object = SharedReceiveQueue::create(owner, domain, verbs, &attr.attr, xrc)?;
        attr.attr = object.answer();
        owner.objects.add(object)
    })
}

/// `ibv_get_srq_num`
pub(super) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    ffi::status(|| {
        // SAFETY: libibverbs calls through the context of the object that the application passes.
        let (_, object) = unsafe { context::named::<SharedReceiveQueue>(srq)? };
        let xrc = object.xrc.as_ref().ok_or(VerbsError::NotSupported)?;
        // SAFETY: the application passes room for the number.
        unsafe { number.write(xrc.number()) };
        Ok(())
    })
}

/// `ibv_modify_srq`
pub(super) unsafe extern "C" fn modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    ffi::status(|| {
        // SAFETY: libibverbs calls through the context of the object that the application passes
        // together with its attributes.
        let ((_, object), attr) = unsafe { (context::named::<SharedReceiveQueue>(srq)?, &*attr) };
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
        // SAFETY: libibverbs calls through the context of the object that the application passes.
        let (_, object) = unsafe { context::named::<SharedReceiveQueue>(srq)? };
        // SAFETY: the application passes room for the answer.
        unsafe { attr.write(object.answer()) };
        Ok(())
    })
}

/// `ibv_destroy_srq`: waits until the application has acknowledged the events that it has read.
pub(super) unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    let release = |object: &SharedReceiveQueue| {
        match &object.xrc {
            None => object.engine.destroy_srq(&object.srq)?,
            Some(xrc) => object.engine.destroy_xrc_srq(&object.srq, xrc)?,
        }
        // SAFETY: the context outlives its objects, by the contract of ibv_close_device.
        let read_end = unsafe { (*(*srq).context).async_fd };
        object.events.retire(read_end, srq as u64);
        // SAFETY: libibverbs has initialized the lock, which guards the counter.
        unsafe {
            object.unacknowledged.wait(
                addr_of_mut!((*srq).mutex),
                addr_of_mut!((*srq).cond),
                addr_of_mut!((*srq).events_completed),
            );
        }
        Ok(())
    };
    // SAFETY: libibverbs calls through the context of the object, which the application uses no
    // longer. When the call returns, the engine has no reference to the queue and no event of it is
    // pending.
    ffi::status(|| unsafe { context::destroy(srq, release) })
}
