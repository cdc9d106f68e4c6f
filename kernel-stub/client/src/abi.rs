//! The layouts that the module and user space share, and those of the kernel's uverbs commands that
//! are used.

use std::mem::{offset_of, size_of};

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

/// `URDMA_KERNEL_ABI`: version of all layouts here that are not the kernel's own.
pub const KERNEL_ABI: u32 = 9;
/// `URDMA_DRIVER_ID`: the driver number that libibverbs reads for a device of the module.
pub const DRIVER_ID: u32 = 0x7572_6d61;
/// Longest path of a run directory, including the terminating zero.
pub const RUN_DIR_OCTETS: usize = 104;
/// Longest device name, including the terminating zero.
pub const DEVICE_OCTETS: usize = 64;
/// GIDs of an instance; the device shows them from index 1 on.
pub const GIDS: usize = 15;
/// No group.
pub const GROUP_NONE: u32 = u32::MAX;
/// GIDs of the device.
pub const GID_TABLE_LEN: i32 = 16;

/// Private part of the answer to GET_CONTEXT.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes)]
pub struct ContextAnswer {
    /// [`KERNEL_ABI`] of the module.
    pub abi: u32,
    /// 0.
    pub reserved: u32,
    /// Run directory of the urdmad that serves the device.
    pub run_dir: [u8; RUN_DIR_OCTETS],
}

/// Argument of `URDMA_IOC_SERVE`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes)]
pub struct Serve {
    /// [`KERNEL_ABI`].
    pub abi: u32,
    /// Number of valid entries of `gids`.
    pub gid_count: u32,
    /// The group whose members may use the device too, or [`GROUP_NONE`].
    pub group: u32,
    /// 0.
    pub reserved: u32,
    /// The device's name.
    pub device: [u8; DEVICE_OCTETS],
    /// The caller's run directory, an absolute path.
    pub run_dir: [u8; RUN_DIR_OCTETS],
    /// The instance's GIDs.
    pub gids: [[u8; 16]; GIDS],
}

/// Maximum length of a connection's private data, plus one.
pub const PRIVATE_OCTETS: usize = 256;

/// `enum urdma_cm_kind`: what a [`CmMessage`] is.
pub mod cm_kind {
    /// To urdmad: connect a queue pair.
    pub const CONNECT: u32 = 1;
    /// To urdmad: listen.
    pub const LISTEN: u32 = 2;
    /// To urdmad: accept a request.
    pub const ACCEPT: u32 = 3;
    /// To urdmad: refuse a request.
    pub const REJECT: u32 = 4;
    /// To urdmad: end a listener or a connection.
    pub const END: u32 = 5;
    /// From urdmad: result of a listen.
    pub const LISTENING: u32 = 0x100;
    /// From urdmad: a connection request.
    pub const REQUEST: u32 = 0x101;
    /// From urdmad: result of a connect.
    pub const REPLY: u32 = 0x102;
    /// From urdmad: an accepted request is established.
    pub const ESTABLISHED: u32 = 0x103;
    /// From urdmad: the connection has ended.
    pub const CLOSED: u32 = 0x104;
}

/// One message of connection management, in either direction.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes)]
pub struct CmMessage {
    /// One of [`cm_kind`].
    pub kind: u32,
    /// The listener or connection.
    pub id: u32,
    /// Of a request: its listener.
    pub listener: u32,
    /// 0 or a negative errno.
    pub status: i32,
    /// The queue pair.
    pub qpn: u32,
    /// Backlog.
    pub backlog: u32,
    /// Port of `local`.
    pub local_port: u16,
    /// Port of `remote`.
    pub remote_port: u16,
    /// Outstanding reads and atomics of this end as initiator (ORD).
    pub ord: u8,
    /// Outstanding reads and atomics of this end as responder (IRD).
    pub ird: u8,
    /// Number of valid octets of `private_data`.
    pub private_len: u8,
    /// 0.
    pub reserved: u8,
    /// This end's address.
    pub local: [u8; 16],
    /// The peer's address.
    pub remote: [u8; 16],
    /// Of a listen: the process that listens, as urdmad numbers it; 0 if it is not visible.
    pub pid: u32,
    /// The private data of the applications.
    pub private_data: [u8; PRIVATE_OCTETS],
}

impl Default for CmMessage {
    fn default() -> Self {
        Self::new_zeroed()
    }
}

const fn iow(number: u64, octets: usize) -> u64 {
    // _IOW of asm-generic/ioctl.h; x86-64 and aarch64 have this form.
    (1 << 30) | ((octets as u64) << 16) | (0xb7 << 8) | number
}

