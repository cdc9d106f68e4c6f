//! The channels of an engine to urdmad and to other processes of the host, by the peer's slot.
//!
//! A process offers its region to the peer as soon as it wants to send, and writes to it at once;
//! the peer answers with its own. An offer travels through urdmad, or, between engines of one
//! process that have no urdmad, directly (`engine/introduce.rs`).
//!
//! Polls look at the channels on which something came lately, and at a few of the others in turn;
//! before the process sleeps it looks at all.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use urdma_abi::spared::{raised, raised_copy, Mark, Spared};
use urdma_channel::{
    Channel, ChannelConfig, Directory, Incoming, OwnRegion, PeerRegion, Rota, SLOTS,
};
use urdma_memfd::MemoryError;
use urdma_trace::probes;
use urdma_types::SlotId;
use urdma_waiting::{descriptors_max, Bells, OwnPage, PeerPage, WakeSocket, Waker};

use crate::clock;

/// Messages and packets that one call takes from a channel.
pub(crate) const BURST: usize = 32;

/// The part of its descriptors that the processes of one other user may make a process keep.
const WAKERS_PART: usize = 4;

/// A channel, and the process at its other end.
#[derive(Debug)]
pub(crate) struct PeerChannel {
    /// Precedes the channel, which has its descriptor.
    spared: Option<Mark>,
    pub(crate) channel: Channel,
    /// See [`Channels::may_add_waker`].
    stranger: Option<u32>,
    /// The generation in which the peer has its slot.
    generation: u32,
    patience: Patience,
    /// Queue pairs that have something to send and found no room, in the order in which they are to
    /// get some.
    pub(crate) waiting: VecDeque<u16>,
    /// Messages that were completed and taken when it was looked last, and how long nothing has
    /// changed (`threads/watch.rs`).
    progress: (u64, u64),
    stalled_ns: u64,
}

impl PeerChannel {
    /// Requests have completed, by an answer or by a reading of the counts.
    #[inline]
    pub(crate) fn note_completed(&mut self, by_answer: bool) {
        if by_answer {
            self.patience.paid();
        } else {
            self.patience.was_in_vain();
        }
    }
}

/// Whether polls wait for an answer to bring the peer's counts along. An application that has the
/// completion of its request may look at its memory instead of polling (`ib_write_lat`), and the
/// answer would wait for the background thread. So polls read the counts only [`WAIT_NS`] after
/// they were seen to be ahead, until that has been in vain as often as an answer has come, and
/// [`FIRST_WAITS`] times more.
#[derive(Clone, Copy, Debug)]
struct Patience {
    left: u8,
    /// Reads since there is none left; after [`READS_PER_WAIT`] the next answer is waited for once.
    reads: u16,
    /// When the counts were seen to be ahead; 0 if they were not.
    ahead_since_ns: u64,
}

/// See [`Patience`].
const PATIENCE: u8 = 8;
const FIRST_WAITS: u8 = 2;
const READS_PER_WAIT: u16 = 1024;
const WAIT_NS: u64 = 10_000;
/// Empty polls of which one looks at the counts, whose cache line the peer writes.
const POLLS_A_LOOK: u32 = 8;

impl Patience {
    const FIRST: Self = Self {
        left: FIRST_WAITS,
        reads: 0,
        ahead_since_ns: 0,
    };

    /// Whether the counts are to be read after `empty_polls`; `is_ahead` says whether that would
    /// complete anything.
    #[inline]
    fn is_over(&mut self, empty_polls: u32, is_ahead: impl FnOnce() -> bool) -> bool {
        if self.left == 0 {
            return true;
        }
        if !empty_polls.is_multiple_of(POLLS_A_LOOK) || !is_ahead() {
            return false;
        }
        let now_ns = clock::now_ns();
        if self.ahead_since_ns == 0 {
            self.ahead_since_ns = now_ns;
        }
        now_ns - self.ahead_since_ns >= WAIT_NS
    }

    /// An answer has brought the counts.
    #[inline]
    fn paid(&mut self) {
        self.left = (self.left + 1).min(PATIENCE);
        self.ahead_since_ns = 0;
    }

