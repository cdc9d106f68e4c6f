//! Errors of calls.

use std::io;

use thiserror::Error as ThisError;
use urdma_pool::{CallError, ConfigError, PostError};

use crate::metadata::Refusal;

/// A call that failed.
#[derive(Debug, ThisError)]
pub enum Error {
    /// A call of librdmacm or libibverbs.
    #[error("{call}: {error}")]
    Call {
        /// Which.
        call: &'static str,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// The library of dynamically connected transport is not there.
    #[error("no dynamically connected transport: {0}; use connections, or install liburdmadv")]
    Library(String),
    /// A call of the pool.
    #[error(transparent)]
    Pool(#[from] CallError),
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The configuration has more elements of a request than the device.
    #[error("elements_max is greater than the {0} scatter-gather elements of the device")]
    Elements(u32),
    /// A request.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A node or a metadata service has not described its memory, since it cannot be reached.
    #[error("{0} cannot be reached, or is no node and no metadata service of a pool")]
    Unreachable(std::net::SocketAddr),
    /// The device was removed: no object of it works any more.
    #[error("the RDMA device was removed (urdma: urdmad has ended); start this process again")]
    Removed,
    /// A metadata service with impossible limits.
    #[error("a metadata service has 1 to 1000000 nodes and 1 to 1000000 clients")]
    Limits,
    /// A metadata service refuses a node or a client.
    #[error("the metadata service {at} refuses: {refusal}")]
    Refused {
        /// The service.
        at: std::net::SocketAddr,
        /// Why.
        refusal: Refusal,
    },
    /// What a metadata service has is no table.
    #[error("the table of a metadata service: {0}")]
    Table(#[from] urdma_node_table::BadTable),
    /// A node or a client is configured for metadata services in a way that is not possible.
    #[error("{0}")]
    Metadata(&'static str),
    /// A client is configured for messages in a way that is not possible.
    #[error("{0}")]
    Messages(&'static str),
    /// The memory is not the client's.
    #[error("the memory is not one that the client has allocated, or the range is beyond it")]
    Memory,
}

impl Error {
    /// The error of a call that sets errno.
    pub(crate) fn of(call: &'static str) -> Self {
        let error = io::Error::last_os_error();
        Self::Call { call, error }
    }

    pub(crate) fn from_errno(call: &'static str, errno: i32) -> Self {
        let error = io::Error::from_raw_os_error(errno);
        Self::Call { call, error }
    }
}
