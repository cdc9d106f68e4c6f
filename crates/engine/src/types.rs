//! Types of the engine's interface: sizes, rights, attributes, errors.

use std::net::IpAddr;

use proto_trp::conn::{Completion, CompletionOp, QpState, Status};
use urdma_ipc::Personality;
use urdma_types::{Ip16, Qpn, SlotId};
use urdma_zeroed::zeroed;

impl Access {
    /// All rights that peers may have.
    pub const REMOTE: Self = Self::REMOTE_WRITE
        .union(Self::REMOTE_READ)
        .union(Self::REMOTE_ATOMIC);
    /// The rights of peers to change memory, which need [`Access::LOCAL_WRITE`] too.
    pub const REMOTE_CHANGE: Self = Self::REMOTE_WRITE.union(Self::REMOTE_ATOMIC);
}

bitflags::bitflags! {
    /// Rights to memory; the bits are those of `ibv_access_flags` but for the last.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Access: u32 {
        /// The process itself may write (receive, sink of a read or an atomic).
        const LOCAL_WRITE = 1;
        /// Peers may write.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may read.
        const REMOTE_READ = 1 << 2;
        /// Peers may do atomics.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to it.
        const MW_BIND = 1 << 4;
        /// A window's first octet has address 0.
        const ZERO_BASED = 1 << 5;
        /// Its pages may come and go.
        const ON_DEMAND = 1 << 6;
        /// Scatter-gather lists of this process may name it; no flag of verbs, and what a window
        /// never has.
        const LOCAL = 1 << 31;
    }
}

/// A GID in network order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The GID of an IP address.
    pub fn from_ip(address: IpAddr) -> Self {
        Self(Ip16::new(address).0)
    }

    /// The IP address that it is made of.
    pub fn to_ip(self) -> IpAddr {
        Ip16(self.0).to_ip()
    }
}

/// One entry of the port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The GID.
    pub gid: Gid,
    /// Network interface of the kernel that has the address, if any.
    pub netdev: Option<String>,
}

/// The instance that an engine is attached to; never changes.
#[derive(Clone, Debug)]
pub struct Info {
    /// This process's slot.
    pub slot: SlotId,
    /// EUI-64 of the device.
    pub node_guid: u64,
    /// How the device presents itself.
    pub personality: Personality,
    /// The GID table; index 0 is the link-local GID.
    pub gids: Vec<GidEntry>,
    /// The instance's addresses.
    pub addresses: Vec<IpAddr>,
    /// IP MTU of the instance's port in octets, 0 if it has none (all traffic stays on this host).
    pub mtu: u16,
    /// Whether the process has a leased queue pair of the port; if not, why not, when one was asked
    /// for.
    pub lease: LeaseState,
    /// The largest numbers of objects and sizes.
    pub limits: Limits,
}

/// Octets of IPv6, UDP and TRP headers before a message or a segment's payload, at most, rounded
/// up.
const HEADER_OCTETS: u16 = 100;

impl Info {
    /// The largest MTU of InfiniBand's, as `ibv_mtu` numbers them, that a datagram of the port
    /// holds: 1 is 256 octets, 5 is 4096. Messages of datagram queue pairs are no longer than that;
    /// connections use all of the datagram nevertheless.
    pub fn path_mtu_code(&self) -> u8 {
        if self.mtu == 0 {
            return 5;
        }
        match self.mtu.saturating_sub(HEADER_OCTETS) {
            4096.. => 5,
            2048.. => 4,
            1024.. => 3,
            512.. => 2,
            _ => 1,
        }
    }

    /// The largest TRP datagram to every other host; the dynamically connected transport sends no
    /// larger ones on this host.
    pub(super) fn max_datagram_octets(&self) -> u32 {
        if self.mtu == 0 {
            return self.path_mtu_octets();
        }
        // The longer headers: those of IPv6 and UDP.
        u32::from(self.mtu).saturating_sub(48)
    }

    /// [`Info::path_mtu_code`] in octets.
    pub fn path_mtu_octets(&self) -> u32 {
        128 << self.path_mtu_code()
    }
}

/// Whether packets to other hosts leave through a queue pair of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// None was asked for.
    NotAsked,
    /// A queue pair of the port is leased.
    Leased,
    /// urdmad forwards the packets; the text states the reason.
    Forwarded(String),
}

/// The largest numbers of objects and sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Queue pairs.
    pub max_qp: u32,
    /// Work requests of one queue.
    pub max_qp_wr: u32,
    /// Scatter-gather elements of one work request.
    pub max_sge: u32,
    /// Inline octets of one work request.
    pub max_inline: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of one completion queue.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Octets of one memory region.
    pub max_mr_octets: u64,
    /// Memory windows.
    pub max_mw: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Work requests of one shared receive queue.
    pub max_srq_wr: u32,
    /// Reads and atomics in progress per queue pair and direction.
    pub max_rd_atomic: u8,
    /// Octets of one message.
    pub max_message_octets: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Multicast groups that queue pairs of this process are attached to.
    pub max_mcast_grp: u32,
    /// Queue pairs of this process that are attached to one group.
    pub max_mcast_qp_attach: u32,
}

