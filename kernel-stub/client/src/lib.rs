//! The user space side of `kernel-stub/module`.
//!
//! [`abi`] mirrors the layouts (`kernel-stub/uapi/urdma.h` and the used part of the kernel's own
//! `rdma/ib_user_verbs.h`). The provider uses [`uverbs`] for `/dev/infiniband/uverbs*`, urdmad uses
//! [`agent`] for `/dev/urdma`. Nothing here needs libibverbs.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod abi;
pub mod agent;
pub mod uverbs;

pub use agent::Agent;
pub use uverbs::{Kind, Uverbs};
