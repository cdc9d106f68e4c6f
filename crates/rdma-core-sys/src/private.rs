//! The private provider ABI: structures shared by libibverbs and a plugin that no installed header
//! declares.
//!
//! Field order and meaning are facts of rdma-core (libibverbs/driver.h of v44.0 to v65.0). The
//! numbers in the assertions were measured with a C compiler on each version. Differences between
//! private ABIs are in [`crate::abi`].

#![allow(non_camel_case_types)]

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::verbs::{
    ibv_ah, ibv_ah_attr, ibv_alloc_dm_attr, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq,
    ibv_cq_ex, ibv_cq_init_attr_ex, ibv_device, ibv_device_attr_ex, ibv_dm, ibv_gid, ibv_mr,
    ibv_mw, ibv_mw_bind, ibv_mw_type, ibv_parent_domain_init_attr, ibv_pd, ibv_port_attr, ibv_qp,
    ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_open_attr,
    ibv_query_device_ex_input, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq, ibv_srq_attr,
    ibv_srq_init_attr, ibv_srq_init_attr_ex, ibv_td, ibv_td_init_attr, ibv_values_ex, ibv_wc,
    ibv_xrcd, ibv_xrcd_init_attr, verbs_context,
};

/// A node of rdma-core's intrusive lists.
#[repr(C)]
pub struct list_node {
    /// The next node.
    pub next: *mut list_node,
    /// The previous node.
    pub prev: *mut list_node,
}

/// A device that libibverbs found; the plugin allocates it.
#[repr(C)]
pub struct verbs_device {
    /// The public part; must be first.
    pub device: ibv_device,
    /// The operations of the plugin that matched.
    pub ops: *const verbs_device_ops,
    /// libibverbs' reference count.
    pub refcount: c_int,
    /// libibverbs' list of devices.
    pub entry: list_node,
    /// The attributes read from sysfs.
    pub sysfs: *mut verbs_sysfs_dev,
    /// `IB_UVERBS_CORE_SUPPORT_*` of the kernel.
    pub core_support: u64,
}

/// One entry of a match table.
#[repr(C)]
pub struct verbs_match_ent {
    /// Passed to the plugin in `verbs_sysfs_dev.provider_data`.
    pub driver_data: *mut c_void,
    /// A modalias pattern or a driver id, by `kind`.
    pub modalias_or_driver_id: u64,
    /// PCI vendor.
    pub vendor: u16,
    /// PCI device.
    pub device: u16,
    /// How to match; 0 ends the table.
    pub kind: u8,
}

// SAFETY: an entry of a static table points to immutable data.
unsafe impl Sync for verbs_match_ent {}

impl verbs_match_ent {
    /// Ends a table.
    pub const SENTINEL: Self = Self::new(0, 0);

    /// Matches devices whose kernel driver has this number.
    pub const fn driver(driver_id: u32) -> Self {
        Self::new(driver_id as u64, 3)
    }

    const fn new(modalias_or_driver_id: u64, kind: u8) -> Self {
        Self {
            driver_data: std::ptr::null_mut(),
            modalias_or_driver_id,
            vendor: 0,
            device: 0,
            kind,
        }
    }
}

/// A device as sysfs describes it.
#[repr(C)]
pub struct verbs_sysfs_dev {
    /// libibverbs' list.
    pub entry: list_node,
    /// `driver_data` of the entry that matched.
    pub provider_data: *mut c_void,
    /// The entry that matched.
    pub match_ent: *const verbs_match_ent,
    /// The fields that were read already.
    pub flags: c_uint,
    /// Name below `class/infiniband_verbs`.
    pub sysfs_name: [c_char; 64],
    /// Device number of the character device.
    pub sysfs_cdev: libc::dev_t,
    /// Name of the RDMA device.
    pub ibdev_name: [c_char; 64],
    /// Path below `class/infiniband`.
    pub ibdev_path: [c_char; 256],
    /// The modalias of the parent device.
    pub modalias: [c_char; 512],
    /// Node GUID.
    pub node_guid: u64,
    /// Kernel driver id.
    pub driver_id: u32,
    /// `enum ibv_node_type`.
    pub node_type: c_int,
    /// RDMA netlink's index, -1 without netlink.
    pub ibdev_idx: c_int,
    /// Number of ports.
    pub num_ports: u32,
    /// Version of the driver's command ABI.
    pub abi_ver: u32,
    /// Time at which the device was created.
    pub time_created: libc::timespec,
}