/// The limits of this engine.
pub const LIMITS: Limits = Limits {
    max_qp: 65_535,
    max_qp_wr: 32_768,
    max_sge: 32,
    max_inline: 1024,
    max_cq: 65_536,
    max_cqe: 1 << 22,
    // Together with windows all indices that a key has room for, but for 0.
    max_mr: (3 << 16) - 1,
    max_mr_octets: 1 << 47,
    max_mw: 1 << 16,
    max_pd: 65_536,
    max_srq: 65_536,
    max_srq_wr: 32_768,
    max_rd_atomic: 128,
    max_message_octets: 1 << 31,
    max_ah: 65_536,
    max_mcast_grp: urdma_ipc::GROUPS_PER_PROCESS_MAX,
    max_mcast_qp_attach: 256,
};

/// A protection domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pd(pub(super) u32);

impl Pd {
    /// No protection domain.
    pub const NONE: Self = Self(0);

    /// Its number, unique in the process while it lives.
    pub fn number(self) -> u32 {
        self.0
    }
}

/// The keys of a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrKeys {
    /// For the scatter-gather lists of this process.
    pub lkey: u32,
    /// For peers.
    pub rkey: u32,
}

/// The actual sizes of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCaps {
    /// Send work requests.
    pub max_send_wr: u32,
    /// Receive work requests.
    pub max_recv_wr: u32,
    /// Elements of a send work request.
    pub max_send_sge: u32,
    /// Elements of a receive work request.
    pub max_recv_sge: u32,
    /// Inline octets of a send work request.
    pub max_inline: u32,
}

/// The attributes of a queue pair, as `ibv_qp_attr` has them; each starts at 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct QpAttributes {
    /// Rights of the peer; memory regions must grant them too.
    pub access: Access,
    /// Path MTU code of `ibv_mtu` as the application set it; only reported, the wire uses the
    /// path's MTU.
    pub path_mtu: u32,
    /// The peer's GID.
    pub remote_gid: Gid,
    /// Index of this end's GID.
    pub sgid_index: u8,
    /// The peer's queue pair number.
    pub remote_qpn: u32,
    /// First PSN of the peer.
    pub rq_psn: u32,
    /// First PSN of this end.
    pub sq_psn: u32,
    /// Reads and atomics that this end may have outstanding.
    pub max_rd_atomic: u8,
    /// Reads and atomics that the peer may have outstanding.
    pub max_dest_rd_atomic: u8,
    /// RNR timer code.
    pub min_rnr_timer: u8,
    /// Local acknowledge timeout code.
    pub timeout: u8,
    /// Retries.
    pub retry_cnt: u8,
    /// RNR retries, 7 for no bound.
    pub rnr_retry: u8,
}

/// A change of a queue pair: the state to go to, and the attributes to set before; `None` leaves
/// one as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct QpModify {
    /// New state.
    pub state: Option<QpState>,
    /// Rights of the peer.
    pub access: Option<Access>,
    /// Path MTU code.
    pub path_mtu: Option<u32>,
    /// The peer's GID and the index of this end's.
    pub address: Option<(Gid, u8)>,
    /// The peer's queue pair number.
    pub remote_qpn: Option<u32>,
    /// First PSN of the peer.
    pub rq_psn: Option<u32>,
    /// First PSN of this end.
    pub sq_psn: Option<u32>,
    /// Reads and atomics that this end may have outstanding.
    pub max_rd_atomic: Option<u8>,
    /// Reads and atomics that the peer may have outstanding.
    pub max_dest_rd_atomic: Option<u8>,
    /// RNR timer code.
    pub min_rnr_timer: Option<u8>,
    /// Local acknowledge timeout code.
    pub timeout: Option<u8>,
    /// Retries.
    pub retry_cnt: Option<u8>,
    /// RNR retries.
    pub rnr_retry: Option<u8>,
}

impl QpAttributes {
    /// The attributes after a change.
    pub(super) fn with(self, change: &QpModify) -> Self {
        let (remote_gid, sgid_index) = change.address.unwrap_or((self.remote_gid, self.sgid_index));
        Self {
            access: change.access.unwrap_or(self.access),
            path_mtu: change.path_mtu.unwrap_or(self.path_mtu),
            remote_gid,
            sgid_index,
            remote_qpn: change.remote_qpn.unwrap_or(self.remote_qpn),
            rq_psn: change.rq_psn.unwrap_or(self.rq_psn),
            sq_psn: change.sq_psn.unwrap_or(self.sq_psn),
            max_rd_atomic: change.max_rd_atomic.unwrap_or(self.max_rd_atomic),
            max_dest_rd_atomic: change.max_dest_rd_atomic.unwrap_or(self.max_dest_rd_atomic),
            min_rnr_timer: change.min_rnr_timer.unwrap_or(self.min_rnr_timer),
            timeout: change.timeout.unwrap_or(self.timeout),
            retry_cnt: change.retry_cnt.unwrap_or(self.retry_cnt),
            rnr_retry: change.rnr_retry.unwrap_or(self.rnr_retry),
        }
    }
}

