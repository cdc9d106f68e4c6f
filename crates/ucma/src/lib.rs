//! The kernel's ucma write ABI (`rdma/rdma_user_cm.h`) as a library over `urdma-cm`.
//!
//! librdmacm opens `/dev/infiniband/rdma_cm` and writes commands to it. The stand-in forwards each
//! open, write and close through the table in [`urdma_abi::front`]; the provider passes them to a
//! [`Ucma`].
//!
//! Files: [`driver`] is the interface to the process; [`abi`] the layouts; [`ucma`] the lock
//! and the open files; `handle` the numbers of ids and files; `ids` the rdma_cm ids and their
//! events; `command` a command as it was written, `commands` the commands, `multicast` those of
//! groups; `answers` the results of queries; `outgoing` the datagrams that are to be sent; `param`
//! the parameters in events; `pending` what makes a file readable; `service` the kinds of ids;
//! `user` the copies to and from the application's memory; `sockaddr` the socket addresses.
//!
//! AF_IB addresses are refused, and so is RDMA_PS_IB for queue pairs other than those of extended
//! reliable connections (EINVAL, as from a kernel without them).
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::cast_possible_truncation))]

pub mod abi;
mod answers;
mod command;
mod commands;
pub mod driver;
mod handle;
mod ids;
mod multicast;
mod outgoing;
mod param;
mod pending;
mod service;
mod sockaddr;
pub mod ucma;
mod user;

pub use driver::{Device, Driver, Errno, PortRequest, Sharing};
pub use handle::{CmId, FileHandle};
pub use ucma::Ucma;
pub use urdma_cm::Peer;
