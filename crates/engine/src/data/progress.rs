//! Progress: take what has arrived, let each queue pair send what it may, run the timers.
//!
//! Messages and packets come over channels (`messages.rs`) and, packets, from the leased queue
//! (`receive.rs`): at most [`BURST`] at once from each. [`Shard::flush`] then gives every queue
//! pair in the ready list a turn (`transmit.rs`), in which acknowledgements that are due leave too.
//!
//! [`Shard::progress_for_poll`] puts the sending off, once, when few datagrams came and there is a
//! completion to deliver. The application's next call sends, and if that call posts an answer to
//! what was received, the acknowledgement is part of it.
//!
//! A queue pair that finds no free buffer keeps what it has to send and stays in the list; one
//! that finds its channel full waits for that channel. `is_blocked` makes the background thread try
//! again soon.

use proto_trp::conn::Time;

use crate::clock;
use crate::paths::channels::BURST;
use crate::paths::path::PeerPath;
use crate::shard::Shard;
use crate::types::Info;

/// Bursts that empty every ring.
const DRAIN_BURSTS: usize = 65_536 / BURST;
/// Datagrams at one poll above which acknowledgements are sent at once: the sender of a stream
/// waits for them, and no answer will carry them.
const PUT_OFF_MAX: usize = 4;

impl Shard {
    /// Takes and sends; gives the number of datagrams taken.
    #[inline]
    pub(crate) fn progress(&mut self, info: &Info) -> usize {
        let taken = self.receive_all(info) + self.receive_leased(info);
        self.flush();
        taken
    }

    /// As [`Shard::progress`] for an application that polls a queue: `is_found` returns whether the
    /// queue has a completion.
    #[inline]
    pub(crate) fn progress_for_poll(&mut self, info: &Info, is_found: impl Fn() -> bool) {
        self.batch.polled();
        if !self.batch.is_empty() {
            self.flush();
        }
        let taken = self.receive_polled(info, self.empty_polls) + self.receive_leased(info);
        if !self.has_ready() {
            self.publish();
            return;
        }
        let has_found = self.direct.has_any() || is_found();
        if taken <= PUT_OFF_MAX && !self.is_put_off && has_found {
            self.is_put_off = true;
        } else {
            self.flush();
        }
    }

    /// Takes everything that waited at the beginning.
    pub(crate) fn drain(&mut self, info: &Info) {
        for _ in 0..DRAIN_BURSTS {
            if self.progress(info) < BURST {
                break;
            }
        }
    }

    /// Whether a queue pair could send more now and only waits for its next turn.
    pub(crate) fn may_send_more(&self) -> bool {
        !self.is_dead && !self.is_blocked && self.has_ready()
    }

    /// Whether a queue pair waits for a turn, or for room on a channel.
    #[inline]
    fn has_ready(&self) -> bool {
        !self.qps.ready.is_empty() || self.channels.has_waiting()
    }

    /// Sends what was put off or is ready.
    #[inline]
    pub(crate) fn flush(&mut self) {
        self.is_put_off = false;
        if self.has_ready() {
            self.give_turns(clock::now());
        }
        self.publish();
    }

    /// Sends what a request of `octets` that was just posted allows, and what was put off until
    /// this call; or leaves it for a batch (`paths/batch.rs`).
    #[inline]
    pub(crate) fn transmit_posted(&mut self, index: u16, octets: u32) {
        if let Some(PeerPath::Channel(slot)) = self.path_of(index) {
            if self.is_put_off {
                self.flush();
            }
            self.send_posted(index, slot);
            self.publish();
            return;
        }
        if self.batch.add(octets) {
            self.qps.make_ready(index);
            return;
        }
        if self.is_put_off || !self.batch.is_empty() {
            self.is_put_off = false;
            self.qps.make_ready(index);
            self.give_turns(clock::now());
        } else {
            self.give_turn(index, clock::now());
        }
        self.publish();
    }

    /// Handles the timers that are due and sends what they cause.
    pub(crate) fn run_timers(&mut self, now: Time) {
        if !self.qps.wheel.is_due(now) {
            return;
        }
        while let Some(index) = self.qps.wheel.expired(now) {
            let Some(entry) = self.qps.connected.get_mut(index) else {
                self.handle_timeout_of_kind(index, now);
                continue;
            };
            if entry.conn.next_deadline().is_some_and(|at| at <= now) {
                let (conn, mut host) = entry.with_host(&mut self.process);
                conn.handle_timeout(now, &mut host);
            }
            self.qps.wheel.set(index, entry.conn.next_deadline());
            if entry.conn.may_have_tx() {
                self.qps.make_ready(index);
            }
        }
        if self.has_ready() {
            self.give_turns(now);
            self.publish();
        }
    }
}