impl QpModify {
    /// The steps of a queue pair from RESET to RTS, which grant its peer `access`.
    ///
    /// The peer is the queue pair `remote` at the address `gid`, and makes the same steps. The
    /// first PSN both ways is 0.
    pub fn steps_to_rts(remote: Qpn, gid: Gid, access: Access) -> [Self; 3] {
        let to_init = Self {
            state: Some(QpState::Init),
            access: Some(access),
            ..Self::default()
        };
        let to_rtr = Self {
            state: Some(QpState::Rtr),
            address: Some((gid, 0)),
            remote_qpn: Some(remote.to_u32()),
            rq_psn: Some(0),
            path_mtu: Some(5),
            max_dest_rd_atomic: Some(16),
            min_rnr_timer: Some(12),
            ..Self::default()
        };
        let to_rts = Self {
            state: Some(QpState::Rts),
            sq_psn: Some(0),
            max_rd_atomic: Some(16),
            timeout: Some(14),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            ..Self::default()
        };
        [to_init, to_rtr, to_rts]
    }
}

/// A finished work request of some queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkCompletion {
    /// How it ended.
    pub completion: Completion,
    /// The queue pair, as `ibv_wc.qp_num` says it.
    pub qpn: Qpn,
    /// The peer's queue pair.
    pub remote_qpn: u32,
    /// What came before a datagram's message, as RoCE devices say it in `ibv_wc.sl`, which programs
    /// read (UCX): 8 for UDP, plus 1 for IPv6 or 2 for IPv4. 0: nothing, else the first 40 octets
    /// of the receive buffer are a GRH.
    pub packet_type: u8,
}

zeroed!(WorkCompletion);

impl WorkCompletion {
    /// Fills places that hold no completion.
    pub(super) const NONE: Self = Self {
        completion: Completion {
            wr_id: 0,
            status: Status::Success,
            op: CompletionOp::Send,
            byte_len: 0,
            imm: None,
            invalidated: None,
            solicited: false,
        },
        qpn: Qpn::new(SlotId::DAEMON, 0),
        remote_qpn: 0,
        packet_type: 0,
    };
}

/// Why the engine refused; [`EngineError::errno`] says it to verbs callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// An argument or a state that the call does not take.
    #[error("invalid argument")]
    Invalid,
    /// Something still uses the object.
    #[error("still in use")]
    Busy,
    /// No room for another object, or no memory.
    #[error("no room for another object")]
    NoMemory,
    /// Memory that is not mapped, or not with the rights asked for.
    #[error("the memory is not mapped with the rights asked for")]
    Fault,
    /// Not possible at present; try again.
    #[error("not now")]
    Again,
    /// No host has the address.
    #[error("no host has the address")]
    HostUnreachable,
    /// The instance has no port that leads to the address.
    #[error("no way leads to the address")]
    NetUnreachable,
    /// urdmad has ended, and with it the device.
    #[error("urdmad has ended; the device is gone")]
    DeviceGone,
    /// The process was forked; only the process that attached may use the engine.
    #[error("a forked process cannot use its parent's device")]
    Forked,
}

impl EngineError {
    /// The positive errno.
    pub const fn errno(self) -> i32 {
        match self {
            EngineError::Invalid => libc::EINVAL,
            EngineError::Busy => libc::EBUSY,
            EngineError::NoMemory => libc::ENOMEM,
            EngineError::Fault => libc::EFAULT,
            EngineError::Again => libc::EAGAIN,
            EngineError::HostUnreachable => libc::EHOSTUNREACH,
            EngineError::NetUnreachable => libc::ENETUNREACH,
            EngineError::DeviceGone | EngineError::Forked => libc::EIO,
        }
    }
}

/// Why the engine did not attach.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// urdmad does not run or has refused.
    #[error(transparent)]
    Control(#[from] urdma_ipc::ControlError),
    /// The shared memory could not be used.
    #[error("cannot use the shared memory of urdmad: {0}")]
    Memory(std::io::Error),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// A lease was required and there is none.
    #[error("URDMA_LEASE=require, but there is no leased queue: {0}")]
    LeaseRequired(String),
    /// An environment variable has a value that it cannot have.
    #[error("{0}")]
    Environment(String),
}

impl AttachError {
    /// The positive errno.
    pub fn errno(&self) -> i32 {
        match self {
            AttachError::Control(error) => error.errno(),
            AttachError::Memory(error) | AttachError::Thread(error) => match error.kind() {
                std::io::ErrorKind::OutOfMemory => libc::ENOMEM,
                _ => error.raw_os_error().unwrap_or(libc::EIO),
            },
            AttachError::LeaseRequired(_) => libc::ENODEV,
            AttachError::Environment(_) => libc::EINVAL,
        }
    }
}

/// Largest number of lanes in addition to the first engine: each takes a slot of the instance.
pub(super) const LANES_MAX: usize = 8;