/// Argument of `URDMA_IOC_SLOT`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes)]
pub struct Slot {
    /// Its number.
    pub slot: u32,
    /// The process that has it, as the caller numbers processes; 0 for none.
    pub pid: u32,
}

/// Argument of `URDMA_IOC_PORT_COUNTERS`: the counters of the port, by their names in sysfs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, PartialEq, Eq)]
pub struct PortCounters {
    /// Sent, in units of 4 octets.
    pub port_xmit_data: u64,
    /// Received, in units of 4 octets.
    pub port_rcv_data: u64,
    /// Packets sent.
    pub port_xmit_packets: u64,
    /// Packets received.
    pub port_rcv_packets: u64,
    /// Packets sent to one receiver.
    pub unicast_xmit_packets: u64,
    /// Packets received that were sent to one receiver.
    pub unicast_rcv_packets: u64,
    /// Packets sent to groups.
    pub multicast_xmit_packets: u64,
    /// Packets received that were sent to groups.
    pub multicast_rcv_packets: u64,
    /// Malformed packets and frames.
    pub port_rcv_errors: u64,
    /// Frames that could not be sent.
    pub port_xmit_discards: u64,
    /// Segments received more than once.
    pub duplicate_request: u64,
    /// Segments received ahead of a missing one.
    pub out_of_seq_request: u64,
    /// RNR NAKs sent.
    pub send_rnr_err: u64,
    /// RNR NAKs received.
    pub rcvd_rnr_err: u64,
}

/// `URDMA_IOC_PORT_COUNTERS`
pub const IOC_PORT_COUNTERS: u64 = iow(2, size_of::<PortCounters>());
/// `URDMA_IOC_SLOT`
pub const IOC_SLOT: u64 = iow(1, size_of::<Slot>());
/// `URDMA_IOC_SERVE`
pub const IOC_SERVE: u64 = iow(0, size_of::<Serve>());

/// First number of a driver's own methods and attributes.
pub const DRIVER_NAMESPACE: u16 = 1 << 12;

/// Header of a command that is written to uverbs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Immutable, IntoBytes)]
pub struct CommandHead {
    /// `IB_USER_VERBS_CMD_*`
    pub command: u32,
    /// Length of header and command in words of 4 octets.
    pub in_words: u16,
    /// Maximum length of the answer in words of 4 octets.
    pub out_words: u16,
}

/// GET_CONTEXT and ALLOC_PD; both have only the address of the answer.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Immutable, IntoBytes)]
pub struct Answered {
    /// Address of the answer.
    pub response: u64,
}

/// Answer to GET_CONTEXT.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes)]
pub struct GetContextAnswer {
    /// Descriptor from which asynchronous events are read.
    pub async_fd: i32,
    /// Completion vectors.
    pub num_comp_vectors: u32,
    /// The module's part.
    pub private: ContextAnswer,
}

/// Argument of DEALLOC_PD and DEREG_MR.
#[repr(C)]
#[derive(Clone, Copy, Debug, Immutable, IntoBytes)]
pub struct Handle {
    /// The object.
    pub handle: u32,
}

/// REG_MR
#[repr(C)]
#[derive(Clone, Copy, Debug, Immutable, IntoBytes)]
pub struct RegMr {
    /// Address of the answer.
    pub response: u64,
    /// Address of the first octet.
    pub start: u64,
    /// Length in octets.
    pub length: u64,
    /// Address of the first octet in remote accesses.
    pub hca_va: u64,
    /// The protection domain.
    pub pd_handle: u32,
    /// `IBV_ACCESS_*`
    pub access_flags: u32,
    /// The engine's key.
    pub key: u32,
    /// 0.
    pub reserved: u32,
}

/// Answer to REG_MR.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes)]
pub struct RegMrAnswer {
    /// The region.
    pub handle: u32,
    /// The requested value.
    pub lkey: u32,
    /// The requested value.
    pub rkey: u32,
}

/// CREATE_CQ
#[repr(C)]
#[derive(Clone, Copy, Debug, Immutable, IntoBytes)]
pub struct CreateCq {
    /// Address of the answer.
    pub response: u64,
    /// The user value in the queue's events.
    pub user_handle: u64,
    /// Entries.
    pub cqe: u32,
    /// Completion vector.
    pub comp_vector: u32,
    /// Descriptor of the completion channel, -1 for none.
    pub comp_channel: i32,
    /// 0.
    pub reserved: u32,
}

