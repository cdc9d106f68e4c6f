//! State that the control thread and the data thread share.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

use crossbeam_queue::ArrayQueue;
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use urdma_cm::wire::MAX_MESSAGE;
use urdma_ipc::Resolution;
use urdma_trace::Recorder;
use urdma_types::{SlotId, MAX_SLOTS};
use urdma_underlay::Dropped;

use crate::capture::Capture;
use crate::counters::DataCounters;
use crate::groups::{Groups, SlotSet};
use crate::listeners::Listeners;
use crate::slots::Token;
use crate::versions::OtherVersions;

/// Capacity of the queue of CM datagrams for slot 0: at [`MAX_MESSAGE`] octets each, about a
/// megabyte. CM retransmits what a full queue drops.
pub const CM_DATAGRAMS_MAX: usize = 4096;

/// Why the control thread was not given a CM datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotGiven {
    /// Slot 0 does not manage connections, or the datagram is longer than a CM message.
    NotForControl,
    /// The queue is full; the datagram is counted as `drop_cm_queue_full`.
    Full,
}

/// The client and request that an answer belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reply {
    /// The client.
    pub(crate) token: Token,
    /// The number of its request.
    pub(crate) id: u64,
}

/// Shared state of the daemon's threads. Locks are held for a few microseconds, never two at a
/// time.
#[derive(Debug)]
pub struct Shared {
    /// Counters of the data path.
    pub counters: DataCounters,
    listeners: RwLock<Listeners>,
    groups: Mutex<Groups>,
    capture: Mutex<Option<Capture>>,
    /// CM datagrams for slot 0 with their source, from the data thread to the control thread.
    cm_datagrams: ArrayQueue<(IpAddr, Box<[u8]>)>,
    /// The user of each slot's process, the last one's while the slot is free.
    users: [AtomicU32; MAX_SLOTS as usize],
    /// Whether each slot's process has a lease.
    lessees: [AtomicBool; MAX_SLOTS as usize],
    /// Slots whose processes sent what no process sends, for the control thread to disconnect.
    offenders: Mutex<SlotSet>,
    /// Resolutions for the control thread to answer with.
    resolved: Mutex<Vec<(Reply, Resolution)>>,
    /// Hosts that have sent packets of another version of the protocol.
    other_versions: Mutex<OtherVersions>,
    /// Whether there are any; saves the data path the lock.
    has_other_versions: AtomicBool,
    /// Whether slot 0 manages connections.
    manages_connections: AtomicBool,
    /// Whether a capture is active; saves the data path the lock.
    is_capturing: AtomicBool,
    /// Wakes the control thread.
    bell: EventFd,
    /// Records what happens to processes and connection requests.
    pub recorder: Recorder,
}

impl Shared {
    /// No listeners, no capture.
    ///
    /// # Errors
    /// As eventfd(2).
    pub fn new() -> Result<Self, Errno> {
        Ok(Self {
            counters: DataCounters::default(),
            listeners: RwLock::default(),
            groups: Mutex::default(),
            capture: Mutex::default(),
            cm_datagrams: ArrayQueue::new(CM_DATAGRAMS_MAX),
            users: [const { AtomicU32::new(0) }; MAX_SLOTS as usize],
            lessees: [const { AtomicBool::new(false) }; MAX_SLOTS as usize],
            offenders: Mutex::default(),
            resolved: Mutex::default(),
            other_versions: Mutex::default(),
            has_other_versions: AtomicBool::new(false),
            manages_connections: AtomicBool::new(false),
            is_capturing: AtomicBool::new(false),
            recorder: Recorder::default(),
            bell: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
        })
    }

    /// The bound CM ports.
    pub fn listeners(&self) -> RwLockReadGuard<'_, Listeners> {
        self.listeners
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The bound CM ports. Only the control thread calls it, for one change at a time, since the
    /// data thread waits meanwhile.
    pub fn change_listeners(&self) -> RwLockWriteGuard<'_, Listeners> {
        self.listeners
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases the CM ports of a slot whose process has ended.
    pub fn release_listeners(&self, slot: SlotId) {
        while self.change_listeners().release_some(slot) {}
    }

