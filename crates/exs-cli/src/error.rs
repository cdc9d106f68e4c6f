//! What ends a program.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error as ThisError;
use urdma_exs::{CallError, Failure, Outcome, Refused};

/// Why a program ends before its work is done.
#[derive(Debug, ThisError)]
pub(crate) enum Error {
    #[error(transparent)]
    Exs(#[from] urdma_exs::Error),
    #[error("the stream ended: {0}")]
    Failed(Failure),
    #[error("an operation ended with {0:?}")]
    Operation(Outcome),
    #[error("nothing has come for {} s", .0.as_secs())]
    Silence(Duration),
    #[error("the stream ended before {0}")]
    Truncated(&'static str),
    #[error("the peer is not urdma-stream {0}, or has another version")]
    NotOurs(&'static str),
    #[error("the request needs {0} octets of buffers, of {1} at most")]
    TooLarge(u64, u64),
    #[error("the server has received {received} octets of {sent}")]
    OtherCount { sent: u64, received: u64 },
    #[error("the server has received other octets than were sent")]
    OtherOctets,
    #[error("{0}: {1}")]
    Io(&'static str, io::Error),
    #[error("{path}: {error}", path = .0.display(), error = .1)]
    File(PathBuf, io::Error),
    #[error("{path}: only {octets} octets are left", path = .0.display(), octets = .1)]
    Shorter(PathBuf, u64),
    #[error("{path}: {reason}", path = .0.display(), reason = .1.reason())]
    Refused(PathBuf, Refusal),
}

/// Why a receiver does not take a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The name has a `/`, or is `.` or `..`.
    Name,
    /// There is such a file.
    Exists,
    /// Another process receives the same file.
    Busy,
    /// A call of the file system fails; the receiver tells its user which.
    Failed,
    /// The octets are not those that were sent.
    Corrupt,
}

impl Refusal {
    fn reason(self) -> &'static str {
        match self {
            Self::Name => "the name is not that of a file in a directory",
            Self::Exists => "the receiver has such a file; --overwrite of the receiver replaces it",
            Self::Busy => "another sender sends the same file",
            Self::Failed => "the receiver cannot store it; it tells why",
            Self::Corrupt => "the receiver has other octets than were sent; send it again",
        }
    }
}

impl Error {
    /// The error of a call on a stream.
    pub(crate) fn stream(error: io::Error) -> Self {
        Self::Io("the stream ended", error)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Self {
        Self::Exs(error.into())
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        Self::Exs(refused.error)
    }
}
