//! The data path of requests: each one is validated, then executed. Completions are in
//! `cq/poll.rs`.
//!
//! Nothing here allocates or logs. Requests are copied to the stack before they are validated.

use std::ffi::c_int;

use rdma_core_sys::verbs::{
    ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_srq, IBV_WR_ATOMIC_CMP_AND_SWP,
    IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_BIND_MW, IBV_WR_LOCAL_INV, IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM,
    IBV_WR_SEND_WITH_INV,
};

use super::super::errno::VerbsError;
use super::super::ffi;
use super::super::mw;
use super::super::srq::SharedReceiveQueue;
use super::datagram;
use super::request::{send_flags, with_payload, with_recv_wr};
use super::structure::QueuePair;
use super::transitions::Service;
use urdma_engine::{CompletionOp, RemoteAddr, SendOp, SendWr};

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
pub(in crate::verbs) unsafe extern "C" fn post_send(
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
pub(in crate::verbs) unsafe extern "C" fn post_recv(
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
pub(in crate::verbs) unsafe extern "C" fn post_srq_recv(
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

#[cfg(test)]
mod tests {
    use super::*;
    use rdma_core_sys::verbs::{IBV_WR_ATOMIC_WRITE, IBV_WR_TSO};

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
}
