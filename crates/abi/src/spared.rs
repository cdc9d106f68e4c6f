//! Descriptors of the provider that stay open when the program closes descriptors that it did not
//! open, for example with closefrom(3).

use std::ffi::c_void;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;

use crate::front::{SpareFn, SPARE_SYMBOL};

/// The function of the stand-in; `None` when this process has no stand-in.
fn spare_function() -> Option<SpareFn> {
    static FUNCTION: OnceLock<Option<SpareFn>> = OnceLock::new();
    *FUNCTION.get_or_init(|| {
        // SAFETY: the symbol is a C string. RTLD_DEFAULT finds preloaded libraries first.
        let symbol: *mut c_void = unsafe { libc::dlsym(libc::RTLD_DEFAULT, SPARE_SYMBOL.as_ptr()) };
        // SAFETY: the stand-in exports this name, with this type.
        (!symbol.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, SpareFn>(symbol) })
    })
}

/// Spares a descriptor for its lifetime; it must be dropped before the descriptor is closed.
#[derive(Debug)]
pub struct Mark {
    fd: RawFd,
}

impl Mark {
    /// Marks an open descriptor that the caller owns.
    pub fn new(fd: RawFd) -> Self {
        if let Some(spare) = spare_function() {
            // SAFETY: the function accepts any descriptor.
            unsafe { spare(fd, 1) };
        }
        Self { fd }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if let Some(spare) = spare_function() {
            // SAFETY: the function accepts any descriptor.
            unsafe { spare(self.fd, 0) };
        }
    }
}

/// An owned descriptor that is spared until it is closed.
#[derive(Debug)]
pub struct Spared {
    /// Precedes the descriptor, since fields are dropped in order of declaration.
    _mark: Mark,
    fd: OwnedFd,
}

impl From<OwnedFd> for Spared {
    fn from(fd: OwnedFd) -> Self {
        Self {
            _mark: Mark::new(fd.as_raw_fd()),
            fd,
        }
    }
}

impl AsRawFd for Spared {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}
