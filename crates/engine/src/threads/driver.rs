//! A thread of the application drives the engine while it waits for a completion event, so that a
//! message wakes this thread alone and not the background thread before it. For the seat, see
//! [`urdma_waiting::seat`]; for the rules of the sleep, `background.rs`.
//!
//! A thread that waits for one completion channel, or for the asynchronous events of a context,
//! sleeps on the bells ([`Driven::drive`]), one that waits for a set of descriptors in a call on
//! that set ([`Driven::drive_set`]).
//!
//! The thread makes the turns of the background thread, with connection management.
//!
//! - **Other threads.** While the driver does what it has waited for, messages ring no bell. That
//!   is no loss to a thread that returns to its wait, and would be one to other threads. A driver
//!   that finds that others wait leaves the seat for good, and the next waits are not
//!   driven.
//! - **Signals** are blocked in the turns, which hold locks, and delivered in the sleep, or the
//!   stand-in puts their handlers off until then, which costs no system calls. A wait of a channel
//!   ends with EINTR as read(2) does: after a handler without `SA_RESTART`.
//! - **Cancellation** is disabled. [`interrupt_waits`] ends all waits, whose threads then call the
//!   C library's read, which is a cancellation point.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use urdma_waiting::local_events::turn_to;
use urdma_waiting::spins::Spun;
use urdma_waiting::unread::Target;
use urdma_waiting::{Bells, Parked, Seated, Signal};

use super::lease_sleep::Rest;
use super::turns::Turns;
use crate::clock;
use crate::engine::Engine;
use crate::objects::events::{
    armed_queues, Awaits, CompletionChannel, Driven, SetCall, Sleep, Waited,
};
use crate::waiting::signals::{Blocked, Delivered};

/// How often a thread looks at the other descriptors of its set while messages stream in.
const LOOK_NS: u64 = 100_000;
/// How often a thread makes a turn that takes one event after the other without a wait: several
/// times in the bounded sleep of the background thread, and not after each few messages.
const BETWEEN_EVENTS_NS: u64 = 150_000;
/// How long a thread that was woken in place of the driver leaves it the processor.
const OTHERS_TURN: Duration = Duration::from_micros(50);

/// Times that all waits were interrupted.
static INTERRUPTS: AtomicU32 = AtomicU32::new(0);

/// How often waits were interrupted, for [`CompletionChannel::wait`].
pub fn interrupts() -> u32 {
    INTERRUPTS.load(Ordering::SeqCst)
}

/// Has every thread that waits for an event of `channels` sleep in read(2) instead.
pub fn interrupt_waits<'a>(channels: impl Iterator<Item = &'a CompletionChannel>) {
    INTERRUPTS.fetch_add(1, Ordering::SeqCst);
    channels.for_each(CompletionChannel::raise);
}

impl Driven for Engine {
    fn drive(
        &self,
        channel: &CompletionChannel,
        interrupts: u32,
        is_ready: &dyn Fn() -> bool,
    ) -> Waited {
        let bystanders = &self.sleep_control.bystanders;
        let seat = &self.sleep_control.seat;
        let target = Target::reader(channel.unread());
        turn_to(Some(target));
        // Before the look: an event that comes afterwards changes it.
        let seen = channel.signal.count();
        if channel.is_closed() {
            return Waited::Closed;
        }
        if is_ready() {
            self.sleep_control.local_events.end_of_others();
            seat.touch();
            return Waited::Ready;
        }
        if !self.is_drivable() {
            return Waited::NotDriven;
        }
        let awaits = channel.awaits;
        if self.leaves_seat_to_others(awaits) {
            return Waited::NotDriven;
        }
        let blocked = Blocked::new();
        let Some(seated) = self.take_seat(&channel.signal, seen) else {
            return self.stand_by(awaits);
        };
        self.sleep_control.set_driver(awaits);
        self.sleep_control.local_events.begin(target);
        let wait = Wait {
            channel,
            interrupts,
            seated,
            blocked,
        };
        let waited = self.drive_until_event(&wait, seen);
        self.sleep_control.set_driver(Awaits::Completions);
        let others_wait = bystanders.need_progress() || channel.has_armed_rival();
        if others_wait {
            bystanders.rest();
        }
        self.leave(seated, others_wait || waited != Waited::Ready);
        waited
    }

