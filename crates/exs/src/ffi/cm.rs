//! Identifiers of librdmacm and their events.

use std::ffi::CStr;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::ptr;

use nix::sys::socket::{SockaddrLike, SockaddrStorage};
use rdma_core_sys::{rdmacm, verbs};

use crate::error::Error;
use crate::ffi::{borrowed, set_nonblocking};

// Applications link the system's librdmacm.
#[link(name = "rdmacm")]
extern "C" {}

/// How long addresses and routes are looked for.
const RESOLVE_MS: i32 = 5_000;
/// Retries without an answer, and without a receive; the greatest numbers.
const RETRIES: u8 = 7;

/// The result of a call that sets errno.
pub(super) fn called(call: &'static str, status: i32) -> Result<(), Error> {
    match status {
        0 => Ok(()),
        _ => Err(Error::of(call)),
    }
}

/// An event channel, of one identifier.
#[derive(Debug)]
struct Channel(*mut rdmacm::rdma_event_channel);

impl Channel {
    fn new() -> Result<Self, Error> {
        // SAFETY: the call has no argument.
        let raw = unsafe { rdmacm::rdma_create_event_channel() };
        if raw.is_null() {
            return Err(Error::of("rdma_create_event_channel"));
        }
        let channel = Self(raw);
        set_nonblocking(channel.number())?;
        Ok(channel)
    }

    fn number(&self) -> i32 {
        // SAFETY: the channel lives.
        unsafe { (*self.0).fd }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: its identifier was destroyed before.
        unsafe { rdmacm::rdma_destroy_event_channel(self.0) };
    }
}

/// What has happened to an identifier.
#[derive(Debug)]
pub(crate) enum Event {
    AddressResolved,
    RouteResolved,
    /// A client wants to connect: its identifier and private data.
    Request(Id, Vec<u8>),
    /// The connection is complete; the private data of the accepting end.
    Established(Vec<u8>),
    Disconnected,
    /// An event that says nothing of a connection that is complete; the errno of a connection that
    /// is not made for it.
    Other(String, i32),
}

/// An identifier with a channel of its own.
#[derive(Debug)]
pub(crate) struct Id {
    raw: *mut rdmacm::rdma_cm_id,
    channel: Channel,
}

// SAFETY: librdmacm permits calls for an identifier from all threads.
unsafe impl Send for Id {}
// SAFETY: librdmacm permits calls for an identifier from all threads.
unsafe impl Sync for Id {}

impl Id {
    pub(crate) fn new() -> Result<Self, Error> {
        let channel = Channel::new()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the channel lives as long as the identifier, the result is ours.
        let status = unsafe {
            rdmacm::rdma_create_id(channel.0, &mut raw, ptr::null_mut(), rdmacm::RDMA_PS_TCP)
        };
        called("rdma_create_id", status)?;
        Ok(Self { raw, channel })
    }

    /// Gives the identifier of a request, all of whose events are acknowledged, its own channel.
    fn adopt(raw: *mut rdmacm::rdma_cm_id) -> Result<Self, Error> {
        let channel = Channel::new()?;
        // SAFETY: identifier and channel live.
        let status = unsafe { rdmacm::rdma_migrate_id(raw, channel.0) };
        called("rdma_migrate_id", status)?;
        Ok(Self { raw, channel })
    }

    pub(super) fn raw(&self) -> *mut rdmacm::rdma_cm_id {
        self.raw
    }

