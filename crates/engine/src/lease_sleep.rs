//! The sleep of the background thread of a process with a leased queue whose driver has receive
//! interrupts: on the epoll set of the lease, which has the process' wake socket, too.
//!
//! Interrupts are unmasked while the thread sleeps, and masked while it is awake: the peer then
//! spends no system call on them. After unmasking and a full fence the thread looks at the queue
//! once more.

use urdma_channel::Bells;

use super::background::Turns;
use super::engine::Engine;
use super::lease::LeasedQueue;
use super::lease_set::wait;

impl Engine {
    /// Sleeps after a turn of the background thread.
    pub(super) fn rest(&self, turns: &Turns, bells: &Bells, until: u64) {
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
        let has_work = || {
            let mut shard = self.shard.lock();
            let lease = shard.lease.as_deref_mut();
            let in_queue = lease.is_some_and(LeasedQueue::unmask);
            in_queue || shard.channels.have_work() || seat.is_requested()
        };
        let slept = control.sleep_in_call(bells, until, has_work, |limit| wait(set, limit));
        let mut shard = self.shard.lock();
        if let Some(lease) = &mut shard.lease {
            lease.mask();
            if slept.as_ref().is_some_and(|slept| slept.is_refused) {
                lease.give_up_interrupts();
            }
        }
        drop(shard);
        if slept.is_some_and(|slept| slept.is_woken) {
            if let Some(socket) = control.page.socket() {
                socket.take();
            }
        }
    }
}