    fn drive_set(&self, interrupts: u32, call: &mut dyn SetCall) -> Waited {
        let control = &self.sleep_control;
        let target = call.set().map(Target::Set);
        turn_to(target);
        if !self.is_drivable() || control.page.socket().is_none() {
            return Waited::NotDriven;
        }
        let bystanders = &control.bystanders;
        let has_channel = call.has_channel();
        let awaits = if has_channel {
            Awaits::Completions
        } else {
            Awaits::Connections
        };
        if self.leaves_seat_to_others(awaits) {
            return Waited::NotDriven;
        }
        let blocked = (!call.is_guarded()).then(Blocked::new);
        let mask = blocked.as_ref().map_or(0, Blocked::before);
        let Some(seated) = self.take_seat(&Signal::default(), 0) else {
            return self.stand_by(awaits);
        };
        match target {
            Some(target) => control.local_events.begin(target),
            None => control.local_events.end(),
        }
        control.set_driver(awaits);
        let waited = self.drive_until_found(interrupts, seated, mask, call);
        control.set_driver(Awaits::Completions);
        let bystanders_wait = bystanders.need_progress();
        if bystanders_wait {
            bystanders.rest();
        }
        let others_wait = bystanders_wait || self.leaves_seat_to_others(awaits);
        if waited == Waited::Bystander {
            if !has_channel {
                self.leave(seated, true);
                return Waited::NotDriven;
            }
            bystanders.enter();
        }
        self.leave(seated, others_wait || waited != Waited::Ready);
        waited
    }

    fn has_waited(&self) {
        self.sleep_control.bystanders.leave();
    }

    fn wake_descriptor(&self) -> Option<RawFd> {
        self.sleep_control.wake_descriptor()
    }

    fn was_woken(&self) {
        let page = &self.sleep_control.page;
        if page.is_selecting() {
            // The driver is about to take it.
            std::thread::sleep(OTHERS_TURN);
            return;
        }
        self.sleep_control.take_wake_up();
        if page.is_selecting() {
            // What was taken may have been for a driver that has begun to sleep meanwhile.
            page.unpark();
        }
    }

    fn interrupt(&self) {
        self.sleep_control.page.unpark();
    }

    fn is_usable(&self) -> bool {
        Engine::is_usable(self)
    }
}

impl Engine {
    /// Whether the background thread can give the engine to another thread.
    fn is_drivable(&self) -> bool {
        self.background.start.is_wanted() && Engine::is_usable(self) && self.may_have_driver()
    }

    /// Makes the calling thread the driver, which is about to wait for `signal`, raised `seen`
    /// times; None if another thread is or is to be.
    fn take_seat(&self, signal: &Signal, seen: u32) -> Option<Seated> {
        let control = &self.sleep_control;
        if control.bystanders.allow_driver() {
            control.seat.sit(&control.page, signal, seen)
        } else {
            None
        }
    }

    /// The application has taken an event of connection management. A program with many connections
    /// at a time finds one after the other without a wait; it drives all the same, as one that
    /// polls does. Otherwise the background thread would take the seat, and the two would wait for
    /// each other's locks and processor.
    pub fn progress_between_events(&self) {
        let control = &self.sleep_control;
        if !control.seat.is_away() {
            return;
        }
        let now = clock::now_ns();
        if now.saturating_sub(control.turn_at.load(Ordering::Relaxed)) < BETWEEN_EVENTS_NS {
            return;
        }
        self.progress_at(now);
    }

    /// The application has found no event of connection management; it may look again without a
    /// wait, as one does that polls a completion queue.
    pub fn progress_without_event(&self) {
        self.progress_at(clock::now_ns());
    }

