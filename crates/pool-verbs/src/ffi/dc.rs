//! Dynamically connected transport, by the calls of `liburdmadv.so`, which is loaded when it is
//! first needed: a program that uses connections only runs where it is not installed.

use std::ffi::{c_void, CStr};
use std::mem::transmute;
use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;

use arrayvec::ArrayVec;
use rdma_core_sys::verbs;
use urdma_abi::dv::{dc_type, init, CreateQp, DcInitAttr, DvInitAttr, DvQpEx, QpEx};
use urdma_pool::{Operation, Sge, Transmit, ELEMENTS_MAX};

use super::messages::post_one;
use super::{called_errno, raw_list, Domain, Queue, RD_ATOMIC, RETRIES};
use crate::error::Error;

const LIBRARY: &CStr = c"liburdmadv.so.0";
/// Retries of a message for which the target has no Receive, which one that keeps its word has. An
/// initiator that waits sends nothing to others, and these give it up after 4 s; the target may
/// have it wait 655 ms each time.
const RNR_RETRIES: u8 = 3;
/// How long one is to wait then, as `ibv_qp_attr::min_rnr_timer`: 82 ms, so that those whose
/// Receives another process takes have no error before 245 ms.
const RNR_TIMER: u8 = 26;
/// How long an answer is waited for, as `ibv_qp_attr::timeout`: 67 ms.
const TIMEOUT: u8 = 14;
const PORT: u8 = 1;
const HOP_LIMIT: u8 = 64;

/// The calls of the library, which is never unloaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calls {
    create_qp: CreateQp,
    qp_ex: QpEx,
}

/// The dynamic linker's last reason.
fn reason() -> String {
    // SAFETY: the call has no argument; its string lives until the next call of this thread.
    let reason = unsafe { libc::dlerror() };
    if reason.is_null() {
        return String::from("no reason is known");
    }
    // SAFETY: a C string.
    let reason = unsafe { CStr::from_ptr(reason) };
    reason.to_string_lossy().into_owned()
}

fn symbol(library: *mut c_void, name: &CStr) -> Result<*mut c_void, Error> {
    // SAFETY: a library that is loaded, and a C string.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    match found.is_null() {
        true => Err(Error::Library(reason())),
        false => Ok(found),
    }
}

impl Calls {
    /// Loads the library.
    pub(crate) fn load() -> Result<Self, Error> {
        // SAFETY: the library has no initialiser that asks anything of its loader.
        let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            return Err(Error::Library(reason()));
        }
        let create_qp = symbol(library, c"urdmadv_create_qp")?;
        let qp_ex = symbol(library, c"urdmadv_qp_ex_from_ibv_qp_ex")?;
        // SAFETY: infiniband/urdmadv.h declares them so, in every version of this soname.
        let (create_qp, qp_ex) = unsafe {
            (
                transmute::<*mut c_void, CreateQp>(create_qp),
                transmute::<*mut c_void, QpEx>(qp_ex),
            )
        };
        Ok(Self { create_qp, qp_ex })
    }

    /// Creates an initiator, or a target with a shared receive queue and a key.
    fn create(
        self,
        domain: &Domain,
        mut attributes: verbs::ibv_qp_init_attr_ex,
        dc: DcInitAttr,
    ) -> Result<*mut verbs::ibv_qp, Error> {
        attributes.qp_type = verbs::IBV_QPT_DRIVER;
        attributes.pd = domain.raw;
        attributes.comp_mask |= verbs::IBV_QP_INIT_ATTR_PD;
        let dv = DvInitAttr {
            comp_mask: init::DC,
            create_flags: 0,
            dc,
        };
        let context = domain.anchor.context()?.cast();
        let attributes: *mut verbs::ibv_qp_init_attr_ex = &mut attributes;
        // SAFETY: the domain keeps the context open, and the attributes live during the call.
        let qp = unsafe { (self.create_qp)(context, attributes.cast(), &dv) };
        match qp.is_null() {
            true => Err(Error::of("urdmadv_create_qp")),
            false => Ok(qp.cast()),
        }
    }
}

/// Takes a queue pair to a state.
fn modify(
    qp: *mut verbs::ibv_qp,
    state: verbs::ibv_qp_state,
    mut attributes: verbs::ibv_qp_attr,
    mask: verbs::ibv_qp_attr_mask,
) -> Result<(), Error> {
    attributes.qp_state = state;
    let mask = (mask | verbs::IBV_QP_STATE).cast_signed();
    // SAFETY: the queue pair lives, and the attributes are read during the call.
    let errno = unsafe { verbs::ibv_modify_qp(qp, &mut attributes, mask) };
    called_errno("ibv_modify_qp", errno)
}

