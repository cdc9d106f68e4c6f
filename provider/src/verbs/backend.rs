//! The two front doors, as far as objects and their events are concerned: the stand-in, where
//! everything stays in the process, and the kernel module, where each object has a counterpart that
//! dies with the process and events pass through the kernel's files.

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError};

use rdma_core_sys::verbs::ibv_comp_channel;
use urdma_kernel::{Kind, Uverbs};

use super::errno::VerbsError;
use super::event::{event_type, AsyncQueue};
use crate::front;
use urdma_engine::{AsyncEvent, AsyncKind, CompletionSink, EventSink};

/// By which backend a context was opened.
pub(super) enum Backend {
    /// The stand-in: where asynchronous events go.
    StandIn(Arc<AsyncQueue>),
    /// The kernel module.
    Kernel(Arc<Uverbs>),
}

impl Backend {
    /// The kernel's counterpart of an object that is about to be made; none without the module.
    pub(super) fn counterpart(&self, kind: Kind) -> Option<Arc<Counterpart>> {
        match self {
            Backend::StandIn(_) => None,
            Backend::Kernel(uverbs) => Some(Counterpart::new(uverbs, kind)),
        }
    }

    /// Where the asynchronous events of an object that is about to be made will go.
    pub(super) fn events(&self, kind: Kind) -> Events {
        match self {
            Backend::StandIn(queue) => Events::StandIn(queue.clone()),
            Backend::Kernel(uverbs) => Events::Kernel(Counterpart::new(uverbs, kind)),
        }
    }
}

/// An object as the kernel knows it. Destroyed at the latest with the last reference.
#[derive(Debug)]
pub(super) struct Counterpart {
    uverbs: Arc<Uverbs>,
    kind: Kind,
    /// Nothing before it is made and after it is destroyed. Held while an event is raised, so that
    /// no event comes after the end.
    handle: Mutex<Option<u32>>,
}

impl Counterpart {
    /// One that is not made yet.
    pub(super) fn new(uverbs: &Arc<Uverbs>, kind: Kind) -> Arc<Self> {
        Arc::new(Self {
            uverbs: uverbs.clone(),
            kind,
            handle: Mutex::new(None),
        })
    }

    /// Makes it.
    ///
    /// # Errors
    /// What the kernel says.
    pub(super) fn make(
        &self,
        create: impl FnOnce(&Uverbs) -> std::io::Result<u32>,
    ) -> Result<(), VerbsError> {
        let handle = create(&self.uverbs)
            .map_err(|error| VerbsError::System(error.raw_os_error().unwrap_or(libc::EIO)))?;
        *self.handle.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle);
        Ok(())
    }

    /// The kernel's number of it.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] before it is made.
    pub(super) fn handle(&self) -> Result<u32, VerbsError> {
        let handle = *self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        handle.ok_or(VerbsError::Invalid)
    }

    /// Another object of the same context.
    pub(super) fn sibling(&self, kind: Kind) -> Arc<Self> {
        Self::new(&self.uverbs, kind)
    }

    /// Destroys it, and with it the events that nobody has read.
    pub(super) fn destroy(&self) {
        let mut handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = handle.take() {
            // It fails only where the device is gone, and the kernel's object with it.
            let _ = self.uverbs.destroy(self.kind, handle);
        }
    }

    fn raise(&self, raise: impl FnOnce(&Uverbs, u32) -> std::io::Result<()>) {
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = *handle {
            // As when a socket is full: the event is lost. It fails only without memory or device.
            let _ = raise(&self.uverbs, handle);
        }
    }
}

impl Drop for Counterpart {
    fn drop(&mut self) {
        self.destroy();
    }
}

impl CompletionSink for Counterpart {
    fn notify(&self, _cookie: u64) {
        self.raise(Uverbs::raise_cq);
    }
}

impl EventSink for Counterpart {
    fn async_event(&self, event: AsyncEvent) {
        self.raise(|uverbs, handle| match event.kind {
            AsyncKind::SrqLimitReached => uverbs.raise_srq(handle),
            kind => uverbs.raise_qp(handle, event_type(kind)),
        });
    }
}

/// Where the asynchronous events of one object go.
pub(super) enum Events {
    /// Through the context's socket.
    StandIn(Arc<AsyncQueue>),
    /// Through the kernel.
    Kernel(Arc<Counterpart>),
}

impl Events {
    /// As the engine wants it.
    pub(super) fn sink(&self) -> Arc<dyn EventSink> {
        match self {
            Events::StandIn(queue) => queue.clone(),
            Events::Kernel(counterpart) => counterpart.clone(),
        }
    }

    /// The kernel's counterpart of the object, if there is one.
    pub(super) fn counterpart(&self) -> Option<&Counterpart> {
        match self {
            Events::StandIn(_) => None,
            Events::Kernel(counterpart) => Some(counterpart),
        }
    }

    /// The object is gone: nobody may find it in an event that was not read.
    pub(super) fn retire(&self, read_end: RawFd, element: u64) {
        match self {
            Events::StandIn(queue) => queue.discard(read_end, element),
            Events::Kernel(counterpart) => counterpart.destroy(),
        }
    }
}

/// How events of a completion queue reach the application's channel; none if it has no channel.
///
/// # Errors
/// [`VerbsError::Invalid`] for a channel that the stand-in has not made.
pub(super) fn completion_sink(
    channel: Option<&ibv_comp_channel>,
    counterpart: Option<&Arc<Counterpart>>,
) -> Result<Option<Arc<dyn CompletionSink>>, VerbsError> {
    let Some(channel) = channel else {
        return Ok(None);
    };
    Ok(Some(match counterpart {
        Some(counterpart) => counterpart.clone(),
        None => front::channel(channel.fd).ok_or(VerbsError::Invalid)?,
    }))
}
