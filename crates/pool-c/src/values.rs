//! The structures of `include/urdma_pool.h`, and what they say.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::ptr::NonNull;
use std::time::Duration;

use arrayvec::ArrayVec;
use rdma_core_sys::verbs;
use urdma_abi::address;
use urdma_pool_verbs::{
    Completion, Config, Depths, Element, EndState, Foreign, LocalRegionId, Messages, Operation,
    Received, RemoteRegionId, Request, SendRequest, Stats, Status, Switching, Transport,
    ELEMENTS_MAX,
};

use crate::errno::Errno;

/// `URDMA_POOL_RC` and `URDMA_POOL_DC`.
const RC: c_int = 0;
const DC: c_int = 1;

/// `struct urdma_pool_attr`.
#[repr(C)]
pub(crate) struct Attr {
    transport: c_int,
    shared: u32,
    sq_depth: u32,
    cq_depth: u32,
    virtual_max: u32,
    nodes_max: u32,
    max_sge: u32,
    switch_max: u32,
    switch_requests: u32,
    switch_window_us: u32,
    switch_quiet: u32,
    switch_retry: u32,
}

/// `struct urdma_pool_stats`.
#[repr(C)]
pub(crate) struct Counters {
    posted: u64,
    failed: u64,
    repeated: u64,
    switched_to_connections: u64,
    switched_back: u64,
    switches_failed: u64,
}

/// `struct urdma_pool_remote`.
#[repr(C)]
pub(crate) struct Remote {
    pub(crate) id: u64,
    pub(crate) addr: u64,
    pub(crate) length: u64,
}

/// `struct urdma_pool_message_attr`.
#[repr(C)]
pub(crate) struct MessageAttr {
    send_max: u32,
    share: u32,
    backlog: u32,
    addr: *mut c_void,
    length: usize,
}

/// `struct urdma_pool_depths`.
#[repr(C)]
pub(crate) struct QueueDepths {
    requests: u32,
    receives: u32,
}

/// `struct urdma_pool_sge`.
#[repr(C)]
pub(crate) struct GatherElement {
    mr: u64,
    addr: *mut c_void,
    length: u32,
}

/// `struct urdma_pool_wr`.
#[repr(C)]
pub(crate) struct WorkRequest {
    wr_id: u64,
    opcode: verbs::ibv_wr_opcode,
    send_flags: u32,
    pub(crate) sg_list: *const GatherElement,
    pub(crate) num_sge: c_int,
    remote: u64,
    remote_addr: u64,
    compare_add: u64,
    swap: u64,
}

/// `struct urdma_pool_send_wr`.
#[repr(C)]
pub(crate) struct SendWorkRequest {
    wr_id: u64,
    opcode: verbs::ibv_wr_opcode,
    send_flags: u32,
    pub(crate) sg_list: *const GatherElement,
    pub(crate) num_sge: c_int,
    /// In network order.
    imm_data: u32,
}

/// `struct urdma_pool_recv_wr`.
#[repr(C)]
pub(crate) struct ReceiveWorkRequest {
    pub(crate) wr_id: u64,
    pub(crate) sg_list: *const GatherElement,
    pub(crate) num_sge: c_int,
}

/// `struct urdma_pool_recv_wc`.
#[repr(C)]
pub(crate) struct ReceiveCompletion {
    wr_id: u64,
    status: verbs::ibv_wc_status,
    byte_len: u32,
    wc_flags: u32,
    /// In network order.
    imm_data: u32,
}

/// `struct urdma_pool_wc`.
#[repr(C)]
pub(crate) struct WorkCompletion {
    wr_id: u64,
    status: verbs::ibv_wc_status,
    opcode: verbs::ibv_wc_opcode,
    byte_len: u32,
}

