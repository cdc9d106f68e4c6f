//! What the pointers of the application point to.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::errno::Errno;

/// `struct urdma_pool` or `struct urdma_pool_node`. Threads of the application share it: what a
/// client or a node shares between its parts leaves it in no call, so that one thread at a time
/// uses all of it, and the calls of verbs may be made by any thread.
pub(crate) struct Handle<T>(Mutex<T>);

impl<T> Handle<T> {
    /// The pointer that the application gets.
    pub(crate) fn give(value: T) -> *mut Self {
        Box::into_raw(Box::new(Self(Mutex::new(value))))
    }

    /// What it points to.
    ///
    /// # Safety
    /// The pointer is null, or was given and is not destroyed while the guard lives.
    pub(crate) unsafe fn lock<'a>(handle: *const Self) -> Result<MutexGuard<'a, T>, Errno> {
        // SAFETY: as the caller says.
        let handle = unsafe { handle.as_ref() }.ok_or(Errno(libc::EFAULT))?;
        Ok(handle.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Destroys it.
    ///
    /// # Safety
    /// The pointer is null, or was given, and no other call uses it.
    pub(crate) unsafe fn destroy(handle: *mut Self) -> Result<c_int, Errno> {
        let handle = NonNull::new(handle).ok_or(Errno(libc::EFAULT))?;
        // SAFETY: as the caller says; it was made from a box.
        drop(unsafe { Box::from_raw(handle.as_ptr()) });
        Ok(0)
    }
}
