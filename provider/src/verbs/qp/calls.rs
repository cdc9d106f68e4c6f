//! Queue pairs as objects ([`super::structure`]): created, modified, queried and destroyed.
//! Posting to them is in [`super::post`].

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::ptr::{addr_of_mut, null_mut};
use std::sync::{Arc, Mutex, PoisonError};

use rdma_core_sys::private::VERBS_QP_RESERVE;
use rdma_core_sys::verbs::{
    ibv_context, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_init_attr_ex,
    IBV_QPS_RESET, IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_QP_AV, IBV_QP_CREATE_BLOCK_SELF_MCAST_LB,
    IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
    IBV_QP_INIT_ATTR_XRCD,
};

use urdma_kernel::uverbs::QpRequest;
use urdma_kernel::Kind;

use super::super::backend::{Counterpart, Events};
use super::super::context::{self, Context};
use super::super::cq::structure::CompletionQueue;
use super::super::errno::VerbsError;
use super::super::event::Unacknowledged;
use super::super::ffi;
use super::super::objects::Objects;
use super::super::pd::ProtectionDomain;
use super::super::srq::SharedReceiveQueue;
use super::super::xrc::XrcDomainObject;
use super::builder::Builder;
use super::structure::{QueuePair, VerbsPart};
use super::transitions::{self, Service};
use super::{attributes, datagram, dc, post_ex};
use urdma_abi::dv::DvQpEx;
use urdma_engine::{Cq, DcRole, Engine, Limits, Pd, Qp, QpCaps, QpConfig, QpState, XrcRole};

/// Minimum inline size of every queue pair: some programs ask for none and send a few octets
/// inline.
const MIN_INLINE: u32 = 64;

/// What a new queue pair is beyond the attributes of `ibv_create_qp`.
#[derive(Clone, Copy, Default)]
struct Extras {
    /// The creation flags of `ibv_create_qp_ex`.
    flags: u32,
    /// Its role in the dynamically connected transport.
    dc: Option<DcRole>,
}

impl QueuePair {
    /// Creates a queue pair in RESET with the attributes `attr` and sets the sizes in `attr` to the
    /// actual ones.
    fn create(
        context: &Context,
        domain: Domain<'_>,
        verbs: ibv_qp,
        attr: &mut ibv_qp_init_attr,
        extras: Extras,
    ) -> Result<Box<Self>, VerbsError> {
        let service = match extras.dc {
            Some(role) => dc::service_of(role),
            None => Service::of(attr.qp_type)?,
        };
        if service != Service::Connection {
            context.refuse_on_rnic()?;
        }
        clear_unused(service, attr);
        check_init(service, attr, &context.engine.info().limits)?;
        let queues = Queues::find(&context.objects, attr)?;
        let srq = queues.srq;
        let mut memory = Box::<Self>::new_uninit();
        let events = context.backend.events(Kind::Qp);
        let config = QpConfig {
            fails_with_peer: context.rnic().is_some(),
            hears_itself: extras.flags & IBV_QP_CREATE_BLOCK_SELF_MCAST_LB == 0,
            cookie: memory.as_mut_ptr() as u64,
            ..config_of(service, domain, &queues, attr, &events)?
        };
        let engine = match domain {
            // Others are in the context's engine, never in a lane.
            Domain::Protection(domain)
                if matches!(config.xrc, XrcRole::None) && extras.dc.is_none() =>
            {
                domain.lane()
            }
            Domain::Protection(_) | Domain::Xrc(_) => &context.engine,
        };
        let qp = engine_qp(engine, service, &config, extras.dc)?;
        if let Some(kernel) = events.counterpart() {
            let made = kernel_request(domain, &queues, &config, qp.number().to_u32())
                .and_then(|request| kernel.make(|uverbs| uverbs.create_qp(&request)));
            made.inspect_err(|_| {
                // No other reference exists, so nothing can prevent this.
                let _ = engine.destroy_qp(&qp);
            })?;
        }
        let caps = qp.caps();
        attr.cap = self::caps(service, caps, srq.is_some());
        let part = verbs_part(verbs, attr, qp.number().to_u32());
        Ok(Box::write(
            memory,
            Self {
                verbs: UnsafeCell::new(part),
                dv: DvQpEx {
                    comp_mask: 0,
                    wr_set_dc_addr: post_ex::wr_set_dc_addr,
                },
                engine: engine.clone(),
                qp,
                service,
                max_send_sge: caps.max_send_sge,
                max_recv_sge: attr.cap.max_recv_sge,
                max_inline: caps.max_inline,
                sq_sig_all: attr.sq_sig_all != 0,
                unacknowledged: Unacknowledged::default(),
                builder: Builder::default(),
                events,
                rnic: context.rnic(),
                address: Mutex::new(None),
            },
        ))
    }