    /// The counts were read, and requests completed.
    #[inline]
    fn was_in_vain(&mut self) {
        self.ahead_since_ns = 0;
        if self.left > 0 {
            self.left -= 1;
        } else {
            self.reads = (self.reads + 1) % READS_PER_WAIT;
            self.left = u8::from(self.reads == 0);
        }
    }
}

/// When it was looked, and is to be looked, for processes that are stopped (`threads/watch.rs`).
#[derive(Debug)]
pub(crate) struct Watch {
    /// When to look next.
    pub(crate) next_ns: u64,
    /// When it was looked last.
    pub(crate) last_ns: u64,
    /// Messages sent by then.
    pub(crate) sent: u64,
}

impl Default for Watch {
    fn default() -> Self {
        Self {
            next_ns: u64::MAX,
            last_ns: 0,
            sent: 0,
        }
    }
}

/// Whether there is a channel to the process that has or had a slot in a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// To that process, or to a later one.
    Open,
    /// To an earlier process of the slot, whose end is still to be reported.
    OfEarlier,
    /// None, and that process gets none.
    Refused,
    /// None.
    Missing,
}

/// What a process gives away to open a channel.
#[derive(Debug)]
pub(crate) struct Offer {
    region: OwnedFd,
    page: OwnedFd,
    /// The generation of the slot in which the process has it to which this is offered.
    pub(crate) generation: u32,
    /// By which the peer wakes a thread that sleeps in a call on descriptors.
    waker: Option<OwnedFd>,
}

impl Offer {
    /// The descriptors, in the order in which they are sent.
    pub(crate) fn into_fds(self) -> Vec<OwnedFd> {
        let memory = [self.region, self.page];
        memory.into_iter().chain(self.waker).collect()
    }
}

/// The memory of a peer, from the descriptors of its offer.
///
/// # Errors
/// They are others, or unusable.
pub(crate) fn open_peer(fds: Vec<OwnedFd>) -> Result<(PeerRegion, PeerPage), MemoryError> {
    let mut fds = fds.into_iter();
    let (Some(region), Some(page), waker, None) = (fds.next(), fds.next(), fds.next(), fds.next())
    else {
        return Err(MemoryError::NotMemfd);
    };
    let region = PeerRegion::open(region)?;
    let mut page = PeerPage::open(page)?;
    // C6.1-2
    //# A receiver MUST verify that the descriptor is a socket of NETLINK_USERSOCK before it sends
    //# on it. [adr/0017](../adr/0017-wake-socket.md) says why it is no other kind.
    if let Some(waker) = waker.and_then(|waker| Waker::new(raised(waker))) {
        page.set_waker(waker);
    }
    Ok((region, page))
}

/// The page of a process and the socket by which its peers wake it.
#[derive(Debug)]
pub(crate) struct SharedPage {
    /// Precedes the page, whose descriptors these are.
    spared: Vec<Mark>,
    page: OwnPage,
    fd: Spared,
}

