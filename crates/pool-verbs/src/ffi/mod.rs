//! Calls of librdmacm and libibverbs. Each object keeps those that it needs alive.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::fmt;
use std::mem::{offset_of, MaybeUninit};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::ptr;
use std::rc::Rc;

use nix::sys::socket::{SockaddrLike, SockaddrStorage};
use rdma_core_sys::{rdmacm, verbs};
use urdma_pool::{Operation, Sge, Status, Transmit};

use crate::error::Error;

mod dc;
mod memory;
mod messages;

pub(crate) use dc::{path_to, Calls, Handle, Initiator, Route, Target};
pub use memory::Foreign;
pub(crate) use memory::Memory;

// Applications link the system's libraries.
#[link(name = "rdmacm")]
extern "C" {}
#[link(name = "ibverbs")]
extern "C" {}

/// How long addresses and routes are looked for.
const RESOLVE_MS: i32 = 5_000;
/// Retries without an answer, and without a receive; the greatest numbers.
const RETRIES: u8 = 7;
/// Reads and atomics in flight, which every provider permits.
const RD_ATOMIC: u8 = 4;
/// Completions that are polled at once.
pub(crate) const POLLED: usize = 32;

/// Whether a request is accepted; no if its peer has ended or asks no more: then it is in no state
/// to be accepted.
pub(crate) fn is_accepted(accepted: Result<(), Error>) -> Result<bool, Error> {
    match accepted {
        Err(Error::Call { error, .. }) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        accepted => accepted.map(|()| true),
    }
}

fn called(call: &'static str, status: i32) -> Result<(), Error> {
    match status {
        0 => Ok(()),
        _ => Err(Error::of(call)),
    }
}

/// The same of a call that returns the errno.
fn called_errno(call: &'static str, errno: i32) -> Result<(), Error> {
    match errno {
        0 => Ok(()),
        _ => Err(Error::from_errno(call, errno)),
    }
}

/// A random number.
pub(crate) fn random() -> Result<u64, Error> {
    getrandom::u64().map_err(|error| Error::Call {
        call: "getrandom",
        error: error.into(),
    })
}

/// The port space of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    /// Connections.
    Connection,
    /// Questions, each of which has one answer, that names a queue pair.
    Datagram,
}

/// The answer of a datagram service.
pub(crate) struct Answer {
    pub(crate) private: Vec<u8>,
    /// The number of the queue pair that it names.
    pub(crate) number: u32,
    /// How its host is reached.
    pub(crate) path: verbs::ibv_ah_attr,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Answer");
        out.field("private", &self.private);
        out.field("number", &self.number).finish_non_exhaustive()
    }
}

/// A client that wants to connect, or asks.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) id: Id,
    pub(crate) private: Vec<u8>,
    /// The address from which it comes.
    pub(crate) from: Option<IpAddr>,
}

/// What has happened to an identifier.
#[derive(Debug)]
pub(crate) enum Event {
    AddressResolved,
    RouteResolved,
    /// A client wants to connect, or asks.
    Request(Request),
    /// What a client has asked for.
    Answer(Answer),
    /// The connection is complete; the private data of the accepting end.
    Established(Vec<u8>),
    /// The peer refuses the connection; its private data.
    Rejected(Vec<u8>),
    /// The connection has ended, or is not made.
    Ended,
    /// One that needs no action.
    Other,
}

/// An identifier of connection management, with an event channel of its own and, when it has one,
/// its queue pair.
#[derive(Debug)]
pub(crate) struct Id {
    raw: *mut rdmacm::rdma_cm_id,
    channel: *mut rdmacm::rdma_event_channel,
    /// The queue pair's domain, and its queues: of requests and of Receives.
    objects: Option<(Rc<Domain>, [Rc<Queue>; 2])>,
}

