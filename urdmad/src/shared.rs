//! What the control thread and the data thread both use.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use urdma_cm::wire::MAX_MESSAGE;

use crate::capture::Capture;
use crate::counters::DataCounters;
use crate::groups::Groups;
use crate::listeners::Listeners;

/// Datagrams for slot 0 that wait for the control thread.
const CM_DATAGRAMS_MAX: usize = 4096;

/// Shared state of the daemon's threads. Locks are held for a few microseconds and never two at a time.
#[derive(Debug)]
pub struct Shared {
    /// What the data path counts.
    pub counters: DataCounters,
    listeners: Mutex<Listeners>,
    groups: Mutex<Groups>,
    capture: Mutex<Option<Capture>>,
    /// Connection management's datagrams for slot 0, with who sent them.
    cm_datagrams: Mutex<Vec<(IpAddr, Vec<u8>)>>,
    /// Whether slot 0 manages connections.
    manages_connections: AtomicBool,
    /// Whether there is a capture, so that the data path need not look behind the lock.
    is_capturing: AtomicBool,
    /// Wakes the control thread.
    bell: EventFd,
}

impl Shared {
    /// No listeners, no capture.
    ///
    /// # Errors
    /// As eventfd(2).
    pub fn new() -> Result<Self, Errno> {
        Ok(Self {
            counters: DataCounters::default(),
            listeners: Mutex::default(),
            groups: Mutex::default(),
            capture: Mutex::default(),
            cm_datagrams: Mutex::default(),
            manages_connections: AtomicBool::new(false),
            is_capturing: AtomicBool::new(false),
            bell: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
        })
    }

    /// The bound CM ports.
    pub fn listeners(&self) -> MutexGuard<'_, Listeners> {
        self.listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The multicast groups.
    pub fn groups(&self) -> MutexGuard<'_, Groups> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Slot 0 manages connections from now on, for the kernel module.
    pub fn manage_connections(&self) {
        self.manages_connections.store(true, Ordering::Relaxed);
    }

    /// Whether slot 0 manages connections.
    pub fn manages_connections(&self) -> bool {
        self.manages_connections.load(Ordering::Relaxed)
    }

    /// Gives the control thread a datagram of connection management that is for slot 0; false if it is none or nobody wants it.
    pub fn give_cm_datagram(&self, from: IpAddr, datagram: &[u8]) -> bool {
        if !self.manages_connections() || datagram.len() > MAX_MESSAGE {
            return false;
        }
        let mut waiting = self.lock_cm_datagrams();
        // What is lost is sent again.
        if waiting.len() >= CM_DATAGRAMS_MAX {
            return false;
        }
        waiting.push((from, datagram.to_vec()));
        drop(waiting);
        self.ring_control();
        true
    }

    /// For the control thread: what was given.
    pub fn take_cm_datagrams(&self) -> Vec<(IpAddr, Vec<u8>)> {
        std::mem::take(&mut *self.lock_cm_datagrams())
    }

    fn lock_cm_datagrams(&self) -> MutexGuard<'_, Vec<(IpAddr, Vec<u8>)>> {
        self.cm_datagrams
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the control thread.
    pub fn ring_control(&self) {
        // A full counter means that it is awake already.
        let _ = self.bell.write(1);
    }

    /// For the control thread: readable when it was rung.
    pub fn bell(&self) -> impl AsFd + '_ {
        &self.bell
    }

    /// For the control thread: quiet again.
    pub fn silence_bell(&self) {
        let _ = self.bell.read();
    }

    /// Starts to capture.
    pub fn set_capture(&self, capture: Capture) {
        *self.lock_capture() = Some(capture);
        self.is_capturing.store(true, Ordering::Release);
    }

    /// Ends the capture, if there is one.
    pub fn take_capture(&self) -> Option<Capture> {
        self.is_capturing.store(false, Ordering::Release);
        self.lock_capture().take()
    }

    /// File of the running capture.
    pub fn capture_file(&self) -> Option<PathBuf> {
        Some(self.lock_capture().as_ref()?.file().to_owned())
    }

    /// Gives `write` the capture if one runs; costs one load if not.
    #[inline]
    pub fn with_capture(&self, write: impl FnOnce(&mut Capture)) {
        if self.is_capturing.load(Ordering::Relaxed) {
            if let Some(capture) = self.lock_capture().as_mut() {
                write(capture);
            }
        }
    }

    fn lock_capture(&self) -> MutexGuard<'_, Option<Capture>> {
        self.capture.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
