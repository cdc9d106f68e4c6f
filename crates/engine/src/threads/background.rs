//! The thread that makes progress when the application does not, and the rules for its sleep, which
//! `turns.rs` executes.
//!
//! An application that polls must not be disturbed: its senders should ring no doorbell, and no
//! thread should take its processor. An application that does not poll (it sleeps in a completion
//! channel or a socket, or reads its memory) must be served within microseconds.
//!
//! The park word in the process' page says whether senders ring the doorbell: at PARKED they do, at
//! RUNNING they do not. One rule makes sure that no wake-up is lost:
//!
//! > While the word is RUNNING, the thread is awake or in a *bounded* sleep (at most `NAP_MAX_NS`;
//! > see also `SleepControl::away_max_ns`), after which it looks at the channels.
//!
//! - While the application polls, the thread naps ([`urdma_waiting::OwnPage::nap`]): the word stays
//!   RUNNING. Otherwise it parks ([`urdma_waiting::OwnPage::park`]): the word becomes PARKED, the
//!   thread looks at the channels once more, and waits for a bell.
//! - An application that polls sets the word to RUNNING without waking the thread. If the thread's
//!   sleep was not bounded, the thread is woken once, so that it goes into a bounded one. This
//!   needs `POLLS_TO_TAKE_OVER` polls since a completion queue was armed: the one poll that verbs
//!   demand after arming does not count as polling.
//! - An application that arms a completion queue sets the word to PARKED: the next datagram rings.
//! - Until then the application is one that sleeps: the thread does not nap for the sake of polls
//!   that were before, nor leave it time to poll.
//! - After each bounded sleep the thread checks whether the application has polled meanwhile. If it
//!   has, and nothing waits, the next sleep is longer. If something waits, the thread gives the
//!   application `STALE_NS` to poll. If the application does not, it reads its memory and polls
//!   now and then (`ib_write_lat`), and after a few such findings the mode becomes *doorbell*. In
//!   that mode polls that find nothing still set RUNNING, but each poll that finds something sets
//!   PARKED again, so that the next datagram rings at once. When the wake-ups of the thread find
//!   nothing to do any more, the mode goes back.
//! - When the application does not poll, the thread does all the work. It continues while there is
//!   more to send, spins with sched_yield for `SPIN_NS` after the last datagram that was received
//!   or sent, unless a yield shows that another thread wants the processor, and then sleeps until
//!   the doorbell or the next timer.
//! - Many datagrams at one wake-up are a stream. The sleeps are then naps of `STREAM_NAP_NS`
//!   until one after which nothing has come, so that the sender need not wake the thread for every
//!   few packets, which costs both ends more than the packets do.
//! - A leased queue has no doorbell. While there is one, every sleep is bounded: by a share of the
//!   time since the last datagram (`lease_nap_ns`) when the application does not poll, and as
//!   above when it does. If its driver has receive interrupts, these end the sleep
//!   (`lease_sleep.rs`), and its bounds are wider.
//! - A thread of the application that waits for an event takes the place of the background thread
//!   meanwhile (`driver.rs`).
//!
//! The thread stores the end of its sleep while it holds the engine's lock. A caller that sets an
//! earlier timer under that lock therefore sees it and wakes the thread
//! (`SleepControl::wake_if_due`).

#![allow(unsafe_code)]

use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use urdma_waiting::{Bells, Watched};

use super::turns::Turns;
use crate::clock;
use crate::engine::Engine;

/// Time slice that the thread requests from the scheduler (Linux 6.12 and later): shorter than the
/// default, so that it is scheduled promptly on wake-up, and long enough to copy some megabytes.
const SLICE_NS: u64 = 500_000;

/// Shortest and longest time between two looks whether messages wait for a driver that sits.
const LOOK_NS: (u64, u64) = (100_000_000, 1_000_000_000);

/// What the thread does.
#[allow(clippy::needless_pass_by_value)] // It keeps the engine.
pub(crate) fn run(engine: Arc<Engine>) {
    ask_for_quick_wake_ups();
    let mut turns = Turns::new();
    let mut bells = Bells::default();
    while !engine.has_nothing_to_do() {
        engine.give_way();
        let until = engine.background_turn(&mut turns, &mut bells);
        if until > 0 {
            engine.rest(&turns, &bells, until);
        }
    }
}

impl Engine {
    /// Leaves the turns to a thread of the application that wants to make them. Returns when this
    /// thread is to make turns again.
    fn give_way(&self) {
        let seat = &self.sleep_control.seat;
        let mut look = LOOK_NS.0;
        let mut has_waited = false;
        while !seat.is_background() {
            let naps = [self.sleep_control.away_max_ns(), look];
            let [away_max, still_max] = naps.map(Duration::from_nanos);
            let polls = || self.sleep_control.polls.load(Ordering::Relaxed);
            let before = polls();
            match seat.watch(away_max, still_max, || polls() != before) {
                Watched::Mine => break,
                Watched::Busy => self.stand_in_for_driver(),
                Watched::Changed => (look, has_waited) = (LOOK_NS.0, false),
                Watched::Still => {
                    let waits = self.shard.lock().has_work();
                    if waits && has_waited {
                        seat.seize(&self.sleep_control.page);
                    }
                    has_waited = waits;
                    look = (look * 2).min(LOOK_NS.1);
                }
            }
        }
        self.sleep_control.local_events.end();
    }

    /// Does what the application's thread does not that drives in its waits and has polled for long
    /// without one: the timers, the look for peers that take nothing, and the events for those that
    /// wait without the provider's help.
    fn stand_in_for_driver(&self) {
        self.turn_once();
        self.shard.lock().watch_peers(clock::now_ns());
        if self.cm_deadline_ns() <= clock::now_ns() {
            self.cm_timeout();
        }
        self.sleep_control.local_events.send();
    }

    /// Whether urdmad has ended and the thread has no work left; rdma_cm has timers until the
    /// program has closed its files.
    fn has_nothing_to_do(&self) -> bool {
        if self.is_alive() {
            return false;
        }
        let shard = self.shard.lock();
        let is_flushed = shard.is_dead && shard.process.notes.is_empty();
        drop(shard);
        is_flushed && self.cm.get().is_none_or(|cm| cm.is_unused())
    }
}

/// Makes timers exact and requests a short time slice; an older kernel ignores the request.
fn ask_for_quick_wake_ups() {
    #[repr(C)]
    struct SchedAttr {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    // SAFETY: PR_SET_TIMERSLACK takes a number.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000 as libc::c_ulong) };
    let attr = SchedAttr {
        size: u32::try_from(size_of::<SchedAttr>()).unwrap_or(0),
        policy: 0,
        flags: 0,
        // SAFETY: getpriority of the caller takes numbers only.
        nice: unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) },
        priority: 0,
        runtime: SLICE_NS,
        deadline: 0,
        period: 0,
    };
    // SAFETY: `attr` is a sched_attr of the size that it names; 0 is the calling thread.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
}
