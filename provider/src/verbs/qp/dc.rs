//! The differences of the dynamically connected transport: attributes, states and send requests of
//! initiators (DCI) and targets (DCT).

use rdma_core_sys::verbs::{
    ibv_ah_attr, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_init_attr_ex, IBV_QPS_RESET,
    IBV_QPT_DRIVER, IBV_QP_AV, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_ATOMIC_WRITE, IBV_QP_EX_WITH_RDMA_READ,
    IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND,
    IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
};

use super::super::ah::Handle;
use super::super::errno::VerbsError;
use super::super::reason::{self, invalid, refused};
use super::attributes::{self, state_number, state_of, BITS_24};
use super::builder::{DcName, Operation, Request};
use super::post;
use super::request::{send_flags, with_payload};
use super::structure::QueuePair;
use super::transitions::{self, Service};
use urdma_abi::dv::{dc_type, init, DvInitAttr, CREATE_HINTS};
use urdma_engine::{DcRole, PostError, RemoteAddr, SendOp, SendWr};

/// The operations for which an initiator can have extended calls.
const SEND_OPS: u32 = IBV_QP_EX_WITH_SEND
    | IBV_QP_EX_WITH_SEND_WITH_IMM
    | IBV_QP_EX_WITH_RDMA_WRITE
    | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | IBV_QP_EX_WITH_ATOMIC_WRITE;

/// The role for which `urdmadv_create_qp` is called; `None`: it is `ibv_create_qp_ex` for a queue
/// pair of another service.
///
/// # Errors
/// The attributes are not those of the role, with the reason.
pub(in crate::verbs) fn role_of(
    attr: &ibv_qp_init_attr_ex,
    dv: &DvInitAttr,
) -> Result<Option<DcRole>, VerbsError> {
    let unsupported = |reason| refused(VerbsError::NotSupported, reason);
    if dv.comp_mask & !(init::CREATE_FLAGS | init::DC) != 0 {
        return Err(unsupported(
            c"comp_mask of urdmadv_qp_init_attr has a bit that is unknown",
        ));
    }
    if dv.comp_mask & init::CREATE_FLAGS != 0 && dv.create_flags & !CREATE_HINTS != 0 {
        return Err(unsupported(
            c"create_flags of urdmadv_qp_init_attr has a bit that is unknown",
        ));
    }
    if dv.comp_mask & init::DC == 0 {
        return match attr.qp_type {
            IBV_QPT_DRIVER => Err(invalid(
                c"IBV_QPT_DRIVER needs URDMADV_QP_INIT_ATTR_MASK_DC and dc_init_attr",
            )),
            _ => Ok(None),
        };
    }
    if attr.qp_type != IBV_QPT_DRIVER {
        return Err(invalid(
            c"dc_init_attr is for queue pairs of the type IBV_QPT_DRIVER",
        ));
    }
    if attr.comp_mask & !(IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0 {
        return Err(unsupported(
            c"comp_mask of ibv_qp_init_attr_ex is at most PD and SEND_OPS_FLAGS",
        ));
    }
    if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        return Err(invalid(c"there is no protection domain"));
    }
    let has_calls = attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
    match dv.dc.dc_type {
        dc_type::DCI => check_initiator(attr, has_calls).map(|()| Some(DcRole::Initiator)),
        dc_type::DCT => check_target(attr, has_calls).map(|()| {
            Some(DcRole::Target {
                key: dv.dc.dct_access_key,
            })
        }),
        _ => Err(invalid(
            c"dc_type is neither URDMADV_DCTYPE_DCT nor URDMADV_DCTYPE_DCI",
        )),
    }
}

fn check_initiator(attr: &ibv_qp_init_attr_ex, has_calls: bool) -> Result<(), VerbsError> {
    if !has_calls {
        return Err(invalid(
            c"an initiator needs IBV_QP_INIT_ATTR_SEND_OPS_FLAGS: only requests of ibv_qp_ex name \
              their target",
        ));
    }
    if attr.send_ops_flags & !u64::from(SEND_OPS) != 0 {
        return Err(refused(
            VerbsError::NotSupported,
            c"send_ops_flags has an operation that initiators do not have",
        ));
    }
    if attr.send_cq.is_null() {
        return Err(invalid(
            c"an initiator needs a completion queue for its sends",
        ));
    }
    Ok(())
}

fn check_target(attr: &ibv_qp_init_attr_ex, has_calls: bool) -> Result<(), VerbsError> {
    if has_calls {
        return Err(invalid(c"a target sends nothing and has no send_ops_flags"));
    }
    if attr.srq.is_null() {
        return Err(invalid(c"a target needs a shared receive queue"));
    }
    if attr.recv_cq.is_null() {
        return Err(invalid(
            c"a target needs a completion queue for its receives",
        ));
    }
    Ok(())
}

/// The service of a role.
pub(super) const fn service_of(role: DcRole) -> Service {
    match role {
        DcRole::Initiator => Service::DcInitiator,
        DcRole::Target { .. } => Service::DcTarget,
    }
}

