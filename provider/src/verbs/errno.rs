//! The errors of verbs and their errno; the only place in this module that converts errors to
//! errno.

use std::ffi::c_int;

use urdma_engine::{EngineError, PostError};

/// Why a verb was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VerbsError {
    /// An invalid argument, attribute or state.
    Invalid,
    /// The object does not exist: as the kernel, which finds no object with the handle.
    NoObject,
    /// A feature that the device does not have.
    NotSupported,
    /// The object is still in use.
    Busy,
    /// A full queue, or no memory.
    NoMemory,
    /// An error of the engine.
    Engine(EngineError),
    /// An error of the operating system.
    System(c_int),
    /// A bug in this plugin: a panic was caught at the C boundary.
    Internal,
}

impl VerbsError {
    /// The positive errno.
    pub(super) const fn errno(self) -> c_int {
        match self {
            VerbsError::Invalid => libc::EINVAL,
            VerbsError::NoObject => libc::ENOENT,
            VerbsError::NotSupported => libc::EOPNOTSUPP,
            VerbsError::Busy => libc::EBUSY,
            VerbsError::NoMemory => libc::ENOMEM,
            VerbsError::Engine(error) => error.errno(),
            VerbsError::System(errno) => errno,
            VerbsError::Internal => libc::EIO,
        }
    }

    /// The errno of this thread's last system call.
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
    // SAFETY: `__errno_location` points to this thread's errno, valid while the thread lives.
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