fn new_channel() -> Result<*mut rdmacm::rdma_event_channel, Error> {
    // SAFETY: the call has no argument.
    let channel = unsafe { rdmacm::rdma_create_event_channel() };
    if channel.is_null() {
        return Err(Error::of("rdma_create_event_channel"));
    }
    // SAFETY: the channel and its descriptor live.
    if unsafe { libc::fcntl((*channel).fd, libc::F_SETFL, libc::O_NONBLOCK) } != 0 {
        let error = Error::of("fcntl");
        // SAFETY: nothing uses the channel.
        unsafe { rdmacm::rdma_destroy_event_channel(channel) };
        return Err(error);
    }
    Ok(channel)
}

impl Id {
    pub(crate) fn new(service: Service) -> Result<Self, Error> {
        let space = match service {
            Service::Connection => rdmacm::RDMA_PS_TCP,
            Service::Datagram => rdmacm::RDMA_PS_UDP,
        };
        let channel = new_channel()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the channel lives as long as the identifier, the result is ours.
        let status = unsafe { rdmacm::rdma_create_id(channel, &mut raw, ptr::null_mut(), space) };
        let created = called("rdma_create_id", status);
        if created.is_err() {
            // SAFETY: nothing uses the channel.
            unsafe { rdmacm::rdma_destroy_event_channel(channel) };
        }
        created.map(|()| Self {
            raw,
            channel,
            objects: None,
        })
    }

    /// Gives the identifier of a request a channel of its own. Without one, the request is refused.
    fn adopt(raw: *mut rdmacm::rdma_cm_id) -> Result<Self, Error> {
        let channel = new_channel().inspect_err(|_| {
            // SAFETY: the identifier lives, the event of the request is acknowledged, and nothing
            // else uses either.
            unsafe {
                rdmacm::rdma_reject(raw, ptr::null(), 0);
                rdmacm::rdma_destroy_id(raw);
            }
        })?;
        let id = Self {
            raw,
            channel,
            objects: None,
        };
        // SAFETY: identifier and channel live; the event of the request is acknowledged.
        let status = unsafe { rdmacm::rdma_migrate_id(raw, channel) };
        called("rdma_migrate_id", status).map(|()| id)
    }

    pub(crate) fn bind(&self, at: SocketAddr) -> Result<(), Error> {
        let at = SockaddrStorage::from(at);
        // SAFETY: the address is read during the call.
        let status = unsafe { rdmacm::rdma_bind_addr(self.raw, at.as_ptr().cast_mut()) };
        called("rdma_bind_addr", status)
    }

    pub(crate) fn listen(&self) -> Result<(), Error> {
        // SAFETY: the identifier lives.
        called("rdma_listen", unsafe { rdmacm::rdma_listen(self.raw, 128) })
    }

    pub(crate) fn resolve_address(&self, to: SocketAddr) -> Result<(), Error> {
        let to = SockaddrStorage::from(to);
        let to = to.as_ptr().cast_mut();
        // SAFETY: the address is read during the call.
        let status =
            unsafe { rdmacm::rdma_resolve_addr(self.raw, ptr::null_mut(), to, RESOLVE_MS) };
        called("rdma_resolve_addr", status)
    }