    fn modify(&self, attr: &ibv_qp_attr, mask: u32) -> Result<(), VerbsError> {
        let mut address = self.address.lock().unwrap_or_else(PoisonError::into_inner);
        if self.service == Service::Datagram {
            return datagram::modify(self, attr, mask);
        }
        if self.is_dc() {
            return dc::modify(self, attr, mask, &mut address);
        }
        let (state, _) = self.engine.query_qp(&self.qp);
        let from = attributes::state_number(state);
        let asked = transitions::target(from, attr, mask)?;
        let change = match self.rnic {
            Some(rnic) => rnic.change(&self.engine, attr, mask, asked)?,
            None => Some((*attr, transitions::applicable(self.service, mask))),
        };
        let Some((attr, mask)) = &change else {
            return Ok(());
        };
        let (mask, to) = (*mask, transitions::target(from, attr, *mask)?);
        transitions::check(self.service, from, to, mask)?;
        let mut change = attributes::change(attr, mask, self.engine.info())?;
        let target = attributes::state_of(to)?;
        // Without a change of state there is no transition, except from RESET to RESET, which
        // clears.
        change.state = (from != to || to == IBV_QPS_RESET).then_some(target);
        if change.state == Some(QpState::Sqd) {
            self.qp
                .tell_when_drained(transitions::wants_drained(attr, mask));
        }
        self.engine.modify_qp(&self.qp, &change)?;
        if mask & IBV_QP_AV != 0 {
            *address = Some(attr.ah_attr);
        }
        if to == IBV_QPS_RESET {
            *address = None;
        }
        Ok(())
    }

    fn query(&self) -> ibv_qp_attr {
        let address = self.address.lock().unwrap_or_else(PoisonError::into_inner);
        let caps = caps(self.service, self.qp.caps(), self.qp.srq().is_some());
        if self.service == Service::Datagram {
            return datagram::query(self, caps);
        }
        if self.is_dc() {
            return dc::query(self, caps, address.as_ref());
        }
        let (state, attributes) = self.engine.query_qp(&self.qp);
        attributes::answer(state, &attributes, caps, address.as_ref())
    }

    fn destroy(&self) -> Result<(), VerbsError> {
        if self.service == Service::Datagram {
            self.engine.destroy_datagram_qp(&self.qp)?;
        } else if self.is_dc() {
            self.engine.destroy_dc_qp(&self.qp)?;
        } else {
            self.engine.destroy_qp(&self.qp)?;
        }
        Ok(())
    }

    /// Whether it belongs to the dynamically connected transport.
    fn is_dc(&self) -> bool {
        matches!(self.service, Service::DcInitiator | Service::DcTarget)
    }
}

/// The engine's queue pair.
fn engine_qp(
    engine: &Engine,
    service: Service,
    config: &QpConfig,
    dc: Option<DcRole>,
) -> Result<Arc<Qp>, VerbsError> {
    Ok(match dc {
        Some(role) => engine.create_dc_qp(config, role)?,
        None if service == Service::Datagram => engine.create_datagram_qp(config)?,
        None => engine.create_qp(config)?,
    })
}

/// The queues that the attributes name.
struct Queues<'a> {
    send_cq: Option<&'a CompletionQueue>,
    recv_cq: Option<&'a CompletionQueue>,
    srq: Option<&'a SharedReceiveQueue>,
}

impl Queues<'_> {
    /// Looks the queues up.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`]: one of them does not exist.
    fn find(objects: &Objects, attr: &ibv_qp_init_attr) -> Result<Self, VerbsError> {
        // SAFETY: the application does not destroy the queues during the call.
        unsafe {
            Ok(Self {
                send_cq: objects.find_if_any(attr.send_cq)?,
                recv_cq: objects.find_if_any(attr.recv_cq)?,
                srq: objects.find_if_any(attr.srq)?,
            })
        }
    }
}

