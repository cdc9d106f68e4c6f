//! The kernel's ucma write ABI (`rdma/rdma_user_cm.h`) as a library over `urdma-cm`.
//!
//! librdmacm opens `/dev/infiniband/rdma_cm` and writes commands to it. The stand-in forwards each
//! open, write and close through the table in [`urdma_abi::front`]; the provider hands them to one [`Ucma`].
//!
//! Files: [`driver`] is what the surroundings must offer; [`abi`] the layouts; [`ucma`] the locks
//! and the opened files; `handle` the numbers of ids and
//! files; `ids` the rdma_cm ids and what the manager's events mean for
//! them; `commands` the commands, `multicast` those of groups; `answers` what queries answer; `param` what both ends are told of each other; `service` what an id is for; `user` the copies
//! to and from the application's memory.
//!
//! What is refused: AF_IB addresses, and RDMA_PS_IB for queue pairs other than those of extended connections (EINVAL, as by a kernel without them).
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::cast_possible_truncation))]

pub mod abi;
mod answers;
mod commands;
pub mod driver;
mod handle;
mod ids;
mod multicast;
mod param;
mod service;
mod sockaddr;
pub mod ucma;
mod user;

pub use driver::{Device, Driver, Errno, PortRequest, Sharing};
pub use handle::{CmId, FileHandle};
pub use ucma::Ucma;
pub use urdma_cm::wire::ReqRoute;
pub use urdma_cm::Peer;
