//! The structures of `include/urdma_pool.h`, and what they say.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;

use arrayvec::ArrayVec;
use rdma_core_sys::verbs;
use urdma_abi::address;
use urdma_pool_verbs::{
    Completion, Config, Element, LocalRegionId, Operation, RemoteRegionId, Request, Status,
    Transport, ELEMENTS_MAX,
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
}

/// `struct urdma_pool_remote`.
#[repr(C)]
pub(crate) struct Remote {
    pub(crate) id: u64,
    pub(crate) addr: u64,
    pub(crate) length: u64,
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
    sg_list: *const GatherElement,
    num_sge: c_int,
    remote: u64,
    remote_addr: u64,
    compare_add: u64,
    swap: u64,
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

impl Attr {
    pub(crate) fn config(&self) -> Result<Config, Errno> {
        let default = Config::default();
        let or = |value: u32, default: u32| match value {
            0 => default,
            value => value,
        };
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
            ..default
        })
    }
}

impl WorkRequest {
    pub(crate) fn request(&self) -> Result<Request, Errno> {
        if self.send_flags & !verbs::IBV_SEND_SIGNALED != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
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
            is_signaled: self.send_flags & verbs::IBV_SEND_SIGNALED != 0,
        })
    }

    /// Its scatter-gather list.
    ///
    /// # Safety
    /// There are `num_sge` elements, or the pointer is null.
    pub(crate) unsafe fn elements(&self) -> Result<ArrayVec<Element, ELEMENTS_MAX>, Errno> {
        let count = usize::try_from(self.num_sge).map_err(|_| Errno(libc::EINVAL))?;
        if count > ELEMENTS_MAX {
            return Err(Errno(libc::EINVAL));
        }
        if count > 0 && self.sg_list.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        let elements = (0..count).map(|n| {
            // SAFETY: as the caller says.
            let element = unsafe { &*self.sg_list.add(n) };
            Element {
                local: LocalRegionId::from_bits(element.mr),
                addr: element.addr.addr() as u64,
                len_octets: element.length,
            }
        });
        Ok(elements.collect())
    }
}

impl From<Completion> for WorkCompletion {
    fn from(completion: Completion) -> Self {
        Self {
            wr_id: completion.id,
            status: match completion.status {
                Status::Success => verbs::IBV_WC_SUCCESS,
                Status::Flushed => verbs::IBV_WC_WR_FLUSH_ERR,
                Status::RemoteAccess => verbs::IBV_WC_REM_ACCESS_ERR,
                Status::RemoteInvalidRequest => verbs::IBV_WC_REM_INV_REQ_ERR,
                Status::RemoteOperation => verbs::IBV_WC_REM_OP_ERR,
                Status::RetryExceeded => verbs::IBV_WC_RETRY_EXC_ERR,
                Status::LocalLength => verbs::IBV_WC_LOC_LEN_ERR,
                Status::Other(status) => status,
            },
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