    fn progress_at(&self, now_ns: u64) {
        let control = &self.sleep_control;
        control.turn_at.store(now_ns, Ordering::Relaxed);
        control.seat.touch();
        self.turn_once();
        if self.cm_deadline_ns() <= now_ns {
            self.cm_timeout();
        }
    }

    /// Whether a thread that waits for this lets the background thread drive: the seat is for those
    /// that wait for completions while there may be some.
    fn leaves_seat_to_others(&self, awaits: Awaits) -> bool {
        awaits != Awaits::Completions && armed_queues() > 0
    }

    /// The calling thread waits without driving, and the driver, which is away, is not the one that
    /// waits next.
    fn stand_by(&self, awaits: Awaits) -> Waited {
        let control = &self.sleep_control;
        if awaits != Awaits::Completions {
            control.want_seat(awaits, 1);
            return Waited::NotDriven;
        }
        let in_a_row = control.bystanders.enter();
        control.seat.recall();
        self.start_awaited_background();
        control.want_seat(awaits, in_a_row);
        Waited::Bystander
    }

    /// Makes turns and looks until there is what the thread waits for, or something else ends the
    /// wait. The thread sleeps with the signals of `mask` blocked.
    fn drive_until_found(
        &self,
        interrupts: u32,
        seated: Seated,
        mask: u64,
        call: &mut dyn SetCall,
    ) -> Waited {
        let control = &self.sleep_control;
        if control.local_events.has_any() {
            self.turn_once();
            if self.looks(call, None) {
                return Waited::Ready;
            }
        }
        let mut turns = Turns::for_guest(control.polls.load(Ordering::Relaxed));
        let mut bells = Bells::default();
        let own_spins = if call.has_channel() {
            &control.spins
        } else {
            &control.cm_spins
        };
        let mut spin = own_spins.begin(clock::now_ns);
        let mut next_look = clock::now_ns() + LOOK_NS;
        loop {
            if let Some(spin) = spin.take() {
                let turn = || {
                    self.turn_once();
                    control.may_have_events()
                };
                let spun = spin.run(clock::now_ns, turn, || self.looks(call, None));
                own_spins.learn(spin, spun, clock::now_ns);
                if spun == Spun::Found {
                    return Waited::Ready;
                }
            }
            let until = self.background_turn(&mut turns, &mut bells);
            if control.may_have_events() && self.looks(call, None) {
                return Waited::Ready;
            }
            let is_interrupted = self::interrupts() != interrupts || control.is_seat_wanted();
            if is_interrupted || !self.is_alive() || !control.seat.is_held(seated) {
                return Waited::Bystander;
            }
            match self.spin_after_serving(&turns, || self.looks(call, None)) {
                Some(true) => return Waited::Ready,
                Some(false) => continue,
                None => {}
            }
            if until == 0 {
                let now = clock::now_ns();
                if now >= next_look {
                    next_look = now + LOOK_NS;
                    if self.looks(call, None) {
                        return Waited::Ready;
                    }
                }
                continue;
            }
            let has_work = || {
                let has_messages = self.has_work_before_call(&turns);
                has_messages || control.may_have_events() || control.is_seat_wanted()
            };
            let is_done = control.sleep_in_call(&bells, until, has_work, |limit| {
                self.looks(call, Some(Sleep { limit, mask }))
            });
            self.end_interrupts(&turns);
            if !control.seat.is_held(seated) {
                // The background thread has parked meanwhile; this thread has stored RUNNING.
                control.page.unpark();
                return Waited::Bystander;
            }
            if is_done == Some(true) {
                return Waited::Ready;
            }
        }
    }