/// The table with which a plugin registers with libibverbs.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct verbs_device_ops {
    /// The plugin's name in messages.
    pub name: *const c_char,
    /// Lowest driver ABI version that the plugin supports.
    pub match_min_abi_version: u32,
    /// Highest driver ABI version that the plugin supports.
    pub match_max_abi_version: u32,
    /// Devices that the plugin drives, or null.
    pub match_table: *const verbs_match_ent,
    /// For static linking; null in a shared plugin.
    pub static_providers: *const c_void,
    /// Whether the plugin drives this device.
    pub match_device: Option<unsafe extern "C" fn(*mut verbs_sysfs_dev) -> bool>,
    /// Opens the device; takes ownership of the file descriptor.
    pub alloc_context:
        Option<unsafe extern "C" fn(*mut ibv_device, c_int, *mut c_void) -> *mut verbs_context>,
    /// Opens the device on another process's file descriptor.
    pub import_context: Option<unsafe extern "C" fn(*mut ibv_device, c_int) -> *mut verbs_context>,
    /// Allocates a device.
    pub alloc_device: Option<unsafe extern "C" fn(*mut verbs_sysfs_dev) -> *mut verbs_device>,
    /// Frees a device.
    pub uninit_device: Option<unsafe extern "C" fn(*mut verbs_device)>,
}

// SAFETY: the pointers of a registered table point to immutable statics.
unsafe impl Sync for verbs_device_ops {}

/// A memory region with the library's private part.
#[repr(C)]
pub struct verbs_mr {
    /// The public part; must be first.
    pub ibv_mr: ibv_mr,
    /// `enum ibv_mr_type`: 0 for a plain region.
    pub mr_type: c_int,
    /// Access flags of the registration.
    pub access: c_int,
}

/// A queue pair with the library's private part, in the layout of the header that this was built
/// against.
///
/// Private ABI 34 has three layouts: `comp_mask` moved from 344 (v36) to 352 (v44) and 360 (v45 and
/// later). An allocation must be zero behind the public `ibv_qp`, up to [`VERBS_QP_RESERVE`].
#[repr(C)]
pub struct verbs_qp {
    /// The public part; must be first. Its first member is the plain `ibv_qp`.
    pub qp_ex: ibv_qp_ex,
    /// `VERBS_QP_*` bits.
    pub comp_mask: u32,
    /// XRC domain, if `comp_mask` says so.
    pub xrcd: *mut c_void,
}

/// Octets that hold a `verbs_qp` of any libibverbs with a known private ABI.
pub const VERBS_QP_RESERVE: usize = 384;

/// An operation that this project does not implement; libibverbs keeps its own, which refuses.
pub type UnusedOp = Option<unsafe extern "C" fn()>;