/// CREATE_QP
#[repr(C)]
#[derive(Clone, Copy, Debug, Immutable, IntoBytes)]
pub struct CreateQp {
    /// Address of the answer.
    pub response: u64,
    /// The user value in the queue pair's events.
    pub user_handle: u64,
    /// The protection domain.
    pub pd_handle: u32,
    /// Completion queue of the send queue.
    pub send_cq_handle: u32,
    /// Completion queue of the receive queue.
    pub recv_cq_handle: u32,
    /// Shared receive queue, if `is_srq`.
    pub srq_handle: u32,
    /// Maximum send requests, receive requests, their gather and scatter entries, inline octets.
    pub capacity: [u32; 5],
    /// Whether all sends are signaled.
    pub sq_sig_all: u8,
    /// `IBV_QPT_*`
    pub qp_type: u8,
    /// Whether there is a shared receive queue.
    pub is_srq: u8,
    /// 0.
    pub reserved: u8,
    /// The engine's number of the queue pair.
    pub qpn: u32,
    /// 0.
    pub private_reserved: u32,
}

/// CREATE_SRQ
#[repr(C)]
#[derive(Clone, Copy, Debug, Immutable, IntoBytes)]
pub struct CreateSrq {
    /// Address of the answer.
    pub response: u64,
    /// The user value in the queue's events.
    pub user_handle: u64,
    /// The protection domain.
    pub pd_handle: u32,
    /// Receive requests.
    pub max_wr: u32,
    /// Scatter entries of each.
    pub max_sge: u32,
    /// Limit.
    pub srq_limit: u32,
}

/// DESTROY_CQ, DESTROY_QP, DESTROY_SRQ
#[repr(C)]
#[derive(Clone, Copy, Debug, Immutable, IntoBytes)]
pub struct Destroy {
    /// Address of the answer.
    pub response: u64,
    /// The object.
    pub handle: u32,
    /// 0.
    pub reserved: u32,
}

/// Head of `RDMA_VERBS_IOCTL`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Immutable, IntoBytes)]
pub struct MethodHead {
    /// Octets of head and attributes.
    pub length: u16,
    /// `UVERBS_OBJECT_*`
    pub object_id: u16,
    /// The method.
    pub method_id: u16,
    /// Attributes that follow.
    pub num_attrs: u16,
    /// 0.
    pub reserved1: u64,
    /// [`DRIVER_ID`]
    pub driver_id: u32,
    /// 0.
    pub reserved2: u32,
}

/// An attribute of a method.
#[repr(C)]
#[derive(Clone, Copy, Debug, Immutable, IntoBytes)]
pub struct MethodAttr {
    /// Which.
    pub attr_id: u16,
    /// Octets of a value; 0 for a handle.
    pub len: u16,
    /// 1: must be understood.
    pub flags: u16,
    /// 0.
    pub reserved: u16,
    /// The handle, or a value of up to 8 octets.
    pub data: u64,
}

/// `RDMA_VERBS_IOCTL`: `_IOWR(0x1b, 1, struct ib_uverbs_ioctl_hdr)`
pub const VERBS_IOCTL: u64 = (3 << 30) | ((size_of::<MethodHead>() as u64) << 16) | (0x1b << 8) | 1;

// Sizes and offsets as a C compiler gives them for the headers of Linux 6.1 and for
// kernel-stub/uapi/urdma.h.
const _: () = {
    assert!(GID_TABLE_LEN as usize == 1 + GIDS);
    assert!(size_of::<ContextAnswer>() == 112);
    assert!(size_of::<Serve>() == 424);
    assert!(offset_of!(Serve, gids) == 184);
    assert!(offset_of!(Serve, run_dir) == 80);
    assert!(size_of::<CmMessage>() == 324);
    assert!(offset_of!(CmMessage, private_data) == 68);
    assert!(size_of::<CommandHead>() == 8);
    assert!(size_of::<GetContextAnswer>() == 8 + 112);
    assert!(size_of::<RegMr>() == 40 + 8);
    assert!(size_of::<RegMrAnswer>() == 12);
    assert!(size_of::<CreateCq>() == 32);
    assert!(size_of::<CreateQp>() == 56 + 8);
    assert!(offset_of!(CreateQp, qpn) == 56);
    assert!(size_of::<CreateSrq>() == 32);
    assert!(size_of::<Destroy>() == 16);
    assert!(size_of::<MethodHead>() == 24);
    assert!(size_of::<MethodAttr>() == 16);
    assert!(IOC_SERVE == 0x41a8_b700);
    assert!(IOC_SLOT == 0x4008_b701);
    assert!(IOC_PORT_COUNTERS == 0x4070_b702);
    assert!(VERBS_IOCTL == 0xc018_1b01);
};
