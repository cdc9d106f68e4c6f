//! Protection domains, parent domains and thread domains.
//!
//! A parent domain is a protection domain with hints: a thread domain, and allocators for its
//! queues. The allocators are ignored, because queues are in memory that the application cannot
//! access. A thread domain is a lane of the engine, if one is free: completion queues and queue
//! pairs that are created in a parent domain with it share no lock with others.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use rdma_core_sys::verbs::{
    ibv_context, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr,
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS, IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
};

use urdma_kernel::Uverbs;

use super::backend::Counterpart;
use super::context::{self, Context};
use super::errno::VerbsError;
use super::ffi;
use super::objects::Object;
use urdma_engine::{Engine, Pd};

/// A protection domain; the public structure of libibverbs is its first field.
#[repr(C)]
pub(super) struct ProtectionDomain {
    verbs: UnsafeCell<ibv_pd>,
    /// The engine of the domain and its regions.
    pub(super) engine: Arc<Engine>,
    pub(super) pd: Pd,
    /// The kernel's counterpart; a parent domain has that of its protection domain.
    pub(super) kernel: Option<Arc<Counterpart>>,
    kind: Kind,
}

enum Kind {
    /// The protection domain itself.
    Own,
    /// A parent domain, which counts as a user of its protection domain and of its thread domain,
    /// if any.
    Parent { thread: Option<Arc<Thread>> },
}

/// The state shared by a thread domain and the parent domains that were created with it.
struct Thread {
    /// `None` if no lane was free: the thread then shares the context's engine.
    lane: Option<Arc<Engine>>,
    /// The number of parent domains.
    users: AtomicU32,
}

// SAFETY: the public structure is the first field and has no destructor.
unsafe impl Object for ProtectionDomain {
    type Public = ibv_pd;
}

impl ProtectionDomain {
    /// Whether it is a parent domain.
    pub(super) fn is_parent(&self) -> bool {
        matches!(self.kind, Kind::Parent { .. })
    }

    /// The engine for completion queues and queue pairs of the domain.
    pub(super) fn lane(&self) -> &Arc<Engine> {
        match &self.kind {
            Kind::Parent {
                thread: Some(thread),
            } => thread.lane.as_ref().unwrap_or(&self.engine),
            Kind::Parent { thread: None } | Kind::Own => &self.engine,
        }
    }

    fn create(
        context: *mut ibv_context,
        owner: &Context,
        pd: Pd,
        kernel: Option<Arc<Counterpart>>,
        kind: Kind,
    ) -> Result<*mut ibv_pd, VerbsError> {
        let verbs = ibv_pd {
            context,
            handle: pd.number(),
        };
        let object = Box::new(Self {
            verbs: UnsafeCell::new(verbs),
            engine: owner.engine.clone(),
            pd,
            kernel,
            kind,
        });
        owner.objects.add(object)
    }

    /// Releases the engine's domain, or a parent domain's uses.
    fn release(&self) -> Result<(), VerbsError> {
        match &self.kind {
            Kind::Own => {
                self.engine.dealloc_pd(self.pd)?;
                if let Some(kernel) = &self.kernel {
                    kernel.destroy();
                }
            }
            Kind::Parent { thread } => {
                self.engine.unshare_pd(self.pd)?;
                if let Some(thread) = thread {
                    thread.users.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
        Ok(())
    }
}

/// `ibv_alloc_pd`
pub(super) unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    ffi::pointer(|| {
        // SAFETY: libibverbs passes an open context of this plugin.
        let owner = unsafe { Context::from_ptr(context) };
        let kernel = owner.backend.counterpart(urdma_kernel::Kind::Pd);
        if let Some(kernel) = &kernel {
            kernel.make(Uverbs::alloc_pd)?;
        }
        let pd = owner.engine.alloc_pd()?;
        ProtectionDomain::create(context, owner, pd, kernel, Kind::Own)
    })
}

/// `ibv_alloc_parent_domain`
pub(super) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    ffi::pointer(|| {
        // SAFETY: libibverbs passes an open context of this plugin, the application its attributes.
        let (owner, attr) = unsafe { (Context::from_ptr(context), &*attr) };
        let known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
        if attr.comp_mask & !known != 0 {
            return Err(VerbsError::NotSupported);
        }
        // SAFETY: the application does not destroy the domains during the call.
        let (domain, thread) = unsafe {
            (
                owner.objects.find::<ProtectionDomain>(attr.pd)?,
                owner.objects.find_if_any::<ThreadDomain>(attr.td)?,
            )
        };
        if domain.is_parent() {
            return Err(VerbsError::Invalid);
        }
        owner.engine.share_pd(domain.pd)?;
        let thread = thread.map(|domain| domain.thread.clone());
        if let Some(thread) = &thread {
            thread.users.fetch_add(1, Ordering::Relaxed);
        }
        let kind = Kind::Parent { thread };
        let kernel = domain.kernel.clone();
        ProtectionDomain::create(context, owner, domain.pd, kernel, kind)
    })
}

/// `ibv_import_pd`: another object for a domain of this process; the domain ends with either
/// object.
pub(super) unsafe extern "C" fn import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    ffi::pointer(|| {
        // SAFETY: libibverbs passes an open context of this plugin.
        let owner = unsafe { Context::from_ptr(context) };
        let pd = owner.engine.find_pd(handle)?;
        ProtectionDomain::create(context, owner, pd, None, Kind::Own)
    })
}

/// `ibv_unimport_pd`: destroys the object, not the domain.
pub(super) unsafe extern "C" fn unimport_pd(pd: *mut ibv_pd) {
    // SAFETY: libibverbs calls through the context of the object, which the application uses no
    // longer. The call returns nothing.
    let _ = unsafe { context::destroy::<ProtectionDomain>(pd, |_| Ok(())) };
}

/// `ibv_dealloc_pd`
pub(super) unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: libibverbs calls through the context of the object, which the application uses no
    // longer.
    ffi::status(|| unsafe { context::destroy(pd, ProtectionDomain::release) })
}

/// A thread domain; the public structure of libibverbs is its first field.
#[repr(C)]
struct ThreadDomain {
    verbs: UnsafeCell<ibv_td>,
    /// The engine to which the lane belongs.
    engine: Arc<Engine>,
    thread: Arc<Thread>,
}

// SAFETY: the public structure is the first field and has no destructor.
unsafe impl Object for ThreadDomain {
    type Public = ibv_td;
}

/// `ibv_alloc_td`
pub(super) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    ffi::pointer(|| {
        // SAFETY: the application passes its attributes.
        if unsafe { (*attr).comp_mask } != 0 {
            return Err(VerbsError::NotSupported);
        }
        // SAFETY: libibverbs passes an open context of this plugin.
        let owner = unsafe { Context::from_ptr(context) };
        let engine = &owner.engine;
        let object = Box::new(ThreadDomain {
            verbs: UnsafeCell::new(ibv_td { context }),
            engine: engine.clone(),
            thread: Arc::new(Thread {
                lane: engine.take_lane(),
                users: AtomicU32::new(0),
            }),
        });
        owner.objects.add(object)
    })
}

/// `ibv_dealloc_td`
pub(super) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    let release = |object: &ThreadDomain| {
        if object.thread.users.load(Ordering::Relaxed) > 0 {
            return Err(VerbsError::Busy);
        }
        if let Some(lane) = &object.thread.lane {
            object.engine.give_lane(lane.clone());
        }
        Ok(())
    };
    // SAFETY: libibverbs calls through the context of the object, which the application uses no
    // longer.
    ffi::status(|| unsafe { context::destroy(td, release) })
}
