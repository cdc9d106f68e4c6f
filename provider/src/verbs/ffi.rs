//! What every thunk does at the C boundary: results become errno, panics stop here.

use std::ffi::c_int;
use std::panic::{catch_unwind, AssertUnwindSafe};

use super::errno::{set_errno, VerbsError};

/// Runs a verb; a panic becomes [`VerbsError::Internal`].
#[inline]
pub(super) fn caught<T>(verb: impl FnOnce() -> Result<T, VerbsError>) -> Result<T, VerbsError> {
    catch_unwind(AssertUnwindSafe(verb)).unwrap_or(Err(VerbsError::Internal))
}

/// Runs a verb that answers with 0 or a positive errno.
#[inline]
pub(super) fn status(verb: impl FnOnce() -> Result<(), VerbsError>) -> c_int {
    match caught(verb) {
        Ok(()) => 0,
        Err(error) => error.errno(),
    }
}

/// Runs a verb that answers with a pointer, or null and errno.
pub(super) fn pointer<T>(verb: impl FnOnce() -> Result<*mut T, VerbsError>) -> *mut T {
    caught(verb).unwrap_or_else(|error| {
        set_errno(error.errno());
        std::ptr::null_mut()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_of_a_panic_is_eio() {
        assert_eq!(status(|| panic!("expected by the test")), libc::EIO);
        assert_eq!(status(|| Err(VerbsError::NotSupported)), libc::EOPNOTSUPP);
        assert_eq!(status(|| Ok(())), 0);
    }

    #[test]
    fn pointer_of_a_refusal_is_null_with_errno() {
        assert!(pointer::<u8>(|| Err(VerbsError::Busy)).is_null());
        assert_eq!(
            std::io::Error::last_os_error().raw_os_error(),
            Some(libc::EBUSY)
        );
    }
}
