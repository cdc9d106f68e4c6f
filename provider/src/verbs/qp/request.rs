//! What all work requests have in common: flags, scatter-gather lists and inline data, validated
//! and copied to the stack.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use rdma_core_sys::verbs::{
    ibv_recv_wr, ibv_send_wr, ibv_sge, IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_SEND_SIGNALED,
    IBV_SEND_SOLICITED,
};

use super::super::errno::VerbsError;
use super::structure::QueuePair;
use urdma_engine::{Payload, RecvWr, SendFlags, Sge, LIMITS};

/// Maximum number of elements of a scatter-gather list.
const SGE_MAX: usize = LIMITS.max_sge as usize;

/// The flags that the device supports in a send request.
const SEND_FLAGS: u32 = IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE;

/// Calls `post` with the payload of a request: its scatter-gather list, or the octets themselves if
/// it is inline. Inline data needs no registration.
#[inline]
pub(super) fn with_payload(
    qp: &QueuePair,
    request: &ibv_send_wr,
    post: impl FnOnce(Payload<'_>) -> Result<(), VerbsError>,
) -> Result<(), VerbsError> {
    let count = sge_count(request.num_sge, qp.max_send_sge)?;
    let mut list = [const { MaybeUninit::uninit() }; SGE_MAX];
    let mut parts = [const { MaybeUninit::uninit() }; SGE_MAX];
    let sges = copy_sges(request.sg_list, count, &mut list);
    let payload = if request.send_flags & IBV_SEND_INLINE == 0 {
        Payload::Sges(sges)
    } else {
        let octets: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
        if octets > u64::from(qp.max_inline) {
            return Err(VerbsError::Invalid);
        }
        Payload::Inline(inline_parts(sges, &mut parts))
    };
    // The only call of `post`, so that it is inlined and the request is not assembled in memory
    // first.
    post(payload)
}

/// The octets of an inline request, at most [`SGE_MAX`] parts.
#[inline]
fn inline_parts<'a>(
    sges: &[Sge],
    parts: &'a mut [MaybeUninit<&'a [u8]>; SGE_MAX],
) -> &'a [&'a [u8]] {
    for (part, sge) in parts.iter_mut().zip(sges) {
        part.write(if sge.length == 0 {
            &[]
        } else {
            // SAFETY: the application guarantees that the octets can be read and are not written
            // during the call.
            unsafe { std::slice::from_raw_parts(sge.addr as *const u8, sge.length as usize) }
        });
    }
    // SAFETY: as many parts as there are elements were initialized above.
    unsafe { std::slice::from_raw_parts(parts.as_ptr().cast(), sges.len()) }
}

/// Calls `post` with a copy of a receive request of at most `max_sge` elements.
#[inline]
pub(super) fn with_recv_wr(
    request: &ibv_recv_wr,
    max_sge: u32,
    post: impl FnOnce(&RecvWr<'_>) -> Result<(), VerbsError>,
) -> Result<(), VerbsError> {
    let count = sge_count(request.num_sge, max_sge)?;
    let mut list = [const { MaybeUninit::uninit() }; SGE_MAX];
    post(&RecvWr {
        wr_id: request.wr_id,
        sges: copy_sges(request.sg_list, count, &mut list),
    })
}

/// The flags of a request. With `sq_sig_all` every request is signaled.
#[inline]
pub(in crate::verbs) fn send_flags(flags: u32, sq_sig_all: bool) -> Result<SendFlags, VerbsError> {
    if flags & !SEND_FLAGS != 0 {
        return Err(VerbsError::Invalid);
    }
    Ok(SendFlags {
        signaled: sq_sig_all || flags & IBV_SEND_SIGNALED != 0,
        fence: flags & IBV_SEND_FENCE != 0,
        solicited: flags & IBV_SEND_SOLICITED != 0,
    })
}

/// Checks the number of elements against the queue's maximum.
#[inline]
pub(super) fn sge_count(count: c_int, max: u32) -> Result<usize, VerbsError> {
    match usize::try_from(count) {
        Ok(count) if count <= max as usize && count <= SGE_MAX => Ok(count),
        _ => Err(VerbsError::Invalid),
    }
}

/// Copies the caller's list to `list`; `count` is at most [`SGE_MAX`].
#[inline]
fn copy_sges(from: *const ibv_sge, count: usize, list: &mut [MaybeUninit<Sge>; SGE_MAX]) -> &[Sge] {
    for (index, to) in list[..count].iter_mut().enumerate() {
        // SAFETY: the application passes a list of `count` elements.
        let sge = unsafe { &*from.add(index) };
        to.write(Sge {
            addr: sge.addr,
            length: sge.length,
            lkey: sge.lkey,
        });
    }
    // SAFETY: the first `count` elements were initialized above.
    unsafe { std::slice::from_raw_parts(list.as_ptr().cast(), count) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdma_core_sys::verbs::IBV_SEND_IP_CSUM;

    #[test]
    fn send_flags_unknown_bits_are_invalid() {
        for flags in [IBV_SEND_IP_CSUM, 1 << 7, u32::MAX] {
            assert_eq!(send_flags(flags, false), Err(VerbsError::Invalid));
        }
    }

    #[test]
    fn send_flags_of_a_queue_that_signals_all_are_signaled() {
        assert!(send_flags(0, true).unwrap().signaled);
        assert!(!send_flags(0, false).unwrap().signaled);
        let all = send_flags(SEND_FLAGS, false).unwrap();
        assert!(all.signaled && all.fence && all.solicited);
    }

    #[test]
    fn sge_count_beyond_the_queues_is_invalid() {
        assert_eq!(sge_count(0, 4), Ok(0));
        assert_eq!(sge_count(4, 4), Ok(4));
        for (count, max) in [(5, 4), (-1, 4), (c_int::MIN, 32), (33, 100)] {
            assert_eq!(sge_count(count, max), Err(VerbsError::Invalid));
        }
    }

    #[test]
    fn copy_sges_keeps_order_and_fields() {
        let from = [1, 2, 3].map(|n| ibv_sge {
            addr: n,
            length: 10,
            lkey: 20,
        });
        let mut list = [const { MaybeUninit::uninit() }; SGE_MAX];
        let copied = copy_sges(from.as_ptr(), 3, &mut list);
        assert_eq!(copied.len(), 3);
        assert!(copied.iter().zip(1..).all(|(sge, n)| sge.addr == n));
        let mut list = [const { MaybeUninit::uninit() }; SGE_MAX];
        assert!(copy_sges(std::ptr::null(), 0, &mut list).is_empty());
    }
}
