//! The time of a stream.

use std::time::{Duration, Instant};

use crate::ffi;

/// A clock that is read when it is asked, and not again in the same turn.
#[derive(Debug)]
pub(crate) struct Clock {
    /// Where the time of the stream begins, on both of the clocks.
    began: Instant,
    began_ns: u64,
    now_ns: Option<u64>,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self {
            began: Instant::now(),
            began_ns: ffi::monotonic_ns(),
            now_ns: None,
        }
    }

    /// Another turn begins.
    pub(crate) fn pass(&mut self) {
        self.now_ns = None;
    }

    /// A time of the stream.
    pub(crate) fn at(&self, ns: u64) -> Option<Instant> {
        self.began.checked_add(Duration::from_nanos(ns))
    }
}

impl urdma_stream::Clock for Clock {
    #[inline]
    fn now_ns(&mut self) -> u64 {
        let read = || ffi::monotonic_ns().saturating_sub(self.began_ns);
        *self.now_ns.get_or_insert_with(read)
    }
}
