//! What can go wrong, as a sentence and an errno.

use std::ffi::CStr;

/// A DPDK call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    errno: i32,
    message: String,
}

impl Error {
    /// An error with this positive errno; the sentence says what was tried and why it failed.
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

    /// Whether the driver just does not have the function.
    pub const fn is_unsupported(&self) -> bool {
        matches!(self.errno, libc::ENOTSUP | libc::ENOSYS)
    }

    /// Turns a result of the usual kind (0 or more is success, else a negative errno) into ours.
    pub(crate) fn check(what: &str, result: i32) -> Result<i32, Self> {
        if result >= 0 {
            Ok(result)
        } else {
            Err(Self::of(what, -result))
        }
    }

    /// The error of a call that reports through `rte_errno`.
    pub(crate) fn last(what: &str) -> Self {
        // SAFETY: the function only reads a variable of this thread.
        Self::of(what, unsafe { dpdk_sys::urdma_errno() })
    }

    pub(crate) fn of(what: &str, errno: i32) -> Self {
        // SAFETY: the function takes any number and returns a string that lives until this thread's
        // next call.
        let text = unsafe { CStr::from_ptr(dpdk_sys::rte_strerror(errno)) };
        Self::new(errno, format!("{what}: {}", text.to_string_lossy()))
    }
}