impl SharedPage {
    /// Creates both.
    ///
    /// # Errors
    /// The page cannot be created.
    pub(crate) fn create() -> Result<Self, MemoryError> {
        let (mut page, fd) = OwnPage::create()?;
        let mut spared = Vec::new();
        // Without one, the background thread wakes those that sleep in calls on descriptors.
        if let Ok(socket) = WakeSocket::create() {
            spared.extend(socket.descriptors().map(Mark::new));
            page.set_socket(socket);
        }
        let fd = fd.into();
        Ok(Self { spared, page, fd })
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Channels {
    own: SlotId,
    /// Precedes the page, whose descriptors these are.
    _spared: Vec<Mark>,
    page: Arc<OwnPage>,
    page_fd: Spared,
    directory: Arc<Directory>,
    by_slot: Box<[Option<Box<PeerChannel>>]>,
    /// Its descriptors are with urdmad, which says to whom it has given them.
    deposited: Option<OwnRegion>,
    /// The slots that there is a channel to.
    pub(crate) open: Rota<SlotId>,
    /// The generation of each slot whose process wrote what no process writes, or whose offer could
    /// not be used: it gets no second channel.
    refused: HashMap<SlotId, u32>,
    /// Slots to which something was written or settled since their doorbells were rung.
    doorbells: Vec<SlotId>,
    /// Slots whose channels queue pairs wait for.
    waited_for: Vec<SlotId>,
}

impl Channels {
    /// None yet.
    pub(crate) fn new(own: SlotId, directory: Arc<Directory>, shared: SharedPage) -> Self {
        Self {
            _spared: shared.spared,
            own,
            page: Arc::new(shared.page),
            page_fd: shared.fd,
            directory,
            by_slot: (0..SLOTS).map(|_| None).collect(),
            deposited: None,
            open: Rota::default(),
            refused: HashMap::new(),
            doorbells: Vec::with_capacity(SLOTS),
            waited_for: Vec::new(),
        }
    }

    /// The page of this process.
    pub(crate) fn page(&self) -> &Arc<OwnPage> {
        &self.page
    }

    /// Which slots have a process.
    pub(crate) fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    /// Whether there is a channel to a slot.
    pub(crate) fn has(&self, slot: SlotId) -> bool {
        self.by_slot[usize::from(slot.number())].is_some()
    }

    #[inline]
    fn entry(&self, slot: SlotId) -> Option<&PeerChannel> {
        self.by_slot[usize::from(slot.number())].as_deref()
    }

    /// The channel to a slot.
    #[inline]
    pub(crate) fn entry_mut(&mut self, slot: SlotId) -> Option<&mut PeerChannel> {
        self.by_slot[usize::from(slot.number())].as_deref_mut()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: SlotId) -> Option<&mut Channel> {
        Some(&mut self.entry_mut(slot)?.channel)
    }

    /// Whether a message waits on the channel to a slot.
    #[inline]
    pub(crate) fn has_message(&self, slot: SlotId) -> bool {
        self.entry(slot)
            .is_some_and(|entry| entry.channel.has_message())
    }

    /// Whether the counts of a channel are to be read by an application's poll.
    #[inline]
    pub(crate) fn wants_counts(&mut self, slot: SlotId, empty_polls: u32) -> bool {
        self.entry_mut(slot).is_some_and(|entry| {
            let channel = &entry.channel;
            entry.patience.is_over(empty_polls, || channel.is_behind())
        })
    }

    /// Whether queue pairs wait for room on a channel.
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waited_for.is_empty()
    }

    /// The `at`th of the slots whose channels queue pairs wait for.
    #[inline]
    pub(crate) fn waited_for(&self, at: usize) -> Option<SlotId> {
        self.waited_for.get(at).copied()
    }

    /// Lets a queue pair wait for room on the channel to a slot, before or after those that wait.
    /// False if there is no channel.
    pub(crate) fn wait(&mut self, slot: SlotId, index: u16, is_next: bool) -> bool {
        let Some(entry) = self.entry_mut(slot) else {
            return false;
        };
        let is_first = entry.waiting.is_empty();
        if is_next {
            entry.waiting.push_front(index);
        } else {
            entry.waiting.push_back(index);
        }
        if is_first && !self.waited_for.contains(&slot) {
            self.waited_for.push(slot);
        }
        true
    }

    /// How many queue pairs wait for room on the channel to a slot.
    #[inline]
    pub(crate) fn waiting(&self, slot: SlotId) -> usize {
        self.entry(slot).map_or(0, |entry| entry.waiting.len())
    }

    /// The queue pair that is to get room next on the channel to a slot; it waits no more.
    pub(crate) fn next_waiting(&mut self, slot: SlotId) -> Option<u16> {
        self.entry_mut(slot)?.waiting.pop_front()
    }

    /// Forgets the slots for whose channels no queue pair waits any more.
    pub(crate) fn forget_waited_for(&mut self) {
        let by_slot = &self.by_slot;
        let waits = |slot: &SlotId| {
            let entry = by_slot[usize::from(slot.number())].as_ref();
            entry.is_some_and(|entry| !entry.waiting.is_empty())
        };
        self.waited_for.retain(waits);
    }

    /// Makes a channel to a slot, whose process has to be offered this; None if there is one.
    ///
    /// # Errors
    /// The region cannot be created.
    pub(crate) fn create(&mut self, slot: SlotId) -> Result<Option<Offer>, MemoryError> {
        if self.has(slot) {
            return Ok(None);
        }
        let created = OwnRegion::create(&ChannelConfig::default(), self.own.number())?;
        let generation = self.directory.generation(slot.number());
        self.insert(slot, generation, created)
    }

    /// Keeps a region whose descriptor is given to urdmad in advance; gives what urdmad gets, or
    /// none if there is a deposit already.
    ///
    /// # Errors
    /// The page cannot be given away.
    pub(crate) fn deposit(
        &mut self,
        (region, fd): (OwnRegion, OwnedFd),
    ) -> Result<Option<Offer>, MemoryError> {
        if self.deposited.is_some() {
            return Ok(None);
        }
        // The process that gets it, and its generation, are not known yet.
        let offer = self.offer_of(fd, 0)?;
        self.deposited = Some(region);
        Ok(Some(offer))
    }

    /// Whether a region is deposited.
    pub(crate) fn has_deposit(&self) -> bool {
        self.deposited.is_some()
    }

    /// The region that was deposited, which urdmad has given to a process.
    pub(crate) fn take_deposit(&mut self) -> Option<OwnRegion> {
        // C9-3
        //# A process MUST NOT write to a region that it has deposited before urdmad has said that
        //# it is given.
        self.deposited.take()
    }

    /// A socket by which a peer wakes this process, if it has one.
    fn waker_for_peer(&self) -> Result<Option<OwnedFd>, MemoryError> {
        let made = self.page.socket().map(WakeSocket::for_peer).transpose();
        made.map_err(|error| MemoryError::System("connect", error))
    }

    /// As [`Channels::create`], of a region that was created, to the process that has or had the
    /// slot in a generation.
    ///
    /// # Errors
    /// The page cannot be given away.
    pub(crate) fn insert(
        &mut self,
        slot: SlotId,
        generation: u32,
        (region, fd): (OwnRegion, OwnedFd),
    ) -> Result<Option<Offer>, MemoryError> {
        if self.has(slot) {
            return Ok(None);
        }
        let offer = self.offer_of(fd, generation)?;
        self.open_by(slot, generation, region);
        Ok(Some(offer))
    }

    /// What is given away with the descriptor of a region.
    fn offer_of(&self, region: OwnedFd, generation: u32) -> Result<Offer, MemoryError> {
        Ok(Offer {
            region,
            generation,
            page: raised_copy(self.page_fd.as_fd())
                .map_err(|error| MemoryError::System("dup", error))?,
            // C6.1-1
            //# A process MUST NOT store SELECTING unless it has offered a socket with every page
            //# that it has given away.
            waker: self.waker_for_peer()?,
        })
    }

    /// Has a channel to a process that gets, or has got, the descriptor of this region, in place of
    /// one that there is.
    pub(crate) fn open_by(&mut self, slot: SlotId, generation: u32, region: OwnRegion) {
        let peer = PeerChannel {
            spared: None,
            stranger: None,
            channel: Channel::new(region),
            generation,
            patience: Patience::FIRST,
            waiting: VecDeque::new(),
            progress: (0, 0),
            stalled_ns: 0,
        };
        self.by_slot[usize::from(slot.number())] = Some(Box::new(peer));
        self.open.insert(slot);
    }

    /// Whether the processes of a user, if a bound applies to them, may make this process keep
    /// another descriptor. Regions and pages are mapped, and keep none.
    pub(crate) fn may_add_waker(&self, stranger: Option<u32>) -> bool {
        stranger.is_none() || {
            let kept = self.by_slot.iter().flatten();
            let of_user = kept.filter(|entry| entry.spared.is_some() && entry.stranger == stranger);
            of_user.count() < descriptors_max() / WAKERS_PART
        }
    }

    /// Receives from the process that has a slot in a generation, which has made this offer. Does
    /// nothing if there is no channel to that process. For `stranger`, see
    /// [`Channels::may_add_waker`].
    ///
    /// An offer may take the place of a deposit that its process did not use, since it had made the
    /// offer before it heard of the deposit. False if it has used it.
    pub(crate) fn attach(
        &mut self,
        slot: SlotId,
        generation: u32,
        stranger: Option<u32>,
        peer: (PeerRegion, PeerPage),
    ) -> bool {
        let entry = self.entry_mut(slot);
        // The region of another process was offered to that one.
        if let Some(entry) = entry.filter(|entry| entry.generation == generation) {
            if entry
                .channel
                .incoming()
                .is_some_and(|from| from.taken() > 0)
            {
                return false;
            }
            entry.stranger = stranger;
            entry.spared = peer.1.waker().map(|waker| Mark::new(waker.descriptor()));
            entry.channel.attach(Incoming::new(peer.0), peer.1);
        }
        true
    }

    /// Whether there is a channel to the process that has or had a slot in a generation.
    pub(crate) fn standing(&self, slot: SlotId, generation: u32) -> Standing {
        if self.is_with(slot, generation.wrapping_sub(1)) {
            Standing::OfEarlier
        } else if self.is_refused(slot, generation) {
            Standing::Refused
        } else if self.has(slot) {
            Standing::Open
        } else {
            Standing::Missing
        }
    }

    /// Whether the channel to a slot is to the process that had it in this generation or before.
    pub(crate) fn is_with(&self, slot: SlotId, generation: u32) -> bool {
        self.entry(slot)
            .is_some_and(|entry| generation.wrapping_sub(entry.generation).cast_signed() >= 0)
    }

    /// Whether the channel to a slot is to a process that got it after this generation.
    pub(crate) fn is_with_later(&self, slot: SlotId, generation: u32) -> bool {
        self.entry(slot)
            .is_some_and(|entry| entry.generation.wrapping_sub(generation).cast_signed() > 0)
    }

    /// Opens no other channel to the process that a slot has or had in a generation.
    pub(crate) fn refuse(&mut self, slot: SlotId, generation: u32) {
        // C9-2
        //# A process MUST offer at most one channel to each process; urdmad disconnects one that
        //# repeats itself.
        self.refused.insert(slot, generation);
    }

    /// Whether the process that has a slot in a generation gets no other channel.
    pub(crate) fn is_refused(&self, slot: SlotId, generation: u32) -> bool {
        self.refused.get(&slot) == Some(&generation)
    }

    /// Notes the channels on which the peer has done nothing for another `elapsed_ns`.
    pub(crate) fn note_stalls(&mut self, elapsed_ns: u64) {
        for entry in self.by_slot.iter_mut().flatten() {
            let taken = entry.channel.incoming().map_or(0, Incoming::taken);
            let progress = (entry.channel.outgoing().completed(), taken);
            if progress == entry.progress {
                entry.stalled_ns += elapsed_ns;
            } else {
                entry.progress = progress;
                entry.stalled_ns = 0;
            }
        }
    }

    /// How long the peer in a slot has done nothing.
    pub(crate) fn stalled_ns(&self, slot: SlotId) -> u64 {
        self.entry(slot).map_or(0, |entry| entry.stalled_ns)
    }

    /// Closes the channel to a slot. Unmapping its megabytes takes long, so the caller drops it
    /// when the engine's lock is free.
    #[must_use]
    pub(crate) fn close(&mut self, slot: SlotId) -> Option<Box<PeerChannel>> {
        self.open.remove(slot);
        self.doorbells.retain(|ring| *ring != slot);
        self.waited_for.retain(|waited| *waited != slot);
        self.by_slot[usize::from(slot.number())].take()
    }

    /// Notes that the process in a slot has to be woken if it sleeps.
    #[inline]
    pub(crate) fn note_doorbell(&mut self, slot: SlotId) {
        if self.doorbells.last() != Some(&slot) && !self.doorbells.contains(&slot) {
            self.doorbells.push(slot);
        }
    }

    /// Wakes the processes that have to be.
    #[inline(always)]
    pub(crate) fn ring_doorbells(&mut self) {
        if !self.doorbells.is_empty() {
            self.ring_all();
        }
    }

    #[inline(never)]
    fn ring_all(&mut self) {
        while let Some(slot) = self.doorbells.pop() {
            if let Some(channel) = self.get_mut(slot) {
                if channel.notify() {
                    probes::wake(slot.number());
                }
            }
        }
    }

    /// Whether a message waits that could be taken, or counts that this process waits for.
    pub(crate) fn have_work(&self) -> bool {
        let mut channels = self.open.iter().filter_map(|slot| self.entry(slot));
        channels.any(|entry| entry.channel.has_work())
    }

    /// Has the next sleep end when a peer rings.
    pub(crate) fn listen(&self, bells: &mut Bells) {
        self.page.listen(bells);
        for entry in self.open.iter().filter_map(|slot| self.entry(slot)) {
            entry.channel.listen(bells);
        }
    }
}
