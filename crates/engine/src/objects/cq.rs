//! Completion queues: rings in which room is reserved before a work request is accepted.
//!
//! Each attached send or receive queue of depth d reserves d entries. A queue accepts a request
//! only while its outstanding requests and its unpolled completions together are fewer than d, so a
//! push always finds room, whatever depth the application asked for. Completions of requests from a
//! shared receive queue cannot be reserved by a queue pair and are bounded when the request is
//! taken: none is taken while as many completions wait as the application asked for, and the sender
//! is asked to wait. Pushes happen under the engine's lock, pops do not. Both take the queue's own
//! lock (order: engine, queue).
//!
//! # Events
//!
//! An armed queue raises one event, with the next completion of the kind that was asked for. A
//! completion that came before the queue was armed raises an event at once if the application may
//! not learn of it otherwise. The specification leaves this open: a program that follows it polls
//! once more after it has armed the queue. Devices compare the consumer index that arms the queue
//! with their own, so programs that poll, arm and sleep (UCX) lose no completion on them.
//!
//! The application learns of a completion by an event from which it has not yet polled: it is
//! *announced* as long as the completion that raised the last event waits in the queue. A program
//! that takes an event, arms the queue and then polls therefore gets no event for what it is about
//! to poll.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::Arc;

use super::events::CompletionSink;
use crate::clock;
use crate::fault::{has, Fault};
use urdma_types::SlotId;
use urdma_zeroed::{zeroed, ZeroedSlice};

use crate::lock::SpinLock;
use crate::types::{EngineError, WorkCompletion, LIMITS};

/// What a completion queue is created with.
#[derive(Clone, Debug)]
pub struct CqConfig {
    /// Entries that the application asks for, 1..; more are reserved when the queues attached to it
    /// need them, so that it cannot overrun.
    pub depth: u32,
    /// The channel of its events, if any.
    pub channel: Option<Arc<dyn CompletionSink>>,
    /// The value that the channel's reader gets: the address of the `ibv_cq`.
    pub cookie: u64,
    /// Whether the time of each completion is recorded.
    pub keeps_time: bool,
}

impl CqConfig {
    /// A queue of `depth` entries without a channel, whose completions have no time.
    pub fn with_depth(depth: u32) -> Self {
        Self {
            depth,
            channel: None,
            cookie: 0,
            keeps_time: false,
        }
    }
}

/// Which completions raise an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// The next one.
    Any,
    /// The next one that the peer marked as solicited, or that failed.
    Solicited,
}

/// A completion queue; made by [`super::Engine::create_cq`].
#[derive(Debug)]
pub struct Cq {
    channel: Option<Arc<dyn CompletionSink>>,
    cookie: u64,
    /// The slot of the engine that the queue was created in, whose polls make progress.
    home: Option<SlotId>,
    /// Completions that wait; written under the lock, to be looked at without it.
    waiting: AtomicUsize,
    /// A push has more to do than to store: the queue is armed or keeps times. Written under the
    /// lock.
    is_watched: AtomicBool,
    /// Queue pairs that use it, counted once per queue.
    users: AtomicU32,
    ring: SpinLock<Ring>,
}

/// When a completion was pushed. Both clocks are read at that moment: a wall clock time that is
/// computed later from the other clock differs from one reading to the next by what lies between
/// reading the two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompletionTime {
    /// On the clock of [`super::Engine::clock_ns`].
    pub monotonic_ns: u64,
    /// Since 1970. While the system's clock is behind the newest completion of the queue, because
    /// it was set back, completions have that one's time.
    pub wall_ns: u64,
}

zeroed!(CompletionTime);

impl CompletionTime {
    /// The later of each.
    fn max(self, other: Self) -> Self {
        Self {
            monotonic_ns: self.monotonic_ns.max(other.monotonic_ns),
            wall_ns: self.wall_ns.max(other.wall_ns),
        }
    }
}

#[derive(Debug)]
struct Ring {
    entries: ZeroedSlice<WorkCompletion>,
    /// When each of them came; empty unless the queue keeps times.
    times: ZeroedSlice<CompletionTime>,
    keeps_time: bool,
    /// When the newest completion came; no later one may have come before.
    newest: CompletionTime,
    /// When the completion came that was taken last.
    taken: CompletionTime,
    /// Completions that were taken; the place of the oldest one that waits, beyond the room.
    head: usize,
    len: usize,
    armed: Option<Notify>,
    /// The value of `head` from which on the completion that raised the last event is taken.
    announced: usize,
    /// What the application asked for.
    depth: u32,
    /// What the attached queues need.
    reserved: u32,
    /// Attached queue pairs that take requests off a shared receive queue.
    shared_users: u32,
}