/// `ibv_modify_qp`. The address vector has no effect, since requests name their targets and answers
/// go where requests came from: it is only kept for `ibv_query_qp`.
pub(super) fn modify(
    qp: &QueuePair,
    attr: &ibv_qp_attr,
    mask: ibv_qp_attr_mask,
    address: &mut Option<ibv_ah_attr>,
) -> Result<(), VerbsError> {
    reason::forget();
    let (state, _) = qp.engine.query_dc_qp(&qp.qp);
    let from = state_number(state);
    let to = transitions::target(from, attr, mask)?;
    transitions::check(qp.service, from, to, mask).map_err(|error| {
        refused(
            error,
            c"there is no such transition, or it lacks an attribute or has one too many: see \
              urdmadv_create_qp(3)",
        )
    })?;
    let mut change = attributes::change(attr, mask & !IBV_QP_AV, qp.engine.info())
        .map_err(|error| refused(error, c"an attribute has a value that is out of range"))?;
    let target = state_of(to)?;
    // As for connections.
    change.state = (from != to || to == IBV_QPS_RESET).then_some(target);
    qp.engine.modify_dc_qp(&qp.qp, &change)?;
    if mask & IBV_QP_AV != 0 {
        *address = Some(attr.ah_attr);
    }
    if to == IBV_QPS_RESET {
        *address = None;
    }
    Ok(())
}

/// `ibv_query_qp` of a queue pair with these sizes.
pub(super) fn query(qp: &QueuePair, cap: ibv_qp_cap, address: Option<&ibv_ah_attr>) -> ibv_qp_attr {
    let (state, attributes) = qp.engine.query_dc_qp(&qp.qp);
    ibv_qp_attr {
        ah_attr: address.copied().unwrap_or_default(),
        ..attributes::answer(state, &attributes, cap, None)
    }
}

/// Checks a request of an initiator without posting it.
///
/// # Errors
/// Initiators do not have the operation, or the request names no target, with the reason.
pub(super) fn check(request: &Request) -> Result<(SendOp, Option<u32>, DcName), VerbsError> {
    let (op, imm) = match request.operation {
        Operation::Opcode => post::operation(&request.wr).unwrap_or((LOCAL, None)),
        Operation::AtomicWrite(octets) => (atomic_write(request, octets), None),
    };
    if matches!(
        op,
        SendOp::LocalInvalidate { .. } | SendOp::SendInvalidate { .. } | SendOp::BindWindow(_)
    ) {
        return Err(invalid(
            c"initiators do not have the operation of the request",
        ));
    }
    let target = request
        .target
        .ok_or_else(|| invalid(c"urdmadv_wr_set_dc_addr has named no target of the request"))?;
    if target.number & !BITS_24 != 0 {
        return Err(invalid(c"the number of a target has 24 bits"));
    }
    Ok((op, imm, target))
}

/// Stands for all local operations, which initiators do not have.
const LOCAL: SendOp = SendOp::LocalInvalidate { stag: 0 };

fn atomic_write(request: &Request, octets: [u8; 8]) -> SendOp {
    // SAFETY: every bit pattern is an address and a key.
    let remote = unsafe { request.wr.wr.rdma };
    let remote = RemoteAddr {
        stag: remote.rkey,
        to: remote.remote_addr,
    };
    SendOp::AtomicWrite { remote, octets }
}

/// Validates and posts one send request.
#[inline(never)]
pub(super) fn send_one(qp: &QueuePair, request: &Request) -> Result<(), VerbsError> {
    reason::forget();
    let (op, imm, target) = check(request)?;
    let wr = &request.wr;
    let flags = send_flags(wr.send_flags, qp.sq_sig_all)?;
    // SAFETY: the application passes null or an address handle that lives.
    let handle = unsafe { Handle::from_ptr(target.ah) }
        .ok_or_else(|| invalid(c"the request has no address handle"))?;
    with_payload(qp, wr, |payload| {
        let wr = SendWr {
            wr_id: wr.wr_id,
            op,
            imm,
            flags,
            shared_queue: 0,
            payload,
        };
        let to = (&*handle.handle, target.number, target.key);
        qp.engine.post_dc_send(&qp.qp, to, &wr).map_err(reason_of)
    })
}