/// The engine's configuration of a queue pair whose attributes have passed [`check_init`]. The
/// cookie is not set yet, and multicast loopback is on.
fn config_of(
    service: Service,
    domain: Domain<'_>,
    queues: &Queues<'_>,
    attr: &ibv_qp_init_attr,
    events: &Events,
) -> Result<QpConfig, VerbsError> {
    let EngineObjects {
        pd,
        send_cq,
        recv_cq,
        xrc,
    } = engine_objects(service, domain, queues)?;
    Ok(QpConfig {
        pd,
        send_cq,
        recv_cq,
        srq: queues.srq.map(|object| object.srq.clone()),
        xrc,
        unreliable: service == Service::UnreliableConnection,
        max_send_wr: attr.cap.max_send_wr.max(1),
        max_recv_wr: attr.cap.max_recv_wr,
        max_send_sge: attr.cap.max_send_sge.max(1),
        max_recv_sge: attr.cap.max_recv_sge.max(1),
        max_inline: attr.cap.max_inline_data.max(MIN_INLINE),
        fails_with_peer: false,
        hears_itself: true,
        cookie: 0,
        events: events.sink(),
    })
}

/// The public structure of a queue pair in RESET with this number.
fn verbs_part(verbs: ibv_qp, attr: &ibv_qp_init_attr, number: u32) -> VerbsPart {
    let mut part = VerbsPart {
        all: [0; VERBS_QP_RESERVE / 8],
    };
    part.qp = ManuallyDrop::new(ibv_qp {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        handle: number,
        qp_num: number,
        state: IBV_QPS_RESET,
        qp_type: attr.qp_type,
        ..verbs
    });
    part
}

/// The kernel's request for a queue pair whose attributes have passed [`check_init`].
fn kernel_request(
    domain: Domain<'_>,
    queues: &Queues<'_>,
    config: &QpConfig,
    qpn: u32,
) -> Result<QpRequest, VerbsError> {
    let Domain::Protection(pd) = domain else {
        return Err(VerbsError::NotSupported);
    };
    let handle = |counterpart: Option<&Counterpart>| {
        counterpart
            .ok_or(VerbsError::Invalid)
            .and_then(Counterpart::handle)
    };
    Ok(QpRequest {
        qpn,
        user_handle: config.cookie,
        pd: handle(pd.kernel.as_deref())?,
        send_cq: handle(queues.send_cq.and_then(|cq| cq.kernel.as_deref()))?,
        recv_cq: handle(queues.recv_cq.and_then(|cq| cq.kernel.as_deref()))?,
        srq: queues
            .srq
            .map(|srq| handle(srq.events.counterpart()))
            .transpose()?,
    })
}

/// The sizes in verbs terms, of those queues that the queue pair has.
fn caps(service: Service, caps: QpCaps, has_srq: bool) -> ibv_qp_cap {
    match service {
        _ if service.only_receives() => ibv_qp_cap::default(),
        _ => attributes::caps_answer(caps, has_srq || !service.has_receive_queue()),
    }
}

