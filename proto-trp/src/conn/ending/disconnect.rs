//! The end of the peer: FIN, RESET, silence, and the end of its process (doc/spec/trp.md, sections
//! 7.7, 8.3 and 8.4).
//!
//! | the peer | outstanding sends and the next one | without sends |
//! |---|---|---|
//! | destroys its queue pair (FIN) | fail after 500 ms at most | [`Event::PeerClosed`] |
//! | is gone: its process, or its queue pair without a FIN | fail at once | [`Event::PeerGone`] |
//! | is in ERROR | fail after 500 ms at most | nothing |
//! | is in RESET or INIT | fail after the nominal time | nothing |
//! | is silent | fail after four times the nominal time | `PeerGone` if keep-alive is on |
//!
//! The oldest send that fails has the status `RetryExceeded`, the others are flushed.
//!
//! What the peer had accepted before its end is a success in each case. The nominal time is
//! `(retry_cnt + 1) * 4.096 us * 2^timeout`. With [`crate::conn::ConnConfig::fails_with_peer`] the
//! connection goes to ERROR where the table has `PeerGone` or a peer in ERROR.

use super::super::connection::Connection;
use super::super::host::Host;
use super::super::keepalive::KeepAlive;
use super::super::qp_state::QpState;
use super::super::transport::Transport;
use super::super::types::{Event, Status};
use urdma_types::Time;

/// How long sends to a peer that has destroyed its queue pair, or whose queue pair is in ERROR,
/// wait before they fail. A device waits for its timeouts, and programs rely on that: one that
/// receives the event of the disconnect meanwhile destroys its queue pair, and sees no failure.
const CLOSED_PEER_TIMEOUT_NS: u64 = 500_000_000;

impl Connection {
    /// The driver reports that the peer's process has ended. After a FIN that changes nothing, and
    /// an unreliable connection does not depend on its peer.
    pub fn peer_gone<H: Host>(&mut self, host: &mut H) {
        if !self.phase.receives() || self.phase.peer_has_ended() || self.config.unreliable {
            return;
        }
        // C8.4-1
        //# The sender then takes what the incoming region still holds, up to the first empty cell,
        //# and the counts; completes what these cover; and ends the rest as after RESET with reason
        //# 0.
        if !self.sq.is_empty() || self.config.fails_with_peer {
            self.fail_oldest(host);
        } else {
            self.phase.on_peer_gone();
            self.sender.abandon();
            self.acks.on_sent();
            self.keepalive = KeepAlive::default();
        }
        host.event(Event::PeerGone);
    }

    /// Flushes every request, the oldest send with `RetryExceeded`.
    pub(in crate::conn) fn fail_oldest<H: Host>(&mut self, host: &mut H) {
        let blame = self.sq.oldest().map(|index| (index, Status::RetryExceeded));
        self.flush(blame, None, host);
        if blame.is_none() {
            host.event(Event::Fatal);
        }
    }

    /// The peer does not answer: the oldest send fails. The driver calls this over a channel.
    pub fn give_up<H: Host>(&mut self, host: &mut H) {
        if !self.sq.is_empty() {
            // RFC5041-3-2
            //# A segment that TRP accepts arrives, or the sender learns that it did not.
            self.fail_oldest(host);
        } else {
            self.peer_gone(host);
        }
    }

    /// The peer destroys its queue pair (FIN). Receives stay posted; sends fail.
    pub(in crate::conn) fn on_fin<H: Host>(&mut self, now: Time, host: &mut H) {
        if self.phase.peer_has_ended() {
            return;
        }
        self.phase.on_peer_closed();
        // RFC5041-3-5
        //# TRP tells the end of a stream that is closed in order.
        host.event(Event::PeerClosed);
        if self.phase.receives() && !self.sq.is_empty() {
            self.expect_failure(now);
        }
    }

    /// A send was posted after the peer's end.
    #[cold]
    pub(in crate::conn) fn post_without_peer<H: Host>(&mut self, now: Time, host: &mut H) {
        if !self.phase.peer_is_gone() {
            self.expect_failure(now);
        } else if self.phase.state() == QpState::Rts {
            self.fail_oldest(host);
        }
    }

    /// Sends that waited in SQD may start, but the peer has gone in the meantime.
    pub(in crate::conn) fn resume_without_peer(&mut self) {
        if self.phase.peer_is_gone() && !self.sq.is_empty() {
            self.ending.fail_at(Time::ZERO);
        }
    }

    /// Sets the time at which sends fail that the peer will not accept.
    pub(in crate::conn) fn expect_failure(&mut self, now: Time) {
        if self.ending.fail_deadline() == Time::NEVER {
            let budget_ns = match self.transport {
                Transport::Stream => self.sender.budget_ns(),
                Transport::Unreliable | Transport::Channel => None,
            };
            let timeout_ns = budget_ns.map_or(CLOSED_PEER_TIMEOUT_NS, |budget_ns| {
                budget_ns.min(CLOSED_PEER_TIMEOUT_NS)
            });
            self.ending.fail_at(now.plus_ns(timeout_ns));
        }
    }
}
