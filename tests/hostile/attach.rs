//! The part that attaches to an instance and opens channels. What urdmad gives with a slot is dealt
//! with here only: the directory, its region for this process, and its page.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use urdma_channel::{ChannelConfig, Layout};
use urdma_ipc::{ControlClient, ControlError, Event, RunDir};

use crate::conversation::once_taken;
use crate::memory::Memory;
use crate::PROGRAM;

/// Octets of a page.
pub(crate) const PAGE: usize = 4096;
/// Offset of the counts of a region.
pub(crate) const COUNTS: usize = 128;
/// How long a slot is waited for: the quotas count processes that have just ended.
const PATIENCE: Duration = Duration::from_secs(10);

/// Tries again while urdmad refuses, for `limit`: the quotas count what urdmad is still closing.
pub(crate) fn once_admitted<T>(
    limit: Duration,
    mut attempt: impl FnMut() -> Result<T, ControlError>,
) -> Result<T, ControlError> {
    let deadline = Instant::now() + limit;
    loop {
        match attempt() {
            Err(ControlError::Refused(_)) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            outcome => return outcome,
        }
    }
}

/// A region that this process writes as it likes.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) memory: Arc<Memory>,
    pub(crate) layout: Layout,
    pub(crate) fd: OwnedFd,
}

impl Region {
    /// One that its reader accepts.
    pub(crate) fn create(config: &ChannelConfig) -> Self {
        let layout = Layout::new(config, 0).unwrap();
        let (memory, fd) = Memory::create(layout.total()).unwrap();
        memory.store(0, &layout.encode());
        let memory = Arc::new(memory);
        Self { memory, layout, fd }
    }
}

/// A page that its readers accept, and its descriptor.
pub(crate) fn page() -> (Memory, OwnedFd) {
    let (memory, fd) = Memory::create(PAGE).unwrap();
    memory.store(0, b"urdmaPAG");
    memory.store32(8, 1);
    (memory, fd)
}

/// Delivery records that urdmad accepts, with totals of traffic that cannot be true.
fn records() -> (Memory, OwnedFd) {
    const OCTETS: usize = PAGE + 8 * 65_536;
    let (memory, fd) = Memory::create(OCTETS).unwrap();
    memory.store(0, b"urdmaREC");
    memory.store32(8, 2);
    memory.store(64, &[0xff; 8 * 11]);
    (memory, fd)
}

/// A channel to another process, or to urdmad.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) slot: u8,
    pub(crate) region: Region,
    /// What the peer has offered.
    pub(crate) theirs: Option<Memory>,
    /// Messages that were written.
    pub(crate) written: u64,
}

/// A slot of the instance, and channels to others.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) client: ControlClient,
    pub(crate) slot: u8,
    pub(crate) page: Memory,
    page_fd: OwnedFd,
    pub(crate) peers: Vec<Peer>,
    /// Offers that urdmad has passed on, by slot.
    pub(crate) passed: Vec<u8>,
    /// Offers that urdmad has refused, by slot; each may be repeated.
    pub(crate) refused: Vec<u8>,
    /// Requests of urdmad for a report.
    pub(crate) reports_wanted: u64,
    /// Whatever was given to this process: by urdmad with the slot, by peers as offers.
    pub(crate) given: Vec<OwnedFd>,
}

impl Session {
    /// Gets a slot.
    pub(crate) fn attach(run_dir: &RunDir) -> Result<Self, ControlError> {
        Self::attach_within(run_dir, PATIENCE)
    }

    /// Gets a slot if there is one now.
    pub(crate) fn attach_at_once(run_dir: &RunDir) -> Result<Self, ControlError> {
        Self::attach_within(run_dir, Duration::ZERO)
    }

    fn attach_within(run_dir: &RunDir, limit: Duration) -> Result<Self, ControlError> {
        let ((attached, memory), client) = once_admitted(limit, || {
            let client = ControlClient::connect(run_dir, PROGRAM)?;
            Ok((client.attach(false)?, client))
        })?;
        let (page, page_fd) = page();
        Ok(Self {
            client,
            slot: attached.slot,
            page,
            page_fd,
            peers: Vec::new(),
            passed: Vec::new(),
            refused: Vec::new(),
            reports_wanted: 0,
            given: vec![memory.directory, memory.region, memory.page],
        })
    }

