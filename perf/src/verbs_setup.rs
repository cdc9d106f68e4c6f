//! The first steps of every verbs program, for the programs that are measured.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;

use rdma_core_sys::verbs;
use serde::{Deserialize, Serialize};

// The programs link the system's libibverbs, as other applications do.
#[link(name = "ibverbs")]
extern "C" {}

const PORT: u8 = 1;
/// The index of the IPv4 GID.
const GID_INDEX: u8 = 1;

fn failed(what: &str) -> String {
    format!("{what}: {}", std::io::Error::last_os_error())
}

/// Turns the result of a call that returns 0 or an errno into a `Result`.
///
/// # Errors
/// The name of the call and the text of the errno.
pub fn check(what: &str, status: i32) -> Result<(), String> {
    match status {
        0 => Ok(()),
        errno => Err(format!(
            "{what}: {}",
            std::io::Error::from_raw_os_error(errno.abs())
        )),
    }
}

/// Turns the result of a call that returns an object or null into a `Result`.
///
/// # Errors
/// The name of the call and the text of errno.
pub fn made<T>(what: &str, object: *mut T) -> Result<*mut T, String> {
    if object.is_null() {
        return Err(failed(what));
    }
    Ok(object)
}

/// Opens the first device.
///
/// # Errors
/// There is none, or it cannot be opened.
pub fn open() -> Result<*mut verbs::ibv_context, String> {
    let mut count = 0;
    // SAFETY: the count is ours.
    let list = made("ibv_get_device_list", unsafe {
        verbs::ibv_get_device_list(&mut count)
    })?;
    if count == 0 {
        return Err("there is no RDMA device: start the program with urdma run".into());
    }
    // SAFETY: the list has at least one entry.
    let first = unsafe { *list };
    // SAFETY: the device is in a list that has not been freed.
    made("ibv_open_device", unsafe { verbs::ibv_open_device(first) })
}

/// The address of a queue pair, which its peer needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The GID of its device.
    pub gid: [u8; 16],
    /// The number of the queue pair.
    pub number: u32,
}

/// The device's IPv4 GID.
///
/// # Errors
/// The GID cannot be read.
///
/// # Safety
/// The context is open.
pub unsafe fn gid(context: *mut verbs::ibv_context) -> Result<[u8; 16], String> {
    // SAFETY: all zeroes is a valid value of this plain union.
    let mut gid: verbs::ibv_gid = unsafe { std::mem::zeroed() };
    // SAFETY: the context is open, the result is ours.
    let status = unsafe { verbs::ibv_query_gid(context, PORT, i32::from(GID_INDEX), &mut gid) };
    check("ibv_query_gid", status)?;
    // SAFETY: the call has filled the octets.
    Ok(unsafe { gid.raw })
}

/// Creates a queue pair with room for `depth` work requests each way, whose completions go to `cq`.
///
/// # Errors
/// The call failed.
///
/// # Safety
/// Domain and queue belong to one open context.
pub unsafe fn queue_pair(
    pd: *mut verbs::ibv_pd,
    cq: *mut verbs::ibv_cq,
    depth: u32,
) -> Result<*mut verbs::ibv_qp, String> {
    // SAFETY: all zeroes is a valid value of this plain structure.
    let mut init: verbs::ibv_qp_init_attr = unsafe { std::mem::zeroed() };
    init.send_cq = cq;
    init.recv_cq = cq;
    init.qp_type = verbs::IBV_QPT_RC;
    init.cap.max_send_wr = depth;
    init.cap.max_recv_wr = depth;
    init.cap.max_send_sge = 1;
    init.cap.max_recv_sge = 1;
    // SAFETY: domain and queue are valid, the attributes ours.
    made("ibv_create_qp", unsafe {
        verbs::ibv_create_qp(pd, &mut init)
    })
}

/// Takes a new queue pair to RTS.
///
/// # Errors
/// A step failed; the text names it and the reason.
///
/// # Safety
/// The queue pair is live.
pub unsafe fn connect(qp: *mut verbs::ibv_qp, peer: &Place) -> Result<(), String> {
    // SAFETY: all zeroes is a valid value of this plain structure.
    let mut attr: verbs::ibv_qp_attr = unsafe { std::mem::zeroed() };
    attr.ah_attr.grh.dgid.raw = peer.gid;
    attr.port_num = PORT;
    attr.qp_access_flags = verbs::IBV_ACCESS_LOCAL_WRITE | verbs::IBV_ACCESS_REMOTE_WRITE;
    attr.ah_attr.port_num = PORT;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.sgid_index = GID_INDEX;
    attr.ah_attr.grh.hop_limit = 1;
    attr.dest_qp_num = peer.number;
    attr.path_mtu = verbs::IBV_MTU_1024;
    attr.max_dest_rd_atomic = 1;
    attr.max_rd_atomic = 1;
    attr.min_rnr_timer = 12;
    attr.timeout = 14;
    attr.retry_cnt = 7;
    attr.rnr_retry = 7;
    for (state, mask) in [
        (verbs::IBV_QPS_INIT, INIT_MASK),
        (verbs::IBV_QPS_RTR, RTR_MASK),
        (verbs::IBV_QPS_RTS, RTS_MASK),
    ] {
        attr.qp_state = state;
        // SAFETY: the queue pair is valid, the attributes are ours.
        let status = unsafe { verbs::ibv_modify_qp(qp, &mut attr, mask.cast_signed()) };
        check("ibv_modify_qp", status)?;
    }
    Ok(())
}

