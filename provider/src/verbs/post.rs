//! The data path: each work request is validated, then executed; completions are written directly
//! to the caller's array.
//!
//! Nothing here allocates or logs. Requests are copied to the stack before they are validated.

use std::ffi::c_int;

use rdma_core_sys::verbs::{
    ibv_cq, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_srq, ibv_wc, ibv_wc_opcode, ibv_wc_status,
    IBV_WC_ATOMIC_WRITE, IBV_WC_BIND_MW, IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD, IBV_WC_LOCAL_INV,
    IBV_WC_LOC_ACCESS_ERR, IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_PROT_ERR, IBV_WC_LOC_QP_OP_ERR,
    IBV_WC_MW_BIND_ERR, IBV_WC_RDMA_READ, IBV_WC_RDMA_WRITE, IBV_WC_RECV,
    IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_OP_ERR,
    IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_SEND, IBV_WC_SUCCESS, IBV_WC_WITH_IMM,
    IBV_WC_WITH_INV, IBV_WC_WR_FLUSH_ERR, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_BIND_MW, IBV_WR_LOCAL_INV, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV,
};

use super::completion_queue::CompletionQueue;
use super::datagram;
use super::errno::VerbsError;
use super::ffi;
use super::mw;
use super::queue_pair::QueuePair;
use super::request::{send_flags, with_payload, with_recv_wr};
use super::srq::SharedReceiveQueue;
use super::transitions::Service;
use urdma_engine::{CompletionOp, RemoteAddr, SendOp, SendWr, Status, WorkCompletion};

/// Posts the requests of a list up to the first that fails; `bad_wr` is set to that one.
///
/// # Safety
/// `first` begins a list that is linked by `next` and ends with null; `bad_wr` can be written.
#[inline]
unsafe fn post_list<T>(
    first: *mut T,
    bad_wr: *mut *mut T,
    next: impl Fn(&T) -> *mut T,
    post: impl Fn(&T) -> Result<(), VerbsError>,
) -> c_int {
    let mut wr = first;
    let result = ffi::status_on_data_path(|| {
        // SAFETY: by the caller's promise.
        while let Some(request) = unsafe { wr.as_ref() } {
            post(request)?;
            wr = next(request);
        }
        Ok(())
    });
    if result != 0 {
        // SAFETY: by the caller's promise.
        unsafe { bad_wr.write(wr) };
    }
    result
}

/// `ibv_post_send`.
pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the application passes a queue pair of this plugin.
    let object = unsafe { QueuePair::from_ptr(qp) };
    // SAFETY: the application passes a list that ends with null, and a pointer that can be written.
    unsafe { post_list(wr, bad_wr, |wr| wr.next, |wr| send_one(object, wr)) }
}

/// `ibv_post_recv`.
pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the application passes a queue pair of this plugin.
    let object = unsafe { QueuePair::from_ptr(qp) };
    let post = |wr: &ibv_recv_wr| {
        with_recv_wr(wr, object.max_recv_sge, |wr| {
            match object.service {
                Service::Connection | Service::UnreliableConnection => {
                    object.engine.post_recv(&object.qp, wr)?;
                }
                Service::Datagram => object.engine.post_datagram_recv(&object.qp, wr)?,
                Service::XrcInitiator
                | Service::XrcTarget
                | Service::DcInitiator
                | Service::DcTarget => return Err(VerbsError::Invalid),
            }
            Ok(())
        })
    };
    // SAFETY: as in `post_send`.
    unsafe { post_list(wr, bad_wr, |wr| wr.next, post) }
}

/// `ibv_post_srq_recv`.
pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the application passes a shared receive queue of this plugin.
    let object = unsafe { SharedReceiveQueue::from_ptr(srq) };
    let post = |wr: &ibv_recv_wr| {
        with_recv_wr(wr, object.srq.max_sge(), |wr| {
            Ok(object.engine.post_srq_recv(&object.srq, wr)?)
        })
    };
    // SAFETY: as in `post_send`.
    unsafe { post_list(wr, bad_wr, |wr| wr.next, post) }
}