    /// The descriptor that is readable while there is an event.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel and its descriptor live as long as the identifier.
        unsafe { BorrowedFd::borrow_raw((*self.channel).fd) }
    }

    pub(crate) fn resolve_route(&self) -> Result<(), Error> {
        // SAFETY: the identifier lives.
        called("rdma_resolve_route", unsafe {
            rdmacm::rdma_resolve_route(self.raw, RESOLVE_MS)
        })
    }

    /// Connects, or asks a datagram service.
    pub(crate) fn connect(&self, private: &[u8]) -> Result<(), Error> {
        // SAFETY: the identifier lives; the parameters are read during the call.
        called("rdma_connect", unsafe {
            rdmacm::rdma_connect(self.raw, &mut parameters(private, 0))
        })
    }

    /// Refuses a request.
    pub(crate) fn reject(&self, private: &[u8]) -> Result<(), Error> {
        let len = u8::try_from(private.len()).unwrap_or(0);
        // SAFETY: the identifier lives; the parameters are read during the call.
        called("rdma_reject", unsafe {
            rdmacm::rdma_reject(self.raw, private.as_ptr().cast(), len)
        })
    }

    pub(crate) fn accept(&self, private: &[u8]) -> Result<(), Error> {
        // SAFETY: the identifier lives; the parameters are read during the call.
        called("rdma_accept", unsafe {
            rdmacm::rdma_accept(self.raw, &mut parameters(private, 0))
        })
    }

    /// Answers a question with the number of a queue pair.
    pub(crate) fn answer(&self, private: &[u8], number: u32) -> Result<(), Error> {
        // SAFETY: the identifier lives; the parameters are read during the call.
        called("rdma_accept", unsafe {
            rdmacm::rdma_accept(self.raw, &mut parameters(private, number))
        })
    }

    /// The address of the peer.
    fn peer(&self) -> Option<IpAddr> {
        // SAFETY: the identifier lives; the union has a family first, whatever it has.
        let peer = unsafe {
            let peer = ptr::addr_of!((*self.raw).route.addr.__bindgen_anon_2);
            SockaddrStorage::from_raw(peer.cast(), None)
        }?;
        let ipv4 = peer.as_sockaddr_in().map(|peer| IpAddr::from(peer.ip()));
        ipv4.or_else(|| peer.as_sockaddr_in6().map(|peer| IpAddr::from(peer.ip())))
    }

    /// The device, once an address is bound or resolved.
    fn context(&self) -> Result<*mut verbs::ibv_context, Error> {
        // SAFETY: the identifier lives.
        let context = unsafe { (*self.raw).verbs };
        match context.is_null() {
            true => Err(Error::from_errno("rdma_cm_id", libc::ENODEV)),
            false => Ok(context),
        }
    }

    /// Creates its queue pair, for `sq_depth` requests of at most `elements_max` elements.
    pub(crate) fn create_queue_pair(
        &mut self,
        domain: &Rc<Domain>,
        queue: &Rc<Queue>,
        sq_depth: u32,
        elements_max: u32,
    ) -> Result<(), Error> {
        self.create_with_receives(domain, [queue, queue], [sq_depth, 1], elements_max)
    }

    /// The same with completion queues and depths of requests and of Receives, which have one
    /// element.
    pub(crate) fn create_with_receives(
        &mut self,
        domain: &Rc<Domain>,
        queues: [&Rc<Queue>; 2],
        depths: [u32; 2],
        elements_max: u32,
    ) -> Result<(), Error> {
        let mut init = verbs::ibv_qp_init_attr {
            send_cq: queues[0].raw,
            recv_cq: queues[1].raw,
            qp_type: verbs::IBV_QPT_RC,
            ..Default::default()
        };
        (init.cap.max_send_wr, init.cap.max_recv_wr) = (depths[0], depths[1]);
        (init.cap.max_send_sge, init.cap.max_recv_sge) = (elements_max, 1);
        // SAFETY: identifier, domain and queues live, and the attributes are ours.
        let status = unsafe { rdmacm::rdma_create_qp(self.raw, domain.raw, &mut init) };
        called("rdma_create_qp", status)?;
        self.objects = Some((Rc::clone(domain), queues.map(Rc::clone)));
        Ok(())
    }

    fn has_queue_pair(&self) -> bool {
        self.objects.is_some()
    }

    /// Takes the queue pair to ERR, so that what is posted completes.
    pub(crate) fn break_connection(&self) {
        if self.objects.is_some() {
            let mut attributes = verbs::ibv_qp_attr {
                qp_state: verbs::IBV_QPS_ERR,
                ..Default::default()
            };
            let mask = verbs::IBV_QP_STATE.cast_signed();
            // SAFETY: the identifier has a queue pair; the attributes are read during the call. A
            // queue pair that cannot be changed is destroyed all the same.
            unsafe { verbs::ibv_modify_qp((*self.raw).qp, &mut attributes, mask) };
        }
    }

    /// Posts a work request; `false`: the queue pair does not take it.
    #[inline(always)]
    pub(crate) fn post(&self, work: &Transmit, elements: &[Sge]) -> bool {
        if self.objects.is_none() {
            return false;
        }
        self.post_request(&mut work_request(work, raw_list(elements)))
    }

    /// Posts a signaled RDMA Read of a remote address with its key into the beginning of memory;
    /// `false`: the queue pair does not take it.
    pub(crate) fn read(&self, wr_id: u64, to: &Memory, from: (u64, u32), len_octets: u32) -> bool {
        self.read_to(wr_id, (to.addr(), to.keys().0), from, len_octets)
    }

    /// The same to a local address with its key.
    pub(crate) fn read_to(
        &self,
        wr_id: u64,
        to: (u64, u32),
        from: (u64, u32),
        len_octets: u32,
    ) -> bool {
        let mut element = verbs::ibv_sge {
            addr: to.0,
            length: len_octets,
            lkey: to.1,
        };
        let mut wr = verbs::ibv_send_wr {
            wr_id,
            sg_list: &mut element,
            num_sge: 1,
            opcode: verbs::IBV_WR_RDMA_READ,
            send_flags: verbs::IBV_SEND_SIGNALED,
            ..Default::default()
        };
        wr.wr.rdma = verbs::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
            remote_addr: from.0,
            rkey: from.1,
        };
        self.objects.is_some() && self.post_request(&mut wr)
    }

    #[inline(always)]
    fn post_request(&self, wr: &mut verbs::ibv_send_wr) -> bool {
        // SAFETY: the identifier has a queue pair, whose context lives.
        let (qp, post) = unsafe {
            let qp = (*self.raw).qp;
            (qp, (*(*qp).context).ops.post_send)
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the provider's function for its queue pair; the request lives during the call.
        post.is_some_and(|post| unsafe { post(qp, wr, &mut bad) } == 0)
    }

    /// The next event, if there is one.
    pub(crate) fn next_event(&self) -> Result<Option<Event>, Error> {
        let mut event = ptr::null_mut();
        // SAFETY: the channel lives, the result is ours.
        if unsafe { rdmacm::rdma_get_cm_event(self.channel, &mut event) } != 0 {
            let error = std::io::Error::last_os_error();
            return match error.kind() {
                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted => Ok(None),
                _ => Err(Error::of("rdma_get_cm_event")),
            };
        }
        // SAFETY: the call has given an event, which lives until it is acknowledged.
        let (kind, id) = unsafe { ((*event).event, (*event).id) };
        // SAFETY: the call has given an event, which lives until it is acknowledged; its identifier
        // lives.
        let said = unsafe { said(&*event) };
        // SAFETY: the event is not used again.
        called("rdma_ack_cm_event", unsafe {
            rdmacm::rdma_ack_cm_event(event)
        })?;
        Ok(Some(match kind {
            rdmacm::RDMA_CM_EVENT_ADDR_RESOLVED => Event::AddressResolved,
            rdmacm::RDMA_CM_EVENT_ROUTE_RESOLVED => Event::RouteResolved,
            rdmacm::RDMA_CM_EVENT_CONNECT_REQUEST => {
                let id = Self::adopt(id)?;
                let from = id.peer();
                Event::Request(Request {
                    id,
                    private: said.private,
                    from,
                })
            }
            rdmacm::RDMA_CM_EVENT_ESTABLISHED => match said.answer {
                Some((number, path)) => Event::Answer(Answer {
                    private: said.private,
                    number,
                    path,
                }),
                None => Event::Established(said.private),
            },
            rdmacm::RDMA_CM_EVENT_REJECTED => Event::Rejected(said.private),
            rdmacm::RDMA_CM_EVENT_CONNECT_RESPONSE
            | rdmacm::RDMA_CM_EVENT_TIMEWAIT_EXIT
            | rdmacm::RDMA_CM_EVENT_ADDR_CHANGE => Event::Other,
            _ => Event::Ended,
        }))
    }

    /// Takes the events that there are; whether the connection has ended.
    pub(crate) fn has_ended(&self) -> bool {
        loop {
            match self.next_event() {
                Ok(Some(Event::Ended | Event::Rejected(_))) | Err(_) => return true,
                Ok(Some(_)) => {}
                Ok(None) => return false,
            }
        }
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        if self.objects.is_some() {
            // SAFETY: the identifier lives and has a queue pair.
            unsafe { rdmacm::rdma_destroy_qp(self.raw) };
        }
        // SAFETY: every event is acknowledged, and the queue pair is gone.
        unsafe { rdmacm::rdma_destroy_id(self.raw) };
        // SAFETY: its only identifier is gone.
        unsafe { rdmacm::rdma_destroy_event_channel(self.channel) };
    }
}

