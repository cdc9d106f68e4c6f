//! Timers: delayed acknowledgements, probe timeouts, RNR pauses, keep-alive, and the end of
//! retries.

use super::connection::Connection;
use super::host::Host;
use super::transmit::Controls;
use super::types::Trace;
use urdma_types::Time;

impl Connection {
    /// When [`Connection::handle_timeout`] is to be called, if at all. May move in either direction
    /// with every other call.
    #[inline]
    pub fn next_deadline(&self) -> Option<Time> {
        if !self.phase.receives() {
            let repeat = self.ending.repeat_deadline();
            return (repeat != Time::NEVER).then_some(repeat);
        }
        if self.transport.is_channel() {
            let deadline = self
                .channel
                .pause_until()
                .earlier(self.ending.fail_deadline());
            return (deadline != Time::NEVER).then_some(deadline);
        }
        let deadline = self
            .acks
            .deadline
            .earlier(self.sender.deadline(!self.phase.peer_has_ended()))
            .earlier(self.ending.fail_deadline())
            .earlier(self.keepalive.deadline());
        (deadline != Time::NEVER).then_some(deadline)
    }

    /// Handles expired timers; an early or late call does no harm.
    pub fn handle_timeout<H: Host>(&mut self, now: Time, host: &mut H) {
        if !self.phase.receives() {
            if self.ending.take_repeat(now) {
                self.controls.add(Controls::TERMINATE);
            }
            return;
        }
        if self.channel.pause_until() <= now {
            self.end_pause(now, host);
        }
        if self.acks.deadline <= now {
            self.acks.deadline = Time::NEVER;
            self.acks.due = true;
        }
        self.sender.on_time(now);
        if !self.phase.peer_has_ended() && self.sender.probe_is_due(now) {
            self.probe(now, host);
        }
        // The sends that it was set for may have been acknowledged meanwhile.
        if self.ending.take_failure(now) && !self.sq.is_empty() {
            self.fail_oldest(host);
        }
        if self.keepalive.deadline() <= now {
            self.send_keepalive(now, host);
        }
    }

    /// The probe timeout: retransmits the oldest packet in flight, or gives the peer up.
    fn probe<H: Host>(&mut self, now: Time, host: &mut H) {
        if self.sender.on_probe_timeout(now) {
            self.give_up(host);
            return;
        }
        self.stats.probe_timeouts += 1;
        host.trace(Trace::ProbeTimeout {
            backoff: self.sender.backoff(),
            interval_ns: self.sender.probe_interval_ns(),
        });
    }

    fn send_keepalive<H: Host>(&mut self, now: Time, host: &mut H) {
        self.keepalive.base = now;
        if !self.sender.is_empty() || !self.phase.sends_stream() || self.phase.peer_has_ended() {
            return;
        }
        if self.keepalive.unanswered >= self.keepalive.limit {
            self.give_up(host);
            return;
        }
        self.keepalive.unanswered += 1;
        self.controls.add(Controls::PROBE);
    }
}
