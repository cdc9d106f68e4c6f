//! Errors as errno, the only place where they are converted.

use std::sync::{Mutex, MutexGuard, PoisonError};

use urdma_exs::{CallError, Error, Failure, Outcome, SetupError};

/// The errno of a call that has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

impl From<nix::Error> for Errno {
    fn from(errno: nix::Error) -> Self {
        Self(errno as i32)
    }
}

impl From<CallError> for Errno {
    fn from(error: CallError) -> Self {
        Self(match error {
            CallError::QueueFull => libc::ENOBUFS,
            CallError::BadBuffer => libc::EINVAL,
            CallError::Finished => libc::EPIPE,
            CallError::Failed => libc::ECONNRESET,
            CallError::NoSuchOperation => libc::ENOENT,
        })
    }
}

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        Self(match error {
            Error::Call { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            Error::NotConnected { errno, .. } => errno,
            Error::TimedOut => libc::ETIMEDOUT,
            Error::Setup(SetupError::Kind) => libc::EPROTOTYPE,
            Error::Setup(_) => libc::EPROTO,
            Error::Refused(error) => return error.into(),
        })
    }
}

/// What the event of an operation reports; 0 for success.
pub(crate) fn of_outcome(outcome: Outcome) -> i32 {
    match outcome {
        Outcome::Done | Outcome::EndOfStream => 0,
        Outcome::Canceled => libc::ECANCELED,
        Outcome::PeerStopped => libc::EPIPE,
        Outcome::TooLong => libc::EMSGSIZE,
        Outcome::Failed(Failure::Peer(_)) => libc::EPROTO,
        Outcome::Failed(Failure::Aborted(_)) => libc::ECONNABORTED,
        Outcome::Failed(Failure::Reset(_) | Failure::Disconnected) => libc::ECONNRESET,
    }
}

/// Locks what no panic leaves in an inconsistent state.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