/// The queue pair, destroyed at the end.
#[derive(Debug)]
struct QueuePair(*mut verbs::ibv_qp);

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: it was created, and nothing uses it any more.
        unsafe { verbs::ibv_destroy_qp(self.0) };
    }
}

/// An initiator in RTS, which sends to any target.
#[derive(Debug)]
pub(crate) struct Initiator {
    qp: QueuePair,
    ex: *mut verbs::ibv_qp_ex,
    dv: *mut DvQpEx,
    /// Of the queue pair.
    _objects: (Rc<Domain>, Rc<Queue>),
}

impl Initiator {
    /// For `sq_depth` requests of at most `elements_max` elements.
    pub(crate) fn new(
        calls: Calls,
        domain: &Rc<Domain>,
        queue: &Rc<Queue>,
        sq_depth: u32,
        elements_max: u32,
    ) -> Result<Self, Error> {
        let operations = verbs::IBV_QP_EX_WITH_RDMA_READ
            | verbs::IBV_QP_EX_WITH_RDMA_WRITE
            | verbs::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
            | verbs::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
            | verbs::IBV_QP_EX_WITH_SEND;
        let mut attributes = verbs::ibv_qp_init_attr_ex {
            send_cq: queue.raw,
            recv_cq: queue.raw,
            comp_mask: verbs::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            send_ops_flags: u64::from(operations),
            ..Default::default()
        };
        (attributes.cap.max_send_wr, attributes.cap.max_send_sge) = (sq_depth, elements_max);
        let dc = DcInitAttr {
            dc_type: dc_type::DCI,
            dct_access_key: 0,
        };
        let qp = QueuePair(calls.create(domain, attributes, dc)?);
        // SAFETY: the queue pair has extended calls, since it was created with their flags.
        let ex = unsafe { verbs::ibv_qp_to_qp_ex(qp.0) };
        // SAFETY: null, or the queue pair of this library's provider.
        let dv = unsafe { (calls.qp_ex)(ex.cast()) };
        if dv.is_null() {
            return Err(Error::of("urdmadv_qp_ex_from_ibv_qp_ex"));
        }
        make_ready(qp.0)?;
        let objects = (Rc::clone(domain), Rc::clone(queue));
        Ok(Self {
            qp,
            ex,
            dv,
            _objects: objects,
        })
    }

    /// Takes it to ERR, so that what is posted completes. One that cannot be changed is destroyed
    /// all the same.
    pub(crate) fn break_connection(&self) {
        let _ = modify(
            self.qp.0,
            verbs::IBV_QPS_ERR,
            verbs::ibv_qp_attr::default(),
            0,
        );
    }

    /// Posts a work request to a target; `false`: the queue pair does not take it.
    #[inline(never)]
    pub(crate) fn post(&self, work: &Transmit, elements: &[Sge], to: &Route) -> bool {
        // SAFETY: the queue pair lives, and its calls are those of its provider. The address handle
        // and the memory outlive the request.
        unsafe { self.build(work, elements, to) }.is_some_and(|errno| errno == 0)
    }

    /// Posts a work request whose message begins with a header; `false`: the queue pair does not
    /// take it.
    pub(crate) fn post_with_header(
        &self,
        work: &Transmit,
        header: Sge,
        elements: &[Sge],
        to: &Route,
    ) -> bool {
        let all = [&header].into_iter().chain(elements).copied();
        let elements: ArrayVec<Sge, { ELEMENTS_MAX + 1 }> = all.collect();
        self.post(work, &elements, to)
    }

    /// Builds and posts a work request; the errno of the post.
    ///
    /// # Safety
    /// The queue pair lives.
    unsafe fn build(&self, work: &Transmit, elements: &[Sge], to: &Route) -> Option<i32> {
        let ex = self.ex;
        // SAFETY: by the caller's promise, here and below.
        let calls = unsafe { &mut *ex };
        let (start, complete) = (calls.wr_start?, calls.wr_complete?);
        let set_sge_list = calls.wr_set_sge_list?;
        let (read, write) = (calls.wr_rdma_read?, calls.wr_rdma_write?);
        let (swap, add) = (calls.wr_atomic_cmp_swp?, calls.wr_atomic_fetch_add?);
        let send = calls.wr_send?;
        calls.wr_id = work.wr_id;
        calls.wr_flags = match work.is_signaled {
            true => verbs::IBV_SEND_SIGNALED,
            false => 0,
        };
        let list = raw_list(elements);
        let (rkey, addr) = (work.rkey, work.remote_addr);
        // SAFETY: in the order in which the calls of a request are made.
        unsafe {
            start(ex);
            match work.operation {
                Operation::Read => read(ex, rkey, addr),
                Operation::Write => write(ex, rkey, addr),
                Operation::CompareSwap {
                    expected,
                    swap: new,
                } => swap(ex, rkey, addr, expected, new),
                Operation::FetchAdd { add: term } => add(ex, rkey, addr, term),
                // Its immediate data is in the header.
                Operation::Send { .. } => send(ex),
            }
            ((*self.dv).wr_set_dc_addr)(self.dv, to.handle.raw.cast(), to.number, to.key);
            set_sge_list(ex, list.len(), list.as_ptr());
            Some(complete(ex))
        }
    }
}

