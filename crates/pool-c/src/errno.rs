//! The errno of a call.

use std::panic::{catch_unwind, AssertUnwindSafe};

use nix::errno::Errno as SystemErrno;
use urdma_pool_verbs::{CallError, Error, PostError};

/// The errno of a call that has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        Self(match error {
            Error::Call { error, .. } => error.raw_os_error().unwrap_or(libc::EIO),
            Error::Library(_) => libc::EOPNOTSUPP,
            Error::Pool(error) => of_call(error),
            Error::Config(_)
            | Error::Elements(_)
            | Error::Memory
            | Error::Metadata(_)
            | Error::Messages(_)
            | Error::Limits => libc::EINVAL,
            Error::Refused { .. } => libc::ECONNREFUSED,
            Error::Table(_) => libc::EPROTO,
            Error::Post(error) => of_post(error),
            Error::Unreachable(_) => libc::EHOSTUNREACH,
            Error::Removed => libc::ENODEV,
        })
    }
}

fn of_call(error: CallError) -> i32 {
    match error {
        CallError::Unknown | CallError::BadRegion | CallError::TwoEnded => libc::EINVAL,
        CallError::NoMessages => libc::EOPNOTSUPP,
        CallError::ServiceInUse => libc::EADDRINUSE,
        CallError::Limit(_) => libc::ENOMEM,
    }
}

fn of_post(error: PostError) -> i32 {
    match error {
        PostError::QueueFull | PostError::ReceiveQueueFull => libc::ENOMEM,
        PostError::Operation | PostError::OneSided => libc::EOPNOTSUPP,
        PostError::LocalAccess | PostError::RemoteAccess => libc::EACCES,
        PostError::Closed
        | PostError::InvalidState
        | PostError::Elements
        | PostError::Length
        | PostError::Alignment
        | PostError::LocalRegion
        | PostError::LocalBounds
        | PostError::RemoteRegion
        | PostError::RemoteBounds => libc::EINVAL,
    }
}

/// Makes a call: its result, or `failed` after setting errno.
pub(crate) fn call<T>(failed: T, call: impl FnOnce() -> Result<T, Errno>) -> T {
    let result = catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(Errno(libc::EIO)));
    result.unwrap_or_else(|Errno(errno)| {
        SystemErrno::set_raw(errno);
        failed
    })
}