/// The domain in which a queue pair is created.
#[derive(Clone, Copy)]
enum Domain<'a> {
    Protection(&'a ProtectionDomain),
    Xrc(&'a XrcDomainObject),
}

/// The engine's objects for a queue pair.
struct EngineObjects {
    pd: Pd,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    xrc: XrcRole,
}

/// Clears the sizes and objects of queues that the queue pair does not have; applications may leave
/// anything there.
fn clear_unused(service: Service, attr: &mut ibv_qp_init_attr) {
    if !service.has_receive_queue() {
        attr.srq = null_mut();
        attr.recv_cq = null_mut();
    }
    if !attr.srq.is_null() || !service.has_receive_queue() {
        (attr.cap.max_recv_wr, attr.cap.max_recv_sge) = (0, 0);
    }
    if service.only_receives() {
        attr.send_cq = null_mut();
        attr.cap = ibv_qp_cap::default();
    }
}

/// The engine's objects behind the queues and the domain that the application names.
///
/// # Errors
/// [`VerbsError::Invalid`]: a domain of the wrong kind, or no completion queue.
fn engine_objects(
    service: Service,
    domain: Domain<'_>,
    queues: &Queues<'_>,
) -> Result<EngineObjects, VerbsError> {
    let pd = match (service, domain) {
        (Service::XrcTarget, Domain::Xrc(object)) => {
            let domain = &object.domain;
            return Ok(EngineObjects {
                pd: Pd::NONE,
                send_cq: domain.unused_cq().clone(),
                recv_cq: domain.unused_cq().clone(),
                xrc: XrcRole::Target(domain.clone()),
            });
        }
        (Service::XrcTarget, _) | (_, Domain::Xrc(_)) => return Err(VerbsError::Invalid),
        (_, Domain::Protection(domain)) => domain.pd,
    };
    let cq_of = |object: Option<&CompletionQueue>| {
        let object = object.ok_or(VerbsError::Invalid)?;
        Ok::<_, VerbsError>(object.cq.clone())
    };
    // The engine has a queue for both kinds of completions of each queue pair.
    let of_sends = if service == Service::DcTarget {
        queues.recv_cq
    } else {
        queues.send_cq
    };
    let send_cq = cq_of(of_sends)?;
    let recv_cq = match service {
        Service::XrcInitiator | Service::DcInitiator => send_cq.clone(),
        _ => cq_of(queues.recv_cq)?,
    };
    let xrc = match service {
        Service::XrcInitiator => XrcRole::Initiator,
        _ => XrcRole::None,
    };
    Ok(EngineObjects {
        pd,
        send_cq,
        recv_cq,
        xrc,
    })
}

/// Checks the attributes of a new queue pair.
///
/// # Errors
/// [`VerbsError::Invalid`] without completion queues, or for sizes beyond the limits of
/// `ibv_query_device`.
fn check_init(
    service: Service,
    attr: &ibv_qp_init_attr,
    limits: &Limits,
) -> Result<(), VerbsError> {
    let cap = &attr.cap;
    if (attr.send_cq.is_null() && !service.only_receives())
        || (attr.recv_cq.is_null() && service.has_receive_queue())
        || cap.max_send_wr.max(cap.max_recv_wr) > limits.max_qp_wr
        || cap.max_send_sge.max(cap.max_recv_sge) > limits.max_sge
        || cap.max_inline_data > limits.max_inline
    {
        return Err(VerbsError::Invalid);
    }
    Ok(())
}

/// A public structure with context, domain and an initialized lock.
fn public_part(context: *mut ibv_context, pd: *mut ibv_pd) -> ibv_qp {
    ibv_qp {
        context,
        pd,
        // The static initializers of pthread.h.
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        ..ibv_qp::default()
    }
}

/// `ibv_create_qp`
pub(in crate::verbs) unsafe extern "C" fn create_qp(
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    ffi::pointer(|| {
        // SAFETY: libibverbs calls through the context of the object that the application passes
        // together with its attributes.
        let ((context, domain), attr, context_ptr) = unsafe {
            (
                context::named::<ProtectionDomain>(pd)?,
                &mut *attr,
                (*pd).context,
            )
        };
        let domain = Domain::Protection(domain);
        let verbs = public_part(context_ptr, pd);
        let object = QueuePair::create(context, domain, verbs, attr, Extras::default())?;
        context.objects.add(object)
    })
}

/// `ibv_create_qp_ex`: the attributes of [`create_qp`], and optionally the extended calls.
pub(in crate::verbs) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    ffi::pointer(|| {
        // SAFETY: libibverbs passes an open context of this plugin, the application its attributes.
        let (owner, attr) = unsafe { (Context::from_ptr(context), &mut *attr) };
        check_extended(attr)?;
        create_extended((owner, context), attr, None)
    })
}

/// A queue pair whose attributes have been checked, of a context and its public structure.
///
/// # Errors
/// As `ibv_create_qp_ex`.
pub(in crate::verbs) fn create_extended(
    (owner, context): (&Context, *mut ibv_context),
    attr: &mut ibv_qp_init_attr_ex,
    dc: Option<DcRole>,
) -> Result<*mut ibv_qp, VerbsError> {
    let is_target = attr.qp_type == IBV_QPT_XRC_RECV;
    // SAFETY: the application does not destroy the domain during the call.
    let domain = unsafe {
        if is_target {
            Domain::Xrc(owner.objects.find::<XrcDomainObject>(attr.xrcd)?)
        } else {
            Domain::Protection(owner.objects.find::<ProtectionDomain>(attr.pd)?)
        }
    };
    let mut plain = ibv_qp_init_attr {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
    };
    let verbs = public_part(context, public_pd(attr));
    let flags = create_flags(attr);
    let mut object = QueuePair::create(owner, domain, verbs, &mut plain, Extras { flags, dc })?;
    if attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0 {
        // SAFETY: the union consists of integers here, for which every bit pattern is valid.
        let part = unsafe { &mut object.verbs.get_mut().all };
        let installed = post_ex::install(part, owner.library.comp_mask_offset());
        if installed.is_err() {
            object.destroy()?;
            installed?;
        }
    }
    attr.cap = plain.cap;
    owner.objects.add(object)
}