/// Validates and posts one send request.
#[inline]
pub(super) fn send_one(qp: &QueuePair, request: &ibv_send_wr) -> Result<(), VerbsError> {
    let shared_queue = match qp.service {
        Service::Connection | Service::UnreliableConnection => 0,
        Service::Datagram => return datagram::send_one(qp, request),
        // SAFETY: requests of this service have the peer's queue here; every bit pattern is an
        // integer.
        Service::XrcInitiator => unsafe { request.qp_type.xrc.remote_srqn },
        // A request of ibv_post_send has no field for the target of an initiator.
        Service::XrcTarget | Service::DcInitiator | Service::DcTarget => {
            return Err(VerbsError::Invalid)
        }
    };
    let (op, imm) = match operation(request) {
        Ok(plain) => plain,
        Err(rest) => return send_rest(qp, request, rest),
    };
    let flags = send_flags(request.send_flags, qp.sq_sig_all)?;
    with_payload(qp, request, |payload| {
        let wr = SendWr {
            wr_id: request.wr_id,
            op,
            imm,
            flags,
            shared_queue,
            payload,
        };
        Ok(qp.engine.post_send(&qp.qp, &wr)?)
    })
}

/// Opcodes that [`operation`] does not translate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// `IBV_WR_BIND_MW`, which also changes the window's public structure.
    Bind,
    /// An opcode that `ibv_post_send` does not have.
    Unknown,
}

/// The operation of a request, and its immediate data in host order.
#[inline]
pub(super) fn operation(request: &ibv_send_wr) -> Result<(SendOp, Option<u32>), Rest> {
    // SAFETY: all members of the unions are integers, for which every bit pattern is valid.
    let (rdma, atomic, word) = unsafe {
        (
            request.wr.rdma,
            request.wr.atomic,
            request.__bindgen_anon_1.imm_data,
        )
    };
    let remote = RemoteAddr {
        stag: rdma.rkey,
        to: rdma.remote_addr,
    };
    let operand = RemoteAddr {
        stag: atomic.rkey,
        to: atomic.remote_addr,
    };
    let imm = Some(u32::from_be(word));
    Ok(match request.opcode {
        IBV_WR_SEND => (SendOp::Send, None),
        IBV_WR_SEND_WITH_IMM => (SendOp::Send, imm),
        IBV_WR_SEND_WITH_INV => (SendOp::SendInvalidate { stag: word }, None),
        IBV_WR_RDMA_WRITE => (SendOp::Write { remote }, None),
        IBV_WR_RDMA_WRITE_WITH_IMM => (SendOp::Write { remote }, imm),
        IBV_WR_RDMA_READ => (SendOp::Read { remote }, None),
        IBV_WR_ATOMIC_CMP_AND_SWP => (
            SendOp::CompareSwap {
                remote: operand,
                compare: atomic.compare_add,
                swap: atomic.swap,
            },
            None,
        ),
        IBV_WR_ATOMIC_FETCH_AND_ADD => (
            SendOp::FetchAdd {
                remote: operand,
                add: atomic.compare_add,
            },
            None,
        ),
        IBV_WR_LOCAL_INV => (SendOp::LocalInvalidate { stag: word }, None),
        IBV_WR_BIND_MW => return Err(Rest::Bind),
        _ => return Err(Rest::Unknown),
    })
}

/// Checks the operation of a request without posting it.
pub(super) fn check_operation(request: &ibv_send_wr) -> Result<(), VerbsError> {
    match operation(request) {
        Ok(_) => Ok(()),
        Err(Rest::Bind) => mw::bind_request(request).map(drop),
        Err(Rest::Unknown) => Err(VerbsError::Invalid),
    }
}

/// Posts a request whose opcode [`operation`] does not translate.
#[cold]
fn send_rest(qp: &QueuePair, request: &ibv_send_wr, rest: Rest) -> Result<(), VerbsError> {
    if rest == Rest::Unknown {
        return Err(VerbsError::Invalid);
    }
    let bind = mw::bind_request(request)?;
    send_rare(qp, request, bind.op(), 0)?;
    bind.note_posted();
    Ok(())
}

/// Posts the request of an `ibv_wr_atomic_write`. It has no `ibv_send_wr` of its own, because that
/// structure has no field for the octets to be written; `request` has everything else.
#[cold]
pub(super) fn send_atomic_write(
    qp: &QueuePair,
    request: &ibv_send_wr,
    octets: [u8; 8],
) -> Result<(), VerbsError> {
    let shared_queue = match qp.service {
        Service::Connection | Service::UnreliableConnection => 0,
        Service::Datagram => {
            return datagram::send_unsupported(qp, request, CompletionOp::AtomicWrite)
        }
        // SAFETY: every bit pattern is an integer.
        Service::XrcInitiator => unsafe { request.qp_type.xrc.remote_srqn },
        Service::XrcTarget | Service::DcInitiator | Service::DcTarget => {
            return Err(VerbsError::Invalid)
        }
    };
    // SAFETY: every bit pattern is an address and a key.
    let target = unsafe { request.wr.rdma };
    let remote = RemoteAddr {
        stag: target.rkey,
        to: target.remote_addr,
    };
    let op = SendOp::AtomicWrite { remote, octets };
    send_rare(qp, request, op, shared_queue)
}

