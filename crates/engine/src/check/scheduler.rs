//! One thread at a time, in an order that a seed decides.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;

use urdma_types::Rng;

use crate::fault::Fault;

/// Time that passes with each step.
const STEP_NS: u64 = 200;
/// Nothing is as late.
const SLEEP_MAX_NS: u64 = 1_000_000_000;
/// No schedule has as many steps.
const STEPS_MAX: u64 = 400_000;
/// No end of a sleep.
pub(crate) const FOREVER: u64 = u64::MAX;
/// When schedules begin.
const BEGIN_NS: u64 = 1_000_000_000;

thread_local! {
    static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) };
}

/// What a thread knows of the schedule that it is in.
struct Current {
    scheduler: Arc<Scheduler>,
    /// None while it prepares the schedule, alone.
    me: Option<usize>,
}

/// See the module.
pub(crate) struct Scheduler {
    clock_ns: AtomicU64,
    fault: Option<Fault>,
    state: Mutex<State>,
}

struct State {
    rng: Rng,
    /// The steps of a hundred in which the thread goes on.
    stays_percent: u64,
    threads: Vec<Lane>,
    running: Option<usize>,
    steps: u64,
    finding: Option<String>,
    /// A digest of the schedule.
    trace: u64,
}

/// A thread.
struct Lane {
    name: &'static str,
    handle: Option<Thread>,
    /// How often it is chosen.
    weight: u64,
    /// When its sleep ends by itself.
    sleeps_until: Option<u64>,
    /// It has looked in vain since another thread has done anything.
    has_looked: bool,
    has_ended: bool,
}

/// A thread to run, and its name in findings.
pub(super) type Named<'a> = (&'static str, Box<dyn FnOnce() + Send + 'a>);

/// The payload of the unwinding of threads whose schedule has a finding.
struct Abandoned;

/// A thread may be replaced by another one here.
pub(crate) fn point() {
    with(|current| {
        if let Some(me) = current.me {
            current.scheduler.step(me);
        }
    });
}

/// The time in the schedule of this thread.
pub(crate) fn now_ns() -> Option<u64> {
    with(|current| current.scheduler.now_ns())
}

/// The fault in the schedule of this thread.
pub(crate) fn fault() -> Option<Fault> {
    with(|current| current.scheduler.fault).flatten()
}

/// Random bits of the schedule of this thread.
pub(crate) fn random() -> Option<u64> {
    with(|current| current.scheduler.lock().rng.bits())
}

/// Sleeps until `is_over`, or until the clock reaches `until_ns`.
pub(crate) fn sleep(until_ns: u64, mut is_over: impl FnMut() -> bool) {
    let set = |until| {
        with(|current| {
            let mut state = current.scheduler.lock();
            if let Some(me) = current.me {
                state.threads[me].sleeps_until = until;
            }
            if until.is_none() {
                state.note_change();
            }
        });
    };
    while !is_over() && now_ns().is_some_and(|now| now < until_ns) {
        set(Some(until_ns));
        point();
    }
    set(None);
}

fn with<T>(look: impl FnOnce(&Current) -> T) -> Option<T> {
    let found = CURRENT.try_with(|current| {
        let current = current.try_borrow().ok()?;
        current.as_ref().map(look)
    });
    found.ok().flatten()
}

impl Scheduler {
    /// Of a seed; the calling thread prepares the schedule until it is [`Scheduler::run`].
    pub(crate) fn new(seed: u64, fault: Option<Fault>) -> Arc<Self> {
        let mut rng = Rng::new(seed);
        let stays_percent = [0, 30, 60, 90, 98][rng.below_len(5)];
        let scheduler = Arc::new(Self {
            clock_ns: AtomicU64::new(BEGIN_NS),
            fault,
            state: Mutex::new(State {
                rng,
                stays_percent,
                threads: Vec::new(),
                running: None,
                steps: 0,
                finding: None,
                trace: 0,
            }),
        });
        scheduler.enter(None);
        scheduler
    }

    /// Runs threads until all have ended; gives the digest of the schedule.
    pub(crate) fn run(self: &Arc<Self>, threads: Vec<Named<'_>>) -> Result<u64, String> {
        let mut state = self.lock();
        for (name, _) in &threads {
            let weight = [1, 4, 16][state.rng.below_len(3)];
            state.threads.push(Lane {
                name,
                handle: None,
                weight,
                sleeps_until: None,
                has_looked: false,
                has_ended: false,
            });
        }
        drop(state);
        std::thread::scope(|scope| {
            let threads = threads.into_iter().enumerate();
            let started: Vec<_> = threads
                .map(|(me, (_, run))| scope.spawn(move || self.run_thread(me, run)))
                .collect();
            let mut state = self.lock();
            for (lane, thread) in state.threads.iter_mut().zip(&started) {
                lane.handle = Some(thread.thread().clone());
            }
            let first = state.pick(0);
            self.hand_over(state, first);
        });
        let state = self.lock();
        match &state.finding {
            Some(finding) => Err(finding.clone()),
            None => Ok(state.trace),
        }
    }

