//! Declarations of the installed DPDK.
//!
//! Generated from its headers, as far as the `dpdk` crate uses them, plus the functions of
//! `shim/shim.c` for what the headers have only as macros and inline functions. Nothing but the
//! `dpdk` crate uses this one.

#![allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::cast_possible_truncation,
    clippy::undocumented_unsafe_blocks
)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