/// Takes an initiator to RTS.
fn make_ready(qp: *mut verbs::ibv_qp) -> Result<(), Error> {
    let none = verbs::ibv_qp_attr::default();
    let port = verbs::ibv_qp_attr {
        port_num: PORT,
        ..none
    };
    let mask = verbs::IBV_QP_PKEY_INDEX | verbs::IBV_QP_PORT;
    modify(qp, verbs::IBV_QPS_INIT, port, mask)?;
    let mtu = verbs::ibv_qp_attr {
        path_mtu: verbs::IBV_MTU_1024,
        ..none
    };
    modify(qp, verbs::IBV_QPS_RTR, mtu, verbs::IBV_QP_PATH_MTU)?;
    let retries = verbs::ibv_qp_attr {
        timeout: TIMEOUT,
        retry_cnt: RETRIES,
        rnr_retry: RNR_RETRIES,
        max_rd_atomic: RD_ATOMIC,
        ..none
    };
    let mask = verbs::IBV_QP_TIMEOUT
        | verbs::IBV_QP_RETRY_CNT
        | verbs::IBV_QP_RNR_RETRY
        | verbs::IBV_QP_SQ_PSN
        | verbs::IBV_QP_MAX_QP_RD_ATOMIC;
    modify(qp, verbs::IBV_QPS_RTS, retries, mask)
}

/// A shared receive queue, destroyed at the end.
#[derive(Debug)]
struct SharedReceives(*mut verbs::ibv_srq);

impl Drop for SharedReceives {
    fn drop(&mut self) {
        // SAFETY: it was created, and its target is gone.
        unsafe { verbs::ibv_destroy_srq(self.0) };
    }
}

/// A target in RTR.
#[derive(Debug)]
pub(crate) struct Target {
    /// Destroyed before the receive queue.
    qp: QueuePair,
    receives: SharedReceives,
    _objects: (Rc<Domain>, Rc<Queue>),
}

impl Target {
    /// Initiators that know the key have every right to the memory of the domain. There may be
    /// `depth` Receives of one element, whose completions are in the queue.
    pub(crate) fn new(
        calls: Calls,
        domain: &Rc<Domain>,
        (queue, depth): (&Rc<Queue>, u32),
        key: u64,
    ) -> Result<Self, Error> {
        let mut init = verbs::ibv_srq_init_attr::default();
        (init.attr.max_wr, init.attr.max_sge) = (depth, 1);
        // SAFETY: the domain lives, and the attributes are ours.
        let receives = unsafe { verbs::ibv_create_srq(domain.raw, &mut init) };
        if receives.is_null() {
            return Err(Error::of("ibv_create_srq"));
        }
        let receives = SharedReceives(receives);
        let attributes = verbs::ibv_qp_init_attr_ex {
            send_cq: queue.raw,
            recv_cq: queue.raw,
            srq: receives.0,
            ..Default::default()
        };
        let dc = DcInitAttr {
            dc_type: dc_type::DCT,
            dct_access_key: key,
        };
        let qp = QueuePair(calls.create(domain, attributes, dc)?);
        let rights = verbs::IBV_ACCESS_REMOTE_WRITE
            | verbs::IBV_ACCESS_REMOTE_READ
            | verbs::IBV_ACCESS_REMOTE_ATOMIC;
        let port = verbs::ibv_qp_attr {
            port_num: PORT,
            qp_access_flags: rights,
            ..Default::default()
        };
        let mask = verbs::IBV_QP_PKEY_INDEX | verbs::IBV_QP_PORT | verbs::IBV_QP_ACCESS_FLAGS;
        modify(qp.0, verbs::IBV_QPS_INIT, port, mask)?;
        let path = verbs::ibv_qp_attr {
            path_mtu: verbs::IBV_MTU_1024,
            min_rnr_timer: RNR_TIMER,
            ..Default::default()
        };
        let mask = verbs::IBV_QP_PATH_MTU | verbs::IBV_QP_MIN_RNR_TIMER;
        modify(qp.0, verbs::IBV_QPS_RTR, path, mask)?;
        Ok(Self {
            qp,
            receives,
            _objects: (Rc::clone(domain), Rc::clone(queue)),
        })
    }

