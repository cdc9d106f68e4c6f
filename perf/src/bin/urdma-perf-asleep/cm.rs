//! Connections of librdmacm.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::net::Ipv4Addr;
use std::ptr;

use rdma_core_sys::{rdmacm, verbs};
use urdma_perf::verbs_setup::made;

// The program links the system's librdmacm, as other applications do.
#[link(name = "rdmacm")]
extern "C" {}

/// An identifier; it exists until the process ends.
pub(crate) type Id = *mut rdmacm::rdma_cm_id;

const TIMEOUT_MS: i32 = 5_000;
const BACKLOG: i32 = 1024;

fn called(what: &str, status: i32) -> Result<(), String> {
    match status {
        0 => Ok(()),
        _ => Err(format!("{what}: {}", std::io::Error::last_os_error())),
    }
}

/// What has happened to a connection, or that there is one.
pub(crate) struct Event {
    pub(crate) kind: rdmacm::rdma_cm_event_type,
    pub(crate) id: Id,
}

impl Event {
    pub(crate) fn unexpected(&self) -> String {
        // SAFETY: the function gives a text that is never freed, for any value.
        let name = unsafe { CStr::from_ptr(rdmacm::rdma_event_str(self.kind)) };
        name.to_string_lossy().into_owned()
    }
}

/// An event channel; it exists until the process ends.
pub(crate) struct Events(*mut rdmacm::rdma_event_channel);

// SAFETY: any thread may use an event channel.
unsafe impl Send for Events {}

impl Events {
    pub(crate) fn new() -> Result<Self, String> {
        // SAFETY: takes nothing.
        let channel = unsafe { rdmacm::rdma_create_event_channel() };
        made("rdma_create_event_channel", channel).map(Self)
    }

    pub(crate) fn id(&self) -> Result<Id, String> {
        let mut id = ptr::null_mut();
        // SAFETY: the channel lives, the result is ours.
        let status = unsafe {
            rdmacm::rdma_create_id(self.0, &mut id, ptr::null_mut(), rdmacm::RDMA_PS_TCP)
        };
        called("rdma_create_id", status).map(|()| id)
    }

    /// Waits for the next event.
    pub(crate) fn next(&self) -> Result<Event, String> {
        let mut event = ptr::null_mut();
        // SAFETY: the channel lives, the result is ours.
        let status = unsafe { rdmacm::rdma_get_cm_event(self.0, &mut event) };
        called("rdma_get_cm_event", status)?;
        // SAFETY: the call has given an event, which lives until it is acknowledged.
        let (kind, id) = unsafe { ((*event).event, (*event).id) };
        // SAFETY: the event is not used again.
        called("rdma_ack_cm_event", unsafe {
            rdmacm::rdma_ack_cm_event(event)
        })?;
        Ok(Event { kind, id })
    }

    /// Waits for an event that is the next one.
    pub(crate) fn expect(&self, kind: rdmacm::rdma_cm_event_type) -> Result<(), String> {
        let event = self.next()?;
        match event.kind == kind {
            true => Ok(()),
            false => Err(event.unexpected()),
        }
    }
}

fn socket_address((address, port): (Ipv4Addr, u16)) -> libc::sockaddr_in {
    // SAFETY: all zeroes is a valid value of this plain structure.
    let mut socket: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    socket.sin_family = libc::sa_family_t::try_from(libc::AF_INET).unwrap_or(0);
    socket.sin_port = port.to_be();
    socket.sin_addr.s_addr = u32::from(address).to_be();
    socket
}

fn parameters() -> rdmacm::rdma_conn_param {
    // SAFETY: all zeroes is a valid value of this plain structure.
    let mut parameters: rdmacm::rdma_conn_param = unsafe { std::mem::zeroed() };
    parameters.responder_resources = 1;
    parameters.initiator_depth = 1;
    parameters.retry_count = 7;
    parameters.rnr_retry_count = 7;
    parameters
}

/// Makes the queue pair of an identifier, with room for `depth` work requests each way. Domain and
/// completion queue must live.
pub(crate) fn make_queue_pair(
    id: Id,
    pd: *mut verbs::ibv_pd,
    cq: *mut verbs::ibv_cq,
    depth: u32,
) -> Result<(), String> {
    // SAFETY: all zeroes is a valid value of this plain structure.
    let mut init: verbs::ibv_qp_init_attr = unsafe { std::mem::zeroed() };
    (init.send_cq, init.recv_cq) = (cq, cq);
    init.qp_type = verbs::IBV_QPT_RC;
    (init.cap.max_send_wr, init.cap.max_recv_wr) = (depth, depth);
    (init.cap.max_send_sge, init.cap.max_recv_sge) = (1, 1);
    // SAFETY: identifier, domain and queue live, the attributes are ours.
    called("rdma_create_qp", unsafe {
        rdmacm::rdma_create_qp(id, pd, &mut init)
    })
}