/// The protection domain in the public structure. An XRC target has none, but libibverbs returns
/// the one that was passed, and librdmacm takes the domain of a target's shared receive queues from
/// there.
fn public_pd(attr: &ibv_qp_init_attr_ex) -> *mut ibv_pd {
    match attr.comp_mask & IBV_QP_INIT_ATTR_PD {
        0 => null_mut(),
        _ => attr.pd,
    }
}

/// The creation flags, 0 if the mask does not include them.
fn create_flags(attr: &ibv_qp_init_attr_ex) -> u32 {
    match attr.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS {
        0 => 0,
        _ => attr.create_flags,
    }
}

/// Checks what is in addition to the attributes of [`create_qp`].
///
/// # Errors
/// [`VerbsError::NotSupported`], or [`VerbsError::Invalid`] without a domain.
pub(in crate::verbs) fn check_extended(attr: &ibv_qp_init_attr_ex) -> Result<(), VerbsError> {
    let (needed, domain_is_null) = if attr.qp_type == IBV_QPT_XRC_RECV {
        (IBV_QP_INIT_ATTR_XRCD, attr.xrcd.is_null())
    } else {
        (IBV_QP_INIT_ATTR_PD, attr.pd.is_null())
    };
    let known = needed
        | IBV_QP_INIT_ATTR_PD
        | IBV_QP_INIT_ATTR_CREATE_FLAGS
        | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    let known_flags = match attr.qp_type {
        IBV_QPT_UD => IBV_QP_CREATE_BLOCK_SELF_MCAST_LB,
        _ => 0,
    };
    let wants_calls = attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
    if attr.comp_mask & !known != 0
        || (wants_calls && attr.send_ops_flags & !post_ex::send_ops(attr.qp_type) != 0)
        || create_flags(attr) & !known_flags != 0
    {
        return Err(VerbsError::NotSupported);
    }
    if attr.comp_mask & needed == 0 || domain_is_null {
        return Err(VerbsError::Invalid);
    }
    Ok(())
}

/// `ibv_modify_qp`; libibverbs then sets the new state in the public structure.
pub(in crate::verbs) unsafe extern "C" fn modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    ffi::status(|| {
        // SAFETY: libibverbs calls through the context of the object that the application passes
        // together with its attributes.
        let ((_, object), attr) = unsafe { (context::named::<QueuePair>(qp)?, &*attr) };
        object.modify(attr, mask.cast_unsigned())
    })
}

/// `ibv_query_qp`: always returns all attributes.
pub(in crate::verbs) unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    ffi::status(|| {
        // SAFETY: libibverbs calls through the context of the object that the application passes.
        let (_, object) = unsafe { context::named::<QueuePair>(qp)? };
        let answer = object.query();
        // SAFETY: the application passes room for both structures; the fields read never change.
        unsafe {
            attr.write(answer);
            init_attr.write(ibv_qp_init_attr {
                qp_context: (*qp).qp_context,
                send_cq: (*qp).send_cq,
                recv_cq: (*qp).recv_cq,
                srq: (*qp).srq,
                cap: answer.cap,
                qp_type: (*qp).qp_type,
                sq_sig_all: c_int::from(object.sq_sig_all),
            });
        }
        Ok(())
    })
}

