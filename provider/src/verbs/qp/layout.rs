//! libibverbs' structure of a queue pair with extended calls (`verbs_qp`), whose layout depends on
//! the version of libibverbs.

use rdma_core_sys::private::VERBS_QP_RESERVE;
use rdma_core_sys::verbs::{ibv_qp, ibv_qp_ex};

/// The bit of `verbs_qp.comp_mask` for a queue pair with extended calls.
const VERBS_QP_EX: u32 = 1 << 1;

/// Possible offsets of `comp_mask`, by version of libibverbs: directly behind a public structure of
/// 344, 352 or 360 octets.
const COMP_MASK_CANDIDATES: [usize; 3] = [344, 352, 360];

/// Room for libibverbs' structure of a queue pair.
pub(in crate::verbs) type Part = [u64; VERBS_QP_RESERVE / 8];

/// `ibv_qp_to_qp_ex`: null for a queue pair without extended calls.
pub(in crate::verbs) type ToQpEx = unsafe extern "C" fn(qp: *mut ibv_qp) -> *mut ibv_qp_ex;

/// The offset in the oldest version, which is also that of `wr_atomic_write` in later ones.
pub(super) const OLDEST_COMP_MASK: usize = COMP_MASK_CANDIDATES[0];

/// Marks the queue pair as one with extended calls; `offset` is one of the candidates.
pub(super) fn set_mask(part: &mut Part, offset: usize) {
    // SAFETY: every candidate is within the part.
    unsafe {
        part.as_mut_ptr()
            .byte_add(offset)
            .cast::<u32>()
            .write(VERBS_QP_EX)
    };
}

/// Finds the offset at which a libibverbs reads the bit, by calling its `ibv_qp_to_qp_ex`.
pub(in crate::verbs) fn comp_mask_offset(to_qp_ex: ToQpEx) -> Option<usize> {
    COMP_MASK_CANDIDATES.into_iter().find(|&candidate| {
        let mut part = [0; VERBS_QP_RESERVE / 8];
        set_mask(&mut part, candidate);
        // SAFETY: libibverbs only reads the bit, and the part has room for a queue pair of any
        // version.
        !unsafe { to_qp_ex(part.as_mut_ptr().cast::<ibv_qp>()) }.is_null()
    })
}