fn parameters(private: &[u8], number: u32) -> rdmacm::rdma_conn_param {
    rdmacm::rdma_conn_param {
        private_data: private.as_ptr().cast(),
        private_data_len: u8::try_from(private.len()).unwrap_or(0),
        responder_resources: RD_ATOMIC,
        initiator_depth: RD_ATOMIC,
        flow_control: 1,
        retry_count: RETRIES,
        rnr_retry_count: RETRIES,
        srq: 0,
        qp_num: number,
    }
}

/// What an event has from the peer.
struct Said {
    private: Vec<u8>,
    /// Of a datagram service: the queue pair that it names, and the way to its host.
    answer: Option<(u32, verbs::ibv_ah_attr)>,
}

/// What an event has from the peer, if it is a request, an answer or a refusal.
///
/// # Safety
/// The event is not acknowledged.
unsafe fn said(event: &rdmacm::rdma_cm_event) -> Said {
    let has_said = matches!(
        event.event,
        rdmacm::RDMA_CM_EVENT_CONNECT_REQUEST
            | rdmacm::RDMA_CM_EVENT_ESTABLISHED
            | rdmacm::RDMA_CM_EVENT_REJECTED
    );
    // SAFETY: the identifier of an event lives until it is acknowledged.
    let is_datagram = unsafe { (*event.id).ps } == rdmacm::RDMA_PS_UDP;
    let (private, answer) = match (has_said, is_datagram) {
        (false, _) => (Vec::new(), None),
        (true, true) => {
            // SAFETY: an event of a datagram service has these parameters.
            let found = unsafe { &event.param.ud };
            // SAFETY: the event has as many octets there.
            let private = unsafe { private_data(found.private_data, found.private_data_len) };
            (private, Some((found.qp_num, found.ah_attr)))
        }
        (true, false) => {
            // SAFETY: an event of a connection has these parameters.
            let found = unsafe { &event.param.conn };
            // SAFETY: the event has as many octets there.
            let private = unsafe { private_data(found.private_data, found.private_data_len) };
            (private, None)
        }
    };
    Said { private, answer }
}

