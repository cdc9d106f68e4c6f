//! The errno of a call.

use std::sync::{Mutex, MutexGuard, PoisonError};

use urdma_exs::{CallError, Error};

/// The errno of a call that has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

impl From<nix::Error> for Errno {
    fn from(errno: nix::Error) -> Self {
        Self(errno as i32)
    }
}

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        Self(error.errno())
    }
}

impl From<CallError> for Errno {
    fn from(error: CallError) -> Self {
        Error::from(error).into()
    }
}

/// Locks what no panic leaves in an inconsistent state.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