    /// Spins if the last turn has served a peer and this has lately paid: one that reads the memory
    /// of this process most likely goes on, and would have to wake the thread again. Whether the
    /// thread has `found` what it waits for; none without a spin.
    fn spin_after_serving(&self, turns: &Turns, mut found: impl FnMut() -> bool) -> Option<bool> {
        let control = &self.sleep_control;
        if !turns.has_taken {
            return None;
        }
        let spin = control.serving_spins.begin(clock::now_ns)?;
        let mut has_served = false;
        let turn = || {
            has_served |= self.turn_once();
            control.may_have_events()
        };
        let spun = spin.run(clock::now_ns, turn, &mut found);
        let judged = match spun {
            Spun::Nothing if has_served => Spun::Found,
            spun => spun,
        };
        control.serving_spins.learn(spin, judged, clock::now_ns);
        Some(spun == Spun::Found)
    }

    /// Looks once, in memory and then at the descriptors; whether there is what the thread waits
    /// for.
    fn looks(&self, call: &mut dyn SetCall, sleep: Option<Sleep>) -> bool {
        let control = &self.sleep_control;
        let local = &control.local_events;
        control.looks_for_events();
        let report = |call: &mut dyn SetCall| {
            let set = call.set();
            set.is_some_and(|set| local.report(set, |events, data| call.put(events, data)))
        };
        let now = clock::now_ns();
        let may_skip_the_set = sleep.is_some() || !local.is_look_due(now);
        if may_skip_the_set && report(call) {
            return true;
        }
        local.looks(now);
        let found = call.look(sleep);
        if found.is_woken {
            control.take_wake_up();
        }
        report(call) || found.is_done
    }

    /// Leaves the seat, for a moment or for good.
    fn leave(&self, seated: Seated, for_good: bool) {
        // Timers that are set from now on are looked at by the next driver: no thread sleeps on the
        // bell.
        self.sleep_control.wake_at.store(0, Ordering::SeqCst);
        let now = clock::now_ns();
        self.sleep_control.turn_at.store(now, Ordering::Relaxed);
        self.sleep_control.seat.leave(seated, for_good);
        if for_good {
            self.start_awaited_background();
            self.sleep_control.local_events.end();
        }
    }

    /// Sleeps until the signal of the channel differs from `seen` or there is work; None if it
    /// cannot.
    fn sleep_as_reader(&self, wait: &Wait<'_>, seen: u32, rest: Rest<'_>) -> Option<Parked> {
        let signal = &wait.channel.signal;
        let must_look = || signal.count() != seen || self.gives_way(wait);
        if let Some(set) = rest.turns.interrupts {
            let signals = self.sleep_control.signal_file.of(&wait.blocked)?;
            let sleep = || self.rest_beside(set, signals, &rest, must_look);
            // Signals are delivered after the next turn.
            return wait.channel.await_in_call(sleep).then_some(Parked::Woken);
        }
        if !rest.bells.add_signal(signal, seen) {
            // There are as many bells as a thread can wait on.
            return None;
        }
        let has_work = || self.shard.lock().channels.have_work() || must_look();
        let Rest {
            turns,
            bells,
            until,
        } = rest;
        let sleep = || self.sleep_control.sleep(bells, until, turns.naps, has_work);
        Some(wait.blocked.unblocked(|| signal.await_with(sleep)))
    }

    /// Whether a thread wants the seat before which this one gives way.
    fn gives_way(&self, wait: &Wait<'_>) -> bool {
        wait.channel.awaits != Awaits::Completions && self.sleep_control.is_seat_wanted()
    }

