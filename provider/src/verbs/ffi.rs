//! The C boundary, common to all entry points: errors become errno, panics are caught, and thread
//! cancellation is disabled.

use std::ffi::c_int;
use std::panic::{catch_unwind, AssertUnwindSafe};

use urdma_abi::cancel::Disabled;

use super::errno::{set_errno, VerbsError};

/// Runs a verb of the data path; a panic becomes [`VerbsError::Internal`].
///
/// The verb must not reach a cancellation point unless it holds [`Disabled`] there.
#[inline]
pub(super) fn caught_on_data_path<T>(
    verb: impl FnOnce() -> Result<T, VerbsError>,
) -> Result<T, VerbsError> {
    catch_unwind(AssertUnwindSafe(verb)).unwrap_or(Err(VerbsError::Internal))
}

/// Runs a verb with thread cancellation disabled; a panic becomes [`VerbsError::Internal`].
pub(super) fn caught<T>(verb: impl FnOnce() -> Result<T, VerbsError>) -> Result<T, VerbsError> {
    let _uncancelled = Disabled::new();
    caught_on_data_path(verb)
}

/// As [`caught_on_data_path`]; returns 0 or a positive errno and sets the thread's errno. With a
/// kernel driver the system call sets it, and programs print it.
#[inline]
pub(super) fn status_on_data_path(verb: impl FnOnce() -> Result<(), VerbsError>) -> c_int {
    errno_of(caught_on_data_path(verb))
}

/// As [`caught`]; returns as [`status_on_data_path`] does.
pub(super) fn status(verb: impl FnOnce() -> Result<(), VerbsError>) -> c_int {
    errno_of(caught(verb))
}

#[inline]
fn errno_of(result: Result<(), VerbsError>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => refused(error),
    }
}

/// Sets the thread's errno for a verb that failed with `error`, and returns it.
#[cold]
pub(super) fn refused(error: VerbsError) -> c_int {
    let errno = error.errno();
    set_errno(errno);
    errno
}

/// As [`caught`]; returns a pointer, or null and sets errno.
pub(super) fn pointer<T>(verb: impl FnOnce() -> Result<*mut T, VerbsError>) -> *mut T {
    caught(verb).unwrap_or_else(|error| {
        refused(error);
        std::ptr::null_mut()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno() -> Option<c_int> {
        std::io::Error::last_os_error().raw_os_error()
    }

    #[test]
    fn status_of_a_panic_is_eio() {
        assert_eq!(status(|| panic!("expected by the test")), libc::EIO);
        assert_eq!(errno(), Some(libc::EIO));
    }

    #[test]
    fn status_of_a_refusal_is_errno_and_success_leaves_that_alone() {
        assert_eq!(status(|| Err(VerbsError::NotSupported)), libc::EOPNOTSUPP);
        assert_eq!(errno(), Some(libc::EOPNOTSUPP));
        assert_eq!(status(|| Ok(())), 0);
        assert_eq!(errno(), Some(libc::EOPNOTSUPP));
    }

    #[test]
    fn pointer_of_a_refusal_is_null_with_errno() {
        assert!(pointer::<u8>(|| Err(VerbsError::Busy)).is_null());
        assert_eq!(errno(), Some(libc::EBUSY));
    }
}