/// `ibv_destroy_qp`: waits until the application has acknowledged the events that it has read.
pub(in crate::verbs) unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    let release = |object: &QueuePair| {
        object.destroy()?;
        // SAFETY: the context outlives its objects, by the contract of ibv_close_device.
        let read_end = unsafe { (*(*qp).context).async_fd };
        object.events.retire(read_end, qp as u64);
        // SAFETY: the lock was initialized when the object was created, and it guards the counter.
        unsafe {
            object.unacknowledged.wait(
                addr_of_mut!((*qp).mutex),
                addr_of_mut!((*qp).cond),
                addr_of_mut!((*qp).events_completed),
            );
        }
        Ok(())
    };
    // SAFETY: libibverbs calls through the context of the object, which the application uses no
    // longer. When the call returns, the engine has no reference to the queue pair and no event of
    // it is pending.
    ffi::status(|| unsafe { context::destroy(qp, release) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdma_core_sys::verbs::{IBV_QPT_RAW_PACKET, IBV_QPT_RC, IBV_QPT_UC, IBV_QP_EX_WITH_TSO};
    use std::ptr::NonNull;
    use urdma_engine::LIMITS;

    /// Attributes that pass [`check_init`], which does not dereference the queues.
    fn valid() -> ibv_qp_init_attr {
        ibv_qp_init_attr {
            send_cq: NonNull::dangling().as_ptr(),
            recv_cq: NonNull::dangling().as_ptr(),
            cap: ibv_qp_cap {
                max_send_wr: LIMITS.max_qp_wr,
                max_recv_wr: 0,
                max_send_sge: LIMITS.max_sge,
                max_recv_sge: 1,
                max_inline_data: LIMITS.max_inline,
            },
            qp_type: IBV_QPT_RC,
            ..ibv_qp_init_attr::default()
        }
    }

    #[test]
    fn check_init_at_the_limits_is_taken() {
        assert_eq!(check_init(Service::Connection, &valid(), &LIMITS), Ok(()));
    }

    #[test]
    fn check_init_beyond_a_limit_is_invalid() {
        let refused = |spoil: fn(&mut ibv_qp_init_attr)| {
            let mut attr = valid();
            spoil(&mut attr);
            let checked = check_init(Service::Connection, &attr, &LIMITS);
            assert_eq!(checked, Err(VerbsError::Invalid));
        };
        refused(|attr| attr.cap.max_send_wr += 1);
        refused(|attr| attr.cap.max_recv_wr = LIMITS.max_qp_wr + 1);
        refused(|attr| attr.cap.max_send_sge += 1);
        refused(|attr| attr.cap.max_recv_sge = LIMITS.max_sge + 1);
        refused(|attr| attr.cap.max_inline_data += 1);
        refused(|attr| attr.send_cq = std::ptr::null_mut());
        refused(|attr| attr.recv_cq = std::ptr::null_mut());
    }

    #[test]
    fn other_services_are_not_supported() {
        for service in [IBV_QPT_RAW_PACKET, 99] {
            assert_eq!(Service::of(service), Err(VerbsError::NotSupported));
        }
    }

    #[test]
    fn ends_of_extended_connections_need_the_queues_that_they_have() {
        let mut attr = valid();
        attr.recv_cq = null_mut();
        clear_unused(Service::XrcInitiator, &mut attr);
        let check = |service, attr: &ibv_qp_init_attr| check_init(service, attr, &LIMITS);
        assert_eq!(check(Service::XrcInitiator, &attr), Ok(()));
        clear_unused(Service::XrcTarget, &mut attr);
        assert_eq!(check(Service::XrcTarget, &attr), Ok(()));
        assert!(check(Service::XrcInitiator, &attr).is_err());
        assert_eq!(attr.cap.max_send_wr, 0);
    }

    #[test]
    fn check_extended_unsupported_attributes_are_refused() {
        let mut attr = ibv_qp_init_attr_ex {
            comp_mask: IBV_QP_INIT_ATTR_PD,
            pd: NonNull::dangling().as_ptr(),
            ..ibv_qp_init_attr_ex::default()
        };
        assert_eq!(check_extended(&attr), Ok(()));
        attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD;
        assert_eq!(check_extended(&attr), Err(VerbsError::NotSupported));
        attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
        attr.create_flags = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB;
        attr.qp_type = IBV_QPT_UD;
        assert_eq!(check_extended(&attr), Ok(()));
        attr.qp_type = IBV_QPT_RC;
        assert_eq!(check_extended(&attr), Err(VerbsError::NotSupported));
        attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        attr.send_ops_flags = post_ex::send_ops(IBV_QPT_RC);
        assert_eq!(check_extended(&attr), Ok(()));
        attr.qp_type = IBV_QPT_UC;
        assert_eq!(check_extended(&attr), Err(VerbsError::NotSupported));
        attr.qp_type = IBV_QPT_RC;
        attr.send_ops_flags |= u64::from(IBV_QP_EX_WITH_TSO);
        assert_eq!(check_extended(&attr), Err(VerbsError::NotSupported));
        attr.comp_mask = 0;
        assert_eq!(check_extended(&attr), Err(VerbsError::Invalid));
        attr.qp_type = IBV_QPT_XRC_RECV;
        attr.comp_mask = IBV_QP_INIT_ATTR_XRCD;
        assert_eq!(check_extended(&attr), Err(VerbsError::Invalid));
        attr.xrcd = NonNull::dangling().as_ptr();
        assert_eq!(check_extended(&attr), Ok(()));
        assert!(public_pd(&attr).is_null());
        attr.comp_mask |= IBV_QP_INIT_ATTR_PD;
        assert_eq!(check_extended(&attr), Ok(()));
        assert_eq!(public_pd(&attr), attr.pd);
    }
}