/// The operations of a context that every private ABI has, in rdma-core's alphabetical order;
/// `None` keeps libibverbs' own, which refuses.
///
/// This is the table of private ABI 34; [`crate::abi::PrivateAbi::operations`] converts it to that
/// of another.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct verbs_context_ops {
    pub advise_mr:
        Option<unsafe extern "C" fn(*mut ibv_pd, c_uint, u32, *mut ibv_sge, u32) -> c_int>,
    pub alloc_dm:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_alloc_dm_attr) -> *mut ibv_dm>,
    pub alloc_mw: Option<unsafe extern "C" fn(*mut ibv_pd, ibv_mw_type) -> *mut ibv_mw>,
    pub alloc_null_mr: Option<unsafe extern "C" fn(*mut ibv_pd) -> *mut ibv_mr>,
    pub alloc_parent_domain: Option<
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_parent_domain_init_attr) -> *mut ibv_pd,
    >,
    pub alloc_pd: Option<unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_pd>,
    pub alloc_td:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_td_init_attr) -> *mut ibv_td>,
    pub async_event: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_async_event)>,
    pub attach_counters_point_flow: UnusedOp,
    pub attach_mcast: Option<unsafe extern "C" fn(*mut ibv_qp, *const ibv_gid, u16) -> c_int>,
    pub bind_mw: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int>,
    pub close_xrcd: Option<unsafe extern "C" fn(*mut ibv_xrcd) -> c_int>,
    pub cq_event: Option<unsafe extern "C" fn(*mut ibv_cq)>,
    pub create_ah: Option<unsafe extern "C" fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah>,
    pub create_counters: UnusedOp,
    pub create_cq: Option<
        unsafe extern "C" fn(*mut ibv_context, c_int, *mut ibv_comp_channel, c_int) -> *mut ibv_cq,
    >,
    pub create_cq_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex>,
    pub create_flow: UnusedOp,
    pub create_flow_action_esp: UnusedOp,
    pub create_qp: Option<unsafe extern "C" fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp>,
    pub create_qp_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp>,
    pub create_rwq_ind_table: UnusedOp,
    pub create_srq:
        Option<unsafe extern "C" fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq>,
    pub create_srq_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq>,
    pub create_wq: UnusedOp,
    pub dealloc_mw: Option<unsafe extern "C" fn(*mut ibv_mw) -> c_int>,
    pub dealloc_pd: Option<unsafe extern "C" fn(*mut ibv_pd) -> c_int>,
    pub dealloc_td: Option<unsafe extern "C" fn(*mut ibv_td) -> c_int>,
    pub dereg_mr: Option<unsafe extern "C" fn(*mut verbs_mr) -> c_int>,
    pub destroy_ah: Option<unsafe extern "C" fn(*mut ibv_ah) -> c_int>,
    pub destroy_counters: UnusedOp,
    pub destroy_cq: Option<unsafe extern "C" fn(*mut ibv_cq) -> c_int>,
    pub destroy_flow: UnusedOp,
    pub destroy_flow_action: UnusedOp,
    pub destroy_qp: Option<unsafe extern "C" fn(*mut ibv_qp) -> c_int>,
    pub destroy_rwq_ind_table: UnusedOp,
    pub destroy_srq: Option<unsafe extern "C" fn(*mut ibv_srq) -> c_int>,
    pub destroy_wq: UnusedOp,
    pub detach_mcast: Option<unsafe extern "C" fn(*mut ibv_qp, *const ibv_gid, u16) -> c_int>,
    pub free_context: Option<unsafe extern "C" fn(*mut ibv_context)>,
    pub free_dm: Option<unsafe extern "C" fn(*mut ibv_dm) -> c_int>,
    pub get_srq_num: Option<unsafe extern "C" fn(*mut ibv_srq, *mut u32) -> c_int>,
    pub import_dm: Option<unsafe extern "C" fn(*mut ibv_context, u32) -> *mut ibv_dm>,
    pub import_mr: Option<unsafe extern "C" fn(*mut ibv_pd, u32) -> *mut ibv_mr>,
    pub import_pd: Option<unsafe extern "C" fn(*mut ibv_context, u32) -> *mut ibv_pd>,
    pub modify_cq: UnusedOp,
    pub modify_flow_action_esp: UnusedOp,
    pub modify_qp: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int>,
    pub modify_qp_rate_limit: UnusedOp,
    pub modify_srq: Option<unsafe extern "C" fn(*mut ibv_srq, *mut ibv_srq_attr, c_int) -> c_int>,
    pub modify_wq: UnusedOp,
    pub open_qp:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_open_attr) -> *mut ibv_qp>,
    pub open_xrcd:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd>,
    pub poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
    pub post_recv:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    pub post_send:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
    pub post_srq_ops: UnusedOp,
    pub post_srq_recv: Option<
        unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
    >,
    pub query_device_ex: Option<
        unsafe extern "C" fn(
            *mut ibv_context,
            *const ibv_query_device_ex_input,
            *mut ibv_device_attr_ex,
            usize,
        ) -> c_int,
    >,
    pub query_ece: UnusedOp,
    pub query_port: Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int>,
    pub query_qp: Option<
        unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int,
    >,
    pub query_qp_data_in_order: UnusedOp,
    pub query_rt_values:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_values_ex) -> c_int>,
    pub query_srq: Option<unsafe extern "C" fn(*mut ibv_srq, *mut ibv_srq_attr) -> c_int>,
    pub read_counters: UnusedOp,
    pub reg_dm_mr:
        Option<unsafe extern "C" fn(*mut ibv_pd, *mut ibv_dm, u64, usize, c_uint) -> *mut ibv_mr>,
    pub reg_dmabuf_mr: UnusedOp,
    pub reg_mr:
        Option<unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, u64, c_int) -> *mut ibv_mr>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    pub rereg_mr: Option<
        unsafe extern "C" fn(*mut verbs_mr, c_int, *mut ibv_pd, *mut c_void, usize, c_int) -> c_int,
    >,
    pub resize_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    pub set_ece: UnusedOp,
    pub unimport_dm: Option<unsafe extern "C" fn(*mut ibv_dm)>,
    pub unimport_mr: Option<unsafe extern "C" fn(*mut ibv_mr)>,
    pub unimport_pd: Option<unsafe extern "C" fn(*mut ibv_pd)>,
}