    /// Makes turns until the channel's signal differs from `seen`, or something else ends the wait.
    fn drive_until_event(&self, wait: &Wait<'_>, seen: u32) -> Waited {
        let control = &self.sleep_control;
        let signal = &wait.channel.signal;
        let spins = (wait.channel.awaits == Awaits::Completions).then_some(&control.spins);
        if let Some(spin) = spins.and_then(|spins| spins.begin(clock::now_ns)) {
            let has_come = || signal.count() != seen;
            let turn = || {
                self.turn_once();
                has_come()
            };
            let spun = spin.run(clock::now_ns, turn, has_come);
            control.spins.learn(spin, spun, clock::now_ns);
            if spun == Spun::Found {
                return wait.why_raised();
            }
        }
        let mut turns = Turns::for_guest(control.polls.load(Ordering::Relaxed));
        let mut bells = Bells::default();
        loop {
            let until = self.background_turn(&mut turns, &mut bells);
            if signal.count() != seen {
                return wait.why_raised();
            }
            let is_held = control.seat.is_held(wait.seated) && !self.gives_way(wait);
            if !self.is_alive() || !is_held {
                return Waited::NotDriven;
            }
            match wait.blocked.deliver() {
                Delivered::Nothing if until == 0 => continue,
                Delivered::Nothing => {}
                Delivered::Restarts => continue,
                Delivered::Interrupts => return Waited::Interrupted,
            }
            let rest = Rest {
                turns: &turns,
                bells: &mut bells,
                until,
            };
            let Some(parked) = self.sleep_as_reader(wait, seen, rest) else {
                control.bystanders.rest();
                return Waited::NotDriven;
            };
            if !control.seat.is_held(wait.seated) {
                // The background thread has parked meanwhile; this thread has stored RUNNING.
                control.page.unpark();
                return Waited::NotDriven;
            }
            if parked == Parked::Interrupted {
                return Waited::Interrupted;
            }
        }
    }
}

/// A wait that is driven.
struct Wait<'a> {
    channel: &'a CompletionChannel,
    interrupts: u32,
    seated: Seated,
    blocked: Blocked,
}

impl Wait<'_> {
    fn why_raised(&self) -> Waited {
        if self.channel.is_closed() {
            Waited::Closed
        } else if interrupts() != self.interrupts {
            Waited::NotDriven
        } else {
            Waited::Ready
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::{instance, parts};
    use crate::waiting::start::{AWAITED, STARTED};

    #[test]
    fn thread_that_takes_events_makes_turns_while_the_driver_is_away_and_no_other_drives() {
        let engine = Engine::start_without_thread(parts(&instance(), 1)).unwrap();
        let control = &engine.sleep_control;
        let makes_a_turn = || {
            control.turn_at.store(0, Ordering::Relaxed);
            engine.progress_between_events();
            control.turn_at.load(Ordering::Relaxed) != 0
        };
        assert!(!makes_a_turn());
        // This thread is the background thread meanwhile. A request ends after 10 ms.
        let seated = std::thread::scope(|scope| loop {
            let sitter = scope.spawn(|| engine.take_seat(&Signal::default(), 0));
            while !sitter.is_finished() {
                control.seat.watch(Duration::ZERO, Duration::ZERO, || true);
            }
            if let Some(seated) = sitter.join().unwrap() {
                break seated;
            }
        });
        assert!(!makes_a_turn());
        engine.leave(seated, false);
        assert!(control.seat.is_away());
        assert!(makes_a_turn());
        assert!(control.seat.is_away());
    }

    #[test]
    fn driver_that_leaves_for_good_starts_a_background_thread_that_was_put_off() {
        let engine = Engine::start(parts(&instance(), 1)).unwrap();
        let _looks = engine.background.start.watch();
        engine.start_background_beside_driver().unwrap();
        let leave = |for_good| {
            let seated = engine.take_seat(&Signal::default(), 0).unwrap();
            engine.leave(seated, for_good);
            engine.background.start.stage()
        };
        assert_eq!(leave(false), AWAITED);
        assert_eq!(leave(true), STARTED);
    }

    #[test]
    fn thread_spins_after_a_turn_that_took_something_while_that_pays() {
        let engine = Engine::start_without_thread(parts(&instance(), 1)).unwrap();
        let mut turns = Turns::for_guest(0);
        assert_eq!(engine.spin_after_serving(&turns, || true), None);
        turns.has_taken = true;
        assert_eq!(engine.spin_after_serving(&turns, || true), Some(true));
        assert_eq!(engine.spin_after_serving(&turns, || false), Some(false));
        // Nothing came: spins become rare, at once or after one that is brief.
        let spins = |_| engine.spin_after_serving(&turns, || false).is_some();
        assert!(!(0..1_000).all(spins));
    }
}
