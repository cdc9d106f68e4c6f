//! The steps that every verbs program begins with, for the programs that are measured.

use rdma_core_sys::verbs;

const PORT: u8 = 1;
/// The IPv4 GID.
const GID_INDEX: u8 = 1;

fn failed(what: &str) -> String {
    format!("{what}: {}", std::io::Error::last_os_error())
}

/// What a call that gives 0 or an errno has said.
///
/// # Errors
/// Its name and the errno's sentence.
pub fn check(what: &str, status: i32) -> Result<(), String> {
    match status {
        0 => Ok(()),
        errno => Err(format!(
            "{what}: {}",
            std::io::Error::from_raw_os_error(errno.abs())
        )),
    }
}

/// What a call that gives an object or null has made.
///
/// # Errors
/// Its name and errno's sentence.
pub fn made<T>(what: &str, object: *mut T) -> Result<*mut T, String> {
    if object.is_null() {
        return Err(failed(what));
    }
    Ok(object)
}

/// The first device, opened.
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
        return Err("there is no RDMA device: run it with urdma run".into());
    }
    // SAFETY: the list has at least one entry.
    let first = unsafe { *list };
    // SAFETY: the device is in a list that has not been freed.
    made("ibv_open_device", unsafe { verbs::ibv_open_device(first) })
}

/// A queue pair with room for `depth` work requests each way whose peer is itself.
///
/// # Errors
/// Which call failed, and why.
///
/// # Safety
/// The context is open, domain and queue are its own and live.
pub unsafe fn connect_to_itself(
    context: *mut verbs::ibv_context,
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
    let qp = made("ibv_create_qp", unsafe {
        verbs::ibv_create_qp(pd, &mut init)
    })?;
    // SAFETY: the queue pair was just made.
    let number = unsafe { (*qp).qp_num };
    // SAFETY: all zeroes is a valid value of this plain structure.
    let mut attr: verbs::ibv_qp_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the context is open, the result lies in our structure.
    let status = unsafe {
        verbs::ibv_query_gid(
            context,
            PORT,
            i32::from(GID_INDEX),
            &mut attr.ah_attr.grh.dgid,
        )
    };
    check("ibv_query_gid", status)?;
    attr.port_num = PORT;
    attr.qp_access_flags = verbs::IBV_ACCESS_LOCAL_WRITE | verbs::IBV_ACCESS_REMOTE_WRITE;
    attr.ah_attr.port_num = PORT;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.sgid_index = GID_INDEX;
    attr.ah_attr.grh.hop_limit = 1;
    attr.dest_qp_num = number;
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
    Ok(qp)
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