/// Whether memory is offered to initiators, too.
pub(crate) fn is_dc(transport: c_int) -> Result<bool, Errno> {
    match transport {
        RC => Ok(false),
        DC => Ok(true),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// A field that is 0 has its default.
fn or(value: u32, default: u32) -> u32 {
    match value {
        0 => default,
        value => value,
    }
}

/// Whether a request is signaled; it has no other flag.
fn is_signaled(send_flags: u32) -> Result<bool, Errno> {
    match send_flags & !verbs::IBV_SEND_SIGNALED {
        0 => Ok(send_flags != 0),
        _ => Err(Errno(libc::EOPNOTSUPP)),
    }
}

impl Attr {
    pub(crate) fn config(&self) -> Result<Config, Errno> {
        let default = Config::default();
        let shared = u16::try_from(or(self.shared, 1)).map_err(|_| Errno(libc::EINVAL))?;
        Ok(Config {
            transport: match is_dc(self.transport)? {
                false => Transport::Connections { per_node: shared },
                true => Transport::Initiators { count: shared },
            },
            sq_depth: or(self.sq_depth, default.sq_depth),
            cq_depth: or(self.cq_depth, default.cq_depth),
            virtual_max: or(self.virtual_max, default.virtual_max),
            nodes_max: or(self.nodes_max, default.nodes_max),
            elements_max: or(self.max_sge, default.elements_max),
            read_elements_max: or(self.max_sge, default.read_elements_max),
            switching: self.switching()?,
            ..default
        })
    }

    fn switching(&self) -> Result<Option<Switching>, Errno> {
        let default = Switching::default();
        let connections_max = u16::try_from(self.switch_max).map_err(|_| Errno(libc::EINVAL))?;
        let window = match self.switch_window_us {
            0 => default.window,
            window_us => Duration::from_micros(window_us.into()),
        };
        let switching = Switching {
            connections_max,
            requests: or(self.switch_requests, default.requests),
            window,
            quiet_windows: or(self.switch_quiet, default.quiet_windows),
            retry_windows: or(self.switch_retry, default.retry_windows),
        };
        Ok((connections_max > 0).then_some(switching))
    }
}

impl From<&Stats> for Counters {
    fn from(stats: &Stats) -> Self {
        Self {
            posted: stats.posted,
            failed: stats.failed,
            repeated: stats.repeated,
            switched_to_connections: stats.switched_to_connections,
            switched_back: stats.switched_back,
            switches_failed: stats.switches_failed,
        }
    }
}

impl WorkRequest {
    pub(crate) fn request(&self) -> Result<Request, Errno> {
        let is_signaled = is_signaled(self.send_flags)?;
        let operation = match self.opcode {
            verbs::IBV_WR_RDMA_READ => Operation::Read,
            verbs::IBV_WR_RDMA_WRITE => Operation::Write,
            verbs::IBV_WR_ATOMIC_CMP_AND_SWP => Operation::CompareSwap {
                expected: self.compare_add,
                swap: self.swap,
            },
            verbs::IBV_WR_ATOMIC_FETCH_AND_ADD => Operation::FetchAdd {
                add: self.compare_add,
            },
            _ => return Err(Errno(libc::EOPNOTSUPP)),
        };
        Ok(Request {
            id: self.wr_id,
            operation,
            remote: RemoteRegionId::from_bits(self.remote),
            remote_addr: self.remote_addr,
            is_signaled,
        })
    }
}

impl MessageAttr {
    pub(crate) fn messages(&self) -> Result<Messages, Errno> {
        let default = Messages::default();
        let share = u16::try_from(or(self.share, default.share.into()));
        Ok(Messages {
            send_octets_max: or(self.send_max, default.send_octets_max),
            share: share.map_err(|_| Errno(libc::EINVAL))?,
            backlog: or(self.backlog, default.backlog),
            ..default
        })
    }

    /// The memory of the application that others access, if there is some.
    ///
    /// # Safety
    /// It is allocated until the pool with which it is registered is destroyed.
    pub(crate) unsafe fn memory(&self) -> Result<Option<Foreign>, Errno> {
        match (NonNull::new(self.addr.cast()), self.length) {
            (None, 0) => Ok(None),
            (None, _) => Err(Errno(libc::EFAULT)),
            (Some(start), length) => {
                // SAFETY: as the caller says.
                let memory = unsafe { Foreign::new(start, length) };
                memory.ok_or(Errno(libc::EINVAL)).map(Some)
            }
        }
    }
}

impl QueueDepths {
    pub(crate) fn depths(&self) -> Result<Depths, Errno> {
        let Self { requests, receives } = *self;
        match requests {
            0 => Err(Errno(libc::EINVAL)),
            _ => Ok(Depths { requests, receives }),
        }
    }
}

impl SendWorkRequest {
    pub(crate) fn request(&self) -> Result<SendRequest, Errno> {
        let immediate = match self.opcode {
            verbs::IBV_WR_SEND => None,
            verbs::IBV_WR_SEND_WITH_IMM => Some(u32::from_be(self.imm_data)),
            _ => return Err(Errno(libc::EOPNOTSUPP)),
        };
        Ok(SendRequest {
            id: self.wr_id,
            immediate,
            is_signaled: is_signaled(self.send_flags)?,
        })
    }
}

/// A scatter-gather list of the application.
///
/// # Safety
/// There are `count` elements, or the pointer is null.
pub(crate) unsafe fn elements_at(
    list: *const GatherElement,
    count: c_int,
) -> Result<ArrayVec<Element, ELEMENTS_MAX>, Errno> {
    let count = usize::try_from(count).map_err(|_| Errno(libc::EINVAL))?;
    if count > ELEMENTS_MAX {
        return Err(Errno(libc::EINVAL));
    }
    if count > 0 && list.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    let elements = (0..count).map(|n| {
        // SAFETY: as the caller says.
        let element = unsafe { &*list.add(n) };
        Element {
            local: LocalRegionId::from_bits(element.mr),
            addr: element.addr.addr() as u64,
            len_octets: element.length,
        }
    });
    Ok(elements.collect())
}

fn status_of(status: Status) -> verbs::ibv_wc_status {
    match status {
        Status::Success => verbs::IBV_WC_SUCCESS,
        Status::Flushed => verbs::IBV_WC_WR_FLUSH_ERR,
        Status::RemoteAccess => verbs::IBV_WC_REM_ACCESS_ERR,
        Status::RemoteInvalidRequest => verbs::IBV_WC_REM_INV_REQ_ERR,
        Status::RemoteOperation => verbs::IBV_WC_REM_OP_ERR,
        Status::RetryExceeded => verbs::IBV_WC_RETRY_EXC_ERR,
        Status::LocalLength => verbs::IBV_WC_LOC_LEN_ERR,
        Status::Other(status) => status,
    }
}

/// `enum urdma_pool_state`.
pub(crate) fn state_of(state: EndState) -> c_int {
    match state {
        EndState::Opening => 0,
        EndState::Accepted => 1,
        EndState::Open => 2,
        EndState::Refused => 3,
        EndState::Closed => 4,
    }
}

impl From<Received> for ReceiveCompletion {
    fn from(received: Received) -> Self {
        Self {
            wr_id: received.id,
            status: status_of(received.status),
            byte_len: received.len_octets,
            wc_flags: received.immediate.map_or(0, |_| verbs::IBV_WC_WITH_IMM),
            imm_data: received.immediate.map_or(0, u32::to_be),
        }
    }
}

impl From<Completion> for WorkCompletion {
    fn from(completion: Completion) -> Self {
        Self {
            wr_id: completion.id,
            status: status_of(completion.status),
            opcode: match completion.operation {
                Operation::Read => verbs::IBV_WC_RDMA_READ,
                Operation::Write => verbs::IBV_WC_RDMA_WRITE,
                Operation::CompareSwap { .. } => verbs::IBV_WC_COMP_SWAP,
                Operation::FetchAdd { .. } => verbs::IBV_WC_FETCH_ADD,
                Operation::Send { .. } => verbs::IBV_WC_SEND,
            },
            byte_len: completion.len_octets,
        }
    }
}

/// The address that the application points to.
///
/// # Safety
/// There are `len` octets, or the pointer is null.
pub(crate) unsafe fn address_at(
    at: *const libc::sockaddr,
    len: libc::socklen_t,
) -> Result<SocketAddr, Errno> {
    // SAFETY: as the caller says.
    unsafe { address::read(at, len) }.map_err(Errno)
}

/// The addresses of metadata services.
///
/// # Safety
/// There are `count` of them, or the pointer is null.
pub(crate) unsafe fn services_at(
    at: *const libc::sockaddr_storage,
    count: c_int,
) -> Result<Vec<SocketAddr>, Errno> {
    let count = usize::try_from(count).map_err(|_| Errno(libc::EINVAL))?;
    if at.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    let len = size_of::<libc::sockaddr_storage>();
    let len = libc::socklen_t::try_from(len).map_err(|_| Errno(libc::EINVAL))?;
    (0..count)
        // SAFETY: as the caller says.
        .map(|n| unsafe { address_at(at.add(n).cast(), len) })
        .collect()
}
