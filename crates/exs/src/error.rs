//! Errors of the calls.

use std::io;

use thiserror::Error;
use urdma_stream::{CallError, SetupError};

/// A call that failed.
#[derive(Debug, Error)]
pub enum Error {
    /// A call of librdmacm, libibverbs or the system failed.
    #[error("{call}: {source}")]
    Call {
        /// Its name.
        call: &'static str,
        /// Its errno.
        source: io::Error,
    },
    /// Connection management reports something other than the next step of a connection.
    #[error("the connection was not made: {event}")]
    NotConnected {
        /// The event of librdmacm.
        event: String,
        /// The errno that says it.
        errno: i32,
    },
    /// The other end did not answer in time.
    #[error("the connection was not made in time")]
    TimedOut,
    /// The two ends cannot make a stream.
    #[error("the ends cannot make a stream: {0}")]
    Setup(#[from] SetupError),
    /// The stream refuses the call.
    #[error(transparent)]
    Refused(#[from] CallError),
}

impl Error {
    /// The error of a call that has set errno.
    pub(crate) fn of(call: &'static str) -> Self {
        let source = io::Error::last_os_error();
        Self::Call { call, source }
    }

    /// The error of a call that has returned an errno.
    pub(crate) fn from_errno(call: &'static str, errno: i32) -> Self {
        let source = io::Error::from_raw_os_error(errno);
        Self::Call { call, source }
    }
}