    /// The descriptor that can be read when there is an event.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        borrowed(self.channel.number())
    }

    /// The device's context.
    pub(crate) fn context(&self) -> Result<*mut verbs::ibv_context, Error> {
        // SAFETY: the identifier lives.
        let context = unsafe { (*self.raw).verbs };
        if context.is_null() {
            return Err(Error::from_errno("rdma_cm_id", libc::ENODEV));
        }
        Ok(context)
    }

    pub(crate) fn bind(&self, address: SocketAddr) -> Result<(), Error> {
        let address = SockaddrStorage::from(address);
        // SAFETY: the address is read during the call.
        let status = unsafe { rdmacm::rdma_bind_addr(self.raw, address.as_ptr().cast_mut()) };
        called("rdma_bind_addr", status)
    }

    pub(crate) fn listen(&self, backlog: i32) -> Result<(), Error> {
        // SAFETY: the identifier lives.
        called("rdma_listen", unsafe {
            rdmacm::rdma_listen(self.raw, backlog)
        })
    }

    /// The address of the other end, if there is one.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier lives, and its address as long as it does.
        let address = unsafe { &raw const (*self.raw).route.addr.__bindgen_anon_2.dst_addr };
        // SAFETY: the address is in a union that has room for those of all families.
        let storage = unsafe { SockaddrStorage::from_raw(address.cast(), None) }?;
        let v4 = storage.as_sockaddr_in().map(|&a| SocketAddr::V4(a.into()));
        v4.or_else(|| storage.as_sockaddr_in6().map(|&a| SocketAddr::V6(a.into())))
    }

    /// The port that a listener has.
    pub(crate) fn port(&self) -> u16 {
        // SAFETY: the identifier lives.
        u16::from_be(unsafe { rdmacm::rdma_get_src_port(self.raw) })
    }

    pub(crate) fn resolve_address(&self, to: SocketAddr) -> Result<(), Error> {
        let to = SockaddrStorage::from(to);
        let to = to.as_ptr().cast_mut();
        // SAFETY: the address is read during the call.
        let status =
            unsafe { rdmacm::rdma_resolve_addr(self.raw, ptr::null_mut(), to, RESOLVE_MS) };
        called("rdma_resolve_addr", status)
    }

    pub(crate) fn resolve_route(&self) -> Result<(), Error> {
        // SAFETY: the identifier lives.
        let status = unsafe { rdmacm::rdma_resolve_route(self.raw, RESOLVE_MS) };
        called("rdma_resolve_route", status)
    }

    pub(crate) fn connect(&self, private: &[u8]) -> Result<(), Error> {
        // SAFETY: the identifier lives; the parameters are read during the call.
        let status = unsafe { rdmacm::rdma_connect(self.raw, &mut parameters(private)) };
        called("rdma_connect", status)
    }

    pub(crate) fn accept(&self, private: &[u8]) -> Result<(), Error> {
        // SAFETY: the identifier lives; the parameters are read during the call.
        let status = unsafe { rdmacm::rdma_accept(self.raw, &mut parameters(private)) };
        called("rdma_accept", status)
    }

    pub(crate) fn reject(&self) -> Result<(), Error> {
        // SAFETY: the identifier lives; there is no private data.
        let status = unsafe { rdmacm::rdma_reject(self.raw, ptr::null(), 0) };
        called("rdma_reject", status)
    }

    /// Ends the connection; the queue pair is in the error state then.
    pub(crate) fn disconnect(&self) -> Result<(), Error> {
        // SAFETY: the identifier lives.
        called("rdma_disconnect", unsafe {
            rdmacm::rdma_disconnect(self.raw)
        })
    }

    /// The next event, if there is one.
    pub(crate) fn next_event(&self) -> Result<Option<Event>, Error> {
        let mut event = ptr::null_mut();
        // SAFETY: the channel lives, the result is ours.
        if unsafe { rdmacm::rdma_get_cm_event(self.channel.0, &mut event) } != 0 {
            let error = std::io::Error::last_os_error();
            return match error.kind() {
                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted => Ok(None),
                _ => Err(Error::of("rdma_get_cm_event")),
            };
        }
        // SAFETY: the call has given an event, which lives until it is acknowledged.
        let (kind, id, status) = unsafe { ((*event).event, (*event).id, (*event).status) };
        // SAFETY: the call has given an event, which lives until it is acknowledged; an identifier
        // of RDMA_PS_TCP has the parameters of connections.
        let private = unsafe { private_data(&(*event).param.conn) };
        // SAFETY: the event is not used again.
        called("rdma_ack_cm_event", unsafe {
            rdmacm::rdma_ack_cm_event(event)
        })?;
        Ok(Some(match kind {
            rdmacm::RDMA_CM_EVENT_ADDR_RESOLVED => Event::AddressResolved,
            rdmacm::RDMA_CM_EVENT_ROUTE_RESOLVED => Event::RouteResolved,
            rdmacm::RDMA_CM_EVENT_CONNECT_REQUEST => Event::Request(Self::adopt(id)?, private),
            rdmacm::RDMA_CM_EVENT_ESTABLISHED => Event::Established(private),
            rdmacm::RDMA_CM_EVENT_DISCONNECTED | rdmacm::RDMA_CM_EVENT_DEVICE_REMOVAL => {
                Event::Disconnected
            }
            _ => {
                let name = format!("{} (status {status})", name_of(kind));
                Event::Other(name, errno_of(kind))
            }
        }))
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: every event was acknowledged; the queue pair, which holds a reference to the
        // identifier, is gone.
        unsafe { rdmacm::rdma_destroy_id(self.raw) };
    }
}

fn parameters(private: &[u8]) -> rdmacm::rdma_conn_param {
    rdmacm::rdma_conn_param {
        private_data: private.as_ptr().cast(),
        private_data_len: u8::try_from(private.len()).unwrap_or(0),
        responder_resources: 1,
        initiator_depth: 1,
        flow_control: 1,
        retry_count: RETRIES,
        rnr_retry_count: RETRIES,
        srq: 0,
        qp_num: 0,
    }
}

/// A copy of the private data of an event.
///
/// # Safety
/// The parameters are those of an event that is not acknowledged.
unsafe fn private_data(parameters: &rdmacm::rdma_conn_param) -> Vec<u8> {
    let start: *const u8 = parameters.private_data.cast();
    if start.is_null() {
        return Vec::new();
    }
    let len = usize::from(parameters.private_data_len);
    // SAFETY: the event has as many octets there.
    unsafe { std::slice::from_raw_parts(start, len) }.to_vec()
}

/// Why a connection is not made.
fn errno_of(kind: rdmacm::rdma_cm_event_type) -> i32 {
    match kind {
        rdmacm::RDMA_CM_EVENT_REJECTED => libc::ECONNREFUSED,
        rdmacm::RDMA_CM_EVENT_UNREACHABLE => libc::ETIMEDOUT,
        rdmacm::RDMA_CM_EVENT_ADDR_ERROR | rdmacm::RDMA_CM_EVENT_ROUTE_ERROR => libc::EHOSTUNREACH,
        _ => libc::ECONNABORTED,
    }
}

fn name_of(kind: rdmacm::rdma_cm_event_type) -> String {
    // SAFETY: the function gives a text that is never freed, for any value.
    let name = unsafe { CStr::from_ptr(rdmacm::rdma_event_str(kind)) };
    name.to_string_lossy().into_owned()
}
