//! The differences of unreliable datagram queue pairs: attributes, states and send requests.

use std::ffi::c_int;

use rdma_core_sys::verbs::{
    ibv_gid, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap, ibv_send_wr, ibv_wr_opcode,
    IBV_MIG_MIGRATED, IBV_QPS_RESET, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_QKEY, IBV_QP_SQ_PSN,
    IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_BIND_MW, IBV_WR_LOCAL_INV,
    IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV,
};

use super::super::ah::Handle;
use super::super::context;
use super::super::errno::VerbsError;
use super::super::ffi;
use super::attributes::{state_number, state_of, BITS_24, PKEY_INDEX, PORT};
use super::request::{send_flags, with_payload};
use super::structure::QueuePair;
use super::transitions::{self, Service};
use urdma_engine::{
    CompletionOp, DatagramAttributes, DatagramModify, DatagramWr, Engine, EngineError, Gid,
    Payload, Qp, QpState,
};

/// `ibv_modify_qp` of a datagram queue pair.
pub(super) fn modify(
    qp: &QueuePair,
    attr: &ibv_qp_attr,
    mask: ibv_qp_attr_mask,
) -> Result<(), VerbsError> {
    let (state, _) = qp.engine.query_datagram_qp(&qp.qp);
    let from = state_number(state);
    let to = transitions::target(from, attr, mask)?;
    transitions::check(Service::Datagram, from, to, mask)?;
    let given = |bit: ibv_qp_attr_mask| mask & bit != 0;
    if (given(IBV_QP_PORT) && attr.port_num != PORT)
        || (given(IBV_QP_PKEY_INDEX) && attr.pkey_index != PKEY_INDEX)
    {
        return Err(VerbsError::Invalid);
    }
    let target = state_of(to)?;
    let change = DatagramModify {
        // Without a change of state there is no transition, except from RESET to RESET, which
        // clears.
        state: (from != to || to == IBV_QPS_RESET).then_some(target),
        qkey: given(IBV_QP_QKEY).then_some(attr.qkey),
        sq_psn: given(IBV_QP_SQ_PSN).then_some(attr.sq_psn & BITS_24),
    };
    if change.state == Some(QpState::Sqd) {
        qp.qp
            .tell_when_drained(transitions::wants_drained(attr, mask));
    }
    Ok(qp.engine.modify_datagram_qp(&qp.qp, &change)?)
}

/// `ibv_query_qp` of a datagram queue pair with these sizes.
pub(super) fn query(qp: &QueuePair, cap: ibv_qp_cap) -> ibv_qp_attr {
    let (state, attributes) = qp.engine.query_datagram_qp(&qp.qp);
    answer(state, &attributes, cap)
}

fn answer(state: QpState, attributes: &DatagramAttributes, cap: ibv_qp_cap) -> ibv_qp_attr {
    let number = state_number(state);
    let port_num = if state == QpState::Reset { 0 } else { PORT };
    ibv_qp_attr {
        qp_state: number,
        cur_qp_state: number,
        path_mig_state: IBV_MIG_MIGRATED,
        qkey: attributes.qkey,
        sq_psn: attributes.sq_psn,
        cap,
        pkey_index: PKEY_INDEX,
        port_num,
        ..ibv_qp_attr::default()
    }
}

/// `ibv_attach_mcast`; the LID is for InfiniBand only.
pub(in crate::verbs) unsafe extern "C" fn attach_mcast(
    qp: *mut ibv_qp,
    group: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: libibverbs keeps the contract of `of_group`.
    unsafe { of_group(qp, group, Engine::attach_to_group) }
}

/// `ibv_detach_mcast`
pub(in crate::verbs) unsafe extern "C" fn detach_mcast(
    qp: *mut ibv_qp,
    group: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: libibverbs keeps the contract of `of_group`.
    unsafe { of_group(qp, group, Engine::detach_from_group) }
}

/// Runs `work` on a datagram queue pair and a multicast group.
///
/// # Safety
/// libibverbs has called through the context that `qp` names, and `group` points to a GID.
unsafe fn of_group(
    qp: *mut ibv_qp,
    group: *const ibv_gid,
    work: impl FnOnce(&Engine, &Qp, Gid) -> Result<(), EngineError>,
) -> c_int {
    ffi::status(|| {
        // SAFETY: by the caller's promise; every bit pattern is a GID.
        let ((_, object), gid) = unsafe { (context::named::<QueuePair>(qp)?, (*group).raw) };
        if object.service != Service::Datagram {
            return Err(VerbsError::Invalid);
        }
        Ok(work(&object.engine, &object.qp, Gid(gid))?)
    })
}

