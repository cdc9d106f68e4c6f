//! The data path of completions, which are written directly to the caller's array.
//!
//! Nothing here allocates or logs.

use std::ffi::c_int;

use rdma_core_sys::verbs::{
    ibv_cq, ibv_wc, ibv_wc_opcode, ibv_wc_status, IBV_WC_ATOMIC_WRITE, IBV_WC_BIND_MW,
    IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD, IBV_WC_LOCAL_INV, IBV_WC_LOC_ACCESS_ERR,
    IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_PROT_ERR, IBV_WC_LOC_QP_OP_ERR, IBV_WC_MW_BIND_ERR,
    IBV_WC_RDMA_READ, IBV_WC_RDMA_WRITE, IBV_WC_RECV, IBV_WC_RECV_RDMA_WITH_IMM,
    IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_OP_ERR, IBV_WC_RETRY_EXC_ERR,
    IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_SEND, IBV_WC_SUCCESS, IBV_WC_WITH_IMM, IBV_WC_WITH_INV,
    IBV_WC_WR_FLUSH_ERR,
};
use urdma_engine::{CompletionOp, Status, WorkCompletion};

use super::super::errno::VerbsError;
use super::super::ffi;
use super::structure::CompletionQueue;

/// `ibv_poll_cq`: returns the number of completions, or a negative errno.
pub(in crate::verbs) unsafe extern "C" fn poll_cq(
    cq: *mut ibv_cq,
    num_entries: c_int,
    wc: *mut ibv_wc,
) -> c_int {
    let taken = ffi::caught_on_data_path(|| {
        let max = usize::try_from(num_entries).map_err(|_| VerbsError::Invalid)?;
        // SAFETY: the application passes a completion queue of this plugin.
        let object = unsafe { CompletionQueue::from_ptr(cq) };
        let mut next = wc;
        let taken = object.engine.poll_cq(&object.cq, max, |completion| {
            // SAFETY: the application passes room for `max` completions, and the engine calls this
            // at most as often.
            unsafe {
                next.write(work_completion(completion));
                next = next.add(1);
            }
        })?;
        Ok(taken)
    });
    match taken {
        Ok(taken) => c_int::try_from(taken).unwrap_or(c_int::MAX),
        Err(error) => -ffi::refused(error),
    }
}

/// A completion as `ibv_wc`.
#[inline]
pub(super) fn work_completion(from: &WorkCompletion) -> ibv_wc {
    let completion = &from.completion;
    let mut wc = ibv_wc {
        wr_id: completion.wr_id,
        status: status(completion.status),
        opcode: opcode(completion.op),
        byte_len: completion.byte_len,
        qp_num: from.qpn.to_u32(),
        src_qp: from.remote_qpn,
        sl: from.packet_type,
        // IBV_WC_GRH is 1.
        wc_flags: u32::from(from.packet_type != 0),
        ..ibv_wc::default()
    };
    if let Some(imm) = completion.imm {
        wc.wc_flags |= IBV_WC_WITH_IMM;
        wc.__bindgen_anon_1.imm_data = imm.to_be();
    }
    if let Some(stag) = completion.invalidated {
        wc.wc_flags |= IBV_WC_WITH_INV;
        wc.__bindgen_anon_1.invalidated_rkey = stag;
    }
    wc
}

#[inline]
const fn status(status: Status) -> ibv_wc_status {
    match status {
        Status::Success => IBV_WC_SUCCESS,
        Status::LocalLengthError => IBV_WC_LOC_LEN_ERR,
        Status::LocalQpOperationError => IBV_WC_LOC_QP_OP_ERR,
        Status::LocalProtectionError => IBV_WC_LOC_PROT_ERR,
        Status::LocalAccessError => IBV_WC_LOC_ACCESS_ERR,
        Status::WorkRequestFlushed => IBV_WC_WR_FLUSH_ERR,
        Status::RemoteInvalidRequestError => IBV_WC_REM_INV_REQ_ERR,
        Status::RemoteAccessError => IBV_WC_REM_ACCESS_ERR,
        Status::RemoteOperationError => IBV_WC_REM_OP_ERR,
        Status::RetryExceeded => IBV_WC_RETRY_EXC_ERR,
        Status::RnrRetryExceeded => IBV_WC_RNR_RETRY_EXC_ERR,
        Status::WindowBindError => IBV_WC_MW_BIND_ERR,
    }
}

#[inline]
const fn opcode(op: CompletionOp) -> ibv_wc_opcode {
    match op {
        CompletionOp::Send => IBV_WC_SEND,
        CompletionOp::Write => IBV_WC_RDMA_WRITE,
        CompletionOp::Read => IBV_WC_RDMA_READ,
        CompletionOp::CompareSwap => IBV_WC_COMP_SWAP,
        CompletionOp::FetchAdd => IBV_WC_FETCH_ADD,
        CompletionOp::AtomicWrite => IBV_WC_ATOMIC_WRITE,
        CompletionOp::LocalInvalidate => IBV_WC_LOCAL_INV,
        CompletionOp::BindWindow => IBV_WC_BIND_MW,
        CompletionOp::Recv => IBV_WC_RECV,
        CompletionOp::RecvWriteImm => IBV_WC_RECV_RDMA_WITH_IMM,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdma_core_sys::verbs::IBV_WC_GRH;
    use urdma_engine::{Completion, Qpn, SlotId};

    fn completion() -> WorkCompletion {
        WorkCompletion {
            completion: Completion {
                wr_id: 42,
                status: Status::Success,
                op: CompletionOp::Recv,
                byte_len: 100,
                imm: None,
                invalidated: None,
                solicited: false,
            },
            qpn: Qpn::new(SlotId::new(3).unwrap(), 17),
            remote_qpn: 0x0002_0001,
            packet_type: 0,
        }
    }

    #[test]
    fn work_completion_of_a_datagram_says_that_there_is_a_grh() {
        let from = WorkCompletion {
            packet_type: 10,
            ..completion()
        };
        let wc = work_completion(&from);
        assert_eq!((wc.wc_flags, wc.sl), (IBV_WC_GRH, 10));
    }

    #[test]
    fn work_completion_with_immediate_has_it_in_network_order() {
        let mut from = completion();
        from.completion.imm = Some(0x0102_0304);
        let wc = work_completion(&from);
        assert_eq!(wc.wc_flags, IBV_WC_WITH_IMM);
        // SAFETY: the union holds the immediate data.
        let imm = unsafe { wc.__bindgen_anon_1.imm_data };
        assert_eq!(imm.to_ne_bytes(), [1, 2, 3, 4]);
    }

    #[test]
    fn work_completion_plain_has_all_fields() {
        let wc = work_completion(&completion());
        assert_eq!(
            (wc.wr_id, wc.status, wc.opcode),
            (42, IBV_WC_SUCCESS, IBV_WC_RECV)
        );
        assert_eq!((wc.byte_len, wc.wc_flags), (100, 0));
        assert_eq!((wc.qp_num, wc.src_qp), (0x0003_0011, 0x0002_0001));
    }

    #[test]
    fn work_completion_invalidated_names_the_key() {
        let mut from = completion();
        from.completion.invalidated = Some(77);
        let wc = work_completion(&from);
        assert_eq!(wc.wc_flags, IBV_WC_WITH_INV);
        // SAFETY: the union holds the key.
        assert_eq!(unsafe { wc.__bindgen_anon_1.invalidated_rkey }, 77);
    }
}
