//! The sleep of a thread of a process with a leased queue whose driver has receive interrupts: on
//! the epoll set of the lease, which has the process' wake socket, too.
//!
//! The background thread waits on this set. A thread that waits for a set of descriptors of the
//! application has it as a member there (`driver.rs`), and takes its events, which are
//! edge-triggered, by a look at it. So does a thread that drives in read(2): it sleeps in ppoll(2)
//! with its signals blocked, beside a descriptor of signalfd(2), since ppoll does not tell which
//! handlers have run, and read continues after those with `SA_RESTART`.
//!
//! Interrupts are unmasked while the thread sleeps, and masked while it is awake: the peer then
//! spends no system call on them. After unmasking and a full fence the thread looks at the queue
//! once more.

use std::os::fd::RawFd;

use urdma_waiting::Bells;

use super::turns::Turns;
use crate::engine::Engine;
use crate::paths::lease_set::{wait, wait_beside};

/// A sleep after a turn.
pub(crate) struct Rest<'a> {
    pub(super) turns: &'a Turns,
    pub(super) bells: &'a mut Bells,
    pub(super) until: u64,
}

impl Engine {
    /// Sleeps after a turn of the background thread.
    pub(crate) fn rest(&self, turns: &Turns, bells: &Bells, until: u64) {
        let control = &self.sleep_control;
        // A request for the seat may have rung before the bells were read.
        let seat = &control.seat;
        let set = turns
            .interrupts
            .filter(|_| !turns.naps || control.page.is_parked());
        let Some(set) = set else {
            let has_work = || self.shard.lock().channels.have_work() || seat.is_requested();
            control.sleep(bells, until, turns.naps, has_work);
            return;
        };
        let has_work = || self.has_work_before_call(turns) || seat.is_requested();
        let slept = control.sleep_in_call(bells, until, has_work, |limit| wait(set, limit));
        self.end_interrupts(turns);
        let Some(slept) = slept else { return };
        if slept.is_refused {
            if let Some(lease) = &mut self.shard.lock().lease {
                lease.give_up_interrupts();
            }
        }
        if slept.is_woken {
            control.take_wake_message();
        }
    }

    /// Sleeps in a thread that drives in read(2), whose blocked signals make `signals` readable;
    /// `has_event` looks for its event. False if the system does not let it sleep so.
    pub(super) fn rest_beside(
        &self,
        set: RawFd,
        signals: RawFd,
        rest: &Rest<'_>,
        has_event: impl Fn() -> bool,
    ) -> bool {
        let control = &self.sleep_control;
        let has_work = || self.has_work_before_call(rest.turns) || has_event();
        let sleep = |limit| wait_beside(set, signals, limit);
        let slept = control.sleep_in_call(rest.bells, rest.until, has_work, sleep);
        self.end_interrupts(rest.turns);
        control.take_wake_up();
        slept != Some(false)
    }

    /// The last look of a thread that is about to sleep in a call on descriptors after `turns`: a
    /// leased queue with interrupts interrupts it from now on.
    pub(super) fn has_work_before_call(&self, turns: &Turns) -> bool {
        let mut shard = self.shard.lock();
        if turns.interrupts.is_some() {
            shard.has_work()
        } else {
            shard.channels.have_work()
        }
    }

    /// The thread has slept.
    pub(super) fn end_interrupts(&self, turns: &Turns) {
        if turns.interrupts.is_some() {
            if let Some(lease) = &mut self.shard.lock().lease {
                lease.mask();
            }
        }
    }
}