    /// The multicast groups.
    pub fn groups(&self) -> MutexGuard<'_, Groups> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the user of a slot's process.
    pub fn set_user(&self, slot: SlotId, uid: u32) {
        self.users[slot.as_usize()].store(uid, Ordering::Relaxed);
    }

    /// The user of a slot's process.
    pub fn user(&self, slot: SlotId) -> u32 {
        self.users[slot.as_usize()].load(Ordering::Relaxed)
    }

    /// Records whether a slot's process has a lease.
    pub fn set_lessee(&self, slot: SlotId, has_lease: bool) {
        self.lessees[slot.as_usize()].store(has_lease, Ordering::Relaxed);
    }

    /// Whether a slot's process has a lease.
    pub fn is_lessee(&self, slot: SlotId) -> bool {
        self.lessees[slot.as_usize()].load(Ordering::Relaxed)
    }

    /// Has the control thread disconnect the process of a slot.
    pub fn report_offender(&self, slot: SlotId) {
        self.lock_offenders().insert(slot.number());
        self.ring_control();
    }

    /// For the control thread: the slots whose processes are to be disconnected.
    pub fn take_offenders(&self) -> SlotSet {
        std::mem::take(&mut *self.lock_offenders())
    }

    fn lock_offenders(&self) -> MutexGuard<'_, SlotSet> {
        self.offenders
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// For the data thread: has the control thread answer a request.
    pub(crate) fn give_resolved(&self, reply: Reply, resolution: Resolution) {
        self.lock_resolved().push((reply, resolution));
        self.ring_control();
    }

    /// For the control thread: the requests to answer.
    pub(crate) fn take_resolved(&self) -> Vec<(Reply, Resolution)> {
        std::mem::take(&mut *self.lock_resolved())
    }

    fn lock_resolved(&self) -> MutexGuard<'_, Vec<(Reply, Resolution)>> {
        self.resolved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes slot 0 manage connections, for the kernel module.
    pub fn manage_connections(&self) {
        self.manages_connections.store(true, Ordering::Relaxed);
    }

    /// Whether slot 0 manages connections.
    pub fn manages_connections(&self) -> bool {
        self.manages_connections.load(Ordering::Relaxed)
    }

    /// Queues a CM datagram for slot 0 and wakes the control thread. Only the data thread calls it.
    ///
    /// # Errors
    /// Slot 0 does not manage connections, the datagram is too long, or the queue is full.
    pub fn give_cm_datagram(&self, from: IpAddr, datagram: &[u8]) -> Result<(), NotGiven> {
        if !self.manages_connections() || datagram.len() > MAX_MESSAGE {
            return Err(NotGiven::NotForControl);
        }
        if self.cm_datagrams.push((from, datagram.into())).is_err() {
            self.counters.drop_cm_queue_full.bump();
            return Err(NotGiven::Full);
        }
        self.ring_control();
        Ok(())
    }

    /// Counts a packet of another version of the protocol, and remembers the host that it is from.
    /// Only the data thread calls it.
    pub fn note_version(&self, from: IpAddr, version: u8) {
        self.counters.drop_rx_other_version.bump();
        let mut versions = self.lock_versions();
        versions.note(Instant::now(), from, version);
        self.publish_whether_any(&versions);
    }

    /// Whether a host has sent packets of another version of the protocol.
    #[inline]
    pub fn has_other_versions(&self) -> bool {
        self.has_other_versions.load(Ordering::Relaxed)
    }

    /// A packet of this version of the protocol has come from a host.
    #[cold]
    pub fn note_same_version(&self, from: IpAddr) {
        let mut versions = self.lock_versions();
        versions.clear(from);
        self.publish_whether_any(&versions);
    }

