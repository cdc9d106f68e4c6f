//! Declarations of the installed DPDK.
//!
//! They are generated from its headers, as far as the `dpdk` crate uses them. The functions of
//! `shim/shim.c` wrap macros and inline functions. Only the `dpdk` crate depends on this one.

#![allow(unsafe_code)]
#![allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    unnecessary_transmutes,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::cast_possible_truncation,
    clippy::undocumented_unsafe_blocks
)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
