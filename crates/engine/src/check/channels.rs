//! Threads that open a channel to one slot at once, while its process ends and another one gets the
//! slot: those of the program, and the control thread, to which urdmad reports both.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Mutex};

use urdma_channel::{ChannelConfig, OwnRegion};
use urdma_engine::{Engine, InProcess, SlotId};
use urdma_types::{seeds, Rng};
use urdma_waiting::OwnPage;

use super::scheduler::{point, sleep, Named, Scheduler, FOREVER};
use crate::rig::{instance, parts};

/// The slot of the engine, and the one that changes hands.
const SLOTS: [u8; 2] = [1, 2];
/// The generations in which the second one has a process.
const GENERATIONS: [u32; 2] = [1, 2];
/// Steps of a thread before it begins, at most.
const STEPS_MAX: u64 = 40;
/// How many schedules the test runs, unless `URDMA_SIM_SEEDS` says so.
const USUAL_SEEDS: u64 = 2000;

/// What urdmad reports of the second slot.
enum Report {
    /// The process of a generation offers a channel.
    Offered(u32, Vec<OwnedFd>),
    /// That of a generation has ended.
    Gone(u32),
}

/// An engine, and what urdmad has told it and it has not read.
struct World {
    instance: Arc<InProcess>,
    engine: Arc<Engine>,
    peer: SlotId,
    reports: Mutex<VecDeque<Report>>,
}

impl World {
    fn new() -> Self {
        let instance = instance();
        let [own, peer] = SLOTS;
        let engine = Engine::start_without_thread(parts(&instance, own)).unwrap();
        let peer = SlotId::new(peer).unwrap();
        instance.play(peer);
        Self {
            instance,
            engine,
            peer,
            reports: Mutex::default(),
        }
    }

    fn report(&self, report: Report) {
        self.reports.lock().unwrap().push_back(report);
        point();
    }

    /// What the process of the second slot offers.
    fn offer(&self) -> Vec<OwnedFd> {
        let (_, region) = OwnRegion::create(&ChannelConfig::default(), self.peer.number()).unwrap();
        let (_, page) = OwnPage::create().unwrap();
        vec![region, page]
    }

    fn take_offer(&self) -> Option<Vec<OwnedFd>> {
        self.instance.take_offer(self.engine.info().slot, self.peer)
    }

    /// The first process offers a channel and ends; the second one gets the slot and offers one.
    fn be_urdmad(&self) {
        let [first, second] = GENERATIONS;
        self.report(Report::Offered(first, self.offer()));
        self.instance.end(self.peer);
        // What the first process was offered ends with it.
        while self.take_offer().is_some() {}
        self.report(Report::Gone(first));
        self.instance.play(self.peer);
        self.report(Report::Offered(second, self.offer()));
    }

    /// Reads the reports up to the last one.
    fn control(&self) {
        let [.., last] = GENERATIONS;
        loop {
            sleep(FOREVER, || !self.reports.lock().unwrap().is_empty());
            let report = self.reports.lock().unwrap().pop_front();
            match report {
                Some(Report::Offered(generation, fds)) => {
                    self.engine
                        .channel_offered(self.peer, generation, None, fds);
                    if generation == last {
                        return;
                    }
                }
                Some(Report::Gone(generation)) => {
                    self.engine.peer_slot_gone(self.peer, generation);
                }
                None => {}
            }
        }
    }

    /// There is a channel to the second process, whose region is read, and which was offered one.
    fn check(&self) {
        let [.., last] = GENERATIONS;
        let mut shard = self.engine.shard.lock();
        let channels = &mut shard.channels;
        let is_with = channels.is_with(self.peer, last);
        assert!(
            is_with && !channels.is_with(self.peer, last - 1),
            "a channel to another process"
        );
        let channel = channels.get_mut(self.peer).unwrap();
        assert!(channel.incoming().is_some(), "the offer was not taken");
        drop(shard);
        let offers = std::iter::from_fn(|| self.take_offer()).count();
        assert_eq!(offers, 1, "offers to one process");
    }
}

/// Runs the schedule of a seed.
fn run(seed: u64) -> Result<(), String> {
    let scheduler = Scheduler::new(seed, None);
    let mut rng = Rng::new(seed);
    let world = World::new();
    let shown = &world;
    let mut threads: Vec<Named<'_>> = vec![
        ("urdmad", Box::new(|| shown.be_urdmad())),
        ("control", Box::new(|| shown.control())),
    ];
    for _ in 0..2 {
        let steps = rng.below(STEPS_MAX);
        let open = move || {
            (0..steps).for_each(|_| point());
            // It fails if the process that it means has ended.
            let _ = shown.engine.open_channel(shown.peer);
        };
        threads.push(("program", Box::new(open)));
    }
    let checked = scheduler.run(threads).and_then(|_| {
        catch_unwind(AssertUnwindSafe(|| world.check())).map_err(|payload| {
            let text = payload.downcast_ref::<String>().cloned();
            let text = text.or_else(|| payload.downcast_ref::<&str>().map(ToString::to_string));
            text.unwrap_or_default()
        })
    });
    Scheduler::leave();
    checked
}

// Regression: the channel to the second process was made of the region that was offered to the
// first, which no process read; or the second process was offered two, for which urdmad disconnects
// the one that offers.
#[test]
fn threads_that_open_a_channel_at_once_open_one_to_the_process_that_has_the_slot() {
    for seed in seeds(USUAL_SEEDS) {
        if let Err(finding) = run(seed) {
            panic!("URDMA_SEED={seed} cargo test -p urdma-engine threads_that_open: {finding}");
        }
    }
}
