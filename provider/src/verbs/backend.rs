//! The two device backends, as far as objects and their events are concerned. With the stand-in,
//! everything stays in the process. With the kernel module, each object has a counterpart in the
//! kernel, which the kernel destroys when the process ends, and events pass through the kernel's
//! files.

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rdma_core_sys::verbs::ibv_comp_channel;
use urdma_kernel::{Kind, Uverbs};

use super::errno::VerbsError;
use super::event::{event_type, AsyncQueue};
use crate::front;
use urdma_engine::{AsyncEvent, AsyncKind, CompletionSink, Engine, EventSink};

/// The backend through which a context was opened.
pub(super) enum Backend {
    /// The stand-in, with the queue of the context's asynchronous events.
    StandIn(Arc<AsyncQueue>),
    /// The kernel module.
    Kernel(Arc<Uverbs>),
}

impl Backend {
    /// The kernel counterpart of an object that is about to be created; `None` without the module.
    pub(super) fn counterpart(&self, kind: Kind) -> Option<Arc<Counterpart>> {
        match self {
            Backend::StandIn(_) => None,
            Backend::Kernel(uverbs) => Some(Counterpart::new(uverbs, kind)),
        }
    }

    /// The destination of the asynchronous events of an object that is about to be created.
    pub(super) fn events(&self, kind: Kind) -> Events {
        match self {
            Backend::StandIn(queue) => Events::StandIn(queue.clone()),
            Backend::Kernel(uverbs) => Events::Kernel(Counterpart::new(uverbs, kind)),
        }
    }
}

/// The kernel's counterpart of an object. Destroyed with the last reference at the latest.
#[derive(Debug)]
pub(super) struct Counterpart {
    uverbs: Arc<Uverbs>,
    kind: Kind,
    /// `None` before creation and after destruction. Locked while an event is raised, so that no
    /// event is raised after destruction.
    handle: Mutex<Option<u32>>,
}

impl Counterpart {
    /// A counterpart that is not created yet.
    pub(super) fn new(uverbs: &Arc<Uverbs>, kind: Kind) -> Arc<Self> {
        Arc::new(Self {
            uverbs: uverbs.clone(),
            kind,
            handle: Mutex::new(None),
        })
    }

    /// Creates the kernel object.
    ///
    /// # Errors
    /// The kernel's errno.
    pub(super) fn make(
        &self,
        create: impl FnOnce(&Uverbs) -> std::io::Result<u32>,
    ) -> Result<(), VerbsError> {
        let handle = create(&self.uverbs)
            .map_err(|error| VerbsError::System(error.raw_os_error().unwrap_or(libc::EIO)))?;
        *self.handle.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle);
        Ok(())
    }

    /// The kernel's handle.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] before creation.
    pub(super) fn handle(&self) -> Result<u32, VerbsError> {
        let handle = *self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        handle.ok_or(VerbsError::Invalid)
    }

    /// A counterpart for another object of the same context.
    pub(super) fn sibling(&self, kind: Kind) -> Arc<Self> {
        Self::new(&self.uverbs, kind)
    }

    /// Destroys the kernel object and its unread events.
    pub(super) fn destroy(&self) {
        let mut handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = handle.take() {
            // Fails only if the device is gone, and the kernel object with it.
            let _ = self.uverbs.destroy(self.kind, handle);
        }
    }

    fn raise(&self, raise: impl FnOnce(&Uverbs, u32) -> std::io::Result<()>) {
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = *handle {
            // Fails only without memory or without the device. The event is then lost, as with a
            // full socket.
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

/// The destination of the asynchronous events of one object.
pub(super) enum Events {
    /// The context's socket.
    StandIn(Arc<AsyncQueue>),
    /// The kernel.
    Kernel(Arc<Counterpart>),
}

impl Events {
    /// The sink that the engine gets.
    pub(super) fn sink(&self) -> Arc<dyn EventSink> {
        match self {
            Events::StandIn(queue) => queue.clone(),
            Events::Kernel(counterpart) => counterpart.clone(),
        }
    }

    /// The object's kernel counterpart, if it has one.
    pub(super) fn counterpart(&self) -> Option<&Counterpart> {
        match self {
            Events::StandIn(_) => None,
            Events::Kernel(counterpart) => Some(counterpart),
        }
    }

    /// Discards the unread events of an object that is being destroyed.
    pub(super) fn retire(&self, read_end: RawFd, element: u64) {
        match self {
            Events::StandIn(queue) => queue.discard(read_end, element),
            Events::Kernel(counterpart) => counterpart.destroy(),
        }
    }
}

/// The sink that carries events of a completion queue to the application's channel; `None` without
/// a channel.
///
/// # Errors
/// [`VerbsError::Invalid`] for a channel that the stand-in has not opened.
pub(super) fn completion_sink(
    channel: Option<&ibv_comp_channel>,
    counterpart: Option<&Arc<Counterpart>>,
    engine: &Arc<Engine>,
) -> Result<Option<Arc<dyn CompletionSink>>, VerbsError> {
    let Some(channel) = channel else {
        return Ok(None);
    };
    if let Some(counterpart) = counterpart {
        return Ok(Some(counterpart.clone()));
    }
    let channel = front::channel(channel.fd).ok_or(VerbsError::Invalid)?;
    let engine: Weak<Engine> = Arc::downgrade(engine);
    channel.use_engine(engine);
    Ok(Some(channel))
}
