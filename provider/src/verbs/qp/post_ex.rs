//! Posting through `ibv_qp_ex`: calls build a list of requests, which is posted as a whole or not
//! at all.
//!
//! Between `ibv_wr_start` and `ibv_wr_complete` or `ibv_wr_abort` one thread owns the queue pair's
//! builder. A request is kept as an `ibv_send_wr` and then posted as in [`post`].

use std::ffi::{c_int, c_void};

use rdma_core_sys::verbs::{
    ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_qp_type, ibv_send_wr, ibv_sge,
    IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_SEND, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_ATOMIC_WRITE, IBV_QP_EX_WITH_BIND_MW,
    IBV_QP_EX_WITH_LOCAL_INV, IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE,
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM,
    IBV_QP_EX_WITH_SEND_WITH_INV, IBV_SEND_INLINE, IBV_WR_ATOMIC_CMP_AND_SWP,
    IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_WRITE, IBV_WR_BIND_MW, IBV_WR_LOCAL_INV,
    IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV,
};

use super::super::errno::VerbsError;
use super::super::ffi;
use super::builder::{DcName, Draft, Operation, Request};
use super::layout::{set_mask, Part, OLDEST_COMP_MASK};
use super::structure::QueuePair;
use super::transitions::Service;
use super::{dc, post, request};
use urdma_abi::dv::DvQpEx;

/// The operations for which a queue pair of this type can have extended calls, as in
/// `ibv_wr_post(3)`.
pub(super) fn send_ops(qp_type: ibv_qp_type) -> u64 {
    let datagram = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    let unreliable = datagram
        | IBV_QP_EX_WITH_SEND_WITH_INV
        | IBV_QP_EX_WITH_RDMA_WRITE
        | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
        | IBV_QP_EX_WITH_LOCAL_INV
        | IBV_QP_EX_WITH_BIND_MW;
    let reliable = unreliable
        | IBV_QP_EX_WITH_RDMA_READ
        | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
        | IBV_QP_EX_WITH_ATOMIC_WRITE;
    u64::from(match qp_type {
        IBV_QPT_RC | IBV_QPT_XRC_SEND => reliable,
        IBV_QPT_UC => unreliable,
        IBV_QPT_UD => datagram,
        _ => 0,
    })
}

/// Installs the extended calls in libibverbs' structure of a new queue pair, with the mask at
/// `comp_mask_offset`.
///
/// # Errors
/// [`VerbsError::NotSupported`]: the offset of the mask is unknown.
pub(in crate::verbs) fn install(
    part: &mut Part,
    comp_mask_offset: Option<usize>,
) -> Result<(), VerbsError> {
    let offset = comp_mask_offset.ok_or(VerbsError::NotSupported)?;
    // SAFETY: the part is larger than the structure of any version and aligned at least as
    // strictly. Only calls that all versions have are installed.
    let calls = unsafe { &mut *part.as_mut_ptr().cast::<ibv_qp_ex>() };
    calls.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    calls.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    calls.wr_bind_mw = Some(wr_bind_mw);
    calls.wr_local_inv = Some(wr_local_inv);
    calls.wr_rdma_read = Some(wr_rdma_read);
    calls.wr_rdma_write = Some(wr_rdma_write);
    calls.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    calls.wr_send = Some(wr_send);
    calls.wr_send_imm = Some(wr_send_imm);
    calls.wr_send_inv = Some(wr_send_inv);
    calls.wr_set_ud_addr = Some(wr_set_ud_addr);
    calls.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    calls.wr_set_inline_data = Some(wr_set_inline_data);
    calls.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    calls.wr_set_sge = Some(wr_set_sge);
    calls.wr_set_sge_list = Some(wr_set_sge_list);
    calls.wr_start = Some(wr_start);
    calls.wr_complete = Some(wr_complete);
    calls.wr_abort = Some(wr_abort);
    if offset > OLDEST_COMP_MASK {
        // The oldest version has its mask at the offset of this call.
        calls.wr_atomic_write = Some(wr_atomic_write);
    }
    set_mask(part, offset);
    Ok(())
}

/// Checks that the queue pair has the operation of a request.
fn check_operation(request: &Request, qp: &QueuePair) -> Result<(), VerbsError> {
    match request.operation {
        _ if qp.service == Service::DcInitiator => dc::check(request).map(drop),
        Operation::Opcode => post::check_operation(&request.wr),
        Operation::AtomicWrite(_) => Ok(()),
    }
}

