//! READs, and Writes and receive requests between them, whose queue pair goes to ERR.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use urdma_engine::{
    Access, CompletionSink, CqConfig, Engine, Gid, Notify, PostError, QpConfig, QpModify, QpState,
    SendOp, Status, WorkCompletion,
};
use urdma_types::{seeds, Rng};
use urdma_waiting::{Bells, Parked};
use urdmad::data::{loopback_ports, InProcess as Daemon};

use super::scheduler::{now_ns, point, sleep, Named, Scheduler, FOREVER};
use crate::fault::Fault;
use crate::rig::{address, connect, engine_of_host, instance, parts, qp_config, End, MTU};
use crate::threads::turns::Turns;

/// Requests of a thread at most: more than a batch takes.
const POSTS_MAX: usize = 24;
/// Threads that post, at most.
const POSTERS_MAX: usize = 2;
/// Octets of a READ at most: several packets between hosts.
const READ_MAX: usize = 3000;

/// How the peer is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Channel,
    Forwarded,
}

/// How a thread waits for completions.
#[derive(Clone, Copy, Debug)]
enum Waits {
    Polls,
    /// As the manual page of `ibv_get_cq_event` has it.
    ArmsThenPolls,
    /// As UCX does.
    PollsThenArms,
}

/// What a schedule consists of.
#[derive(Debug)]
struct Plan {
    way: Way,
    posts: Vec<u64>,
    waits: Vec<Waits>,
    read_octets: usize,
    depth: u32,
    /// Steps before the queue pair goes to ERR; none if it does when all has completed.
    fails_after: Option<u64>,
    /// Steps before the peer does anything; none if it never does.
    answers_after: Option<u64>,
    receives_percent: u64,
    writes_percent: u64,
}

impl Plan {
    fn new(rng: &mut Rng) -> Self {
        let some = |rng: &mut Rng, from: u64, to: u64| from + rng.below(to - from + 1);
        let pollers = some(rng, 1, 2);
        let sleeps = rng.below(2) == 0;
        let waits = |rng: &mut Rng| match rng.below(2) {
            _ if !sleeps => Waits::Polls,
            0 => Waits::ArmsThenPolls,
            _ => Waits::PollsThenArms,
        };
        let answers_after = [Some(0), Some(0), Some(50), None][rng.below_len(4)];
        let receives_percent = [0, 20][rng.below_len(2)];
        let may_complete = answers_after.is_some() && receives_percent == 0;
        Self {
            way: [Way::Channel, Way::Channel, Way::Forwarded][rng.below_len(3)],
            posts: (0..some(rng, 1, POSTERS_MAX as u64))
                .map(|_| some(rng, 1, POSTS_MAX as u64))
                .collect(),
            // An event is for one thread.
            waits: (0..if sleeps { 1 } else { pollers })
                .map(|_| waits(rng))
                .collect(),
            read_octets: [8, 8, READ_MAX][rng.below_len(3)],
            depth: [2, 8, 128][rng.below_len(3)],
            fails_after: match rng.below_len(5) {
                4 if may_complete => None,
                at => Some([0, 20, 100, 400][at % 4]),
            },
            answers_after,
            receives_percent,
            writes_percent: [0, 30, 100][rng.below_len(3)],
        }
    }
}

/// A completion channel: the events that came.
#[derive(Debug, Default)]
struct Events(AtomicU32);

impl CompletionSink for Events {
    fn notify(&self, _: u64) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A completion that a thread has polled, and what the memory of a READ was then.
struct Polled {
    poster: usize,
    number: usize,
    is_receive: bool,
    status: Status,
    memory: Option<Vec<u8>>,
}

/// A program and its peer.
struct World {
    plan: Plan,
    a: End,
    b: End,
    events: Arc<Events>,
    posting: AtomicUsize,
    has_failed: AtomicBool,
    posted: AtomicUsize,
    polled: AtomicUsize,
    /// Requests of each thread: sends and receives.
    accepted: Mutex<[[usize; 2]; POSTERS_MAX]>,
}

impl World {
    fn is_over(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed) && self.is_complete()
    }