    /// Posts a Receive of one element; `false`: the queue does not take it.
    pub(crate) fn post_receive(&self, wr_id: u64, element: Sge) -> bool {
        let srq = self.receives.0;
        // SAFETY: the receive queue and its context live.
        let post = unsafe { (*(*srq).context).ops.post_srq_recv };
        post_one(wr_id, &element, |wr, bad| {
            // SAFETY: the provider's function for its queue; the request lives during the call.
            post.is_some_and(|post| unsafe { post(srq, wr, bad) } == 0)
        })
    }

    /// The number by which initiators name it.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the queue pair lives.
        unsafe { (*self.qp.0).qp_num }
    }
}

/// The GID of a host, flow label, index of the own GID, hop limit and traffic class; LID, service
/// level, path bits, rate, whether there is a GID, and port.
type Path = ([u8; 16], u32, [u8; 3], u16, [u8; 5]);

fn path_of(attributes: &verbs::ibv_ah_attr) -> Path {
    let grh = &attributes.grh;
    // SAFETY: every bit pattern of the union is an array of octets.
    let gid = unsafe { grh.dgid.raw };
    let hops = [grh.sgid_index, grh.hop_limit, grh.traffic_class];
    let local = [
        attributes.sl,
        attributes.src_path_bits,
        attributes.static_rate,
        attributes.is_global,
        attributes.port_num,
    ];
    (gid, grh.flow_label, hops, attributes.dlid, local)
}

/// An address handle: how a host is reached.
#[derive(Debug)]
pub(crate) struct Handle {
    raw: *mut verbs::ibv_ah,
    path: Path,
    _domain: Rc<Domain>,
}

impl Handle {
    pub(crate) fn new(
        domain: &Rc<Domain>,
        mut attributes: verbs::ibv_ah_attr,
    ) -> Result<Rc<Self>, Error> {
        // SAFETY: the domain lives, and the attributes are read during the call.
        let raw = unsafe { verbs::ibv_create_ah(domain.raw, &mut attributes) };
        match raw.is_null() {
            true => Err(Error::of("ibv_create_ah")),
            false => Ok(Rc::new(Self {
                raw,
                path: path_of(&attributes),
                _domain: Rc::clone(domain),
            })),
        }
    }

    /// Whether it is of this way to a host.
    pub(crate) fn is_of(&self, attributes: &verbs::ibv_ah_attr) -> bool {
        self.path == path_of(attributes)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: it was created; a request that names it was copied when it was posted.
        unsafe { verbs::ibv_destroy_ah(self.raw) };
    }
}

/// The way to a host from the first of the own GIDs that is of the same kind, an address of IPv4 or
/// of IPv6, `from` before all others; none if no GID is.
pub(crate) fn path_to(
    domain: &Domain,
    from: IpAddr,
    to: IpAddr,
) -> Result<Option<verbs::ibv_ah_attr>, Error> {
    let gids = own_gids(domain)?;
    let is_ipv4 = |address: Ipv6Addr| address.to_ipv4_mapped().is_some();
    let [from, to] = [from, to].map(|address| match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    });
    let fits = |gid: &Ipv6Addr| {
        is_ipv4(*gid) == is_ipv4(to) && gid.is_unicast_link_local() == to.is_unicast_link_local()
    };
    let is_from = |gid: &Ipv6Addr| *gid == from && fits(gid);
    let index = gids.iter().position(is_from);
    let index = index.or_else(|| gids.iter().position(fits));
    let Some(index) = index.and_then(|index| u8::try_from(index).ok()) else {
        return Ok(None);
    };
    let mut path = verbs::ibv_ah_attr {
        is_global: 1,
        port_num: PORT,
        ..Default::default()
    };
    path.grh.dgid = verbs::ibv_gid { raw: to.octets() };
    (path.grh.sgid_index, path.grh.hop_limit) = (index, HOP_LIMIT);
    Ok(Some(path))
}

/// The table of GIDs of the device.
fn own_gids(domain: &Domain) -> Result<Vec<Ipv6Addr>, Error> {
    let context = domain.anchor.context()?;
    let mut gids = Vec::new();
    loop {
        let mut gid = verbs::ibv_gid { raw: [0; 16] };
        let index = i32::try_from(gids.len()).unwrap_or(i32::MAX);
        // SAFETY: the domain keeps the context open, and the result is ours.
        if unsafe { verbs::ibv_query_gid(context, PORT, index, &mut gid) } != 0 {
            return Ok(gids);
        }
        // SAFETY: every bit pattern of the union is 16 octets.
        gids.push(Ipv6Addr::from(unsafe { gid.raw }));
    }
}

/// How a target is reached.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) handle: Rc<Handle>,
    pub(crate) number: u32,
    pub(crate) key: u64,
}