impl verbs_context_ops {
    /// A table without operations.
    pub const EMPTY: Self = Self {
        advise_mr: None,
        alloc_dm: None,
        alloc_mw: None,
        alloc_null_mr: None,
        alloc_parent_domain: None,
        alloc_pd: None,
        alloc_td: None,
        async_event: None,
        attach_counters_point_flow: None,
        attach_mcast: None,
        bind_mw: None,
        close_xrcd: None,
        cq_event: None,
        create_ah: None,
        create_counters: None,
        create_cq: None,
        create_cq_ex: None,
        create_flow: None,
        create_flow_action_esp: None,
        create_qp: None,
        create_qp_ex: None,
        create_rwq_ind_table: None,
        create_srq: None,
        create_srq_ex: None,
        create_wq: None,
        dealloc_mw: None,
        dealloc_pd: None,
        dealloc_td: None,
        dereg_mr: None,
        destroy_ah: None,
        destroy_counters: None,
        destroy_cq: None,
        destroy_flow: None,
        destroy_flow_action: None,
        destroy_qp: None,
        destroy_rwq_ind_table: None,
        destroy_srq: None,
        destroy_wq: None,
        detach_mcast: None,
        free_context: None,
        free_dm: None,
        get_srq_num: None,
        import_dm: None,
        import_mr: None,
        import_pd: None,
        modify_cq: None,
        modify_flow_action_esp: None,
        modify_qp: None,
        modify_qp_rate_limit: None,
        modify_srq: None,
        modify_wq: None,
        open_qp: None,
        open_xrcd: None,
        poll_cq: None,
        post_recv: None,
        post_send: None,
        post_srq_ops: None,
        post_srq_recv: None,
        query_device_ex: None,
        query_ece: None,
        query_port: None,
        query_qp: None,
        query_qp_data_in_order: None,
        query_rt_values: None,
        query_srq: None,
        read_counters: None,
        reg_dm_mr: None,
        reg_dmabuf_mr: None,
        reg_mr: None,
        req_notify_cq: None,
        rereg_mr: None,
        resize_cq: None,
        set_ece: None,
        unimport_dm: None,
        unimport_mr: None,
        unimport_pd: None,
    };
}

/// Registers a plugin: `verbs_register_driver_<private ABI>`.
///
/// # Safety
/// The table and everything it points to are never freed.
pub type RegisterDriver = unsafe extern "C" fn(ops: *const verbs_device_ops);

/// Allocates `alloc_size` zeroed octets with a `verbs_context` at `context_offset` and initializes
/// it: `_verbs_init_and_alloc_context`.
///
/// Takes ownership of `cmd_fd`, also when it fails with null.
///
/// # Safety
/// `device` came from this libibverbs, and the context fits into the allocation.
pub type InitAndAllocContext = unsafe extern "C" fn(
    device: *mut ibv_device,
    cmd_fd: c_int,
    alloc_size: usize,
    context_offset: *mut verbs_context,
    driver_id: u32,
) -> *mut c_void;

