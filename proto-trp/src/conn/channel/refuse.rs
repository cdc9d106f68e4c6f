//! Refused requests: NOT_READY (no receive request) and RESET (no queue pair) at both ends, and the
//! pause until the requests are sent again (doc/spec/channel.md, sections 8.2 and 8.3).

use super::super::connection::Connection;
use super::super::host::Host;
use super::super::types::Status;
use super::message::Handled;
use super::state::Intake;
use crate::wire::{MessageFlags, MessageHead, ResetReason, RnrTimer};
use urdma_types::Time;

/// The pause after the first RESET of a queue pair that is not connected.
const FIRST_PAUSE_NS: u64 = 1_000_000;
/// The pause doubles with each further one up to 16 ms.
const PAUSE_DOUBLINGS: u32 = 4;

impl Connection {
    /// A request finds no receive request: it and those after it are refused until the peer starts
    /// again.
    pub(super) fn refuse_requests(&mut self, head: &MessageHead) -> Handled {
        self.stats.rx_deferred += 1;
        self.stats.rnr_sent += 1;
        self.phase.refuse(true);
        // C8.2-1
        //# It then discards all requests of that connection, and settles them, until a request has
        //# another EPOCH than the refused one.
        self.channel.intake = Intake::FromEpoch(head.flags.and(MessageFlags::EPOCH));
        Handled::with(self.not_ready_message())
    }

    /// The peer has no receive request for a message.
    #[cold]
    pub(super) fn on_not_ready<H: Host>(
        &mut self,
        now: impl FnOnce() -> Time,
        head: &MessageHead,
        host: &mut H,
    ) {
        let [code, ..] = head.offset.to_le_bytes();
        let until = now().plus_ns(u64::from(RnrTimer::new(code).as_us()) * 1_000);
        let pause = &mut self.channel.pause;
        if head.flags.and(MessageFlags::EPOCH) != self.channel.flags.and(MessageFlags::EPOCH) {
            // A repeated one: the peer may have become ready in the meantime.
            let is_last = pause.refusals > 0 && pause.refused == head.number;
            if is_last && pause.until != Time::NEVER {
                pause.until = pause.until.earlier(until);
            }
            return;
        }
        let refusals = match pause.refusals {
            count if count > 0 && pause.refused == head.number => count + 1,
            _ => 1,
        };
        let Some(index) = self.find_message(head.number) else {
            return;
        };
        self.stats.rnr_received += 1;
        // C8.2-2
        //# The sender of the refused message takes back that request and those after it, as if they
        //# had not been sent; it alternates EPOCH, waits for the time that the code stands for, and
        //# sends them again, the refused one first.
        if !self.may_be_refused(refusals) {
            self.flush(Some((index, Status::RnrRetryExceeded)), None, host);
            return;
        }
        // What a Write has placed stays: only its immediate data is refused.
        let wqe = self.sq.get(index);
        let keeps = wqe.kind.is_write();
        self.sq.rewind(index, if keeps { wqe.progress } else { 0 });
        self.channel.pause.refusals = refusals;
        self.channel.pause.refused = head.number;
        self.channel.unconnected.count = 0;
        // C8.2-2
        //# The sender of the refused message takes back that request and those after it, as if they
        //# had not been sent; it alternates EPOCH, waits for the time that the code stands for, and
        //# sends them again, the refused one first.
        self.channel.begin_pause(until);
    }

    /// The request that was begun with this message of queue 0.
    fn find_message(&self, msn: u32) -> Option<u32> {
        let mut begun = self.sq.begun();
        let found = begun.find(|(_, wqe)| wqe.msn == msn && wqe.has_msn() && !wqe.is_request());
        found.map(|(index, _)| index)
    }

    /// No queue pair takes a message of this connection.
    #[cold]
    pub(super) fn on_reset_message<H: Host>(
        &mut self,
        now: impl FnOnce() -> Time,
        head: &MessageHead,
        host: &mut H,
    ) {
        self.channel.resets += 1;
        if self.config.unreliable {
            return;
        }
        if self.phase.peer_has_ended() {
            // After a FIN requests fail later; what was refused does not complete until then.
            self.take_back_all();
            return;
        }
        match ResetReason::from_number(head.offset) {
            ResetReason::NotConnected => {
                let is_of_epoch = head.flags.and(MessageFlags::EPOCH) == self.channel.epoch();
                if is_of_epoch && self.channel.pause.until == Time::NEVER {
                    self.on_not_connected(now(), host);
                }
            }
            ResetReason::Failed if !self.config.fails_with_peer => {
                if self.take_back_all() {
                    self.on_failed_peer(now());
                }
            }
            ResetReason::Failed | ResetReason::NoQueuePair => self.peer_gone(host),
        }
    }

    /// The peer's queue pair may be connected yet: all requests are sent again later.
    fn on_not_connected<H: Host>(&mut self, now: Time, host: &mut H) {
        if !self.take_back_all() {
            return;
        }
        let is_quiet = self.heard_nothing();
        let (heard, head) = (self.heard(), self.sq.head());
        let unconnected = &mut self.channel.unconnected;
        if !is_quiet {
            (unconnected.count, unconnected.since) = (0, now);
        }
        (unconnected.heard, unconnected.head) = (heard, head);
        let delay_ns = FIRST_PAUSE_NS << unconnected.count.min(PAUSE_DOUBLINGS);
        unconnected.count += 1;
        self.channel.pause.refusals = 0;
        // C8.3-1
        //# A receiver that has entered RTR discards requests, and settles them, until one has
        //# START: otherwise a message could be accepted although one before it was refused.
        self.channel.start_anew();
        self.channel
            .begin_pause(now.plus_ns(delay_ns).earlier(self.give_up_at()));
        if self.give_up_at() <= now {
            self.give_up(host);
        }
    }

    /// The peer's queue pair is in ERROR: nothing is sent to it until the requests fail.
    fn on_failed_peer(&mut self, now: Time) {
        self.expect_failure(now);
        self.channel.unconnected.count = 0;
        self.channel.pause.refusals = 0;
        self.channel.begin_pause(self.ending.fail_deadline());
    }

    /// Messages of the peer that are no RESETs.
    fn heard(&self) -> u64 {
        self.stats.rx_datagrams - self.channel.resets
    }

    /// Whether nothing but RESETs was heard, and nothing completed, since the last RESET of a queue
    /// pair that is not connected.
    fn heard_nothing(&self) -> bool {
        let unconnected = &self.channel.unconnected;
        let (heard, head) = (unconnected.heard, unconnected.head);
        unconnected.count > 0 && (heard, head) == (self.heard(), self.sq.head())
    }

    /// When requests to a queue pair that is not connected fail.
    fn give_up_at(&self) -> Time {
        let budget_ns = self.sender.nominal_ns();
        budget_ns.map_or(Time::NEVER, |budget_ns| {
            self.channel.unconnected.since.plus_ns(budget_ns)
        })
    }

    /// Takes back every request that was begun, as if it had not been sent; false if there is none.
    fn take_back_all(&mut self) -> bool {
        let has_begun = self.sq.has_begun();
        if has_begun {
            self.sq.rewind(self.sq.head(), 0);
        }
        has_begun
    }

    /// The pause is over.
    #[cold]
    pub(in crate::conn) fn end_pause<H: Host>(&mut self, now: Time, host: &mut H) {
        self.channel.pause.until = Time::NEVER;
        if self.heard_nothing() && self.give_up_at() <= now {
            self.give_up(host);
        }
    }
}
