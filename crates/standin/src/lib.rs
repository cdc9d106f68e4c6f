//! The LD_PRELOAD stand-in for the kernel boundary of uverbs and rdma_cm.
//!
//! In a process started by `urdma run` it provides `/dev/infiniband/uverbs0`,
//! `/dev/infiniband/rdma_cm` and `/sys/class/infiniband*` with the device that they link to, so
//! that the distribution's libibverbs and librdmacm work on a kernel without RDMA support. Programs
//! without libibverbs get answers of RDMA netlink from the same files. It makes no decisions
//! itself: writes to the stand-in files are forwarded to the provider through the table in
//! [`urdma_abi::front`].
//!
//! Files: `active` decides whether the stand-in is active; `device` the device files; `paths` the
//! redirected paths; `fds` the table of stand-in files by descriptor, `owner` the process that owns
//! it; `uverbs` the uverbs commands; `netlink` the answers of RDMA netlink; `provider` finds and
//! loads the provider; `signals` handlers of signals in its waits, and of faults; `real` the
//! functions of the C library; `hooks` the interposed functions.
//!
//! Rules, since this code runs inside calls of arbitrary programs:
//! - Inert unless `URDMA_RUN_DIR` is set and `/dev/infiniband/uverbs0` does not exist.
//! - A call on another file costs a few loads and a jump: the first octets of a path, or one cell
//!   of a table.
//! - Fail closed: an unknown or unhooked write to a stand-in file fails. The uverbs file is
//!   `/dev/null` opened read-only, the rdma_cm file an epoll set, which accepts no write.
//! - No allocation, no lock and no call into the provider in a forked or vforked child, which can
//!   only close its copies of stand-in files.
//! - `errno` changes only when a call fails.
//! - A cancellation point of the C library is one here too: when a call is passed on, and in
//!   GET_EVENT, which blocks.
//!
//! Descriptors copied by other means than the hooked functions, or passed through a socket, are not
//! tracked and are no stand-in files. Writes to them fail.
//!
//! `open` and `openat` are variadic in C. Stable Rust cannot define variadic functions, but on
//! x86-64 and aarch64 (System V and AAPCS64 conventions) an integer argument after the fixed ones
//! is passed exactly as if it were fixed. The mode is therefore declared as a fixed argument here.
#![allow(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::cast_possible_truncation))]

#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
compile_error!("the stand-in knows the calling conventions of Linux on x86-64 and aarch64 only");

mod active;
mod device;
mod fds;
#[cfg_attr(test, allow(dead_code))]
mod hooks;
mod netlink;
mod owner;
mod paths;
mod provider;
mod real;
mod signals;
mod uverbs;

// Loads libgcc_s with the first panic.
use urdma_unwind as _;
