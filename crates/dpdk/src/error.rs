//! The error type: a message and an errno.

use std::ffi::CStr;

/// A failed call of DPDK.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    errno: i32,
    message: String,
}

impl Error {
    /// An error with a positive errno; the message names the operation and the reason.
    pub fn new(errno: i32, message: impl Into<String>) -> Self {
        Self {
            errno,
            message: message.into(),
        }
    }

    /// The positive errno.
    pub const fn errno(&self) -> i32 {
        self.errno
    }

    /// Whether the driver does not implement the function.
    pub const fn is_unsupported(&self) -> bool {
        matches!(self.errno, libc::ENOTSUP | libc::ENOSYS)
    }

    /// Converts DPDK's usual return value: 0 or more for success, else a negative errno.
    pub(crate) fn check(what: &str, result: i32) -> Result<i32, Self> {
        if result >= 0 {
            Ok(result)
        } else {
            Err(Self::of(what, -result))
        }
    }

    /// The error of a call that sets `rte_errno`.
    pub(crate) fn last(what: &str) -> Self {
        // SAFETY: the function reads a thread-local variable.
        Self::of(what, unsafe { dpdk_sys::urdma_errno() })
    }

    pub(crate) fn of(what: &str, errno: i32) -> Self {
        // SAFETY: the function accepts any number and returns a string that is valid until the next
        // call in this thread.
        let text = unsafe { CStr::from_ptr(dpdk_sys::rte_strerror(errno)) };
        Self::new(errno, format!("{what}: {}", text.to_string_lossy()))
    }
}