/// Creates a queue pair with room for `depth` work requests each way and connects it to itself.
///
/// # Errors
/// A call failed; the text names it and the reason.
///
/// # Safety
/// The context is open, domain and queue are its own and live.
pub unsafe fn connect_to_itself(
    context: *mut verbs::ibv_context,
    pd: *mut verbs::ibv_pd,
    cq: *mut verbs::ibv_cq,
    depth: u32,
) -> Result<*mut verbs::ibv_qp, String> {
    // SAFETY: as the caller has promised.
    let (gid, qp) = unsafe { (gid(context)?, queue_pair(pd, cq, depth)?) };
    // SAFETY: the queue pair was just made.
    let number = unsafe { (*qp).qp_num };
    // SAFETY: the queue pair was just made.
    unsafe { connect(qp, &Place { gid, number })? };
    Ok(qp)
}

/// Registers memory that may be written locally and by peers.
///
/// # Errors
/// The call failed.
///
/// # Safety
/// The domain is live; the memory outlives the use of the region.
pub unsafe fn register(
    pd: *mut verbs::ibv_pd,
    memory: &mut [u8],
) -> Result<*mut verbs::ibv_mr, String> {
    let access = verbs::IBV_ACCESS_LOCAL_WRITE | verbs::IBV_ACCESS_REMOTE_WRITE;
    let (start, length) = (memory.as_mut_ptr().cast(), memory.len());
    // SAFETY: as the caller has promised.
    made("ibv_reg_mr", unsafe {
        verbs::ibv_reg_mr(pd, start, length, access.cast_signed())
    })
}

/// A signaled RDMA Write.
#[derive(Clone, Copy, Debug)]
pub struct Write {
    /// The `wr_id` of its completion.
    pub id: u64,
    /// Local memory that is written to the peer.
    pub from: verbs::ibv_sge,
    /// Remote address and key.
    pub to: (u64, u32),
}

impl Write {
    /// Posts it.
    ///
    /// # Errors
    /// The provider refused it.
    ///
    /// # Safety
    /// The queue pair is live.
    pub unsafe fn post(self, qp: *mut verbs::ibv_qp) -> Result<(), String> {
        // SAFETY: as the caller has promised.
        unsafe { self.post_as(verbs::IBV_WR_RDMA_WRITE, qp) }
    }

    /// Posts it with immediate data, 0, which takes a receive of the peer.
    ///
    /// # Errors
    /// The provider refused it.
    ///
    /// # Safety
    /// The queue pair is live.
    pub unsafe fn post_with_immediate(self, qp: *mut verbs::ibv_qp) -> Result<(), String> {
        // SAFETY: as the caller has promised.
        unsafe { self.post_as(verbs::IBV_WR_RDMA_WRITE_WITH_IMM, qp) }
    }

    /// Posts it as this operation.
    ///
    /// # Safety
    /// The queue pair is live.
    unsafe fn post_as(
        mut self,
        opcode: verbs::ibv_wr_opcode,
        qp: *mut verbs::ibv_qp,
    ) -> Result<(), String> {
        // SAFETY: all zeroes is a valid value of this plain structure.
        let mut wr: verbs::ibv_send_wr = unsafe { std::mem::zeroed() };
        wr.wr_id = self.id;
        (wr.sg_list, wr.num_sge) = (&mut self.from, 1);
        wr.opcode = opcode;
        wr.send_flags = verbs::IBV_SEND_SIGNALED;
        (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) = self.to;
        // SAFETY: as the caller has promised.
        unsafe { post(qp, &mut wr) }
    }
}

/// Posts a signaled Send of `from`.
///
/// # Errors
/// The provider refused it.
///
/// # Safety
/// The queue pair is live.
pub unsafe fn post_send(qp: *mut verbs::ibv_qp, mut from: verbs::ibv_sge) -> Result<(), String> {
    // SAFETY: all zeroes is a valid value of this plain structure.
    let mut wr: verbs::ibv_send_wr = unsafe { std::mem::zeroed() };
    (wr.sg_list, wr.num_sge) = (&mut from, 1);
    wr.opcode = verbs::IBV_WR_SEND;
    wr.send_flags = verbs::IBV_SEND_SIGNALED;
    // SAFETY: as the caller has promised.
    unsafe { post(qp, &mut wr) }
}

