//! Polling through `ibv_cq_ex`: one completion at a time, whose fields are read by calls.

use std::ffi::{c_int, c_uint};

use rdma_core_sys::verbs::{ibv_cq_ex, ibv_poll_cq_attr, ibv_wc, ibv_wc_opcode};

use super::super::errno::VerbsError;
use super::super::ffi;
use super::poll::work_completion;
use super::structure::CompletionQueue;

/// Installs the calls in a new queue.
pub(in crate::verbs) fn install(verbs: &mut ibv_cq_ex) {
    verbs.start_poll = Some(start_poll);
    verbs.next_poll = Some(next_poll);
    verbs.end_poll = Some(end_poll);
    verbs.read_opcode = Some(read_opcode);
    verbs.read_vendor_err = Some(read_vendor_err);
    verbs.read_byte_len = Some(read_byte_len);
    verbs.read_imm_data = Some(read_imm_data);
    verbs.read_qp_num = Some(read_qp_num);
    verbs.read_src_qp = Some(read_src_qp);
    verbs.read_wc_flags = Some(read_wc_flags);
    verbs.read_slid = Some(read_slid);
    verbs.read_sl = Some(read_sl);
    verbs.read_dlid_path_bits = Some(read_dlid_path_bits);
    verbs.read_completion_ts = Some(read_completion_ts);
    verbs.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
}

/// `ibv_start_poll`: ENOENT if the queue is empty.
unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the application passes its attributes.
    if unsafe { attr.as_ref() }.is_some_and(|attr| attr.comp_mask != 0) {
        return ffi::refused(VerbsError::Invalid);
    }
    // SAFETY: the same precondition.
    unsafe { next_poll(cq) }
}

/// `ibv_next_poll`
unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    let mut taken = None;
    let polled = ffi::status_on_data_path(|| {
        // SAFETY: the calls are installed in queues of this plugin only.
        let object = unsafe { CompletionQueue::from_ex_ptr(cq) };
        object.engine.poll_cq(&object.cq, 1, |completion| {
            taken = Some(work_completion(completion))
        })?;
        if let Some(wc) = taken {
            // SAFETY: the plugin writes both fields.
            unsafe {
                (*cq).wr_id = wc.wr_id;
                (*cq).status = wc.status;
            }
            object.current.set(wc);
        }
        Ok(())
    });
    // An empty queue is no error, so errno stays unchanged.
    if polled == 0 && taken.is_none() {
        libc::ENOENT
    } else {
        polled
    }
}

/// `ibv_end_poll`: nothing to do, each completion was consumed when it was polled.
unsafe extern "C" fn end_poll(_cq: *mut ibv_cq_ex) {}

fn current(cq: *mut ibv_cq_ex) -> ibv_wc {
    // SAFETY: the calls are installed in queues of this plugin only.
    unsafe { CompletionQueue::from_ex_ptr(cq) }.current.get()
}

unsafe extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> ibv_wc_opcode {
    current(cq).opcode
}

unsafe extern "C" fn read_vendor_err(cq: *mut ibv_cq_ex) -> u32 {
    current(cq).vendor_err
}

unsafe extern "C" fn read_byte_len(cq: *mut ibv_cq_ex) -> u32 {
    current(cq).byte_len
}

/// Immediate data in network order, or the invalidated key.
unsafe extern "C" fn read_imm_data(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: both members of the union are 32-bit integers.
    unsafe { current(cq).__bindgen_anon_1.imm_data }
}

unsafe extern "C" fn read_qp_num(cq: *mut ibv_cq_ex) -> u32 {
    current(cq).qp_num
}

unsafe extern "C" fn read_src_qp(cq: *mut ibv_cq_ex) -> u32 {
    current(cq).src_qp
}

unsafe extern "C" fn read_wc_flags(cq: *mut ibv_cq_ex) -> c_uint {
    current(cq).wc_flags
}

unsafe extern "C" fn read_slid(cq: *mut ibv_cq_ex) -> u32 {
    u32::from(current(cq).slid)
}

unsafe extern "C" fn read_sl(cq: *mut ibv_cq_ex) -> u8 {
    current(cq).sl
}

unsafe extern "C" fn read_dlid_path_bits(cq: *mut ibv_cq_ex) -> u8 {
    current(cq).dlid_path_bits
}

/// Time of the completion, in ticks of `hca_core_clock`: nanoseconds of the engine's clock.
unsafe extern "C" fn read_completion_ts(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: the calls are installed in queues of this plugin only.
    let taken = unsafe { CompletionQueue::from_ex_ptr(cq) }.cq.taken();
    taken.monotonic_ns
}

/// Time of the completion, in nanoseconds since 1970.
unsafe extern "C" fn read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: the calls are installed in queues of this plugin only.
    let taken = unsafe { CompletionQueue::from_ex_ptr(cq) }.cq.taken();
    taken.wall_ns
}