/// Copies the operations that are set into the context: `verbs_set_ops`.
///
/// # Safety
/// The context was initialized by this libibverbs, and the table is that of its private ABI.
pub type SetOps = unsafe extern "C" fn(context: *mut verbs_context, ops: *const c_void);

/// Closes the context's file descriptors and drops the reference to the device; does not free the
/// memory: `verbs_uninit_context`.
///
/// # Safety
/// As for [`SetOps`]; the context is not used afterwards.
pub type UninitContext = unsafe extern "C" fn(context: *mut verbs_context);

/// Asserts sizes and offsets at compile time.
macro_rules! layout {
    ($($type:ty, $size:expr $(, $field:ident @ $offset:expr)*;)*) => {
        $(const _: () = {
            assert!(std::mem::size_of::<$type>() == $size, concat!("size of ", stringify!($type)));
            $(assert!(
                std::mem::offset_of!($type, $field) == $offset,
                concat!("offset of ", stringify!($type), ".", stringify!($field))
            );)*
        };)*
    };
}

/// Size of a mutex, which differs by processor: 40 octets on x86-64, 48 on aarch64.
const MUTEX: usize = std::mem::size_of::<libc::pthread_mutex_t>();

layout! {
    ibv_device, 664, node_type @ 16, name @ 24, dev_name @ 88, dev_path @ 152, ibdev_path @ 408;
    verbs_device, 712, ops @ 664, refcount @ 672, entry @ 680, sysfs @ 696, core_support @ 704;
    verbs_device_ops, 72, match_table @ 16, match_device @ 32, alloc_context @ 40,
    import_context @ 48,
        alloc_device @ 56, uninit_device @ 64;
    verbs_match_ent, 24, kind @ 20;
    verbs_sysfs_dev, 992, sysfs_name @ 36, sysfs_cdev @ 104, ibdev_name @ 112, ibdev_path @ 176,
        modalias @ 432, node_guid @ 944, driver_id @ 952, abi_ver @ 968;
    ibv_context, 288 + MUTEX, ops @ 8, cmd_fd @ 264, async_fd @ 268, num_comp_vectors @ 272,
        mutex @ 280, abi_compat @ 280 + MUTEX;
    crate::verbs::ibv_context_ops, 256;
    ibv_qp, 120 + MUTEX;
    ibv_cq, 88 + MUTEX;
    ibv_cq_ex, 248 + MUTEX;
    verbs_mr, 56, mr_type @ 48;
    ibv_mr, 48;
    ibv_pd, 16;
    ibv_srq, 88 + MUTEX, events_completed @ 80 + MUTEX;
    ibv_mw, 32, rkey @ 16;
    ibv_dm, 32, memcpy_to_dm @ 8;
    crate::verbs::ibv_comp_channel, 16;
    ibv_wc, 48;
    ibv_send_wr, 128;
    ibv_recv_wr, 32;
    crate::verbs::ibv_sge, 16;
    ibv_qp_attr, 144;
    ibv_qp_init_attr, 64;
    ibv_qp_init_attr_ex, 136;
    crate::verbs::ibv_device_attr, 232;
    ibv_device_attr_ex, 400;
    ibv_cq_init_attr_ex, 56;
    ibv_async_event, 16;
}

// Where the layouts of one private ABI differ by header version, the public type decides.
const _: () = {
    let public = std::mem::size_of::<ibv_qp_ex>();
    let rest = public - MUTEX;
    assert!(rest == 304 || rest == 312 || rest == 320);
    assert!(std::mem::offset_of!(verbs_qp, comp_mask) == public);
    assert!(std::mem::size_of::<verbs_qp>() == public + 16);
    assert!(std::mem::size_of::<verbs_qp>() <= VERBS_QP_RESERVE);
    let port = std::mem::size_of::<ibv_port_attr>();
    assert!(port == 52 || port == 56);
};

layout! {
    verbs_context_ops, 608, alloc_pd @ 40, create_cq @ 120, create_qp @ 152, free_context @ 312,
    poll_cq @ 424,
        post_send @ 440, query_port @ 480, reg_mr @ 544, unimport_pd @ 600;
}