fn is_depth(depth: u32) -> bool {
    (1..=LIMITS.max_cqe).contains(&depth)
}

impl Cq {
    /// An empty queue that no engine polls.
    pub(crate) fn new(config: CqConfig) -> Result<Arc<Self>, EngineError> {
        Self::with_home(config, None)
    }

    /// An empty queue of the engine in a slot.
    pub(crate) fn of(config: CqConfig, slot: SlotId) -> Result<Arc<Self>, EngineError> {
        Self::with_home(config, Some(slot))
    }

    fn with_home(config: CqConfig, home: Option<SlotId>) -> Result<Arc<Self>, EngineError> {
        if !is_depth(config.depth) {
            return Err(EngineError::Invalid);
        }
        Ok(Arc::new(Self {
            channel: config.channel,
            cookie: config.cookie,
            home,
            waiting: AtomicUsize::new(0),
            is_watched: AtomicBool::new(config.keeps_time),
            users: AtomicU32::new(0),
            ring: SpinLock::new(Ring {
                entries: ZeroedSlice::default(),
                times: ZeroedSlice::default(),
                keeps_time: config.keeps_time,
                newest: CompletionTime::default(),
                taken: CompletionTime::default(),
                head: 0,
                len: 0,
                armed: None,
                announced: 0,
                depth: config.depth,
                reserved: 0,
                shared_users: 0,
            }),
        }))
    }

    /// The depth that the application asked for.
    pub fn depth(&self) -> u32 {
        self.ring.lock().depth
    }

    pub(crate) fn resize(&self, depth: u32) -> Result<(), EngineError> {
        let mut ring = self.ring.lock();
        if !is_depth(depth) || (depth as usize) < ring.len {
            return Err(EngineError::Invalid);
        }
        ring.depth = depth;
        ring.fit();
        Ok(())
    }

    pub(crate) fn is_used(&self) -> bool {
        self.users.load(Ordering::Relaxed) > 0
    }