/// Validates and posts one send request.
#[inline(never)]
pub(super) fn send_one(qp: &QueuePair, request: &ibv_send_wr) -> Result<(), VerbsError> {
    // SAFETY: all members of the unions are integers and pointers, for which every bit pattern is
    // valid.
    let (target, word) = unsafe { (request.wr.ud, request.__bindgen_anon_1.imm_data) };
    let imm = match request.opcode {
        IBV_WR_SEND => None,
        IBV_WR_SEND_WITH_IMM => Some(u32::from_be(word)),
        opcode => {
            let op = unsupported(opcode).ok_or(VerbsError::Invalid)?;
            return send_unsupported(qp, request, op);
        }
    };
    let flags = send_flags(request.send_flags, qp.sq_sig_all)?;
    // SAFETY: the application passes null or an address handle that lives.
    let handle = unsafe { Handle::from_ptr(target.ah) }.ok_or(VerbsError::Invalid)?;
    with_payload(qp, request, |payload: Payload<'_>| {
        let wr = DatagramWr {
            wr_id: request.wr_id,
            imm,
            flags,
            payload,
            handle: &handle.handle,
            remote_qpn: target.remote_qpn & BITS_24,
            remote_qkey: target.remote_qkey,
        };
        Ok(qp.engine.post_datagram(&qp.qp, &wr)?)
    })
}

/// Posts a request of an operation that datagrams do not have: it is accepted and completes with an
/// error, as with a device that detects the error when it executes the request. It has no address.
#[cold]
pub(super) fn send_unsupported(
    qp: &QueuePair,
    request: &ibv_send_wr,
    op: CompletionOp,
) -> Result<(), VerbsError> {
    send_flags(request.send_flags, qp.sq_sig_all)?;
    with_payload(qp, request, |_| {
        Ok(qp
            .engine
            .post_unsupported_datagram(&qp.qp, request.wr_id, op)?)
    })
}

/// The operation of a request that datagrams do not have.
const fn unsupported(opcode: ibv_wr_opcode) -> Option<CompletionOp> {
    Some(match opcode {
        IBV_WR_SEND_WITH_INV => CompletionOp::Send,
        IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => CompletionOp::Write,
        IBV_WR_RDMA_READ => CompletionOp::Read,
        IBV_WR_ATOMIC_CMP_AND_SWP => CompletionOp::CompareSwap,
        IBV_WR_ATOMIC_FETCH_AND_ADD => CompletionOp::FetchAdd,
        IBV_WR_LOCAL_INV => CompletionOp::LocalInvalidate,
        IBV_WR_BIND_MW => CompletionOp::BindWindow,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdma_core_sys::verbs::{IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQE, IBV_QP_STATE};

    #[test]
    fn usual_way_to_rts_is_taken() {
        let check = |from, to, mask| transitions::check(Service::Datagram, from, to, mask);
        let to_init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
        assert_eq!(check(IBV_QPS_RESET, IBV_QPS_INIT, to_init), Ok(()));
        assert_eq!(check(IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_STATE), Ok(()));
        let to_rts = IBV_QP_STATE | IBV_QP_SQ_PSN;
        assert_eq!(check(IBV_QPS_RTR, IBV_QPS_RTS, to_rts), Ok(()));
        for missing in [IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_QKEY] {
            let short = to_init & !missing;
            assert!(check(IBV_QPS_RESET, IBV_QPS_INIT, short).is_err());
        }
    }

    #[test]
    fn answer_says_what_was_set() {
        let attributes = DatagramAttributes {
            qkey: 0x1234,
            sq_psn: 5,
        };
        let attr = answer(QpState::Sqe, &attributes, ibv_qp_cap::default());
        assert_eq!((attr.qp_state, attr.qkey), (IBV_QPS_SQE, 0x1234));
        assert_eq!((attr.sq_psn, attr.port_num), (5, 1));
    }
}
