//! Declarations of rdma-core: public verbs, librdmacm and the private provider ABI.
//!
//! - [`verbs`]: `infiniband/verbs.h` as installed, by bindgen. Enumerations are plain integers with
//!   constants, because a value from C may not be among them.
//! - [`rdmacm`]: the part of `rdma/rdma_cma.h` that programs of the workspace use, likewise.
//! - [`private`]: the structures that a provider plugin shares with libibverbs and that no
//!   installed header declares. Written by hand from facts about rdma-core, with sizes and offsets
//!   asserted at compile time.
//! - [`abi`]: the known private ABIs and their differences.
//!
//! Nothing here links libibverbs: a process can have several copies, and the plugin calls the one
//! whose device it opens. Programs that call functions of [`verbs`] or [`rdmacm`] link the
//! libraries themselves.

#![allow(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod abi;
pub mod private;

/// The public verbs, generated from `infiniband/verbs.h`.
pub mod verbs {
    #![allow(
        missing_docs,
        non_camel_case_types,
        non_snake_case,
        non_upper_case_globals,
        unreachable_pub
    )]
    #![allow(
        clippy::all,
        clippy::undocumented_unsafe_blocks,
        clippy::cast_possible_truncation
    )]
    include!(concat!(env!("OUT_DIR"), "/verbs.rs"));
}

/// Connection management, generated from `rdma/rdma_cma.h`.
pub mod rdmacm {
    #![allow(
        missing_docs,
        non_camel_case_types,
        non_snake_case,
        non_upper_case_globals,
        unreachable_pub
    )]
    #![allow(
        clippy::all,
        clippy::undocumented_unsafe_blocks,
        clippy::cast_possible_truncation
    )]
    include!(concat!(env!("OUT_DIR"), "/rdmacm.rs"));
}
