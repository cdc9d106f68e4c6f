//! What can go wrong in a verb, and the errno that says so; the only place of this module that
//! turns errors into errno.

use std::ffi::c_int;

use urdma_engine::{EngineError, PostError};

/// Why a verb was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VerbsError {
    /// An argument, attribute or state that the verb does not take.
    Invalid,
    /// Something the device does not have.
    NotSupported,
    /// Something still uses the object.
    Busy,
    /// A full queue, or no memory.
    NoMemory,
    /// The engine refused.
    Engine(EngineError),
    /// The system refused.
    System(c_int),
    /// A bug of ours: a panic stopped at the boundary.
    Internal,
}

impl VerbsError {
    /// The positive errno.
    pub(super) const fn errno(self) -> c_int {
        match self {
            VerbsError::Invalid => libc::EINVAL,
            VerbsError::NotSupported => libc::EOPNOTSUPP,
            VerbsError::Busy => libc::EBUSY,
            VerbsError::NoMemory => libc::ENOMEM,
            VerbsError::Engine(error) => error.errno(),
            VerbsError::System(errno) => errno,
            VerbsError::Internal => libc::EIO,
        }
    }

    /// What the last system call of this thread said.
    pub(super) fn last_os_error() -> Self {
        VerbsError::System(
            std::io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::EIO),
        )
    }
}

impl From<EngineError> for VerbsError {
    fn from(error: EngineError) -> Self {
        VerbsError::Engine(error)
    }
}

impl From<PostError> for VerbsError {
    #[inline]
    fn from(error: PostError) -> Self {
        match error {
            PostError::QueueFull => VerbsError::NoMemory,
            PostError::InvalidState
            | PostError::TooManySges
            | PostError::InlineTooLong
            | PostError::MessageTooLong
            | PostError::InvalidRequest => VerbsError::Invalid,
        }
    }
}

/// Sets the thread's errno.
pub(super) fn set_errno(value: c_int) {
    // SAFETY: `__errno_location` gives this thread's errno, valid while the thread lives.
    unsafe { *libc::__errno_location() = value };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn post_error_full_queue_is_enomem_and_the_rest_einval() {
        assert_eq!(VerbsError::from(PostError::QueueFull).errno(), libc::ENOMEM);
        for error in [
            PostError::InvalidState,
            PostError::TooManySges,
            PostError::InlineTooLong,
            PostError::MessageTooLong,
            PostError::InvalidRequest,
        ] {
            assert_eq!(VerbsError::from(error).errno(), libc::EINVAL);
        }
    }

    #[test]
    fn engine_error_keeps_its_errno() {
        for (error, errno) in [
            (EngineError::Invalid, libc::EINVAL),
            (EngineError::Busy, libc::EBUSY),
            (EngineError::NoMemory, libc::ENOMEM),
            (EngineError::HostUnreachable, libc::EHOSTUNREACH),
            (EngineError::NetUnreachable, libc::ENETUNREACH),
            (EngineError::DeviceGone, libc::EIO),
            (EngineError::Forked, libc::EIO),
        ] {
            assert_eq!(VerbsError::from(error).errno(), errno);
        }
    }

    #[test]
    fn set_errno_value_is_what_libc_reports() {
        set_errno(libc::EBUSY);
        assert_eq!(VerbsError::last_os_error(), VerbsError::System(libc::EBUSY));
    }
}
