//! The sleep of the background thread, as applications and the thread share it. The rules are in
//! `threads/background.rs`.

use std::os::fd::RawFd;
use std::sync::atomic::{fence, AtomicBool, AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use urdma_abi::cancel::Disabled;
use urdma_waiting::local_events::LocalEvents;
use urdma_waiting::spins::Spins;
use urdma_waiting::{Bells, OwnPage, Parked, Seat};

use super::signals::SignalFile;
use crate::clock;
use crate::objects::cq::Cq;
use crate::objects::events::{events_raised, Awaits};
use crate::paths::lease_set;
use crate::shard::Shard;

/// Longest bounded sleep.
pub(crate) const NAP_MAX_NS: u64 = 1_000_000;
/// The same beside a driver that waits for connection management alone while other programs want
/// the processor: it may have to wait for some of their time slices before it returns, and each
/// wake-up of the background thread takes the processor from one of them.
const BUSY_NAP_MAX_NS: u64 = 4_000_000;
/// Polls since the last arming that make an application one that polls.
pub(crate) const POLLS_TO_TAKE_OVER: u32 = 8;
/// Empty polls in a row before the processor is yielded, about 20 us: by default, and when yielding
/// helps (see [`SleepControl::give_way`]).
const POLLS_TO_YIELD: (u32, u32) = (1024, 16);
/// Rounds of empty polls before a sleep in place of a yield.
const ROUNDS_TO_DOZE: u32 = 8;
/// A yield that returns sooner found no other thread that wanted the processor.
const YIELD_IDLE_NS: u64 = 1_000;
/// A yield that returns sooner ran a thread that yields too, such as the peer of this connection.
const YIELD_HELPED_NS: u64 = 50_000;
/// A yield that takes longer ran a thread that computes.
const YIELD_COMPUTES_NS: u64 = 500_000;
/// How long an application that polls in vain then sleeps briefly instead of yielding: a sleeping
/// thread is scheduled promptly on wake-up, one that spins or yields waits for a whole time slice
/// of every other thread.
const DOZE_FOR_NS: u64 = 50_000_000;
/// Length of such a sleep.
const DOZE_NS: u64 = 20_000;
/// Waits for an event that are not driven after threads have waited at once.
const REST_WAITS: u32 = 64;
pub(crate) const FOREVER: u64 = u64::MAX;
pub(crate) const MODE_POLL: u8 = 0;
pub(crate) const MODE_DOORBELL: u8 = 1;

/// When the background thread sleeps and what wakes it; see `threads/background.rs` for the rules.
pub(crate) struct SleepControl {
    pub(crate) page: Arc<OwnPage>,
    /// The set in which the leased queue raises events, and the wake socket; see
    /// `threads/lease_sleep.rs`.
    pub(crate) lease_set: Option<RawFd>,
    /// Signals that end a sleep on that set.
    pub(crate) signal_file: SignalFile,
    /// Which thread makes turns and sleeps: the background thread, or one that waits for an event.
    pub(crate) seat: Seat,
    pub(crate) bystanders: Bystanders,
    pub(crate) spins: Spins,
    /// Those of waits for connection management alone.
    pub(crate) cm_spins: Spins,
    /// Whether a driver spins after it has served a peer without an event of the program.
    pub(crate) serving_spins: Spins,
    /// What the driver waits for: a value of [`Awaits`].
    driver_awaits: AtomicU8,
    /// When a driver that is away last made a turn, in nanoseconds.
    pub(crate) turn_at: AtomicU64,
    /// A thread before which the driver gives way wants the seat.
    is_seat_wanted: AtomicBool,
    /// Events that a driver keeps in memory.
    pub(crate) local_events: Arc<LocalEvents>,
    /// Events of completion channels when a thread has last looked for events of a set.
    events_looked_for: AtomicU32,
    /// Polls by applications; written under the engine's lock.
    pub(crate) polls: AtomicU64,
    /// When the thread's sleep ends by itself, in nanoseconds; 0 while it is awake. Written under
    /// the engine's lock.
    pub(crate) wake_at: AtomicU64,
    pub(crate) is_bounded: AtomicBool,
    kicked: AtomicBool,
    /// The thread naps and does not listen to the bells of peers.
    is_deaf: AtomicBool,
    pub(crate) mode: AtomicU8,
    /// Empty polls until the application's thread yields.
    polls_to_yield: AtomicU32,
    /// Until when it sleeps briefly instead, nanoseconds.
    doze_until: AtomicU64,
}

/// Threads that wait for an event in the kernel while another thread drives the engine.
///
/// Such a thread is *quiet* while another one waits again and again: its own events are rare then,
/// and may be late by a bounded sleep of the background thread. UCX has one of that kind for each
/// worker.
#[derive(Debug, Default)]
pub(crate) struct Bystanders {
    /// A thread that is cancelled stays counted.
    count: AtomicU32,
    /// Waits that are still to be left to the background thread.
    rest_waits: AtomicU32,
    /// The thread that was the last to become one.
    last: AtomicUsize,
    /// How often it has since another one did.
    in_a_row: AtomicU32,
}

/// A number of the calling thread.
fn own_number() -> usize {
    thread_local! {
        static OWN: u8 = const { 0 };
    }
    OWN.try_with(|own| std::ptr::from_ref(own).addr())
        .unwrap_or(0)
}

impl Bystanders {
    /// Whether a thread that is about to wait may drive.
    pub(crate) fn allow_driver(&self) -> bool {
        let order = Ordering::Relaxed;
        let less = |left: u32| left.checked_sub(1);
        let rests = self.rest_waits.fetch_update(order, order, less).is_ok();
        !rests && !self.need_progress()
    }

    /// Whether there are any that are not quiet beside the calling thread.
    pub(crate) fn need_progress(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
            && (self.in_a_row.load(Ordering::Relaxed) < REST_WAITS
                || self.last.load(Ordering::Relaxed) != own_number())
    }

    /// Leaves the next waits to the background thread.
    pub(crate) fn rest(&self) {
        self.rest_waits.store(REST_WAITS, Ordering::Relaxed);
    }

    /// The calling thread becomes one; returns how often it has in a row.
    pub(crate) fn enter(&self) -> u32 {
        self.count.fetch_add(1, Ordering::Relaxed);
        if self.last.swap(own_number(), Ordering::Relaxed) != own_number() {
            self.in_a_row.store(0, Ordering::Relaxed);
        }
        self.in_a_row
            .fetch_add(1, Ordering::Relaxed)
            .wrapping_add(1)
    }

    pub(crate) fn leave(&self) {
        let less = |count: u32| count.checked_sub(1);
        // It may have entered at another engine, whose urdmad has ended.
        let _ = self
            .count
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

impl SleepControl {
    pub(crate) fn new(page: Arc<OwnPage>, lease_set: Option<RawFd>) -> Self {
        Self {
            page,
            lease_set,
            signal_file: SignalFile::default(),
            seat: Seat::default(),
            bystanders: Bystanders::default(),
            spins: Spins::new(),
            cm_spins: Spins::new(),
            serving_spins: Spins::new(),
            turn_at: AtomicU64::new(0),
            driver_awaits: AtomicU8::new(Awaits::Completions as u8),
            is_seat_wanted: AtomicBool::new(false),
            local_events: Arc::default(),
            events_looked_for: AtomicU32::new(0),
            polls: AtomicU64::new(0),
            wake_at: AtomicU64::new(0),
            is_bounded: AtomicBool::new(false),
            kicked: AtomicBool::new(false),
            is_deaf: AtomicBool::new(false),
            mode: AtomicU8::new(MODE_POLL),
            polls_to_yield: AtomicU32::new(POLLS_TO_YIELD.0),
            doze_until: AtomicU64::new(0),
        }
    }

    /// Notes a poll of an application; `found` says whether it found a completion. Returns true if
    /// the thread should call [`SleepControl::give_way`], after several empty polls: on a busy
    /// machine the peer may be waiting for this processor.
    #[inline]
    pub(crate) fn polled(&self, shard: &mut Shard, cq: &Cq, found: bool) -> bool {
        self.polls.store(
            self.polls.load(Ordering::Relaxed).wrapping_add(1),
            Ordering::Relaxed,
        );
        shard.polls_since_armed = shard.polls_since_armed.saturating_add(1);
        let is_doorbell = self.mode.load(Ordering::Relaxed) == MODE_DOORBELL;
        if found {
            shard.empty_polls = 0;
            if is_doorbell && !self.page.is_parked() && !shard.channels.have_work() {
                self.hand_over(shard);
            }
        } else {
            shard.empty_polls = shard.empty_polls.saturating_add(1);
            shard.empty_rounds.note(cq);
        }
        let polls = if is_doorbell {
            shard.empty_polls
        } else {
            shard.polls_since_armed
        };
        if polls >= POLLS_TO_TAKE_OVER && self.page.is_parked() {
            self.take_over();
        }
        self.wake_if_due(shard);
        if shard.empty_polls < self.polls_to_yield.load(Ordering::Relaxed) {
            return false;
        }
        shard.empty_polls = POLLS_TO_TAKE_OVER;
        // A sleep for each few of many queues would leave the others' completions waiting.
        shard.empty_rounds.take(ROUNDS_TO_DOZE) || !self.dozes()
    }

    /// Whether an application sleeps at present instead of yielding.
    #[cold]
    fn dozes(&self) -> bool {
        clock::now_ns() < self.doze_until.load(Ordering::Relaxed)
    }

    /// Yields the processor after many empty polls, and adapts to the outcome.
    ///
    /// Two programs that wait for one another on one processor lose a time slice, milliseconds, at
    /// every message unless they yield; then it is microseconds. If a yield returns soon, the next
    /// one happens after fewer polls. If it returns late, a thread that computes had the processor:
    /// for a while the application sleeps briefly instead.
    #[cold]
    pub(crate) fn give_way(&self) {
        let before = clock::now_ns();
        if before < self.doze_until.load(Ordering::Relaxed) {
            let _uncancelled = Disabled::new();
            std::thread::sleep(Duration::from_nanos(DOZE_NS));
            return;
        }
        std::thread::yield_now();
        let after = clock::now_ns();
        let away_ns = after.saturating_sub(before);
        if away_ns >= YIELD_COMPUTES_NS {
            self.doze_until
                .store(after + DOZE_FOR_NS, Ordering::Relaxed);
            self.polls_to_yield
                .store(POLLS_TO_YIELD.1, Ordering::Relaxed);
            return;
        }
        let polls = if (YIELD_IDLE_NS..YIELD_HELPED_NS).contains(&away_ns) {
            POLLS_TO_YIELD.1
        } else {
            let polls = self.polls_to_yield.load(Ordering::Relaxed);
            (polls * 2).min(POLLS_TO_YIELD.0)
        };
        self.polls_to_yield.store(polls, Ordering::Relaxed);
    }

    /// Has senders ring from now on. What they have sent before wakes the thread at once.
    #[inline]
    fn hand_over(&self, shard: &mut Shard) {
        shard.await_counts();
        self.page.hand_over();
        if shard.channels.have_work() || self.is_deaf.load(Ordering::SeqCst) {
            self.page.unpark();
        }
    }

    #[cold]
    fn take_over(&self) {
        if self.page.take_over() && !self.is_bounded.load(Ordering::SeqCst) {
            self.page.unpark();
        }
    }

    /// Notes that an application has armed a completion queue: it is about to sleep.
    pub(crate) fn armed(&self, shard: &mut Shard) {
        shard.polls_since_armed = 0;
        shard.empty_polls = 0;
        if self.page.is_parked() {
            // The thread may wait for other counts.
            shard.await_counts();
            self.page.fence_before_look();
            if shard.channels.have_work() {
                self.page.unpark();
            }
        } else if !self.seat.is_away() {
            // A driver that is away looks before it sleeps.
            self.hand_over(shard);
        } else {
            return;
        }
        let lease = shard.lease.as_mut();
        if let Some(lease) = lease.filter(|lease| lease.interrupts().is_some()) {
            // A thread in a nap does not wait for interrupts.
            if lease.unmask() || !self.page.is_selecting() {
                self.page.unpark();
            }
        }
    }

    /// Longest bounded sleep of the background thread beside a driver.
    pub(crate) fn away_max_ns(&self) -> u64 {
        if self.cm_spins.are_brief(clock::now_ns) {
            BUSY_NAP_MAX_NS
        } else {
            NAP_MAX_NS
        }
    }

    /// After a change under the lock: wakes the thread if it would otherwise sleep past work that
    /// only it does.
    #[inline]
    pub(crate) fn wake_if_due(&self, shard: &mut Shard) {
        if shard.qps.wheel.take_moved()
            || shard.is_blocked
            || !shard.process.notes.is_empty()
            || shard.batch.has_begun()
        {
            self.wake_if_earlier(shard);
        }
    }

    #[cold]
    fn wake_if_earlier(&self, shard: &Shard) {
        let wake_at = self.wake_at.load(Ordering::SeqCst);
        let due = if !shard.process.notes.is_empty() {
            1
        } else {
            let timer = shard.qps.next_look_ns().unwrap_or(FOREVER);
            if shard.is_blocked || !shard.batch.is_empty() {
                timer.min(clock::now_ns() + NAP_MAX_NS)
            } else {
                timer
            }
        };
        if due < wake_at {
            self.kick();
        }
    }

    /// Wakes the thread, once until it has listened again.
    pub(crate) fn kick(&self) {
        if !self.kicked.swap(true, Ordering::SeqCst) {
            self.page.unpark();
        }
    }

    /// Sleeps until one of the bells rings; `has_work` looks once more at what they are rung for.
    pub(crate) fn sleep(
        &self,
        bells: &Bells,
        until_ns: u64,
        naps: bool,
        has_work: impl Fn() -> bool,
    ) -> Parked {
        let timeout = (until_ns != FOREVER)
            .then(|| Duration::from_nanos(until_ns.saturating_sub(clock::now_ns())));
        let parked = match timeout {
            // An application polls: senders need not ring.
            Some(limit) if naps && !self.page.is_parked() => {
                if bells.are_many() {
                    self.nap_deaf(bells, limit)
                } else {
                    self.page.nap(bells, limit)
                }
            }
            _ => self.page.park(bells, timeout, has_work),
        };
        self.wake_at.store(0, Ordering::SeqCst);
        parked
    }

    /// As [`SleepControl::sleep`], in a call on descriptors: see [`OwnPage::park_in_call`].
    pub(crate) fn sleep_in_call<T>(
        &self,
        bells: &Bells,
        until_ns: u64,
        has_work: impl Fn() -> bool,
        sleep: impl FnOnce(Option<Duration>) -> T,
    ) -> Option<T> {
        let limit = (until_ns != FOREVER)
            .then(|| Duration::from_nanos(until_ns.saturating_sub(clock::now_ns())));
        let slept = self.page.park_in_call(bells, has_work, || sleep(limit));
        self.wake_at.store(0, Ordering::SeqCst);
        slept
    }

    /// The descriptor that ends a sleep in a call on descriptors.
    pub(crate) fn wake_descriptor(&self) -> Option<RawFd> {
        let socket = self.page.socket()?;
        Some(self.lease_set.unwrap_or(socket.descriptor()))
    }

    /// Takes what has made that descriptor readable.
    pub(crate) fn take_wake_up(&self) {
        let look = |set| lease_set::wait(set, Some(Duration::ZERO)).is_woken;
        if self.lease_set.is_none_or(look) {
            self.take_wake_message();
        }
    }

    /// Takes a message of a peer that has woken a thread in a call on descriptors.
    pub(crate) fn take_wake_message(&self) {
        if let Some(socket) = self.page.socket() {
            socket.take();
        }
    }

    /// Whether completion channels had events since a thread has looked for events of its set.
    pub(crate) fn may_have_events(&self) -> bool {
        events_raised() != self.events_looked_for.load(Ordering::Relaxed)
    }

    /// A thread is about to look for events of its set.
    pub(crate) fn looks_for_events(&self) {
        let raised = events_raised();
        self.events_looked_for.store(raised, Ordering::Relaxed);
    }

    /// A driver sits down that waits for this; one for anything but completions says so again, with
    /// these, when it leaves.
    pub(crate) fn set_driver(&self, awaits: Awaits) {
        self.is_seat_wanted.store(false, Ordering::SeqCst);
        self.driver_awaits.store(awaits as u8, Ordering::SeqCst);
    }

    /// A thread that waits for this has not got the seat, `in_a_row` times: has it free for the
    /// next wait if the driver gives way before it, or has sat all the time.
    pub(crate) fn want_seat(&self, awaits: Awaits, in_a_row: u32) {
        let is_due = in_a_row.is_multiple_of(REST_WAITS);
        if is_due || self.driver_awaits.load(Ordering::SeqCst) < awaits as u8 {
            self.is_seat_wanted.store(true, Ordering::SeqCst);
            self.page.unpark();
        }
    }

    pub(crate) fn is_seat_wanted(&self) -> bool {
        self.is_seat_wanted.load(Ordering::SeqCst)
    }

    /// Naps without listening to the bells of peers.
    fn nap_deaf(&self, bells: &Bells, limit: Duration) -> Parked {
        self.is_deaf.store(true, Ordering::SeqCst);
        // Either this sees that peers are asked to ring, or `hand_over` that the thread is deaf.
        fence(Ordering::SeqCst);
        let parked = if self.page.is_parked() {
            Parked::HadWork
        } else {
            self.page.nap_deaf(bells, limit)
        };
        self.is_deaf.store(false, Ordering::SeqCst);
        parked
    }

    /// The thread has read its bells before it sleeps, and has not yet released the lock: what is
    /// changed from now on wakes it. A kick before that has changed the bell that was read, and
    /// must not stand for later ones.
    pub(crate) fn listens(&self) {
        self.kicked.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use urdma_waiting::spins::{Spin, Spun};

    use super::*;
    use crate::objects::cq::CqConfig;

    // A process that was offered a channel slept on, and the first message over it waited.
    #[test]
    fn kick_after_the_thread_listened_wakes_it_whatever_came_before() {
        let page = Arc::new(OwnPage::create().unwrap().0);
        let control = SleepControl::new(Arc::clone(&page), None);
        let mut bells = Bells::default();
        control.kick();
        page.listen(&mut bells);
        control.listens();
        control.kick();
        let parked = page.park(&bells, Some(Duration::from_secs(10)), || false);
        assert_eq!(parked, Parked::Woken);
    }

    // Twenty processes that connected woke their background threads 20,000 times a second.
    #[test]
    fn naps_beside_a_driver_are_longer_while_other_programs_want_the_processor() {
        let page = Arc::new(OwnPage::create().unwrap().0);
        let control = SleepControl::new(page, None);
        assert_eq!(control.away_max_ns(), NAP_MAX_NS);
        let late = |spins: &Spins| spins.learn(Spin::Patient, Spun::Busy, clock::now_ns);
        late(&control.spins);
        assert_eq!(control.away_max_ns(), NAP_MAX_NS, "others wait for data");
        late(&control.cm_spins);
        assert_eq!(control.away_max_ns(), BUSY_NAP_MAX_NS);
    }

    // A completion queue that is armed while the thread naps without the bells of its peers.
    #[test]
    fn arming_wakes_a_thread_that_naps_without_listening() {
        let instance = crate::rig::instance();
        let parts = crate::rig::parts(&instance, 1);
        let engine = urdma_engine::Engine::start_without_thread(parts).unwrap();
        let control = &engine.sleep_control;
        let mut bells = Bells::default();
        engine.shard.lock().channels.listen(&mut bells);
        let begin = std::time::Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| control.nap_deaf(&bells, Duration::from_secs(30)));
            while !control.is_deaf.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            control.armed(&mut engine.shard.lock());
        });
        assert!(begin.elapsed() < Duration::from_secs(20));
    }

    /// How often a program sleeps that polls `queues` in turn, `rounds` times each, while other
    /// programs compute.
    fn sleeps(queues: usize, rounds: usize) -> usize {
        let instance = crate::rig::instance();
        let parts = crate::rig::parts(&instance, 1);
        let engine = urdma_engine::Engine::start_without_thread(parts).unwrap();
        let new = |_| engine.create_cq(CqConfig::with_depth(1)).unwrap();
        let queues: Vec<_> = (0..queues).map(new).collect();
        let control = &engine.sleep_control;
        control
            .polls_to_yield
            .store(POLLS_TO_YIELD.1, Ordering::Relaxed);
        control.doze_until.store(FOREVER, Ordering::Relaxed);
        let mut shard = engine.shard.lock();
        let polls = (0..rounds).flat_map(|_| &queues);
        polls
            .filter(|cq| control.polled(&mut shard, cq, false))
            .count()
    }

    // Beside programs that compute, one that polled 256 queues slept 32 times in each round.
    #[test]
    fn program_that_polls_many_queues_looks_at_all_of_them_before_it_sleeps() {
        assert_eq!(sleeps(256, 29), 4);
        assert_eq!(sleeps(1, 96), 11);
    }

    #[test]
    fn waits_are_left_to_the_background_thread_while_and_after_several_threads_wait() {
        let bystanders = Bystanders::default();
        assert!(bystanders.allow_driver());
        bystanders.enter();
        assert!(!bystanders.allow_driver());
        bystanders.leave();
        assert!(bystanders.allow_driver());
        bystanders.rest();
        assert!((0..REST_WAITS).all(|_| !bystanders.allow_driver()));
        assert!(bystanders.allow_driver());
    }

    fn enters_on_another_thread(bystanders: &Bystanders) {
        std::thread::scope(|scope| {
            scope.spawn(|| bystanders.enter()).join().unwrap();
        });
    }

    // Beside one that only waited, each message of another thread woke the background thread first.
    #[test]
    fn thread_that_alone_waits_again_and_again_drives_beside_a_quiet_one() {
        let bystanders = Bystanders::default();
        enters_on_another_thread(&bystanders);
        for wait in 1..=REST_WAITS {
            assert!(!bystanders.allow_driver(), "{wait}");
            assert_eq!(bystanders.enter(), wait);
            bystanders.leave();
        }
        assert!(bystanders.allow_driver());
        bystanders.leave();
        enters_on_another_thread(&bystanders);
        assert!(!bystanders.allow_driver(), "the other one has had an event");
    }
}