/// Keeps the reason of an error of the engine.
#[cold]
fn reason_of(error: PostError) -> VerbsError {
    let reason = match error {
        PostError::QueueFull => c"the send queue is full: poll the completion queue",
        PostError::InvalidState => c"the initiator is not in RTS",
        PostError::InvalidRequest => {
            c"the address handle is a multicast group's or of another protection domain, or the \
              target has no such number"
        }
        PostError::TooManySges => c"the list has more elements than max_send_sge",
        PostError::InlineTooLong => c"the inline data is longer than max_inline_data",
        PostError::MessageTooLong => c"the message is longer than max_msg_sz of the port",
    };
    refused(VerbsError::from(error), reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdma_core_sys::verbs::{
        ibv_send_wr, IBV_QPT_RC, IBV_QP_EX_WITH_BIND_MW, IBV_QP_INIT_ATTR_CREATE_FLAGS,
        IBV_WR_BIND_MW, IBV_WR_LOCAL_INV, IBV_WR_RDMA_READ, IBV_WR_SEND, IBV_WR_SEND_WITH_INV,
    };
    use std::ptr::{null_mut, NonNull};
    use urdma_abi::dv::DcInitAttr;

    const KEY: u64 = 0x0123_4567_89ab_cdef;

    fn dv(dc_type: u32) -> DvInitAttr {
        DvInitAttr {
            comp_mask: init::DC | init::CREATE_FLAGS,
            create_flags: CREATE_HINTS,
            dc: DcInitAttr {
                dc_type,
                dct_access_key: KEY,
            },
        }
    }

    /// Attributes that pass, which are not dereferenced.
    fn valid(dc_type: u32) -> ibv_qp_init_attr_ex {
        let mut attr = ibv_qp_init_attr_ex {
            qp_type: IBV_QPT_DRIVER,
            comp_mask: IBV_QP_INIT_ATTR_PD,
            pd: NonNull::dangling().as_ptr(),
            send_cq: NonNull::dangling().as_ptr(),
            recv_cq: NonNull::dangling().as_ptr(),
            srq: NonNull::dangling().as_ptr(),
            ..ibv_qp_init_attr_ex::default()
        };
        if dc_type == dc_type::DCI {
            attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
            attr.send_ops_flags = u64::from(IBV_QP_EX_WITH_SEND);
        }
        attr
    }

    #[test]
    fn role_of_valid_attributes_is_that_of_the_type() {
        let role = role_of(&valid(dc_type::DCI), &dv(dc_type::DCI));
        assert_eq!(role, Ok(Some(DcRole::Initiator)));
        let role = role_of(&valid(dc_type::DCT), &dv(dc_type::DCT));
        assert_eq!(role, Ok(Some(DcRole::Target { key: KEY })));
        let mut other = valid(dc_type::DCI);
        other.qp_type = IBV_QPT_RC;
        assert_eq!(role_of(&other, &DvInitAttr::default()), Ok(None));
    }

    #[test]
    fn attributes_of_no_role_are_refused_with_a_reason() {
        type Spoil = fn(&mut ibv_qp_init_attr_ex, &mut DvInitAttr);
        let refused = |dc_type, error, spoil: Spoil| {
            reason::forget();
            let (mut attr, mut dv) = (valid(dc_type), dv(dc_type));
            spoil(&mut attr, &mut dv);
            assert_eq!(role_of(&attr, &dv), Err(error));
            assert!(reason::last().is_some());
        };
        let (dci, dct) = (dc_type::DCI, dc_type::DCT);
        let (invalid, unsupported) = (VerbsError::Invalid, VerbsError::NotSupported);
        refused(dci, unsupported, |_, dv| dv.comp_mask |= 1 << 3);
        refused(dci, unsupported, |_, dv| dv.create_flags = 1);
        refused(dci, invalid, |_, dv| dv.comp_mask = 0);
        refused(dci, invalid, |_, dv| dv.dc.dc_type = 3);
        refused(dci, invalid, |attr, _| attr.qp_type = IBV_QPT_RC);
        refused(dci, invalid, |attr, _| attr.comp_mask = IBV_QP_INIT_ATTR_PD);
        refused(dci, invalid, |attr, _| attr.send_cq = null_mut());
        refused(dci, invalid, |attr, _| attr.pd = null_mut());
        refused(dci, unsupported, |attr, _| {
            attr.send_ops_flags = u64::from(IBV_QP_EX_WITH_BIND_MW);
        });
        refused(dct, unsupported, |attr, _| {
            attr.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS;
        });
        refused(dct, invalid, |attr, _| attr.srq = null_mut());
        refused(dct, invalid, |attr, _| attr.recv_cq = null_mut());
        refused(dct, invalid, |attr, _| {
            attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        });
    }

    #[test]
    fn request_needs_a_target_and_an_operation_of_initiators() {
        let request = |opcode| Request {
            wr: ibv_send_wr {
                opcode,
                ..ibv_send_wr::default()
            },
            operation: Operation::Opcode,
            target: Some(DcName {
                ah: null_mut(),
                number: 7,
                key: KEY,
            }),
            sges: 0..0,
        };
        assert!(check(&request(IBV_WR_SEND)).is_ok());
        assert!(check(&request(IBV_WR_RDMA_READ)).is_ok());
        for opcode in [IBV_WR_SEND_WITH_INV, IBV_WR_LOCAL_INV, IBV_WR_BIND_MW, 99] {
            assert_eq!(check(&request(opcode)).map(drop), Err(VerbsError::Invalid));
        }
        let mut without = request(IBV_WR_SEND);
        without.target = None;
        assert_eq!(check(&without).map(drop), Err(VerbsError::Invalid));
        let mut beyond = request(IBV_WR_SEND);
        if let Some(target) = &mut beyond.target {
            target.number = 1 << 24;
        }
        assert_eq!(check(&beyond).map(drop), Err(VerbsError::Invalid));
    }
}
