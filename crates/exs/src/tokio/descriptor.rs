//! What a task sleeps on.

use std::future::Future;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use ::tokio::io::unix::AsyncFd;
use ::tokio::time::{sleep, Sleep};

use crate::ffi;

/// A descriptor of a connection or listener. It is a duplicate, since the library closes its own
/// when the connection ends: another of the same number must not be removed from the runtime.
#[derive(Debug)]
pub(super) struct Descriptor(AsyncFd<OwnedFd>);

impl Descriptor {
    pub(super) fn new(fd: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self(ffi::register(fd.try_clone_to_owned()?)?))
    }

    /// Wakes the task when the descriptor can be read after this call.
    pub(super) fn arm(&self, context: &mut Context<'_>) -> io::Result<()> {
        while let Poll::Ready(guard) = self.0.poll_read_ready(context) {
            guard?.clear_ready();
        }
        Ok(())
    }
}

/// A deadline that can be moved.
#[derive(Debug)]
pub(super) struct Alarm(Pin<Box<Sleep>>);

impl Alarm {
    pub(super) fn new() -> Self {
        Self(Box::pin(sleep(std::time::Duration::ZERO)))
    }

    /// Whether the moment has come; if not, the task is woken then.
    pub(super) fn is_due(&mut self, at: Instant, context: &mut Context<'_>) -> bool {
        self.0.as_mut().reset(at.into());
        self.0.as_mut().poll(context).is_ready()
    }
}
