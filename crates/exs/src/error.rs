//! Errors of the calls, and the only place where they become errno or [`io::Error`].

use std::io;

use thiserror::Error;
use urdma_stream::{CallError, Failure, Outcome, SetupError};

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

    /// The errno that says it.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Call { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            Self::NotConnected { errno, .. } => *errno,
            Self::TimedOut => libc::ETIMEDOUT,
            Self::Setup(SetupError::Kind) => libc::EPROTOTYPE,
            Self::Setup(_) => libc::EPROTO,
            Self::Refused(CallError::QueueFull) => libc::ENOBUFS,
            Self::Refused(CallError::BadBuffer) => libc::EINVAL,
            Self::Refused(CallError::Finished) => libc::EPIPE,
            Self::Refused(CallError::Failed) => libc::ECONNRESET,
            Self::Refused(CallError::NoSuchOperation) => libc::ENOENT,
        }
    }
}

/// The errno that the event of an operation reports; 0 for success.
pub fn outcome_errno(outcome: Outcome) -> i32 {
    match outcome {
        Outcome::Done | Outcome::EndOfStream => 0,
        Outcome::Canceled => libc::ECANCELED,
        Outcome::PeerStopped => libc::EPIPE,
        Outcome::TooLong => libc::EMSGSIZE,
        Outcome::Failed(failure) => failure_errno(failure),
    }
}

fn failure_errno(failure: Failure) -> i32 {
    match failure {
        Failure::Peer(_) => libc::EPROTO,
        Failure::Aborted(_) => libc::ECONNABORTED,
        Failure::Reset(_) | Failure::Disconnected => libc::ECONNRESET,
    }
}

/// The kind of an error of input or output. Those of the standard library have none for a
/// violation of the protocol.
fn kind_of(errno: i32) -> io::ErrorKind {
    match errno {
        libc::EPROTO => io::ErrorKind::InvalidData,
        libc::EPROTOTYPE => io::ErrorKind::InvalidInput,
        _ => io::Error::from_raw_os_error(errno).kind(),
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::new(kind_of(error.errno()), error)
    }
}

/// What reads and writes of a stream that has failed return.
pub(crate) fn failed(failure: Failure) -> io::Error {
    io::Error::new(kind_of(failure_errno(failure)), failure)
}

#[cfg(test)]
mod tests {
    use urdma_stream::PeerError;

    use super::*;

    #[test]
    fn errors_have_the_kinds_of_those_of_sockets() {
        for (error, kind) in [
            (Error::TimedOut, io::ErrorKind::TimedOut),
            (CallError::Finished.into(), io::ErrorKind::BrokenPipe),
            (SetupError::Malformed.into(), io::ErrorKind::InvalidData),
            (SetupError::Kind.into(), io::ErrorKind::InvalidInput),
            (
                Error::from_errno("rdma_bind_addr", libc::EADDRINUSE),
                io::ErrorKind::AddrInUse,
            ),
            (
                Error::NotConnected {
                    event: "rejected".to_owned(),
                    errno: libc::ECONNREFUSED,
                },
                io::ErrorKind::ConnectionRefused,
            ),
        ] {
            let text = error.to_string();
            let error = io::Error::from(error);
            assert_eq!((error.kind(), error.to_string()), (kind, text));
        }
        for (failure, kind) in [
            (Failure::Disconnected, io::ErrorKind::ConnectionReset),
            (Failure::Reset(7), io::ErrorKind::ConnectionReset),
            (Failure::Aborted(7), io::ErrorKind::ConnectionAborted),
            (
                Failure::Peer(PeerError::Malformed),
                io::ErrorKind::InvalidData,
            ),
        ] {
            assert_eq!(failed(failure).kind(), kind);
        }
    }
}
