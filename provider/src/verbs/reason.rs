//! Why the last call of this thread that concerns the dynamically connected transport was refused,
//! for `urdmadv_last_error`: many mistakes share an errno.

use std::cell::Cell;
use std::ffi::CStr;

use super::errno::VerbsError;

thread_local! {
    static REASON: Cell<Option<&'static CStr>> = const { Cell::new(None) };
}

/// Begins a call.
pub(super) fn forget() {
    REASON.set(None);
}

/// Keeps the reason for which a call is refused with `error`.
#[cold]
pub(super) fn refused(error: VerbsError, reason: &'static CStr) -> VerbsError {
    REASON.set(Some(reason));
    error
}

/// As [`refused`], with [`VerbsError::Invalid`].
#[cold]
pub(super) fn invalid(reason: &'static CStr) -> VerbsError {
    refused(VerbsError::Invalid, reason)
}

/// The reason; `None` if the last call has succeeded, or errno is all there is to say.
pub(super) fn last() -> Option<&'static CStr> {
    REASON.get()
}
