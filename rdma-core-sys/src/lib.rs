//! Declarations of rdma-core: public verbs and the private provider ABI.
//!
//! - [`verbs`]: `infiniband/verbs.h` as installed, by bindgen. Enumerations are plain integers with constants,
//!   since a C value may be none of them.
//! - [`private`]: what a provider plugin shares with libibverbs and no installed header declares. Written by
//!   hand from facts about rdma-core, with sizes and offsets asserted at compile time.
//!
//! The build script learns the private ABI number from the installed library and refuses one that is not known.

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

/// The private provider ABI number of the libibverbs that this was built against.
pub const PABI: u32 = if cfg!(pabi = "34") {
    34
} else if cfg!(pabi = "57") {
    57
} else if cfg!(pabi = "59") {
    59
} else {
    64
};
