//! User space's side of `kernel-stub/module`.
//!
//! [`abi`] mirrors the layouts (`kernel-stub/uapi/urdma.h` and what is used of the kernel's own
//! `rdma/ib_user_verbs.h`); [`uverbs`] speaks to `/dev/infiniband/uverbs*` for the provider;
//! [`agent`] to `/dev/urdma` for urdmad. Nothing here needs libibverbs.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod abi;
pub mod agent;
pub mod uverbs;

pub use agent::Agent;
pub use uverbs::{Kind, Uverbs};
