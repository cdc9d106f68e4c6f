//! An instance within one process, without urdmad: for tests, examples and measurements.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use urdma_channel::{Directory, OwnDirectory};
use urdma_memfd::MemoryError;
use urdma_types::SlotId;

/// An engine as the others of its process see it.
pub(crate) trait Neighbour: Send + Sync {
    /// Its slot.
    fn slot(&self) -> SlotId;

    /// The engine that has `from` in a generation offers a channel: region, page, and the socket
    /// that wakes it.
    fn take_offer(&self, from: SlotId, generation: u32, fds: Vec<OwnedFd>);
}

impl std::fmt::Debug for dyn Neighbour {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "slot {}", self.slot().number())
    }
}

/// Engines of one process that reach one another directly.
#[derive(Debug)]
pub struct InProcess {
    directory: OwnDirectory,
    directory_fd: OwnedFd,
    engines: Mutex<Vec<Weak<dyn Neighbour>>>,
    offers: Mutex<Vec<(SlotId, SlotId, Vec<OwnedFd>)>>,
}

impl InProcess {
    /// An instance without engines.
    ///
    /// # Errors
    /// Its memory cannot be created.
    pub fn new() -> io::Result<Arc<Self>> {
        let (directory, directory_fd) = OwnDirectory::create().map_err(io::Error::other)?;
        Ok(Arc::new(Self {
            directory,
            directory_fd,
            engines: Mutex::default(),
            offers: Mutex::default(),
        }))
    }

    /// Gives a slot to the next engine that is started in it.
    pub(crate) fn assign(&self, slot: SlotId) -> Result<Directory, MemoryError> {
        let fd = self.directory_fd.as_fd().try_clone_to_owned();
        let directory = Directory::open(fd.map_err(|error| MemoryError::System("dup", error))?)?;
        self.directory.assign(slot.number());
        Ok(directory)
    }

    /// Lets the engines find this one.
    pub(crate) fn join(&self, engine: Weak<dyn Neighbour>) {
        let mut engines = self.lock();
        engines.retain(|engine| engine.strong_count() > 0);
        engines.push(engine);
    }

    /// Gives a slot to a process that the caller plays; what is offered to it is kept for
    /// [`InProcess::take_offer`].
    pub fn play(&self, slot: SlotId) {
        self.directory.assign(slot.number());
    }

    /// What an engine has offered to a slot that is played: its region, its page and the socket
    /// that wakes it.
    pub fn take_offer(&self, from: SlotId, to: SlotId) -> Option<Vec<OwnedFd>> {
        let mut offers = self.offers.lock().unwrap_or_else(PoisonError::into_inner);
        let at = offers
            .iter()
            .position(|offer| (offer.0, offer.1) == (from, to))?;
        Some(offers.swap_remove(at).2)
    }

    /// Whether a slot has a process, in this generation.
    pub(crate) fn is_current(&self, slot: SlotId, generation: u32) -> bool {
        let number = slot.number();
        self.directory.has_process(number) && self.directory.generation(number) == generation
    }

    /// Keeps an offer for the process that is played in `to`.
    pub(crate) fn keep_offer(&self, from: SlotId, to: SlotId, fds: Vec<OwnedFd>) {
        let mut offers = self.offers.lock().unwrap_or_else(PoisonError::into_inner);
        offers.push((from, to, fds));
    }

    /// Takes a slot from its engine, as if its process had ended; gives the slot's generation. The
    /// other engines are to be told by [`super::Engine::peer_slot_gone`].
    pub fn end(&self, slot: SlotId) -> u32 {
        self.directory.release(slot.number());
        self.lock().retain(|engine| {
            let engine = engine.upgrade();
            engine.is_some_and(|engine| engine.slot() != slot)
        });
        self.directory.generation(slot.number())
    }

    /// The engine in a slot.
    pub(crate) fn engine(&self, slot: SlotId) -> Option<Arc<dyn Neighbour>> {
        // What is upgraded here may be dropped only without the lock.
        let engines: Vec<_> = self.lock().iter().filter_map(Weak::upgrade).collect();
        engines.into_iter().find(|engine| engine.slot() == slot)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Weak<dyn Neighbour>>> {
        self.engines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