fn post_one(request: &Request, qp: &QueuePair) -> Result<(), VerbsError> {
    match request.operation {
        _ if qp.service == Service::DcInitiator => dc::send_one(qp, request),
        Operation::Opcode => post::send_one(qp, &request.wr),
        Operation::AtomicWrite(octets) => post::send_atomic_write(qp, &request.wr, octets),
    }
}

/// Send requests for which there is room.
fn room(qp: &QueuePair) -> Result<u32, VerbsError> {
    Ok(match qp.service {
        Service::DcInitiator => qp.engine.dc_send_room(&qp.qp)?,
        _ => qp.engine.send_room(&qp.qp)?,
    })
}

/// Posts all requests or none, unless another thread fills the queue at the same time.
fn post_all(draft: &mut Draft, qp: &QueuePair) -> Result<(), VerbsError> {
    draft.finish();
    if let [_, _, ..] = draft.requests[..] {
        for request in &draft.requests {
            check_operation(request, qp)?;
            request::send_flags(request.wr.send_flags, qp.sq_sig_all)?;
            request::sge_count(request.wr.num_sge, qp.max_send_sge)?;
        }
        if (room(qp)? as usize) < draft.requests.len() {
            return Err(VerbsError::NoMemory);
        }
    }
    draft
        .requests
        .iter()
        .try_for_each(|request| post_one(request, qp))
}

/// The object of an extended queue pair.
fn object<'a>(qp: *mut ibv_qp_ex) -> &'a QueuePair {
    // SAFETY: the calls are installed in queue pairs of this plugin only, whose public structure is
    // the first field.
    unsafe { QueuePair::from_ptr(qp.cast()) }
}

/// The draft of the queue pair.
///
/// # Safety
/// The caller is between start and complete, as the application must be.
unsafe fn draft<'a>(qp: *mut ibv_qp_ex) -> &'a mut Draft {
    // SAFETY: by the caller's promise this thread owns the builder.
    unsafe { &mut *object(qp).builder.draft.get() }
}

/// Begins a request with the `wr_id` and flags that the application has set; `fill` sets the fields
/// of its opcode.
fn begin(qp: *mut ibv_qp_ex, opcode: u32, fill: impl FnOnce(&mut ibv_send_wr)) {
    begin_request(qp, opcode, Operation::Opcode, fill);
}

/// As [`begin`], with any operation.
fn begin_request(
    qp: *mut ibv_qp_ex,
    opcode: u32,
    operation: Operation,
    fill: impl FnOnce(&mut ibv_send_wr),
) {
    // SAFETY: the application sets both fields before the call, and is between start and complete.
    let (draft, wr_id, send_flags) = unsafe { (draft(qp), (*qp).wr_id, (*qp).wr_flags) };
    let mut wr = ibv_send_wr {
        wr_id,
        opcode,
        send_flags: send_flags & !IBV_SEND_INLINE,
        ..ibv_send_wr::default()
    };
    fill(&mut wr);
    draft.requests.push(Request {
        wr,
        operation,
        target: None,
        sges: 0..0,
    });
}

fn set_remote(wr: &mut ibv_send_wr, rkey: u32, remote_addr: u64) {
    wr.wr.rdma.rkey = rkey;
    wr.wr.rdma.remote_addr = remote_addr;
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    object(qp).builder.take();
    // SAFETY: this thread has just taken the builder.
    unsafe { draft(qp) }.clear();
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    let object = object(qp);
    // SAFETY: the application is between start and complete.
    let result = ffi::status_on_data_path(|| post_all(unsafe { draft(qp) }, object));
    object.builder.give_back();
    result
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    object(qp).builder.give_back();
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    begin(qp, IBV_WR_SEND, |_| {});
}

unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, imm: u32) {
    begin(qp, IBV_WR_SEND_WITH_IMM, |wr| {
        wr.__bindgen_anon_1.imm_data = imm
    });
}

unsafe extern "C" fn wr_send_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    begin(qp, IBV_WR_SEND_WITH_INV, |wr| {
        wr.__bindgen_anon_1.invalidate_rkey = rkey;
    });
}

unsafe extern "C" fn wr_local_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    begin(qp, IBV_WR_LOCAL_INV, |wr| {
        wr.__bindgen_anon_1.invalidate_rkey = rkey;
    });
}

