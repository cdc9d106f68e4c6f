//! Descriptors of the provider that stay open when the program closes descriptors that it has not
//! opened, by closefrom(3) for instance.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;

use crate::front::{SpareFn, SPARE_SYMBOL};

/// The stand-in's function, if there is a stand-in in this process.
fn spare_function() -> Option<SpareFn> {
    static FUNCTION: OnceLock<Option<SpareFn>> = OnceLock::new();
    *FUNCTION.get_or_init(|| {
        // SAFETY: a C string; RTLD_DEFAULT finds preloaded libraries first.
        let symbol: *mut c_void = unsafe { libc::dlsym(libc::RTLD_DEFAULT, SPARE_SYMBOL.as_ptr()) };
        // SAFETY: the stand-in exports this name with this type only.
        (!symbol.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, SpareFn>(symbol) })
    })
}

/// A descriptor is spared while this lives, which must end before the descriptor is closed.
#[derive(Debug)]
pub struct Mark {
    fd: RawFd,
}

impl Mark {
    /// Marks an open descriptor of ours.
    pub fn new(fd: RawFd) -> Self {
        if let Some(spare) = spare_function() {
            // SAFETY: takes any descriptor.
            unsafe { spare(fd, 1) };
        }
        Self { fd }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if let Some(spare) = spare_function() {
            // SAFETY: takes any descriptor.
            unsafe { spare(self.fd, 0) };
        }
    }
}

/// An owned descriptor that is spared until it is closed.
#[derive(Debug)]
pub struct Spared {
    /// Before the descriptor, since fields are dropped in this order.
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