    /// Opens a channel to each of these slots.
    pub(crate) fn open(&mut self, slots: &[u8], config: &ChannelConfig) {
        for &slot in slots.iter().filter(|slot| **slot != self.slot) {
            let region = Region::create(config);
            let records = (slot == 0).then(records);
            let records = records.as_ref().map(|(_, fd)| fd.as_fd());
            let fds = [region.fd.as_fd(), self.page_fd.as_fd()];
            let fds: Vec<_> = fds.into_iter().chain(records).collect();
            // A connection that urdmad has closed is seen at the next event.
            let _ = self.offer(slot, &fds);
            // urdmad's region came with the slot.
            let readable = nix::sys::mman::ProtFlags::PROT_READ;
            let theirs = (slot == 0)
                .then(|| Memory::map(self.given[1].as_fd(), PAGE, readable).ok())
                .flatten();
            self.peers.push(Peer {
                slot,
                region,
                theirs,
                written: 0,
            });
        }
    }

    /// Takes what urdmad says within `limit`; false once it has closed the connection.
    pub(crate) fn listen(&mut self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        loop {
            match self.take_event(deadline) {
                Ok(true) => {}
                Ok(false) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Takes what urdmad says until `is_enough`, within `limit`; false if it is not.
    pub(crate) fn listen_until(
        &mut self,
        limit: Duration,
        is_enough: impl Fn(&Self) -> bool,
    ) -> bool {
        let deadline = Instant::now() + limit;
        while !is_enough(self) {
            if !matches!(self.take_event(deadline), Ok(true)) {
                return false;
            }
        }
        true
    }

    /// Takes one event; false at the deadline.
    fn take_event(&mut self, deadline: Instant) -> Result<bool, ControlError> {
        let left = deadline.saturating_duration_since(Instant::now());
        match self.client.next_event(Some(left))? {
            None => return Ok(false),
            Some((Event::ChannelOffered { slot, .. }, fds)) => self.take_offer(slot, fds),
            Some((Event::ChannelPassed { slot, .. }, _)) => self.passed.push(slot),
            Some((Event::ChannelRefused { slot, .. }, _)) => self.refused.push(slot),
            Some((Event::ReportWanted, _)) => self.reports_wanted += 1,
            Some(_) => {}
        }
        Ok(true)
    }

    /// Whether urdmad still answers.
    pub(crate) fn is_alive(&self) -> bool {
        self.client.recordings().is_ok()
    }

    fn take_offer(&mut self, slot: u8, fds: Vec<OwnedFd>) {
        // Other attackers offer what honest processes do not.
        let Some(peer) = self.peers.iter_mut().find(|peer| peer.slot == slot) else {
            return;
        };
        if let Some(region) = fds.first() {
            let readable = nix::sys::mman::ProtFlags::PROT_READ;
            peer.theirs = Memory::map(region.as_fd(), PAGE, readable).ok();
        }
        self.given.extend(fds);
    }

    /// Whether every peer has answered with a region of its own.
    pub(crate) fn is_answered(&self) -> bool {
        self.peers.iter().all(|peer| peer.theirs.is_some())
    }

    /// Whether the process in a slot has answered.
    pub(crate) fn has_answer_of(&self, slot: u8) -> bool {
        let mut peers = self.peers.iter();
        peers.any(|peer| peer.slot == slot && peer.theirs.is_some())
    }

    /// Offers a channel with any descriptors.
    pub(crate) fn offer(&self, slot: u8, fds: &[BorrowedFd<'_>]) -> Result<(), String> {
        once_taken(|| self.client.offer_channel(slot, None, fds))
            .map_err(|error| format!("an offer cannot be sent: {error}"))
    }

    /// Deposits an end of a channel with any descriptors.
    pub(crate) fn deposit(&self, fds: &[BorrowedFd<'_>]) -> Result<(), String> {
        once_taken(|| self.client.deposit_channel(fds))
            .map_err(|error| format!("a deposit cannot be sent: {error}"))
    }

    pub(crate) fn page_fd(&self) -> &OwnedFd {
        &self.page_fd
    }
}

impl Peer {
    /// Messages of ours that the peer has settled, low 32 bits; all, as long as it has no region.
    fn settled(&self) -> u32 {
        let counts = self
            .theirs
            .as_ref()
            .map_or(0, |theirs| theirs.load64(COUNTS));
        u32::try_from(counts >> 32).unwrap_or(0)
    }

    /// Whether the peer has read the cell that is written next.
    pub(crate) fn has_room(&self) -> bool {
        let [a, b, c, d, ..] = self.written.to_le_bytes();
        let unsettled = u32::from_le_bytes([a, b, c, d]).wrapping_sub(self.settled());
        unsettled < self.region.layout.config().cells
    }
}