/// A copy of the private data of an event.
///
/// # Safety
/// There are `len` octets, or the pointer is null.
unsafe fn private_data(start: *const libc::c_void, len: u8) -> Vec<u8> {
    let start: *const u8 = start.cast();
    if start.is_null() {
        return Vec::new();
    }
    // SAFETY: by the caller's promise.
    unsafe { std::slice::from_raw_parts(start, usize::from(len)) }.to_vec()
}

/// A scatter-gather list as verbs have it.
#[inline(always)]
fn raw_list(elements: &[Sge]) -> &[verbs::ibv_sge] {
    const {
        assert!(size_of::<Sge>() == size_of::<verbs::ibv_sge>());
        assert!(align_of::<Sge>() == align_of::<verbs::ibv_sge>());
        assert!(offset_of!(Sge, len_octets) == offset_of!(verbs::ibv_sge, length));
        assert!(offset_of!(Sge, lkey) == offset_of!(verbs::ibv_sge, lkey));
    }
    // SAFETY: both have the same fields, of the same types and at the same offsets.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), elements.len()) }
}

fn raw(element: &Sge) -> verbs::ibv_sge {
    verbs::ibv_sge {
        addr: element.addr,
        length: element.len_octets,
        lkey: element.lkey,
    }
}

#[inline(always)]
fn work_request(work: &Transmit, elements: &[verbs::ibv_sge]) -> verbs::ibv_send_wr {
    let mut wr = verbs::ibv_send_wr {
        wr_id: work.wr_id,
        // It is read only.
        sg_list: elements.as_ptr().cast_mut(),
        num_sge: i32::try_from(elements.len()).unwrap_or(i32::MAX),
        ..Default::default()
    };
    if work.is_signaled {
        wr.send_flags = verbs::IBV_SEND_SIGNALED;
    }
    let rdma = verbs::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
        remote_addr: work.remote_addr,
        rkey: work.rkey,
    };
    if work.operation == Operation::Read {
        // Without a table of jumps for the others.
        (wr.opcode, wr.wr.rdma) = (verbs::IBV_WR_RDMA_READ, rdma);
        return wr;
    }
    match work.operation {
        Operation::Read => {}
        Operation::Write => (wr.opcode, wr.wr.rdma) = (verbs::IBV_WR_RDMA_WRITE, rdma),
        Operation::Send { .. } => wr.opcode = verbs::IBV_WR_SEND,
        Operation::CompareSwap { expected, swap } => {
            wr.opcode = verbs::IBV_WR_ATOMIC_CMP_AND_SWP;
            wr.wr.atomic = atomic(work, expected, swap);
        }
        Operation::FetchAdd { add } => {
            wr.opcode = verbs::IBV_WR_ATOMIC_FETCH_AND_ADD;
            wr.wr.atomic = atomic(work, add, 0);
        }
    }
    wr
}

