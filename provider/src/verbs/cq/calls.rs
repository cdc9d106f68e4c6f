//! Completion queues as objects ([`super::structure`]); polling is in [`super::poll`].

use std::cell::{Cell, UnsafeCell};
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::ptr::addr_of_mut;
use std::sync::Arc;

use rdma_core_sys::verbs::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_wc,
    IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_PD, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
    IBV_CREATE_CQ_ATTR_SINGLE_THREADED, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, IBV_WC_STANDARD_FLAGS,
};

use urdma_kernel::Kind;

use super::super::backend;
use super::super::context::{self, Context};
use super::super::errno::VerbsError;
use super::super::event::{discard, Unacknowledged, COMPLETION_OCTETS};
use super::super::ffi;
use super::super::pd::ProtectionDomain;
use super::poll_ex;
use super::structure::CompletionQueue;
use crate::front;
use urdma_engine::{CompletionSink, CqConfig, Engine, Notify};

impl CompletionQueue {
    /// A completion queue in `engine` with at least `depth` entries; its events go to `channel`.
    fn create(
        context: &Context,
        engine: &Arc<Engine>,
        depth: u32,
        comp_vector: u32,
        channel: *const ibv_comp_channel,
        keeps_time: bool,
    ) -> Result<Box<Self>, VerbsError> {
        let limits = &engine.info().limits;
        if depth == 0 || depth > limits.max_cqe || comp_vector != 0 {
            return Err(VerbsError::Invalid);
        }
        // SAFETY: the application passes null or a channel that outlives the call.
        let channel = unsafe { channel.as_ref() };
        let kernel = context.backend.counterpart(Kind::Cq);
        let sink = backend::completion_sink(channel, kernel.as_ref(), engine)?;
        let mut memory = Box::<Self>::new_uninit();
        let config = CqConfig {
            depth,
            channel: sink.clone(),
            cookie: memory.as_mut_ptr() as u64,
            keeps_time,
        };
        if let Some(kernel) = &kernel {
            let fd = channel.map(|channel| channel.fd);
            kernel.make(|uverbs| uverbs.create_cq(config.cookie, depth, fd))?;
        }
        let cq = engine.create_cq(config)?;
        let verbs = ibv_cq_ex {
            handle: context.objects.next_handle(),
            cqe: c_int::try_from(depth).unwrap_or(c_int::MAX),
            ..ibv_cq_ex::default()
        };
        Ok(Box::write(
            memory,
            Self {
                verbs: UnsafeCell::new(verbs),
                engine: engine.clone(),
                cq,
                current: Cell::new(ibv_wc::default()),
                channel: sink,
                kernel,
                unacknowledged: Unacknowledged::default(),
            },
        ))
    }
}

/// `ibv_create_cq`; libibverbs sets context, channel, lock and counters.
pub(in crate::verbs) unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    depth: c_int,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    ffi::pointer(|| {
        // SAFETY: libibverbs passes an open context of this plugin.
        let context = unsafe { Context::from_ptr(context) };
        let depth = u32::try_from(depth).map_err(|_| VerbsError::Invalid)?;
        let vector = u32::try_from(comp_vector).map_err(|_| VerbsError::Invalid)?;
        let object =
            CompletionQueue::create(context, &context.engine, depth, vector, channel, false)?;
        context.objects.add(object)
    })
}

/// `ibv_create_cq_ex`: as [`create_cq`], with the extended polling calls.
pub(in crate::verbs) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    ffi::pointer(|| {
        // SAFETY: libibverbs passes an open context of this plugin, the application its attributes.
        let (context, attr) = unsafe { (Context::from_ptr(context), attr.read()) };
        check_extended(&attr)?;
        let engine = engine_of(context, &attr)?;
        let (depth, vector) = (attr.cqe, attr.comp_vector);
        let keeps_time = attr.wc_flags & TIMES != 0;
        let object =
            CompletionQueue::create(context, engine, depth, vector, attr.channel, keeps_time)?;
        // SAFETY: no other reference to the new object exists yet.
        unsafe { poll_ex::install(&mut *object.verbs()) };
        // The extended structure begins with the plain one.
        Ok(context.objects.add(object)?.cast())
    })
}

/// The flags of `wc_flags` that ask for time stamps.
const TIMES: u64 =
    (IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) as u64;

/// Checks that the device supports the attributes. Flags that only relax requirements are ignored.
fn check_extended(attr: &ibv_cq_init_attr_ex) -> Result<(), VerbsError> {
    let flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    let has_flags = attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0;
    if attr.wc_flags & !(u64::from(IBV_WC_STANDARD_FLAGS) | TIMES) != 0
        || attr.comp_mask & !(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD) != 0
        || (has_flags && attr.flags & !flags != 0)
    {
        return Err(VerbsError::NotSupported);
    }
    Ok(())
}