    /// What `urdma status` says of packets that arrive and cannot be used, a sentence each: of the
    /// hosts with another version of the protocol, and of checksums.
    pub fn notes(&self) -> Vec<String> {
        let mut versions = self.lock_versions();
        versions.expire(Instant::now());
        self.publish_whether_any(&versions);
        let mut notes = versions.notes();
        drop(versions);
        let wrong = self.counters.rx_dropped[Dropped::BadUdpChecksum.index()].value();
        let checksums = (wrong > 0).then(|| {
            format!(
                "{wrong} packets arrived with wrong UDP checksums and were dropped: the network \
                 has changed them, or the sender's kernel leaves checksums to a network card that \
                 does not complete them (on that host: ethtool -K NETDEV tx off)"
            )
        });
        notes.extend(checksums);
        notes
    }

    /// Stores for the data path whether there are hosts of other versions.
    fn publish_whether_any(&self, versions: &OtherVersions) {
        let has_any = !versions.is_empty();
        self.has_other_versions.store(has_any, Ordering::Relaxed);
    }

    fn lock_versions(&self) -> MutexGuard<'_, OtherVersions> {
        self.other_versions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// For the control thread: the datagrams that are queued now, at most a queue's worth.
    pub fn take_cm_datagrams(&self) -> impl Iterator<Item = (IpAddr, Box<[u8]>)> + '_ {
        (0..CM_DATAGRAMS_MAX).map_while(|_| self.cm_datagrams.pop())
    }

    /// Wakes the control thread.
    pub fn ring_control(&self) {
        // A full counter means that the thread is awake already.
        let _ = self.bell.write(1);
    }

    /// For the control thread: an eventfd, readable after [`Self::ring_control`].
    pub fn bell(&self) -> impl AsFd + '_ {
        &self.bell
    }

    /// For the control thread: resets the eventfd.
    pub fn silence_bell(&self) {
        let _ = self.bell.read();
    }

    /// Starts a capture.
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

    /// Passes the capture to `write` if one is active; otherwise costs one load.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flood_of_cm_datagrams_meets_the_bound_and_is_counted() {
        const SURPLUS: usize = 100;
        let shared = Shared::new().unwrap();
        shared.manage_connections();
        let from = IpAddr::from([192, 0, 2, 1]);
        let give = |number: usize| shared.give_cm_datagram(from, &number.to_be_bytes());
        for number in 0..CM_DATAGRAMS_MAX {
            assert_eq!(give(number), Ok(()));
        }
        for number in 0..SURPLUS {
            assert_eq!(give(number), Err(NotGiven::Full));
        }
        assert_eq!(shared.counters.drop_cm_queue_full.value(), SURPLUS as u64);
        let taken: Vec<_> = shared.take_cm_datagrams().collect();
        assert_eq!(taken.len(), CM_DATAGRAMS_MAX);
        for (number, (source, datagram)) in taken.iter().enumerate() {
            assert_eq!((*source, &datagram[..]), (from, &number.to_be_bytes()[..]));
        }
        // There is room again, and nothing else was counted as a drop.
        assert_eq!(give(7), Ok(()));
        assert_eq!(shared.take_cm_datagrams().count(), 1);
        let dropped = shared.counters.snapshot().into_iter();
        let dropped = dropped.filter(|(name, count)| name.starts_with("drop_") && *count > 0);
        let dropped: Vec<_> = dropped.collect();
        assert_eq!(dropped, [("drop_cm_queue_full".to_owned(), SURPLUS as u64)]);
    }

    #[test]
    fn cm_datagrams_are_not_queued_without_connection_management_in_slot_0() {
        let shared = Shared::new().unwrap();
        let from = IpAddr::from([192, 0, 2, 1]);
        let give = |octets| shared.give_cm_datagram(from, &vec![0; octets]);
        assert_eq!(give(1), Err(NotGiven::NotForControl));
        shared.manage_connections();
        assert_eq!(give(MAX_MESSAGE + 1), Err(NotGiven::NotForControl));
        assert_eq!(give(MAX_MESSAGE), Ok(()));
    }
}
