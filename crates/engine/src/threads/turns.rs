//! One turn of a thread that makes progress, and how long the thread may sleep after it: the rules
//! are in `background.rs`.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::sync::PoisonError;
use std::time::Duration;

use urdma_waiting::Bells;

use crate::clock;
use crate::engine::Engine;
use crate::objects::events::note_event;
use crate::objects::note::Note;
use crate::paths::channels::BURST;
use crate::waiting::sleep_control::{
    FOREVER, MODE_DOORBELL, MODE_POLL, NAP_MAX_NS, POLLS_TO_TAKE_OVER,
};

/// First bounded sleep while an application polls.
const NAP_MIN_NS: u64 = 100_000;
/// First sleep before a blocked transmission is tried again.
const RETRY_MIN_NS: u64 = 20_000;
/// How long a datagram may wait for an application that polls.
const STALE_NS: u64 = 20_000;
/// Datagrams at one wake-up that are a stream, and how long the thread then naps instead of waiting
/// for the doorbell.
const STREAM_DATAGRAMS: usize = 4;
const STREAM_NAP_NS: u64 = 20_000;
/// How long the thread spins after the last datagram that came or left.
const SPIN_NS: u64 = 20_000;
/// A yield that takes longer shows that another thread wants the processor.
const CONTENDED_NS: u64 = 10_000;
/// How many times as long the thread does not spin after that: a thread that runs now and then
/// costs little.
const NO_SPIN_SHARE: u64 = 16;
/// The longest time without spinning, also after an application has polled: an application that
/// reads its memory in between needs the processor, and a yield would give the processor away for
/// milliseconds.
const NO_SPIN_NS: u64 = 50_000_000;
/// Bounds of the sleep while a queue is leased whose driver has no interrupts.
const LEASE_NAP_NS: (u64, u64) = (5_000, 3_000_000);
/// The same with interrupts. The thread looks whether the peer has reconnected, and for packets of
/// a peer that executes no fence between its packets and its look at the mask, as DPDK's driver.
const LEASE_LOOK_NS: (u64, u64) = (1_000_000, 100_000_000);
/// Score at which the mode becomes doorbell.
const SCORE_DOORBELL: u32 = 4;
const SCORE_MAX: u32 = 24;

/// State of the thread from one turn to the next.
pub(crate) struct Turns {
    polls: u64,
    nap_ns: u64,
    retry_ns: u64,
    last_work_ns: u64,
    no_spin_until_ns: u64,
    score: u32,
    /// A queue is leased, which has no doorbell.
    has_lease: bool,
    /// The set in which that queue raises events, if its driver has interrupts.
    pub(crate) interrupts: Option<RawFd>,
    /// A stream is arriving; until a nap after which nothing had arrived.
    has_stream: bool,
    /// The last turn has taken something.
    pub(super) has_taken: bool,
    /// The next sleep is a nap, because an application polls or a stream arrives.
    pub(crate) naps: bool,
    /// The thread is one of the application's: see `driver.rs`.
    is_guest: bool,
}

impl Turns {
    pub(crate) fn new() -> Self {
        Self {
            polls: 0,
            nap_ns: NAP_MIN_NS,
            retry_ns: RETRY_MIN_NS,
            last_work_ns: 0,
            no_spin_until_ns: 0,
            score: 0,
            has_lease: false,
            interrupts: None,
            has_stream: false,
            has_taken: false,
            naps: false,
            is_guest: false,
        }
    }

    /// Of a thread of the application, which has polled so often.
    pub(super) fn for_guest(polls: u64) -> Self {
        Self {
            polls,
            // It begins with a short sleep if a leased queue interrupts it: see LEASE_LOOK_NS.
            last_work_ns: clock::now_ns(),
            is_guest: true,
            ..Self::new()
        }
    }

    /// Notes the outcome of a turn.
    fn note_work(&mut self, now_ns: u64, taken: usize, has_sent: bool) {
        self.has_taken = taken > 0;
        if taken > 0 || has_sent {
            self.last_work_ns = now_ns;
        }
        self.has_stream =
            taken >= STREAM_DATAGRAMS || (self.has_stream && self.idle_ns(now_ns) < STREAM_NAP_NS);
    }

    /// How long nothing has been taken or sent.
    fn idle_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.last_work_ns)
    }

    /// Until when the thread may sleep, timers aside.
    fn rest_until(
        &mut self,
        now_ns: u64,
        application_polls: bool,
        is_blocked: bool,
        has_sent: bool,
    ) -> u64 {
        let mut sleep_ns = FOREVER;
        if !is_blocked || has_sent {
            self.retry_ns = RETRY_MIN_NS;
        }
        // An application that polls tries itself.
        if is_blocked && !application_polls {
            sleep_ns = self.retry_ns;
            self.retry_ns = (self.retry_ns * 2).min(NAP_MAX_NS);
        }
        if self.has_lease && !application_polls {
            let bounds = match self.interrupts {
                Some(_) => LEASE_LOOK_NS,
                None => LEASE_NAP_NS,
            };
            sleep_ns = sleep_ns.min(lease_nap_ns(self.idle_ns(now_ns), bounds));
        }
        if application_polls {
            sleep_ns = sleep_ns.min(self.nap_ns);
        }
        if self.has_stream {
            sleep_ns = sleep_ns.min(STREAM_NAP_NS);
        }
        self.naps = application_polls || self.has_stream;
        now_ns.saturating_add(sleep_ns)
    }
}

