//! Errors of calls.

use std::io;

use thiserror::Error as ThisError;
use urdma_pool::{CallError, ConfigError, PostError};

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
    /// A request.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The node has not described its memory, since it cannot be reached.
    #[error("{0} cannot be reached, or is no node of a pool")]
    Unreachable(std::net::SocketAddr),
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
