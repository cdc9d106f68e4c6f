//! Protection domains, parent domains and thread domains.
//!
//! A parent domain is a protection domain with hints: a thread domain, and allocators for its queues. The latter are ignored: queues lie in memory
//! that the application cannot reach. A thread domain is a lane of the engine, if one can be had: completion queues and queue pairs that are made in a parent
//! domain with it share no lock with any others.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use rdma_core_sys::verbs::{
    ibv_context, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr,
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS, IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
};

use urdma_kernel::Uverbs;

use super::device::Context;
use super::door::Counterpart;
use super::errno::VerbsError;
use super::ffi;
use crate::engine::{Engine, Pd};

/// A protection domain; libibverbs' part first.
#[repr(C)]
pub(super) struct ProtectionDomain {
    verbs: UnsafeCell<ibv_pd>,
    /// Where the domain and its regions are.
    pub(super) engine: Arc<Engine>,
    pub(super) pd: Pd,
    /// What the kernel knows of the domain; a parent domain has its domain's.
    pub(super) kernel: Option<Arc<Counterpart>>,
    kind: Kind,
}

enum Kind {
    /// It is the domain.
    Own,
    /// A parent domain, which counts as a user of its domain, and of its thread domain if it has one.
    Parent { thread: Option<Arc<Thread>> },
}

/// What a thread domain and the parent domains that were made with it share.
struct Thread {
    /// Nothing if none could be had: the thread then shares the context's engine.
    lane: Option<Arc<Engine>>,
    /// Parent domains.
    users: AtomicU32,
}

impl ProtectionDomain {
    /// The object that contains what the application calls a protection domain.
    ///
    /// # Safety
    /// `pd` came from this file and lives while the reference does.
    pub(super) unsafe fn from_ptr<'a>(pd: *mut ibv_pd) -> &'a Self {
        // SAFETY: the caller's promise; the public part is the first field.
        unsafe { &*pd.cast() }
    }

    /// Whether it is a parent domain.
    pub(super) fn is_parent(&self) -> bool {
        matches!(self.kind, Kind::Parent { .. })
    }

    /// Where completion queues and queue pairs of the domain are made.
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
        engine: &Arc<Engine>,
        pd: Pd,
        kernel: Option<Arc<Counterpart>>,
        kind: Kind,
    ) -> *mut ibv_pd {
        let verbs = ibv_pd {
            context,
            handle: pd.number(),
        };
        let object = Box::new(Self {
            verbs: UnsafeCell::new(verbs),
            engine: engine.clone(),
            pd,
            kernel,
            kind,
        });
        Box::into_raw(object).cast()
    }

    /// Gives up what the object stands for.
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
        // SAFETY: libibverbs passes an open context of ours.
        let (engine, door) = unsafe {
            let object = Context::from_ptr(context);
            (&object.engine, &object.door)
        };
        let kernel = door.counterpart(urdma_kernel::Kind::Pd);
        if let Some(kernel) = &kernel {
            kernel.make(Uverbs::alloc_pd)?;
        }
        let pd = engine.alloc_pd()?;
        Ok(ProtectionDomain::create(
            context,
            engine,
            pd,
            kernel,
            Kind::Own,
        ))
    })
}

/// `ibv_alloc_parent_domain`
pub(super) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    ffi::pointer(|| {
        // SAFETY: libibverbs passes an open context of ours, the application its attributes.
        let (engine, attr) = unsafe { (&Context::from_ptr(context).engine, &*attr) };
        let known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
        if attr.comp_mask & !known != 0 {
            return Err(VerbsError::NotSupported);
        }
        if attr.pd.is_null() {
            return Err(VerbsError::Invalid);
        }
        // SAFETY: both are null or objects of ours that live.
        let (domain, thread) = unsafe {
            let thread = attr.td.cast::<ThreadDomain>().as_ref();
            (ProtectionDomain::from_ptr(attr.pd), thread)
        };
        if domain.is_parent() {
            return Err(VerbsError::Invalid);
        }
        engine.share_pd(domain.pd)?;
        let thread = thread.map(|domain| domain.thread.clone());
        if let Some(thread) = &thread {
            thread.users.fetch_add(1, Ordering::Relaxed);
        }
        let kind = Kind::Parent { thread };
        let kernel = domain.kernel.clone();
        Ok(ProtectionDomain::create(
            context, engine, domain.pd, kernel, kind,
        ))
    })
}

/// `ibv_import_pd`: another object for a domain of this process, which ends with either.
pub(super) unsafe extern "C" fn import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    ffi::pointer(|| {
        // SAFETY: libibverbs passes an open context of ours.
        let engine = unsafe { &Context::from_ptr(context).engine };
        let pd = engine.find_pd(handle)?;
        Ok(ProtectionDomain::create(
            context,
            engine,
            pd,
            None,
            Kind::Own,
        ))
    })
}

/// `ibv_unimport_pd`: the domain itself stays.
pub(super) unsafe extern "C" fn unimport_pd(pd: *mut ibv_pd) {
    // SAFETY: libibverbs passes what import_pd put into a box, and nobody uses it any more.
    drop(unsafe { Box::from_raw(pd.cast::<ProtectionDomain>()) });
}

/// `ibv_dealloc_pd`
pub(super) unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    ffi::status(|| {
        // SAFETY: libibverbs passes a protection domain of ours.
        unsafe { ProtectionDomain::from_ptr(pd) }.release()?;
        // SAFETY: the object came out of a box, and with the engine's consent nobody uses it any more.
        drop(unsafe { Box::from_raw(pd.cast::<ProtectionDomain>()) });
        Ok(())
    })
}

/// A thread domain; libibverbs' part first.
#[repr(C)]
struct ThreadDomain {
    verbs: UnsafeCell<ibv_td>,
    /// The engine that the lane is beside.
    engine: Arc<Engine>,
    thread: Arc<Thread>,
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
        // SAFETY: libibverbs passes an open context of ours.
        let engine = unsafe { &Context::from_ptr(context).engine };
        let object = Box::new(ThreadDomain {
            verbs: UnsafeCell::new(ibv_td { context }),
            engine: engine.clone(),
            thread: Arc::new(Thread {
                lane: engine.take_lane(),
                users: AtomicU32::new(0),
            }),
        });
        Ok(Box::into_raw(object).cast())
    })
}

/// `ibv_dealloc_td`
pub(super) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    ffi::status(|| {
        // SAFETY: libibverbs passes a thread domain of ours.
        let object = unsafe { &*td.cast::<ThreadDomain>() };
        if object.thread.users.load(Ordering::Relaxed) > 0 {
            return Err(VerbsError::Busy);
        }
        // SAFETY: the object came out of a box, and nobody uses it.
        let object = unsafe { Box::from_raw(td.cast::<ThreadDomain>()) };
        if let Some(lane) = &object.thread.lane {
            object.engine.give_lane(lane.clone());
        }
        Ok(())
    })
}