unsafe extern "C" fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    begin(qp, IBV_WR_RDMA_READ, |wr| set_remote(wr, rkey, remote_addr));
}

unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    begin(qp, IBV_WR_RDMA_WRITE, |wr| {
        set_remote(wr, rkey, remote_addr);
    });
}

unsafe extern "C" fn wr_rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, imm: u32) {
    begin(qp, IBV_WR_RDMA_WRITE_WITH_IMM, |wr| {
        set_remote(wr, rkey, remote_addr);
        wr.__bindgen_anon_1.imm_data = imm;
    });
}

fn begin_atomic(qp: *mut ibv_qp_ex, opcode: u32, rkey: u32, remote_addr: u64, operands: [u64; 2]) {
    begin(qp, opcode, |wr| {
        wr.wr.atomic.rkey = rkey;
        wr.wr.atomic.remote_addr = remote_addr;
        [wr.wr.atomic.compare_add, wr.wr.atomic.swap] = operands;
    });
}

unsafe extern "C" fn wr_atomic_cmp_swp(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    compare: u64,
    swap: u64,
) {
    let operands = [compare, swap];
    begin_atomic(qp, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, remote_addr, operands);
}

unsafe extern "C" fn wr_atomic_fetch_add(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    add: u64,
) {
    begin_atomic(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, remote_addr, [add, 0]);
}

unsafe extern "C" fn wr_atomic_write(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    octets: *const c_void,
) {
    // SAFETY: the application passes eight octets.
    let octets = unsafe { octets.cast::<[u8; 8]>().read() };
    let operation = Operation::AtomicWrite(octets);
    begin_request(qp, IBV_WR_ATOMIC_WRITE, operation, |wr| {
        set_remote(wr, rkey, remote_addr);
    });
}

unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    begin(qp, IBV_WR_BIND_MW, |wr| {
        wr.__bindgen_anon_2.bind_mw.mw = mw;
        wr.__bindgen_anon_2.bind_mw.rkey = rkey;
        // SAFETY: the application passes the parameters of the binding.
        wr.__bindgen_anon_2.bind_mw.bind_info = unsafe { *info };
    });
}

unsafe extern "C" fn wr_set_ud_addr(
    qp: *mut ibv_qp_ex,
    ah: *mut ibv_ah,
    remote_qpn: u32,
    remote_qkey: u32,
) {
    // SAFETY: the application is between start and complete.
    if let Some(request) = unsafe { draft(qp) }.requests.last_mut() {
        request.wr.wr.ud.ah = ah;
        request.wr.wr.ud.remote_qpn = remote_qpn;
        request.wr.wr.ud.remote_qkey = remote_qkey;
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32) {
    // SAFETY: the application is between start and complete.
    if let Some(request) = unsafe { draft(qp) }.requests.last_mut() {
        request.wr.qp_type.xrc.remote_srqn = remote_srqn;
    }
}

/// `urdmadv_wr_set_dc_addr`
pub(super) unsafe extern "C" fn wr_set_dc_addr(
    dv: *mut DvQpEx,
    ah: *mut c_void,
    number: u32,
    key: u64,
) {
    // SAFETY: the application passes the structure of an initiator, and is between start and
    // complete.
    let draft = unsafe { &mut *QueuePair::from_dv(dv).builder.draft.get() };
    if let Some(request) = draft.requests.last_mut() {
        let ah = ah.cast();
        request.target = Some(DcName { ah, number, key });
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let sge = ibv_sge { addr, length, lkey };
    // SAFETY: the application is between start and complete.
    unsafe { draft(qp) }.set_sges(std::iter::once(sge));
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: the application passes a list of `count` elements, and is between start and complete.
    unsafe { draft(qp).set_sges((0..count).map(|index| *list.add(index))) };
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: as below.
    unsafe { draft(qp).set_inline(std::iter::once(octets(addr, length))) };
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: the application passes a list of `count` readable buffers, and is between start and
    // complete.
    unsafe {
        let buffers = (0..count).map(|index| *list.add(index));
        draft(qp).set_inline(buffers.map(|buffer| octets(buffer.addr, buffer.length)));
    }
}

/// # Safety
/// `length` octets at `addr` may be read as long as the value is used.
unsafe fn octets<'a>(addr: *const c_void, length: usize) -> &'a [u8] {
    if length == 0 {
        return &[];
    }
    // SAFETY: by the caller's promise.
    unsafe { std::slice::from_raw_parts(addr.cast(), length) }
}