/// The engine for the queue: the context's, or that of the parent domain in the attributes.
///
/// # Errors
/// [`VerbsError::Invalid`]: the domain in the attributes is no parent domain.
fn engine_of<'a>(
    context: &'a Context,
    attr: &ibv_cq_init_attr_ex,
) -> Result<&'a Arc<Engine>, VerbsError> {
    if attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD == 0 {
        return Ok(&context.engine);
    }
    // SAFETY: the application does not destroy the domain during the call.
    let domain: &ProtectionDomain = unsafe { context.objects.find(attr.parent_domain)? };
    if !domain.is_parent() {
        return Err(VerbsError::Invalid);
    }
    Ok(domain.lane())
}

/// `ibv_resize_cq`
pub(in crate::verbs) unsafe extern "C" fn resize_cq(cq: *mut ibv_cq, depth: c_int) -> c_int {
    ffi::status(|| {
        // SAFETY: libibverbs calls through the context of the object that the application passes.
        let (_, object) = unsafe { context::named::<CompletionQueue>(cq)? };
        let wanted = u32::try_from(depth).map_err(|_| VerbsError::Invalid)?;
        if wanted == 0 || wanted > object.engine.info().limits.max_cqe {
            return Err(VerbsError::Invalid);
        }
        object.engine.resize_cq(&object.cq, wanted)?;
        // SAFETY: the field belongs to the plugin; the application must not resize one queue in two
        // threads at once.
        unsafe { (*cq).cqe = depth };
        Ok(())
    })
}

/// `ibv_req_notify_cq`
pub(in crate::verbs) unsafe extern "C" fn req_notify_cq(
    cq: *mut ibv_cq,
    solicited_only: c_int,
) -> c_int {
    ffi::status_on_data_path(|| {
        // SAFETY: libibverbs passes a completion queue of this plugin.
        let object = unsafe { CompletionQueue::from_ptr(cq) };
        let notify = if solicited_only == 0 {
            Notify::Any
        } else {
            Notify::Solicited
        };
        Ok(object.engine.req_notify_cq(&object.cq, notify)?)
    })
}

/// Called by libibverbs when it has read an event of the queue, before the application gets it.
pub(in crate::verbs) unsafe extern "C" fn cq_event(cq: *mut ibv_cq) {
    // SAFETY: the queue lives, since its unread events are discarded before it is freed.
    unsafe { CompletionQueue::from_ptr(cq) }
        .unacknowledged
        .count();
}

/// `ibv_destroy_cq`: waits until the application has acknowledged the events that it has read.
pub(in crate::verbs) unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    let release = |object: &CompletionQueue| {
        object.engine.destroy_cq(&object.cq)?;
        if let Some(kernel) = &object.kernel {
            kernel.destroy();
        } else if object.channel.is_some() {
            // SAFETY: this queue has a channel, and a channel outlives the completion queues that
            // use it.
            discard_events(cq as u64, unsafe { (*(*cq).channel).fd });
        }
        // SAFETY: libibverbs has initialized the lock, which guards the counter.
        unsafe {
            object.unacknowledged.wait(
                addr_of_mut!((*cq).mutex),
                addr_of_mut!((*cq).cond),
                addr_of_mut!((*cq).comp_events_completed),
            );
        }
        Ok(())
    };
    // SAFETY: libibverbs calls through the context of the object, which the application uses no
    // longer. When the call returns, the engine has no reference to the queue and no event of it is
    // pending.
    ffi::status(|| unsafe { context::destroy(cq, release) })
}

/// Removes the unread events of a completion queue from the channel.
fn discard_events(own: u64, read_end: RawFd) {
    let Some(channel) = front::channel(read_end) else {
        return;
    };
    channel.unread().send_kept();
    discard::<COMPLETION_OCTETS>(
        read_end,
        |record| {
            channel.unread().has_received();
            *record == own.to_ne_bytes()
        },
        |record| channel.notify(event_cookie(record)),
    );
}

/// The address in a completion event.
fn event_cookie(record: &[u8]) -> u64 {
    let mut octets = [0; COMPLETION_OCTETS];
    octets.copy_from_slice(record);
    u64::from_ne_bytes(octets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdma_core_sys::verbs::{IBV_WC_EX_WITH_CVLAN, IBV_WC_EX_WITH_IMM};

    #[test]
    fn check_extended_supported_attributes_are_accepted() {
        let mut attr = ibv_cq_init_attr_ex::default();
        assert_eq!(check_extended(&attr), Ok(()));
        attr.wc_flags = u64::from(IBV_WC_EX_WITH_IMM) | TIMES;
        attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
        attr.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
        assert_eq!(check_extended(&attr), Ok(()));
    }

    #[test]
    fn check_extended_unsupported_attributes_are_refused() {
        let refused = |change: fn(&mut ibv_cq_init_attr_ex)| {
            let mut attr = ibv_cq_init_attr_ex::default();
            change(&mut attr);
            assert_eq!(check_extended(&attr), Err(VerbsError::NotSupported));
        };
        refused(|attr| attr.wc_flags = u64::from(IBV_WC_EX_WITH_CVLAN));
        refused(|attr| attr.comp_mask = 1 << 9);
        refused(|attr| {
            attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
            attr.flags = 1 << 9;
        });
    }
}
