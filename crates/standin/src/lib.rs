//! The LD_PRELOAD stand-in for the kernel boundary of uverbs and rdma_cm.
//!
//! In a process started by `urdma run` it plays `/dev/infiniband/uverbs0`, `/dev/infiniband/rdma_cm`
//! and `/sys/class/infiniband*` with the device that it links to, so that the distribution's own
//! libibverbs and librdmacm work without a kernel that knows RDMA. It decides nothing itself: writes to the stand-in files are forwarded
//! to the provider through the table in [`front`].
//!
//! Files: [`front`] the table's declaration; `active` whether there is anything to do; `device` the
//! device files, `paths` what is redirected; `fds` which descriptors are stand-in files, `owner` in which process; `uverbs` the one uverbs command;
//! `provider` finds and loads the provider; `cancel` thread cancellation; `real` the C library's functions; `hooks` the interposed
//! functions.
//!
//! Rules for everything here, since it runs inside every call of an arbitrary program:
//! - Inert unless `URDMA_RUN_DIR` is set and `/dev/infiniband/uverbs0` does not exist.
//! - What is not ours costs a few loads and a jump: the first octets of a path, one cell of a table.
//! - Fail closed: an unknown or unhooked write to a stand-in file fails. The uverbs file is
//!   `/dev/null` opened read-only, the rdma_cm file an eventfd, which takes no write of a command's
//!   length.
//! - No allocation, no lock and no call into the provider in a forked or vforked child; its copies of
//!   stand-in files only can be closed.
//! - `errno` is touched only when a call fails.
//! - A call that is a cancellation point in the C library is one here: when it is passed on, and in GET_EVENT, which waits.
//!
//! Not seen, and therefore no stand-in file any more: descriptors copied by `fcntl(F_DUPFD)` or
//! passed through a socket. Writes to them fail.
//!
//! `open` and `openat` are variadic in C. Stable Rust cannot define variadic functions, but on x86-64 and aarch64
//! (the System V and AAPCS64 conventions) an integer argument after the fixed ones is passed exactly
//! as if it were fixed, so the mode is declared as a fixed argument here.
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
mod owner;
mod paths;
mod provider;
mod real;
mod uverbs;