fn atomic(
    work: &Transmit,
    compare_add: u64,
    swap: u64,
) -> verbs::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
    verbs::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
        remote_addr: work.remote_addr,
        compare_add,
        swap,
        rkey: work.rkey,
    }
}

/// A protection domain.
#[derive(Debug)]
pub(crate) struct Domain {
    raw: *mut verbs::ibv_pd,
    /// Keeps the device open. Removal of the device is the only event that ends it.
    anchor: Id,
    is_removed: Cell<bool>,
}

impl Domain {
    /// Of the device through which an address is reached or at which it is; the identifier is used
    /// for nothing else.
    pub(crate) fn new(anchor: Id) -> Result<Rc<Self>, Error> {
        // SAFETY: the identifier keeps the context open.
        let raw = unsafe { verbs::ibv_alloc_pd(anchor.context()?) };
        match raw.is_null() {
            true => Err(Error::of("ibv_alloc_pd")),
            false => Ok(Rc::new(Self {
                raw,
                anchor,
                is_removed: Cell::new(false),
            })),
        }
    }

    /// Elements that a request of the device may have, and an RDMA Read.
    pub(crate) fn elements_max(&self) -> Result<(u32, u32), Error> {
        let mut device = MaybeUninit::<verbs::ibv_device_attr>::zeroed();
        // SAFETY: the identifier keeps the context open, and the result is ours.
        let errno = unsafe { verbs::ibv_query_device(self.anchor.context()?, device.as_mut_ptr()) };
        called_errno("ibv_query_device", errno)?;
        // SAFETY: the call has written it, and every bit pattern of its fields is valid.
        let device = unsafe { device.assume_init() };
        let count = |count| u32::try_from(count).unwrap_or(0).max(1);
        Ok((count(device.max_sge), count(device.max_sge_rd)))
    }

    /// Whether the device was removed; a system call until it was.
    pub(crate) fn is_removed(&self) -> bool {
        if !self.is_removed.get() {
            self.is_removed.set(self.anchor.has_ended());
        }
        self.is_removed.get()
    }

