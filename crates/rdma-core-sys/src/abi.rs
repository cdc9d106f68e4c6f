//! The known private provider ABIs of libibverbs, and their differences.
//!
//! Two layouts differ: `verbs_context` grows at its front, and `verbs_context_ops` is sorted by
//! name, so new operations are inserted between old ones. Both are chosen when a libibverbs is
//! found, so that one plugin serves several.

use std::ffi::c_void;
use std::mem::{offset_of, size_of};

use crate::private::verbs_context_ops;

/// A private provider ABI, by the number in `IBVERBS_PRIVATE_<number>`,
/// `verbs_register_driver_<number>` and the names of plugins, `lib<name>-rdmav<number>.so`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrivateAbi {
    /// The version of rdma-core that changed the ABI last.
    pub number: u32,
    /// Octets of a `verbs_context` in front of its `ibv_context`, which is its last field.
    pub context_offset: usize,
}

/// The private ABIs whose layouts are known.
pub const KNOWN: [PrivateAbi; 5] = [
    PrivateAbi::new(34, 320),
    PrivateAbi::new(57, 320),
    PrivateAbi::new(59, 344),
    PrivateAbi::new(64, 368),
    PrivateAbi::new(65, 368),
];

/// Operations that a later private ABI inserts in front of an operation that all ABIs have.
struct Added {
    since: u32,
    /// Offset in [`verbs_context_ops`] of the operation behind them.
    before_octets: usize,
    count: usize,
}

/// The `count` operations that private ABI `since` inserted in front of `$field`.
macro_rules! added {
    ($($since:literal: $count:literal before $field:ident;)*) => {
        [$(Added {
            since: $since,
            before_octets: offset_of!(verbs_context_ops, $field),
            count: $count,
        }),*]
    };
}

/// In the order of the table.
const ADDED: [Added; 14] = added! {
    64: 1 before alloc_dm;          // alloc_buf
    59: 1 before alloc_mw;          // alloc_dmah
    65: 1 before create_counters;   // create_comp_cntr
    59: 1 before dealloc_mw;        // dealloc_dmah
    65: 1 before destroy_counters;  // destroy_comp_cntr
    64: 2 before free_context;      // dm_export_dmabuf_fd, free_buf
    65: 2 before modify_cq;         // inc_comp_cntr, inc_err_comp_cntr
    65: 2 before query_device_ex;   // qp_attach_comp_cntr, query_comp_cntr_caps
    64: 1 before query_qp;          // query_port_speed
    65: 1 before read_counters;     // read_comp_cntr
    65: 1 before reg_dm_mr;         // read_err_comp_cntr
    59: 1 before req_notify_cq;     // reg_mr_ex
    65: 1 before set_ece;           // set_comp_cntr
    65: 1 before unimport_dm;       // set_err_comp_cntr
};

/// Operations that every private ABI has.
const COMMON_OPS: usize = size_of::<verbs_context_ops>() / size_of::<*const c_void>();

impl PrivateAbi {
    const fn new(number: u32, context_offset: usize) -> Self {
        Self {
            number,
            context_offset,
        }
    }

    /// The table of operations in the layout of this ABI. Operations that `ops` does not have are
    /// null; libibverbs then keeps its own, which refuses.
    pub fn operations(&self, ops: &verbs_context_ops) -> Vec<*const c_void> {
        // SAFETY: the table consists of optional function pointers, each of which is a pointer that
        // may be null.
        let common: [*const c_void; COMMON_OPS] = unsafe { std::mem::transmute_copy(ops) };
        let mut table = Vec::with_capacity(COMMON_OPS);
        for (index, operation) in common.into_iter().enumerate() {
            let here = index * size_of::<*const c_void>();
            let added = ADDED
                .iter()
                .filter(|added| added.before_octets == here && added.since <= self.number);
            for added in added {
                table.extend(std::iter::repeat_n(std::ptr::null(), added.count));
            }
            table.push(operation);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The offset, in private ABI `number`, of the operation that is at `offset` in
    /// [`verbs_context_ops`], and the size of the table, in octets.
    fn place(number: u32, offset: usize) -> (usize, usize) {
        let abi = KNOWN.iter().find(|abi| abi.number == number).unwrap();
        let mut words = [0_usize; COMMON_OPS];
        words[offset / 8] = 1;
        // SAFETY: as in `operations`; the address is not called.
        let ops: verbs_context_ops = unsafe { std::mem::transmute(words) };
        let table = abi.operations(&ops);
        let found = table.iter().position(|operation| !operation.is_null());
        (found.unwrap() * 8, table.len() * 8)
    }

    #[test]
    fn operations_are_where_a_compiler_puts_them() {
        // Measured with the header of each version.
        let offsets = [
            offset_of!(verbs_context_ops, alloc_pd),
            offset_of!(verbs_context_ops, create_cq),
            offset_of!(verbs_context_ops, create_qp),
            offset_of!(verbs_context_ops, free_context),
            offset_of!(verbs_context_ops, poll_cq),
            offset_of!(verbs_context_ops, post_send),
            offset_of!(verbs_context_ops, query_port),
            offset_of!(verbs_context_ops, reg_mr),
            offset_of!(verbs_context_ops, unimport_pd),
        ];
        for (number, size, expected) in [
            (34, 608, [40, 120, 152, 312, 424, 440, 480, 544, 600]),
            (57, 608, [40, 120, 152, 312, 424, 440, 480, 544, 600]),
            (59, 632, [48, 128, 160, 328, 440, 456, 496, 560, 624]),
            (64, 664, [56, 136, 168, 352, 464, 480, 520, 592, 656]),
            (65, 744, [56, 144, 176, 368, 496, 512, 568, 656, 736]),
        ] {
            for (offset, expected) in offsets.into_iter().zip(expected) {
                assert_eq!(place(number, offset), (expected, size), "ABI {number}");
            }
        }
    }
}