    fn run_thread(self: &Arc<Self>, me: usize, run: Box<dyn FnOnce() + Send + '_>) {
        self.enter(Some(me));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            self.await_turn(me);
            run();
        }));
        CURRENT.take();
        let mut state = self.lock();
        state.threads[me].has_ended = true;
        state.note_change();
        if let Err(payload) = outcome {
            let text = payload.downcast_ref::<String>().cloned();
            let text = text.or_else(|| payload.downcast_ref::<&str>().map(ToString::to_string));
            let name = state.threads[me].name;
            if !payload.is::<Abandoned>() {
                state.find(format!("{name}: {}", text.unwrap_or_default()));
            }
        }
        let next = state.pick(me);
        self.hand_over(state, next);
    }

    fn enter(self: &Arc<Self>, me: Option<usize>) {
        let scheduler = Arc::clone(self);
        CURRENT.set(Some(Current { scheduler, me }));
    }

    /// The calling thread, which has prepared the schedule, leaves it.
    pub(crate) fn leave() {
        CURRENT.take();
    }

    fn now_ns(&self) -> u64 {
        self.clock_ns.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn step(&self, me: usize) {
        if std::thread::panicking() {
            return;
        }
        self.clock_ns.fetch_add(STEP_NS, Ordering::Relaxed);
        let mut state = self.lock();
        state.steps += 1;
        if state.steps > STEPS_MAX {
            state.find("does not end".to_owned());
        }
        if state.threads[me].sleeps_until.is_some() {
            state.threads[me].has_looked = true;
        } else {
            state.note_change();
        }
        let mut lanes = state.threads.iter();
        if lanes.all(|lane| lane.has_ended || lane.has_looked) {
            self.skip_sleep(&mut state);
        }
        let next = state.pick(me);
        if next != Some(me) || state.finding.is_some() {
            self.hand_over(state, next);
            self.await_turn(me);
        }
    }

    /// All threads sleep: lets the time pass until the first one wakes up.
    fn skip_sleep(&self, state: &mut State) {
        state.note_change();
        let alive = state.threads.iter().filter(|lane| !lane.has_ended);
        match alive.filter_map(|lane| lane.sleeps_until).min() {
            Some(until) if until < self.now_ns() + SLEEP_MAX_NS => {
                self.clock_ns.fetch_max(until, Ordering::Relaxed);
            }
            _ => state.find("all threads sleep".to_owned()),
        }
    }

    fn hand_over(&self, mut state: MutexGuard<'_, State>, next: Option<usize>) {
        state.running = next;
        let has_finding = state.finding.is_some();
        let lanes = state.threads.iter().enumerate();
        let woken: Vec<_> = lanes
            .filter(|(number, _)| has_finding || Some(*number) == next)
            .filter_map(|(_, lane)| lane.handle.clone())
            .collect();
        drop(state);
        woken.iter().for_each(Thread::unpark);
    }

    fn await_turn(&self, me: usize) {
        loop {
            let state = self.lock();
            if state.finding.is_some() {
                drop(state);
                std::panic::resume_unwind(Box::new(Abandoned));
            }
            if state.running == Some(me) {
                return;
            }
            drop(state);
            std::thread::park();
        }
    }
}

impl State {
    /// The thread that runs next.
    fn pick(&mut self, me: usize) -> Option<usize> {
        let is_awake = |lane: &Lane| !lane.has_ended && lane.sleeps_until.is_none();
        if is_awake(&self.threads[me]) && self.rng.below(100) < self.stays_percent {
            return Some(me);
        }
        let weight = |lane: &Lane| if lane.has_ended { 0 } else { lane.weight };
        let total = self.threads.iter().map(weight).sum();
        let mut chosen = self.rng.below(total);
        let next = self.threads.iter().position(|lane| {
            let is_here = chosen < weight(lane);
            chosen = chosen.saturating_sub(weight(lane));
            is_here
        });
        let digit = next.map_or(0, |next| next as u64 + 1);
        self.trace = (self.trace ^ digit).wrapping_mul(0x100_0000_01b3);
        next
    }

    /// Threads that sleep have to look again.
    fn note_change(&mut self) {
        self.threads
            .iter_mut()
            .for_each(|lane| lane.has_looked = false);
    }

    fn find(&mut self, finding: String) {
        let lanes = self.threads.iter().filter(|lane| !lane.has_ended);
        let alive: Vec<_> = lanes.map(|lane| lane.name).collect();
        let steps = self.steps;
        let described = format!("{finding}; step {steps}, alive: {alive:?}");
        self.finding.get_or_insert(described);
    }
}