/// Begins to find the address, which ends in an event.
pub(crate) fn resolve_address(id: Id, to: (Ipv4Addr, u16)) -> Result<(), String> {
    let mut to = socket_address(to);
    let to: *mut libc::sockaddr_in = &mut to;
    // SAFETY: the identifier lives; the address is read during the call.
    let status = unsafe { rdmacm::rdma_resolve_addr(id, ptr::null_mut(), to.cast(), TIMEOUT_MS) };
    called("rdma_resolve_addr", status)
}

/// Begins to find the route, which ends in an event.
pub(crate) fn resolve_route(id: Id) -> Result<(), String> {
    // SAFETY: the identifier lives.
    let status = unsafe { rdmacm::rdma_resolve_route(id, TIMEOUT_MS) };
    called("rdma_resolve_route", status)
}

/// Begins to connect an identifier that has a queue pair, which ends in an event.
pub(crate) fn begin_to_connect(id: Id) -> Result<(), String> {
    // SAFETY: the identifier lives and has a queue pair.
    let status = unsafe { rdmacm::rdma_connect(id, &mut parameters()) };
    called("rdma_connect", status)
}

/// Accepts the client of a request, for which there is a queue pair.
pub(crate) fn accept(id: Id) -> Result<(), String> {
    // SAFETY: the identifier lives and has a queue pair.
    let status = unsafe { rdmacm::rdma_accept(id, &mut parameters()) };
    called("rdma_accept", status)
}

/// Begins to end a connection, which ends in an event at both ends.
pub(crate) fn disconnect(id: Id) -> Result<(), String> {
    // SAFETY: the identifier lives.
    called("rdma_disconnect", unsafe { rdmacm::rdma_disconnect(id) })
}

/// Destroys an identifier and its queue pair.
pub(crate) fn destroy(id: Id) -> Result<(), String> {
    // SAFETY: the identifier lives, and is not used again; all of its events were acknowledged.
    unsafe {
        rdmacm::rdma_destroy_qp(id);
        called("rdma_destroy_id", rdmacm::rdma_destroy_id(id))
    }
}

/// Connects to a server; `prepare` makes the queue pair.
pub(crate) fn connect<T>(
    to: (Ipv4Addr, u16),
    prepare: impl FnOnce(Id) -> Result<T, String>,
) -> Result<T, String> {
    let events = Events::new()?;
    let id = events.id()?;
    resolve_address(id, to)?;
    events.expect(rdmacm::RDMA_CM_EVENT_ADDR_RESOLVED)?;
    resolve_route(id)?;
    events.expect(rdmacm::RDMA_CM_EVENT_ROUTE_RESOLVED)?;
    let prepared = prepare(id)?;
    begin_to_connect(id)?;
    events.expect(rdmacm::RDMA_CM_EVENT_ESTABLISHED)?;
    Ok(prepared)
}

/// What has happened to a server.
pub(crate) enum News {
    /// A client wants to connect.
    Request(Id),
    /// The connection of an accepted client is complete.
    Established,
}

/// A server's port.
pub(crate) struct Port {
    events: Events,
    id: Id,
}

impl Port {
    /// Listens on a port of the library's choice.
    pub(crate) fn new(address: Ipv4Addr) -> Result<Self, String> {
        let events = Events::new()?;
        let id = events.id()?;
        let mut at = socket_address((address, 0));
        let at: *mut libc::sockaddr_in = &mut at;
        // SAFETY: the identifier lives; the address is read during the call.
        called("rdma_bind_addr", unsafe {
            rdmacm::rdma_bind_addr(id, at.cast())
        })?;
        // SAFETY: the identifier lives.
        called("rdma_listen", unsafe { rdmacm::rdma_listen(id, BACKLOG) })?;
        Ok(Self { events, id })
    }

    pub(crate) fn number(&self) -> u16 {
        // SAFETY: the identifier lives.
        u16::from_be(unsafe { rdmacm::rdma_get_src_port(self.id) })
    }

    pub(crate) fn events(&self) -> &Events {
        &self.events
    }

    /// Waits until something happens.
    pub(crate) fn next(&self) -> Result<News, String> {
        let event = self.events.next()?;
        match event.kind {
            rdmacm::RDMA_CM_EVENT_CONNECT_REQUEST => Ok(News::Request(event.id)),
            rdmacm::RDMA_CM_EVENT_ESTABLISHED => Ok(News::Established),
            _ => Err(event.unexpected()),
        }
    }
}