/// How long a process with a leased queue may sleep after `idle_ns` without a datagram: an eighth
/// of that, within bounds.
fn lease_nap_ns(idle_ns: u64, (shortest, longest): (u64, u64)) -> u64 {
    (idle_ns / 8).clamp(shortest, longest)
}

impl Engine {
    /// One turn of the thread. Returns until when to sleep, 0 for not at all, and fills the bells
    /// that end the sleep.
    pub(crate) fn background_turn(&self, turns: &mut Turns, bells: &mut Bells) -> u64 {
        let polls = self.sleep_control.polls.load(Ordering::Relaxed);
        let application_polls = polls != turns.polls && !self.is_about_to_sleep();
        turns.polls = polls;
        let is_stale = application_polls && self.is_left_alone(polls, turns.has_lease);
        let mut shard = self.shard.lock();
        turns.has_lease = shard.lease.is_some();
        turns.interrupts = shard.lease.as_ref().and_then(|lease| lease.interrupts());
        let now = clock::now();
        let now_ns = now.as_ns();
        shard.is_blocked = false;
        let sent_before = shard.counters.sent;
        let taken = if shard.is_dead {
            0
        } else {
            shard.progress(&self.info)
        };
        shard.run_timers(now);
        let watch = shard.watch_peers(now_ns);
        let has_sent = shard.counters.sent != sent_before;
        let has_notes = !shard.process.notes.is_empty();
        let timer = shard.qps.next_look_ns().unwrap_or(FOREVER);
        let _ = shard.qps.wheel.take_moved();
        self.adapt_mode(turns, application_polls, is_stale && taken > 0, taken > 0);
        turns.note_work(now_ns, taken, has_sent);
        if application_polls {
            turns.no_spin_until_ns = now_ns + NO_SPIN_NS;
        }
        let spins =
            !turns.is_guest && now_ns >= turns.no_spin_until_ns && turns.idle_ns(now_ns) < SPIN_NS;
        // After a full burst there is most likely more, and a queue pair whose turn ended before it
        // had sent all that it may goes on.
        if has_notes || spins || taken >= BURST || shard.may_send_more() {
            drop(shard);
            if has_notes {
                self.deliver_notes();
            }
            if spins {
                spin_once(turns);
            }
            return 0;
        }
        let cm = self.cm_deadline_ns();
        if cm <= now_ns {
            drop(shard);
            self.cm_timeout();
            return 0;
        }
        let until = turns.rest_until(now_ns, application_polls, shard.is_blocked, has_sent);
        let until = until.min(timer).min(cm).min(watch);
        let is_bounded =
            turns.naps || shard.is_blocked || (turns.has_lease && turns.interrupts.is_none());
        self.sleep_control
            .is_bounded
            .store(is_bounded, Ordering::SeqCst);
        self.sleep_control.wake_at.store(until, Ordering::SeqCst);
        shard.await_counts();
        shard.channels.listen(bells);
        self.sleep_control.listens();
        if self.cm_deadline_ns() < cm {
            // It was set before the bells were read.
            return 0;
        }
        until.max(1)
    }

    /// Whether the application has armed a completion queue and hardly polled since.
    fn is_about_to_sleep(&self) -> bool {
        self.shard.lock().polls_since_armed < POLLS_TO_TAKE_OVER
    }

    /// Whether an application that polled recently leaves messages waiting, or possibly packets in
    /// a leased queue.
    fn is_left_alone(&self, polls: u64, has_lease: bool) -> bool {
        let rings = self.sleep_control.mode.load(Ordering::Relaxed) == MODE_DOORBELL;
        let has_work = || self.shard.lock().channels.have_work();
        let may_wait = || has_lease || (!rings && has_work());
        if !may_wait() {
            return false;
        }
        std::thread::sleep(Duration::from_nanos(STALE_NS));
        may_wait() && self.sleep_control.polls.load(Ordering::Relaxed) == polls
    }

    /// Chooses the mode and the length of the next sleep.
    fn adapt_mode(
        &self,
        turns: &mut Turns,
        application_polls: bool,
        was_stale: bool,
        worked: bool,
    ) {
        if !application_polls {
            turns.nap_ns = NAP_MIN_NS;
            return;
        }
        let is_doorbell = self.sleep_control.mode.load(Ordering::Relaxed) == MODE_DOORBELL;
        let was_needed = if is_doorbell && !turns.has_lease {
            worked
        } else {
            was_stale
        };
        if was_needed {
            turns.score = (turns.score + 2).min(SCORE_MAX);
            turns.nap_ns = if turns.has_lease {
                LEASE_NAP_NS.0
            } else {
                NAP_MIN_NS
            };
        } else {
            turns.score = turns.score.saturating_sub(1);
            turns.nap_ns = (turns.nap_ns * 2).min(NAP_MAX_NS);
        }
        let mode = match (is_doorbell, turns.score) {
            (false, SCORE_DOORBELL..) => {
                turns.score = SCORE_MAX;
                MODE_DOORBELL
            }
            (true, 0) => MODE_POLL,
            _ => return,
        };
        self.sleep_control.mode.store(mode, Ordering::Relaxed);
    }