    /// Names the reason of an error, if it is the removal of the device.
    #[inline]
    pub(crate) fn explain<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        result.map_err(|error| self.explained(error))
    }

    #[cold]
    fn explained(&self, error: Error) -> Error {
        match error {
            Error::Call { .. } | Error::Unreachable(_) if self.is_removed() => Error::Removed,
            other => other,
        }
    }

    /// What is readable when the device was removed.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.anchor.descriptor()
    }

    /// # Errors
    /// If an identifier is of another device.
    pub(crate) fn expect(&self, id: &Id) -> Result<(), Error> {
        match self.anchor.context()? == id.context()? {
            true => Ok(()),
            false => Err(Error::from_errno("rdma_resolve_addr", libc::ENODEV)),
        }
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: whatever uses the domain has a reference to it.
        unsafe { verbs::ibv_dealloc_pd(self.raw) };
    }
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Queue {
    raw: *mut verbs::ibv_cq,
    _domain: Rc<Domain>,
}

impl Queue {
    pub(crate) fn new(domain: &Rc<Domain>, entries: u32) -> Result<Rc<Self>, Error> {
        let context = domain.anchor.context()?;
        let entries = i32::try_from(entries).unwrap_or(i32::MAX);
        let none = ptr::null_mut();
        // SAFETY: the domain keeps the context open.
        let raw = unsafe { verbs::ibv_create_cq(context, entries, none, ptr::null_mut(), 0) };
        match raw.is_null() {
            true => Err(Error::of("ibv_create_cq")),
            false => Ok(Rc::new(Self {
                raw,
                _domain: Rc::clone(domain),
            })),
        }
    }

    /// Hands the oldest completions over; whether there were any.
    #[inline(always)]
    pub(crate) fn poll(&self, mut each: impl FnMut(u64, Status)) -> Result<bool, Error> {
        let mut found = [const { MaybeUninit::<verbs::ibv_wc>::uninit() }; POLLED];
        match self.poll_into(&mut found)? {
            [] => return Ok(false),
            [only] => each(only.wr_id, status_of(only.status)),
            polled => hand_over(polled, &mut each),
        }
        Ok(true)
    }

    /// The oldest completions.
    #[inline(always)]
    fn poll_into<'a>(
        &self,
        found: &'a mut [MaybeUninit<verbs::ibv_wc>; POLLED],
    ) -> Result<&'a [verbs::ibv_wc], Error> {
        // SAFETY: the queue and its context live.
        let poll = unsafe { (*(*self.raw).context).ops.poll_cq };
        let poll = poll.ok_or_else(|| Error::from_errno("ibv_poll_cq", libc::ENOSYS))?;
        let most = i32::try_from(POLLED).unwrap_or(0);
        // SAFETY: the provider's function for its queue; there is room for `most`.
        let count = unsafe { poll(self.raw, most, found.as_mut_ptr().cast()) };
        let count =
            usize::try_from(count).map_err(|_| Error::from_errno("ibv_poll_cq", libc::EIO))?;
        // SAFETY: the provider has written `count`, at most as many as there is room for.
        Ok(unsafe { std::slice::from_raw_parts(found.as_ptr().cast(), count.min(POLLED)) })
    }
}

/// Apart from the poll, most of which find nothing or one.
#[inline(never)]
fn hand_over(polled: &[verbs::ibv_wc], each: &mut impl FnMut(u64, Status)) {
    for completion in polled {
        each(completion.wr_id, status_of(completion.status));
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the queue pairs of the queue have references to it.
        unsafe { verbs::ibv_destroy_cq(self.raw) };
    }
}

fn status_of(status: verbs::ibv_wc_status) -> Status {
    match status {
        verbs::IBV_WC_SUCCESS => Status::Success,
        verbs::IBV_WC_WR_FLUSH_ERR => Status::Flushed,
        verbs::IBV_WC_REM_ACCESS_ERR => Status::RemoteAccess,
        verbs::IBV_WC_REM_INV_REQ_ERR => Status::RemoteInvalidRequest,
        verbs::IBV_WC_REM_OP_ERR => Status::RemoteOperation,
        verbs::IBV_WC_RETRY_EXC_ERR => Status::RetryExceeded,
        other => Status::Other(other),
    }
}