/// Posts an operation that [`operation`] does not return, without immediate data.
fn send_rare(
    qp: &QueuePair,
    request: &ibv_send_wr,
    op: SendOp,
    shared_queue: u32,
) -> Result<(), VerbsError> {
    let flags = send_flags(request.send_flags, qp.sq_sig_all)?;
    with_payload(qp, request, |payload| {
        let wr = SendWr {
            wr_id: request.wr_id,
            op,
            imm: None,
            flags,
            shared_queue,
            payload,
        };
        Ok(qp.engine.post_send(&qp.qp, &wr)?)
    })
}

/// `ibv_poll_cq`: returns the number of completions, or a negative errno.
pub(super) unsafe extern "C" fn poll_cq(
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
    use rdma_core_sys::verbs::{IBV_WC_GRH, IBV_WR_ATOMIC_WRITE, IBV_WR_TSO};
    use urdma_engine::{Completion, Qpn, SlotId};

    fn request(opcode: u32) -> ibv_send_wr {
        let mut wr = ibv_send_wr {
            opcode,
            ..ibv_send_wr::default()
        };
        wr.wr.rdma.remote_addr = 0x1000;
        wr.wr.rdma.rkey = 7;
        wr.__bindgen_anon_1.imm_data = 0x0102_0304_u32.to_be();
        wr
    }

    #[test]
    fn operation_of_each_opcode_is_the_verbs_one() {
        let remote = RemoteAddr {
            stag: 7,
            to: 0x1000,
        };
        let imm = Some(0x0102_0304);
        for (opcode, expected) in [
            (IBV_WR_SEND, (SendOp::Send, None)),
            (IBV_WR_SEND_WITH_IMM, (SendOp::Send, imm)),
            (IBV_WR_RDMA_WRITE, (SendOp::Write { remote }, None)),
            (IBV_WR_RDMA_WRITE_WITH_IMM, (SendOp::Write { remote }, imm)),
            (IBV_WR_RDMA_READ, (SendOp::Read { remote }, None)),
        ] {
            assert_eq!(operation(&request(opcode)), Ok(expected));
        }
        let mut invalidate = request(IBV_WR_SEND_WITH_INV);
        invalidate.__bindgen_anon_1.invalidate_rkey = 9;
        assert_eq!(
            operation(&invalidate),
            Ok((SendOp::SendInvalidate { stag: 9 }, None))
        );
    }

    #[test]
    fn operation_of_an_atomic_takes_its_own_fields() {
        let mut wr = request(IBV_WR_ATOMIC_CMP_AND_SWP);
        wr.wr.atomic.remote_addr = 0x2000;
        wr.wr.atomic.rkey = 5;
        wr.wr.atomic.compare_add = 11;
        wr.wr.atomic.swap = 12;
        let remote = RemoteAddr {
            stag: 5,
            to: 0x2000,
        };
        let compare_swap = SendOp::CompareSwap {
            remote,
            compare: 11,
            swap: 12,
        };
        assert_eq!(operation(&wr), Ok((compare_swap, None)));
        wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
        let fetch_add = SendOp::FetchAdd { remote, add: 11 };
        assert_eq!(operation(&wr), Ok((fetch_add, None)));
    }

    #[test]
    fn operation_of_an_unknown_opcode_is_invalid() {
        // `ibv_send_wr` has no field for the octets of an atomic write.
        for opcode in [IBV_WR_TSO, IBV_WR_ATOMIC_WRITE, 99, u32::MAX] {
            assert_eq!(operation(&request(opcode)), Err(Rest::Unknown));
            let checked = check_operation(&request(opcode));
            assert_eq!(checked, Err(VerbsError::Invalid));
        }
    }

    #[test]
    fn operation_leaves_bindings_to_windows() {
        let wr = request(IBV_WR_BIND_MW);
        assert_eq!(operation(&wr), Err(Rest::Bind));
        // The request names no window.
        assert_eq!(check_operation(&wr), Err(VerbsError::Invalid));
        let mut invalidate = request(IBV_WR_LOCAL_INV);
        invalidate.__bindgen_anon_1.invalidate_rkey = 7;
        let invalidated = SendOp::LocalInvalidate { stag: 7 };
        assert_eq!(operation(&invalidate), Ok((invalidated, None)));
    }

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