    /// Delivers to connection management what arrived for it, in order and without the engine's
    /// lock.
    pub(crate) fn deliver_notes(&self) {
        let _in_order = self.delivery.lock().unwrap_or_else(PoisonError::into_inner);
        let notes = std::mem::take(&mut self.shard.lock().process.notes);
        if notes.is_empty() {
            return;
        }
        let cm = self.cm_in_use();
        for note in notes {
            match (note, &cm) {
                (Note::Offer(slot, offer), _) => self.make_offer(slot, offer),
                (Note::Closed(channel), _) => drop(channel),
                (_, None) => {}
                (Note::QpData(qpn), Some(cm)) => cm.qp_data(qpn),
                (Note::QpGone(qpn), Some(cm)) => cm.qp_gone(qpn),
                (Note::Cm(from, datagram), Some(cm)) => cm.handle_datagram(from, &datagram),
                (Note::SlotGone(slot, generation), Some(cm)) => {
                    self.cm_slot_gone(cm.as_ref(), slot, generation);
                }
                (Note::Refused(slot), Some(cm)) => {
                    cm.slot_gone(slot, &|| self.directory.has_process(slot.number()));
                }
            }
        }
        note_event();
    }

    pub(super) fn cm_deadline_ns(&self) -> u64 {
        self.cm
            .get()
            .and_then(|cm| cm.next_deadline())
            .map_or(FOREVER, |time| time.as_ns())
    }

    #[cold]
    pub(super) fn cm_timeout(&self) {
        if let Some(cm) = self.cm.get() {
            cm.handle_timeout();
        }
    }

    /// One turn of a thread that does not sleep after it; whether it has taken something.
    pub(super) fn turn_once(&self) -> bool {
        let mut shard = self.shard.lock();
        let mut taken = 0;
        if !shard.is_dead {
            taken = shard.progress(&self.info);
            shard.run_timers(clock::now());
        }
        if !shard.process.notes.is_empty() {
            drop(shard);
            self.deliver_notes();
        }
        taken > 0
    }
}

/// Yields the processor and measures whether another thread wanted it.
fn spin_once(turns: &mut Turns) {
    let before = clock::now_ns();
    std::thread::yield_now();
    let after = clock::now_ns();
    let away_ns = after.saturating_sub(before);
    if away_ns > CONTENDED_NS {
        turns.no_spin_until_ns = after + (away_ns * NO_SPIN_SHARE).min(NO_SPIN_NS);
    }
}

#[cfg(test)]
mod tests {
    use urdma_engine::{Access, SendOp};

    use super::*;
    use crate::rig::{connect, instance, parts, End};

    #[test]
    fn thread_does_not_rest_while_an_answer_of_many_datagrams_may_go_on() {
        // The test takes the turns of the thread.
        let engine = Engine::start_without_thread(parts(&instance(), 1)).unwrap();
        // More than two turns.
        let octets = 5 << 20;
        let [asks, answers] = [(); 2].map(|()| End::new(engine.clone(), octets));
        connect(&asks, &answers, Access::all() - Access::ON_DEMAND);
        let read = SendOp::Read {
            remote: answers.remote(0),
        };
        asks.post(1, read, &[asks.sge(0, octets)]).unwrap();
        let (mut turns, mut bells) = (Turns::new(), Bells::default());
        // Another thread wants the processor.
        turns.no_spin_until_ns = FOREVER;
        let mut rests = 0;
        while !asks.cq.has_completions() {
            if engine.background_turn(&mut turns, &mut bells) > 0 {
                let shard = engine.shard.lock();
                assert!(
                    shard.is_blocked || shard.qps.ready.is_empty(),
                    "rests: {rests}"
                );
                rests += 1;
            }
            assert!(rests < 1000, "the read does not end");
        }
    }

    #[test]
    fn memory_of_a_corrupt_channel_is_unmapped_without_the_lock() {
        let engine = Engine::start_without_thread(parts(&instance(), 1)).unwrap();
        let slot = engine.info.slot;
        let [a, b] = [(); 2].map(|()| End::new(engine.clone(), 64));
        connect(&a, &b, Access::all());
        let mut shard = engine.shard.lock();
        shard.end_corrupt(slot);
        assert!(!shard.channels.has(slot));
        let is_closed = |note: &Note| matches!(note, Note::Closed(_));
        assert!(shard.process.notes.iter().any(is_closed));
        drop(shard);
        engine.background_turn(&mut Turns::new(), &mut Bells::default());
        assert!(engine.shard.lock().process.notes.is_empty());
    }
}