    /// Attaches a queue of `entries`: reserves room for all of its completions.
    pub(crate) fn attach(&self, entries: u32) -> Result<(), EngineError> {
        self.reserve(entries)?;
        self.users.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Attaches a queue pair that takes requests from a shared receive queue, at most `entries` of
    /// them before they complete.
    pub(super) fn attach_shared(&self, entries: u32) -> Result<(), EngineError> {
        self.ring.lock().shared_users += 1;
        let attached = self.attach(entries);
        if attached.is_err() {
            self.ring.lock().shared_users -= 1;
        }
        attached
    }

    /// Undoes [`Cq::attach_shared`].
    pub(super) fn detach_shared(&self, entries: u32) {
        self.ring.lock().shared_users -= 1;
        self.detach(entries);
    }

    /// Reserves room for `entries` more completions of a queue that is attached.
    pub(crate) fn reserve(&self, entries: u32) -> Result<(), EngineError> {
        let mut ring = self.ring.lock();
        // RFC5040-8.1.1-9: each queue has room of its own.
        let reserved = ring.reserved.checked_add(entries);
        ring.reserved = reserved.ok_or(EngineError::NoMemory)?;
        ring.fit();
        Ok(())
    }

    /// Undoes [`Cq::reserve`].
    pub(super) fn unreserve(&self, entries: u32) {
        self.ring.lock().reserved -= entries;
    }

    /// Whether there is room for the completion of one more request from a shared receive queue,
    /// beside all that is reserved.
    pub(crate) fn takes_shared(&self) -> bool {
        let ring = self.ring.lock();
        ring.len < ring.depth as usize
    }

    /// Detaches a queue of `entries`; its completions must have been purged.
    pub(crate) fn detach(&self, entries: u32) {
        self.unreserve(entries);
        self.users.fetch_sub(1, Ordering::Relaxed);
    }

    /// Adds a completion, which is assembled in place, and notifies the channel when the queue is
    /// armed for it.
    #[inline(always)]
    pub(crate) fn push(&self, completion: &WorkCompletion) {
        let mut ring = self.ring.lock();
        let room = ring.entries.len();
        assert!(ring.len < room, "a completion without reserved room");
        let at = ring.head.wrapping_add(ring.len) & (room - 1);
        ring.entries[at] = *completion;
        ring.len += 1;
        self.waiting.store(ring.len, Ordering::Release);
        if self.is_watched.load(Ordering::Relaxed) {
            let solicited = completion.completion.solicited;
            let raises_event = ring.note_pushed(at, solicited);
            if raises_event {
                self.is_watched.store(ring.keeps_time, Ordering::Relaxed);
                self.set_armed(false);
            }
            drop(ring);
            if raises_event {
                self.notify();
            }
        }
    }

    #[cold]
    fn notify(&self) {
        if let Some(channel) = &self.channel {
            channel.notify(self.cookie);
        }
    }

    fn set_armed(&self, is_armed: bool) {
        if let Some(channel) = &self.channel {
            channel.set_armed(is_armed);
        }
    }

    /// Whether a completion waits.
    #[inline]
    pub(crate) fn has_completions(&self) -> bool {
        #[cfg(test)]
        crate::check::point();
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Whether the queue is empty, not armed, and keeps no times. The caller has the lock of an
    /// engine, which [`super::Engine::req_notify_cq`] takes after arming.
    #[inline(always)]
    pub(super) fn is_plainly_empty(&self) -> bool {
        !self.has_completions() && !self.is_watched.load(Ordering::Relaxed)
    }

    /// Removes up to `max` completions, oldest first.
    #[inline]
    pub(crate) fn pop(&self, max: usize, mut take: impl FnMut(&WorkCompletion)) -> usize {
        let mut ring = self.ring.lock();
        let count = ring.len.min(max);
        if ring.keeps_time && count > 0 {
            let last = ring.head.wrapping_add(count - 1) & (ring.entries.len() - 1);
            ring.taken = ring.times[last];
        }
        for offset in 0..count {
            let at = ring.head.wrapping_add(offset) & (ring.entries.len() - 1);
            take(&ring.entries[at]);
        }
        if has(Fault::PopUnlocked) {
            drop(ring);
            ring = self.ring.lock();
        }
        ring.head = ring.head.wrapping_add(count);
        ring.len -= count;
        self.waiting.store(ring.len, Ordering::Release);
        count
    }

    /// When the completion came that was taken last; zeroes if the queue does not keep times.
    pub fn taken(&self) -> CompletionTime {
        self.ring.lock().taken
    }

    /// Requests an event with the next completion of a kind, or at once: see the module. A request
    /// for any completion is not weakened by a later one for solicited completions.
    pub(crate) fn arm(&self, notify: Notify) {
        let mut ring = self.ring.lock();
        if ring.has_unannounced(notify) && !has(Fault::ArmUnseen) {
            let was_armed = ring.raise().is_some();
            self.is_watched.store(ring.keeps_time, Ordering::Relaxed);
            if was_armed {
                self.set_armed(false);
            }
            drop(ring);
            self.notify();
            return;
        }
        if ring.armed.is_none() {
            self.set_armed(true);
        }
        if ring.armed != Some(Notify::Any) {
            ring.armed = Some(notify);
        }
        self.is_watched.store(true, Ordering::Relaxed);
    }

    /// Whether the application waits for send completions of the engine in a slot without making
    /// progress there: the next one raises an event, or polls are those of another engine.
    pub(crate) fn is_awaited_from(&self, slot: SlotId) -> bool {
        self.home != Some(slot) || self.ring.lock().armed == Some(Notify::Any)
    }

    /// Removes the completions for which `is_gone` holds.
    pub(crate) fn purge(&self, mut is_gone: impl FnMut(&WorkCompletion) -> bool) {
        let mut ring = self.ring.lock();
        let (head, len) = (ring.head, ring.len);
        let mask = ring.entries.len().wrapping_sub(1);
        let place = |offset| head.wrapping_add(offset) & mask;
        let mut kept = 0;
        for offset in 0..len {
            let entry = ring.entries[place(offset)];
            if !is_gone(&entry) {
                ring.entries[place(kept)] = entry;
                if ring.keeps_time {
                    ring.times[place(kept)] = ring.times[place(offset)];
                }
                kept += 1;
            }
        }
        ring.len = kept;
        // The completion that raised the last event may be gone.
        ring.announced = head;
        self.waiting.store(ring.len, Ordering::Release);
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        if self.ring.lock().armed.is_some() {
            self.set_armed(false);
        }
    }
}

impl Ring {
    /// Makes room for all that may wait.
    fn fit(&mut self) {
        let shared = if self.shared_users > 0 { self.depth } else { 0 };
        let needed = (self.reserved as usize + shared as usize)
            .next_power_of_two()
            .max(16);
        if needed > self.entries.len() {
            self.grow(needed);
        }
    }

    /// Records the time of the completion at `at`, and returns whether it raises an event.
    #[cold]
    fn note_pushed(&mut self, at: usize, solicited: bool) -> bool {
        if self.keeps_time {
            self.newest = self.newest.max(CompletionTime {
                monotonic_ns: clock::now_ns(),
                wall_ns: clock::wall_ns(),
            });
            self.times[at] = self.newest;
        }
        let raises_event = match self.armed {
            Some(Notify::Any) => true,
            Some(Notify::Solicited) => solicited,
            None => false,
        };
        if raises_event {
            self.raise();
        }
        raises_event
    }

    /// The newest completion, or one before it, raises an event: returns what was armed, which is
    /// nothing then.
    fn raise(&mut self) -> Option<Notify> {
        self.announced = self.head.wrapping_add(self.len);
        self.armed.take()
    }

    /// Whether a completion of the kind waits, and none that has raised an event.
    fn has_unannounced(&self, notify: Notify) -> bool {
        let is_announced = self.announced.wrapping_sub(self.head).cast_signed() > 0;
        let mask = self.entries.len().wrapping_sub(1);
        let is_of_kind = |offset| {
            let entry = &self.entries[self.head.wrapping_add(offset) & mask];
            notify == Notify::Any || entry.completion.solicited
        };
        !is_announced && (0..self.len).any(is_of_kind)
    }

    fn grow(&mut self, room: usize) {
        let mut entries = ZeroedSlice::new(room);
        let mut times = ZeroedSlice::new(if self.keeps_time { room } else { 0 });
        for offset in 0..self.len {
            let position = self.head.wrapping_add(offset);
            let from = position & self.entries.len().wrapping_sub(1);
            let to = position & (room - 1);
            entries[to] = self.entries[from];
            if self.keeps_time {
                times[to] = self.times[from];
            }
        }
        self.times = times;
        self.entries = entries;
    }
}

#[cfg(test)]
mod schedules;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::events::CompletionChannel;
    use std::io::Read;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    fn wc(wr_id: u64, solicited: bool) -> WorkCompletion {
        let mut wc = WorkCompletion::NONE;
        wc.completion.wr_id = wr_id;
        wc.completion.solicited = solicited;
        wc
    }

    fn cq(channel: Option<Arc<dyn CompletionSink>>) -> Arc<Cq> {
        Cq::new(CqConfig {
            depth: 1,
            channel,
            cookie: 0xabcd,
            keeps_time: false,
        })
        .unwrap()
    }

    fn drain(cq: &Cq) -> Vec<u64> {
        let mut ids = Vec::new();
        cq.pop(usize::MAX, |wc| ids.push(wc.completion.wr_id));
        ids
    }

    #[test]
    fn reservation_of_attached_queues_holds_all_their_completions() {
        let cq = cq(None);
        cq.attach(10).unwrap();
        for id in 0..10 {
            cq.push(&wc(id, false));
        }
        assert_eq!(cq.pop(3, |_| {}), 3);
        cq.attach(100).unwrap();
        for id in 10..110 {
            cq.push(&wc(id, false));
        }
        assert_eq!(drain(&cq), (3..110).collect::<Vec<_>>());
        cq.detach(10);
        cq.detach(100);
        assert!(!cq.is_used());
    }

    #[test]
    fn shared_requests_are_taken_until_the_depth_waits() {
        let cq = cq(None);
        cq.attach(2).unwrap();
        cq.attach_shared(2).unwrap();
        cq.resize(20).unwrap();
        for id in 0..20 {
            assert!(cq.takes_shared());
            cq.push(&wc(id, false));
        }
        assert!(!cq.takes_shared());
        // What was reserved, and what was taken before, still finds room.
        for id in 20..24 {
            cq.push(&wc(id, false));
        }
        cq.pop(5, |_| {});
        assert!(cq.takes_shared());
        cq.detach_shared(2);
        assert_eq!(drain(&cq), (5..24).collect::<Vec<_>>());
    }

    #[test]
    #[should_panic(expected = "without reserved room")]
    fn push_without_reservation_is_a_bug() {
        cq(None).push(&wc(1, false));
    }

    #[test]
    fn purge_keeps_order_of_the_rest() {
        let cq = cq(None);
        cq.attach(16).unwrap();
        for id in 0..16 {
            cq.push(&wc(id, false));
        }
        cq.pop(5, |_| {});
        for id in 16..21 {
            cq.push(&wc(id, false));
        }
        cq.purge(|wc| wc.completion.wr_id % 2 == 0);
        assert_eq!(drain(&cq), [5, 7, 9, 11, 13, 15, 17, 19]);
        assert!(!cq.has_completions());
    }

    #[test]
    fn arm_raises_one_event_of_the_kind_asked_for() {
        let (mut read, write) = UnixStream::pair().unwrap();
        read.set_nonblocking(true).unwrap();
        let cq = cq(Some(CompletionChannel::new(OwnedFd::from(write))));
        cq.attach(16).unwrap();
        let mut octets = [0; 64];
        cq.arm(Notify::Solicited);
        cq.push(&wc(2, false));
        assert!(read.read(&mut octets).is_err());
        cq.push(&wc(3, true));
        cq.push(&wc(4, true));
        assert_eq!(read.read(&mut octets).unwrap(), 8);
        assert_eq!(octets[..8], 0xabcdu64.to_ne_bytes());
        cq.arm(Notify::Any);
        cq.arm(Notify::Solicited);
        cq.push(&wc(5, false));
        assert_eq!(read.read(&mut octets).unwrap(), 8);
    }

    #[test]
    fn arm_after_a_poll_raises_an_event_for_what_has_come_since() {
        let (mut read, write) = UnixStream::pair().unwrap();
        read.set_nonblocking(true).unwrap();
        let cq = cq(Some(CompletionChannel::new(OwnedFd::from(write))));
        cq.attach(16).unwrap();
        let mut octets = [0; 64];
        cq.push(&wc(1, false));
        cq.arm(Notify::Solicited);
        assert!(read.read(&mut octets).is_err(), "it is not solicited");
        cq.arm(Notify::Any);
        assert_eq!(read.read(&mut octets).unwrap(), 8);
        cq.push(&wc(2, false));
        assert!(read.read(&mut octets).is_err(), "the event was the one");
        // The one that is announced waits: the program polls after it has armed the queue.
        cq.arm(Notify::Any);
        assert!(read.read(&mut octets).is_err());
        assert_eq!(drain(&cq), [1, 2]);
        cq.push(&wc(3, false));
        assert_eq!(read.read(&mut octets).unwrap(), 8);
    }

    #[test]
    fn purge_of_the_announced_completion_leaves_the_others_unannounced() {
        let (mut read, write) = UnixStream::pair().unwrap();
        read.set_nonblocking(true).unwrap();
        let cq = cq(Some(CompletionChannel::new(OwnedFd::from(write))));
        cq.attach(64).unwrap();
        let mut octets = [0; 64];
        cq.arm(Notify::Any);
        cq.push(&wc(1, false));
        assert_eq!(read.read(&mut octets).unwrap(), 8);
        cq.push(&wc(2, false));
        cq.purge(|wc| wc.completion.wr_id == 1);
        cq.arm(Notify::Any);
        assert_eq!(read.read(&mut octets).unwrap(), 8);
    }

    #[test]
    fn times_are_those_of_the_push_through_growth_and_purge() {
        let cq = Cq::new(CqConfig {
            keeps_time: true,
            ..CqConfig::with_depth(1)
        })
        .unwrap();
        cq.attach(16).unwrap();
        let begin = clock::now_ns();
        for id in 0..16 {
            cq.push(&wc(id, false));
        }
        let end = clock::now_ns();
        cq.attach(100).unwrap();
        cq.purge(|wc| wc.completion.wr_id % 2 == 0);
        let mut last = begin;
        for _ in 0..8 {
            assert_eq!(cq.pop(1, |_| {}), 1);
            let taken = cq.taken().monotonic_ns;
            assert!((last..=end).contains(&taken));
            last = taken;
        }
    }

    #[test]
    fn times_stand_still_while_a_clock_is_behind() {
        let cq = Cq::new(CqConfig {
            keeps_time: true,
            ..CqConfig::with_depth(1)
        })
        .unwrap();
        cq.attach(16).unwrap();
        let ahead = CompletionTime {
            monotonic_ns: 0,
            wall_ns: u64::MAX,
        };
        cq.ring.lock().newest = ahead;
        cq.push(&wc(1, false));
        assert_eq!(cq.pop(1, |_| {}), 1);
        assert_eq!(cq.taken().wall_ns, u64::MAX);
        assert!((1..=clock::now_ns()).contains(&cq.taken().monotonic_ns));
    }

    #[test]
    fn resize_below_what_waits_is_refused() {
        let cq = cq(None);
        cq.attach(16).unwrap();
        cq.push(&wc(1, false));
        cq.push(&wc(2, false));
        assert_eq!(cq.resize(1), Err(EngineError::Invalid));
        assert_eq!(cq.resize(0), Err(EngineError::Invalid));
        cq.resize(2).unwrap();
        assert_eq!(cq.depth(), 2);
    }
}