    fn is_complete(&self) -> bool {
        self.posting.load(Ordering::Relaxed) == 0
            && self.polled.load(Ordering::Relaxed) >= self.posted.load(Ordering::Relaxed)
    }

    fn place(&self, poster: usize, number: usize) -> usize {
        (poster * POSTS_MAX + number) * self.plan.read_octets
    }

    /// The memory to which a request reads.
    fn memory(&self, poster: usize, number: usize) -> Vec<u8> {
        let at = self.place(poster, number);
        (at..at + self.plan.read_octets)
            .map(|at| self.a.octet(at))
            .collect()
    }

    fn post_all(&self, poster: usize, rng: &mut Rng) {
        let mut posted = [0; 2];
        for _ in 0..self.plan.posts[poster] {
            let is_receive = rng.below(100) < self.plan.receives_percent;
            let number = posted[usize::from(is_receive)];
            let is_write = !is_receive && rng.below(100) < self.plan.writes_percent;
            // The threads that poll know what to wait for before it can complete.
            self.posted.fetch_add(1, Ordering::Relaxed);
            while !self.post(poster, number, is_receive, is_write) {
                point();
            }
            posted[usize::from(is_receive)] += 1;
            point();
        }
        self.accepted.lock().unwrap()[poster] = posted;
        self.posting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Posts a request; false if the queue is full.
    fn post(&self, poster: usize, number: usize, is_receive: bool, is_write: bool) -> bool {
        let kind = u64::from(is_receive) | (u64::from(is_write) << 1);
        let wr_id = ((poster as u64) << 32) | ((number as u64) << 8) | kind;
        let at = self.place(poster, number);
        let (a, len) = (&self.a, self.plan.read_octets);
        let outcome = if is_receive {
            a.receive(wr_id, &[a.sge(at, 8)])
        } else if is_write {
            let remote = self.b.remote(self.b.memory.len() - 8);
            a.post(wr_id, SendOp::Write { remote }, &[a.sge(at, 8)])
        } else {
            let remote = self.b.remote(at);
            a.post(wr_id, SendOp::Read { remote }, &[a.sge(at, len)])
        };
        assert!(
            matches!(outcome, Ok(()) | Err(PostError::QueueFull)),
            "{outcome:?}"
        );
        outcome.is_ok()
    }

    /// Takes completions until all have come, and looks for more then.
    fn take_all(&self, waits: Waits, rng: &mut Rng) -> Vec<Polled> {
        let mut taken = Vec::new();
        let mut seen = 0;
        while !self.is_over() {
            point();
            let found = self.take(&mut taken, rng);
            match waits {
                Waits::Polls => continue,
                Waits::ArmsThenPolls | Waits::PollsThenArms if found > 0 => continue,
                Waits::ArmsThenPolls => {
                    self.arm();
                    if self.take(&mut taken, rng) > 0 {
                        continue;
                    }
                }
                Waits::PollsThenArms => self.arm(),
            }
            let come = || self.events.0.load(Ordering::Relaxed);
            sleep(FOREVER, || come() != seen || self.is_over());
            seen = come();
        }
        (0..4).for_each(|_| {
            self.take(&mut taken, rng);
        });
        taken
    }

    fn arm(&self) {
        let a = &self.a;
        a.engine.req_notify_cq(&a.cq, Notify::Any).unwrap();
    }

    fn take(&self, taken: &mut Vec<Polled>, rng: &mut Rng) -> usize {
        let max = [1, 2, 16][rng.below_len(3)];
        let mut found = Vec::new();
        let a = &self.a;
        let take = |wc: &WorkCompletion| found.push(*wc);
        let count = a.engine.poll_cq(&a.cq, max, take).unwrap();
        for wc in found {
            let id = wc.completion.wr_id;
            let part = |shift: u32| usize::try_from((id >> shift) & 0xff).unwrap();
            let (poster, number) = (part(32), part(8));
            taken.push(Polled {
                poster,
                number,
                is_receive: id & 1 != 0,
                status: wc.completion.status,
                memory: (id & 3 == 0).then(|| self.memory(poster, number)),
            });
            self.polled.fetch_add(1, Ordering::Relaxed);
        }
        count
    }

    fn fail(&self) {
        match self.plan.fails_after {
            Some(steps) => (0..steps).for_each(|_| point()),
            None => sleep(FOREVER, || self.is_complete()),
        }
        let failed = QpModify {
            state: Some(QpState::Error),
            ..QpModify::default()
        };
        self.a.engine.modify_qp(&self.a.qp, &failed).unwrap();
        self.has_failed.store(true, Ordering::Relaxed);
    }

    /// The thread of an engine: as `Engine::run_background`, but for the sleep.
    fn drive(&self, engine: &Engine) {
        let mut turns = Turns::new();
        let mut bells = Bells::default();
        while !self.is_over() {
            point();
            let until = engine.background_turn(&mut turns, &mut bells);
            if until > 0 {
                self.rest(engine, turns.naps, &bells, until);
            }
        }
    }

    /// As `SleepControl::sleep`.
    fn rest(&self, engine: &Engine, naps: bool, bells: &Bells, until: u64) {
        let control = &engine.sleep_control;
        let naps = naps && !control.page.is_parked();
        if !naps {
            control.page.hand_over();
        }
        if naps || !engine.shard.lock().channels.have_work() {
            // A nap of no time looks at the bells.
            let is_rung = || control.page.nap(bells, Duration::ZERO) != Parked::Timeout;
            sleep(until, || is_rung() || self.is_over());
        }
        if !naps {
            control.page.take_over();
        }
        control.wake_at.store(0, Ordering::SeqCst);
    }

    /// Each request has completed once, in order, and as it should.
    fn check(&self, lists: &[Vec<Polled>]) {
        let mut all: Vec<_> = lists.iter().flatten().map(Polled::key).collect();
        all.sort_unstable();
        let accepted = *self.accepted.lock().unwrap();
        let posted = (0..POSTERS_MAX).flat_map(|poster| {
            let of_kind = move |kind: usize| {
                let numbers = 0..accepted[poster][kind];
                numbers.map(move |number| (poster, kind == 1, number))
            };
            of_kind(0).chain(of_kind(1))
        });
        assert_eq!(all, posted.collect::<Vec<_>>(), "once each");
        for list in lists {
            for (at, one) in list.iter().enumerate() {
                let before = &list[..at];
                let is_behind = |other: &Polled| {
                    let same = (other.poster, other.is_receive) == (one.poster, one.is_receive);
                    same && other.number > one.number
                };
                assert!(!before.iter().any(is_behind), "order of {:?}", one.key());
                self.check_status(one, before);
            }
        }
    }

    fn check_status(&self, one: &Polled, before: &[Polled]) {
        let is_flushed = one.status == Status::WorkRequestFlushed;
        let key = one.key();
        assert!(is_flushed || one.status == Status::Success, "{key:?}");
        assert!(is_flushed || !one.is_receive, "{key:?} received nothing");
        let has_flushed =
            |other: &Polled| !other.is_receive && other.status == Status::WorkRequestFlushed;
        assert!(
            is_flushed || !before.iter().any(has_flushed),
            "{key:?} succeeds after a flush"
        );
        let Some(memory) = &one.memory else { return };
        let is_read = memory.iter().all(|octet| *octet == pattern(key));
        assert!(is_flushed || is_read, "{key:?} has read {memory:?}");
        // It is the program's since.
        assert_eq!(*memory, self.memory(one.poster, one.number), "{key:?}");
    }

    /// Nothing is left of the requests.
    fn check_rest(&self) {
        let (a, caps) = (&self.a, self.a.qp.caps());
        assert!(a.poll().is_empty());
        assert_eq!(a.engine.send_room(&a.qp).unwrap(), caps.max_send_wr);
        {
            let mut shard = a.engine.shard.lock();
            shard.flush();
            assert!(!shard.direct.has_any() && shard.batch.is_empty());
            assert!(shard.qps.ready.is_empty() && !shard.channels.has_waiting());
            let entry = shard.qps.entry(&a.qp).unwrap();
            let polled = a.engine.polled.get(a.qp.number().index());
            assert_eq!(entry.conn.recvs_outstanding(), 0);
            assert_eq!(polled.recv_waiting(&entry.counts), 0);
            assert_eq!(entry.conn.next_deadline(), None);
        }
        let read = SendOp::Read {
            remote: self.b.remote(0),
        };
        a.post(7, read, &[a.sge(0, 8)]).unwrap();
        a.expect(7, Status::WorkRequestFlushed);
        assert!(a.poll().is_empty());
    }
}

impl Polled {
    fn key(&self) -> (usize, bool, usize) {
        (self.poster, self.is_receive, self.number)
    }
}

/// What a request reads, octet by octet.
fn pattern((poster, _, number): (usize, bool, usize)) -> u8 {
    u8::try_from(1 + poster * POSTS_MAX + number).unwrap()
}

/// An end whose queue pair has room for `depth` requests each way, with events.
fn end(engine: Arc<Engine>, octets: usize, depth: u32, events: &Arc<Events>) -> End {
    let mut end = End::new(engine, octets);
    end.engine.destroy_qp(&end.qp).unwrap();
    let channel: Arc<dyn CompletionSink> = Arc::clone(events) as _;
    let config = CqConfig {
        channel: Some(channel),
        ..CqConfig::with_depth(16)
    };
    end.cq = end.engine.create_cq(config).unwrap();
    let config = QpConfig {
        max_send_wr: depth,
        max_recv_wr: depth,
        ..qp_config(end.pd, &end.cq, &end.events, false)
    };
    end.qp = end.engine.create_qp(&config).unwrap();
    end
}

/// Two ends that are connected, and the urdmads between them.
fn world(plan: Plan) -> (World, Vec<Daemon>) {
    let events = Arc::default();
    let octets = POSTERS_MAX * POSTS_MAX * plan.read_octets + 8;
    let mut daemons = Vec::new();
    let engines: Vec<_> = match plan.way {
        Way::Channel => {
            let instance = instance();
            let start = |slot| Engine::start_without_thread(parts(&instance, slot)).unwrap();
            [1, 2].map(start).into()
        }
        Way::Forwarded => {
            let hosts = (0..).zip(loopback_ports(MTU));
            let hosts = hosts.map(|(which, port)| {
                let mut daemon = Daemon::new(address(which), port).unwrap();
                let engine = engine_of_host(which, &mut daemon, Engine::start_without_thread);
                daemons.push(daemon);
                engine
            });
            hosts.collect()
        }
    };
    let mut ends = engines.into_iter();
    let a = end(ends.next().unwrap(), octets, plan.depth, &events);
    let mut b = end(ends.next().unwrap(), octets, plan.depth, &Arc::default());
    let places = b.memory.chunks_mut(plan.read_octets).enumerate();
    places.for_each(|(at, place)| place.fill(pattern((0, false, at))));
    match plan.way {
        Way::Channel => connect(&a, &b, Access::all()),
        Way::Forwarded => {
            for (own, other, at) in [(&a, &b, 1), (&b, &a, 0)] {
                own.init(Access::all());
                let remote = (Gid::from_ip(address(at)), 1);
                own.connect_with(other.qp.number().to_u32(), 100, remote);
            }
        }
    }
    let world = World {
        posting: AtomicUsize::new(plan.posts.len()),
        plan,
        a,
        b,
        events,
        has_failed: AtomicBool::new(false),
        posted: AtomicUsize::new(0),
        polled: AtomicUsize::new(0),
        accepted: Mutex::default(),
    };
    (world, daemons)
}

/// Runs the schedule of a seed; gives its digest.
fn run(seed: u64, fault: Option<Fault>) -> Result<u64, String> {
    let scheduler = Scheduler::new(seed, fault);
    let mut rng = Rng::new(seed);
    let (world, mut daemons) = world(Plan::new(&mut rng));
    let lists: Mutex<Vec<Vec<Polled>>> = Mutex::default();
    let (shown, lists_there) = (&world, &lists);
    let mut threads: Vec<Named<'_>> = Vec::new();
    for poster in 0..world.plan.posts.len() {
        let mut rng = Rng::new(rng.bits());
        threads.push(("posts", Box::new(move || shown.post_all(poster, &mut rng))));
    }
    for waits in world.plan.waits.clone() {
        let mut rng = Rng::new(rng.bits());
        let take = move || {
            let taken = shown.take_all(waits, &mut rng);
            lists_there.lock().unwrap().push(taken);
        };
        threads.push(("takes", Box::new(take)));
    }
    threads.push(("fails", Box::new(|| shown.fail())));
    threads.push(("engine", Box::new(|| shown.drive(&shown.a.engine))));
    if let Some(steps) = world.plan.answers_after {
        let answer = move || {
            (0..steps).for_each(|_| point());
            shown.drive(&shown.b.engine);
        };
        threads.push(("peer", Box::new(answer)));
    }
    if !daemons.is_empty() {
        let forward = || {
            let mut pass = || {
                let now = now_ns().unwrap_or(0);
                let passed = daemons.iter_mut().map(|daemon| daemon.pass(now));
                passed.fold(false, |any, passed| any | passed)
            };
            while !shown.is_over() {
                sleep(FOREVER, || pass() || shown.is_over());
                point();
            }
        };
        threads.push(("urdmad", Box::new(forward)));
    }
    let outcome = scheduler.run(threads);
    let describe = |finding: String| format!("{finding}; {:?}", world.plan);
    let checked = outcome.map_err(describe).and_then(|trace| {
        let check = || {
            world.check(&lists.lock().unwrap());
            world.check_rest();
        };
        let checked = catch_unwind(AssertUnwindSafe(check));
        checked.map(|()| trace).map_err(|payload| {
            let text = payload.downcast_ref::<String>().cloned();
            describe(text.unwrap_or_else(|| "an assertion".to_owned()))
        })
    });
    Scheduler::leave();
    checked
}

/// How many schedules a test runs, unless `URDMA_SIM_SEEDS` says so.
const USUAL_SEEDS: u64 = 400;
/// Schedules of which one finds each fault.
const SEEDS_TO_FIND: u64 = 5000;

#[test]
fn random_schedules_complete_each_request_once_and_in_order() {
    for seed in seeds(USUAL_SEEDS) {
        if let Err(finding) = run(seed, None) {
            panic!("URDMA_SEED={seed} cargo test -p urdma-engine random_schedules: {finding}");
        }
    }
}

#[test]
fn schedule_of_a_seed_is_the_same_each_time() {
    for seed in 0..20 {
        assert_eq!(run(seed, None), run(seed, None), "seed {seed}");
    }
}

fn assert_found(fault: Fault) {
    let found = (0..SEEDS_TO_FIND).find_map(|seed| Some((seed, run(seed, Some(fault)).err()?)));
    let (seed, finding) = found.unwrap_or_else(|| panic!("{fault:?} is not found"));
    let text: String = finding.chars().take(80).collect();
    println!("{fault:?}: seed {seed}: {text}");
}

macro_rules! faults {
    ($($name:ident: $fault:ident,)*) => {
        $(#[test]
        fn $name() {
            assert_found(Fault::$fault);
        })*
    };
}

faults! {
    fault_arm_unseen_is_found: ArmUnseen,
    fault_behind_flush_is_found: BehindFlush,
    fault_pop_unlocked_is_found: PopUnlocked,
    fault_overtaking_is_found: Overtaking,
    fault_count_unlocked_is_found: CountUnlocked,
}
