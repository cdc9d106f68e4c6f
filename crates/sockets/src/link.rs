//! Which epoll set a socket is a member of.

use std::ffi::c_int;
use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

const NONE: c_int = -1;

/// The descriptor of the set, if there is one.
#[derive(Debug)]
pub(crate) struct Link(AtomicI32);

impl Link {
    pub(crate) const fn new() -> Self {
        Self(AtomicI32::new(NONE))
    }

    pub(crate) fn get(&self) -> Option<c_int> {
        Some(self.0.load(SeqCst)).filter(|fd| *fd != NONE)
    }

    /// There is none, which the next ordered write of the caller publishes.
    pub(crate) fn clear(&self) {
        self.0.store(NONE, Relaxed);
    }

    /// Changes it; returns the one before.
    pub(crate) fn replace(&self, set: Option<c_int>) -> Option<c_int> {
        Some(self.0.swap(set.unwrap_or(NONE), SeqCst)).filter(|fd| *fd != NONE)
    }
}