/// `ibv_post_send`, which the header defines inline.
///
/// # Errors
/// The provider refused it.
///
/// # Safety
/// The queue pair is live, the request valid.
pub unsafe fn post(qp: *mut verbs::ibv_qp, wr: &mut verbs::ibv_send_wr) -> Result<(), String> {
    let mut bad = ptr::null_mut();
    // SAFETY: the queue pair and its context live.
    let post = unsafe { (*(*qp).context).ops.post_send };
    let post = post.ok_or("the provider has no post_send")?;
    // SAFETY: the provider's own function, its own queue pair, and a request that lives.
    check("ibv_post_send", unsafe { post(qp, wr, &mut bad) })
}

/// Posts a receive request with the `wr_id` `id` for `to`.
///
/// # Errors
/// The provider refused it.
///
/// # Safety
/// The queue pair is live.
pub unsafe fn post_receive(
    qp: *mut verbs::ibv_qp,
    id: u64,
    mut to: verbs::ibv_sge,
) -> Result<(), String> {
    // SAFETY: all zeroes is a valid value of this plain structure.
    let mut wr: verbs::ibv_recv_wr = unsafe { std::mem::zeroed() };
    wr.wr_id = id;
    (wr.sg_list, wr.num_sge) = (&mut to, 1);
    let mut bad = ptr::null_mut();
    // SAFETY: the queue pair and its context live.
    let post = unsafe { (*(*qp).context).ops.post_recv };
    let post = post.ok_or("the provider has no post_recv")?;
    // SAFETY: the provider's own function, its own queue pair, and a request that lives.
    check("ibv_post_recv", unsafe { post(qp, &mut wr, &mut bad) })
}

/// Polls up to `found.len()` completions and returns how many there were.
///
/// # Errors
/// The call failed, or a request has failed.
///
/// # Safety
/// The completion queue is live.
pub unsafe fn poll(cq: *mut verbs::ibv_cq, found: &mut [verbs::ibv_wc]) -> Result<usize, String> {
    let most = i32::try_from(found.len()).map_err(|_| "too many completions requested")?;
    // SAFETY: the completion queue and its context live.
    let poll = unsafe { (*(*cq).context).ops.poll_cq };
    let poll = poll.ok_or("the provider has no poll_cq")?;
    // SAFETY: the provider's own function, with a queue of its own and room for `most`.
    let count = unsafe { poll(cq, most, found.as_mut_ptr()) };
    let count = usize::try_from(count).map_err(|_| "ibv_poll_cq failed")?;
    match found[..count]
        .iter()
        .find(|wc| wc.status != verbs::IBV_WC_SUCCESS)
    {
        Some(wc) => Err(format!("a request failed with status {}", wc.status)),
        None => Ok(count),
    }
}

/// `ibv_req_notify_cq`, which the header defines inline.
///
/// # Errors
/// The provider refused it.
///
/// # Safety
/// The completion queue is live.
pub unsafe fn request_notification(cq: *mut verbs::ibv_cq) -> Result<(), String> {
    // SAFETY: the completion queue is valid, and so is the context it belongs to.
    let request = unsafe { (*(*cq).context).ops.req_notify_cq };
    let request = request.ok_or("the provider has no req_notify_cq")?;
    // SAFETY: the provider's own function, with a queue of its own.
    check("ibv_req_notify_cq", unsafe { request(cq, 0) })
}

/// Sleeps until a completion queue of the channel has an event.
///
/// # Errors
/// The channel cannot be read.
///
/// # Safety
/// The channel is live.
pub unsafe fn wait_for_event(channel: *mut verbs::ibv_comp_channel) -> Result<(), String> {
    let (mut cq, mut context): (*mut verbs::ibv_cq, *mut c_void) =
        (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the channel is valid, both results are ours.
    let status = unsafe { verbs::ibv_get_cq_event(channel, &mut cq, &mut context) };
    check("ibv_get_cq_event", status)?;
    // SAFETY: the call has given a live queue, of which one event was taken.
    unsafe { verbs::ibv_ack_cq_events(cq, 1) };
    Ok(())
}

const INIT_MASK: u32 = verbs::IBV_QP_STATE
    | verbs::IBV_QP_PKEY_INDEX
    | verbs::IBV_QP_PORT
    | verbs::IBV_QP_ACCESS_FLAGS;
const RTR_MASK: u32 = verbs::IBV_QP_STATE
    | verbs::IBV_QP_AV
    | verbs::IBV_QP_PATH_MTU
    | verbs::IBV_QP_DEST_QPN
    | verbs::IBV_QP_RQ_PSN
    | verbs::IBV_QP_MAX_DEST_RD_ATOMIC
    | verbs::IBV_QP_MIN_RNR_TIMER;
const RTS_MASK: u32 = verbs::IBV_QP_STATE
    | verbs::IBV_QP_TIMEOUT
    | verbs::IBV_QP_RETRY_CNT
    | verbs::IBV_QP_RNR_RETRY
    | verbs::IBV_QP_SQ_PSN
    | verbs::IBV_QP_MAX_QP_RD_ATOMIC;
