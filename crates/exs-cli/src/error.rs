//! What ends a program.

use std::io;
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
