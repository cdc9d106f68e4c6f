//! A verbs application that waits: connected queue pairs, one completion queue with a channel, and nothing ever completes.
//! `urdma-perf-idle QUEUE_PAIRS`, or `urdma-perf-idle plain` for one that has no device and sleeps.
//!
//! Prints a line when it is about to wait; ends when it is killed.

use std::ffi::c_void;
use std::process::ExitCode;
use std::ptr;

use rdma_core_sys::verbs;
use urdma_perf::idle::{PLAIN, WAITING};

const CQ_DEPTH: i32 = 16;
/// Work requests that a queue pair has room for, each way.
const DEPTH: u32 = 1;
const PORT: u8 = 1;
/// The IPv4 GID.
const GID_INDEX: u8 = 1;

fn main() -> ExitCode {
    let outcome = match std::env::args().nth(1).as_deref() {
        Some(PLAIN) => sleep_without_device(),
        Some(count) => count
            .parse()
            .map_err(|_| "usage: urdma-perf-idle QUEUE_PAIRS|plain".to_owned())
            .and_then(wait),
        None => wait(1),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("urdma-perf-idle: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// libibverbs is loaded and has looked for devices, nothing else.
fn sleep_without_device() -> Result<(), String> {
    // SAFETY: the count may be omitted.
    let list = unsafe { verbs::ibv_get_device_list(ptr::null_mut()) };
    println!("{WAITING}");
    std::hint::black_box(list);
    loop {
        std::thread::park();
    }
}

fn failed(what: &str) -> String {
    format!("{what}: {}", std::io::Error::last_os_error())
}

fn check(what: &str, status: i32) -> Result<(), String> {
    match status {
        0 => Ok(()),
        errno => Err(format!(
            "{what}: {}",
            std::io::Error::from_raw_os_error(errno.abs())
        )),
    }
}

fn made<T>(what: &str, object: *mut T) -> Result<*mut T, String> {
    if object.is_null() {
        return Err(failed(what));
    }
    Ok(object)
}

/// All objects live until the process ends.
fn wait(queue_pairs: u32) -> Result<(), String> {
    let context = open()?;
    // SAFETY: the context is open.
    let pd = made("ibv_alloc_pd", unsafe { verbs::ibv_alloc_pd(context) })?;
    // SAFETY: the context is open.
    let channel = made("ibv_create_comp_channel", unsafe {
        verbs::ibv_create_comp_channel(context)
    })?;
    // SAFETY: context and channel are valid; no user context is given.
    let cq = unsafe { verbs::ibv_create_cq(context, CQ_DEPTH, ptr::null_mut(), channel, 0) };
    let cq = made("ibv_create_cq", cq)?;
    for _ in 0..queue_pairs {
        connect_to_itself(context, pd, cq)?;
    }
    request_notification(cq)?;
    println!("{WAITING}");
    let (mut event_cq, mut event_context): (*mut verbs::ibv_cq, *mut c_void) =
        (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the channel is valid, both results are ours.
    let status = unsafe { verbs::ibv_get_cq_event(channel, &mut event_cq, &mut event_context) };
    check("ibv_get_cq_event", status)
}

fn open() -> Result<*mut verbs::ibv_context, String> {
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

fn connect_to_itself(
    context: *mut verbs::ibv_context,
    pd: *mut verbs::ibv_pd,
    cq: *mut verbs::ibv_cq,
) -> Result<(), String> {
    // SAFETY: all zeroes is a valid value of this plain structure.
    let mut init: verbs::ibv_qp_init_attr = unsafe { std::mem::zeroed() };
    init.send_cq = cq;
    init.recv_cq = cq;
    init.qp_type = verbs::IBV_QPT_RC;
    init.cap.max_send_wr = DEPTH;
    init.cap.max_recv_wr = DEPTH;
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

/// `ibv_req_notify_cq`, which the header defines inline.
fn request_notification(cq: *mut verbs::ibv_cq) -> Result<(), String> {
    // SAFETY: the completion queue is valid, and so is the context it belongs to.
    let request = unsafe { (*(*cq).context).ops.req_notify_cq };
    let request = request.ok_or("the provider has no req_notify_cq")?;
    // SAFETY: the provider's own function, with a queue of its own.
    check("ibv_req_notify_cq", unsafe { request(cq, 0) })
}
