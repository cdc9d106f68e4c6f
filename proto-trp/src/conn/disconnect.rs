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
//! `(retry_cnt + 1) * 4.096 us * 2^timeout`. With [`super::ConnConfig::fails_with_peer`] the
//! connection goes to ERROR where the table has `PeerGone` or a peer in ERROR.

use super::connection::Connection;
use super::host::Host;
use super::keepalive::KeepAlive;
use super::qp_state::QpState;
use super::transmit::Controls;
use super::transport::Transport;
use super::types::{Event, Status};
use crate::wire::{ConnectionId, PacketType, ResetReason, Segment, SegmentKind, TrpHeader};
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

    /// The connection id of the outgoing stream; `None` before it exists, and without sequence
    /// numbers.
    pub fn sent_stream(&self) -> Option<ConnectionId> {
        let is_sequenced = self.phase.sends_stream() && self.transport.is_stream();
        is_sequenced.then_some(self.peer.tx_id)
    }

    /// Flushes every request, the oldest send with `RetryExceeded`.
    pub(super) fn fail_oldest<H: Host>(&mut self, host: &mut H) {
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
            self.fail_oldest(host);
        } else {
            self.peer_gone(host);
        }
    }

    /// The peer destroys its queue pair (FIN). Receives stay posted; sends fail.
    pub(super) fn on_fin<H: Host>(&mut self, now: Time, host: &mut H) {
        if self.phase.peer_has_ended() {
            return;
        }
        self.phase.on_peer_closed();
        // RFC5041-3-5
        host.event(Event::PeerClosed);
        if self.phase.receives() && !self.sq.is_empty() {
            self.expect_failure(now);
        }
    }

    /// A send was posted after the peer's end.
    #[cold]
    pub(super) fn post_without_peer<H: Host>(&mut self, now: Time, host: &mut H) {
        if !self.phase.peer_is_gone() {
            self.expect_failure(now);
        } else if self.phase.state() == QpState::Rts {
            self.fail_oldest(host);
        }
    }

    /// Sends that waited in SQD may start, but the peer has gone in the meantime.
    pub(super) fn resume_without_peer(&mut self) {
        if self.phase.peer_is_gone() && !self.sq.is_empty() {
            self.fail_deadline = Time::ZERO;
        }
    }

    /// Sets the time at which sends fail that the peer will not accept.
    pub(super) fn expect_failure(&mut self, now: Time) {
        if self.fail_deadline == Time::NEVER {
            let budget_ns = match self.transport {
                Transport::Stream => self.sender.budget_ns(),
                Transport::Unreliable | Transport::Channel => None,
            };
            let timeout_ns = budget_ns.map_or(CLOSED_PEER_TIMEOUT_NS, |budget_ns| {
                budget_ns.min(CLOSED_PEER_TIMEOUT_NS)
            });
            self.fail_deadline = now.plus_ns(timeout_ns);
        }
    }

    /// Whether a RESET names the peer's queue pair and a stream of this connection.
    fn is_reset_of_ours(&self, trp: &TrpHeader) -> bool {
        let names_peer = trp.psn.to_u32() == u32::from(self.peer.index);
        names_peer && (self.is_sent_stream(trp) || trp.connection_id == self.peer.rx_id)
    }

    fn is_sent_stream(&self, trp: &TrpHeader) -> bool {
        self.phase.sends_stream() && trp.connection_id == self.peer.tx_id
    }

    /// Processes a RESET, if it belongs to this connection. It does not show that the peer's queue
    /// pair is alive, so it does not end a silence.
    #[cold]
    pub(super) fn on_reset<H: Host>(&mut self, now: Time, trp: &TrpHeader, host: &mut H) {
        // R8.4-5
        if !self.transport.is_stream() || !self.is_reset_of_ours(trp) {
            self.stats.rx_wrong_id += 1;
            return;
        }
        let is_of_sent = self.is_sent_stream(trp);
        // R8.4-6
        if let Some(next) = trp.reset_acknowledges().filter(|_| is_of_sent) {
            self.peer_took(now, next, host);
        }
        match trp.reset_reason() {
            ResetReason::NotConnected => {
                // R7.7-3
                if self.sender.in_flight() > 0 && self.sender.nominal_time_is_over(now) {
                    self.give_up(host);
                }
            }
            _ if self.phase.peer_has_ended() => {}
            // R8.4-8
            _ if !is_of_sent && self.sender.in_flight() > 0 && !self.sq.is_empty() => {
                // It answers an acknowledgement, and does not show what of the outgoing stream was
                // accepted; the RESET that answers a packet of the stream does.
                self.sender.lose_first();
            }
            ResetReason::Failed if !self.config.fails_with_peer => {
                if !self.sq.is_empty() {
                    self.expect_failure(now);
                }
            }
            ResetReason::Failed | ResetReason::NoQueuePair => self.peer_gone(host),
        }
    }

    /// Processes a packet in a state that accepts none; returns the reason of the RESET that
    /// answers it, if one does. After a local error the Terminate is sent again, because it may
    /// have been lost. A Terminate of the peer is answered, so that the peer stops its
    /// retransmission.
    #[cold]
    pub(super) fn handle_late(
        &mut self,
        trp: &TrpHeader,
        (head, len): (&[u8], usize),
    ) -> Option<ResetReason> {
        self.stats.rx_wrong_state += 1;
        if self.phase.state() != QpState::Error {
            return Some(ResetReason::NotConnected);
        }
        if trp.kind == PacketType::Reset {
            if self.is_reset_of_ours(trp) {
                self.terminate_repeat.stop();
            }
            return None;
        }
        if !self.transport.is_stream() || !self.is_ours(trp) {
            return None;
        }
        match trp.kind {
            PacketType::FinAck => self.terminate_repeat.stop(),
            PacketType::Data | PacketType::Train | PacketType::Probe => {
                let segment = Segment::parse_after(trp, head, len).map(|segment| segment.kind);
                if matches!(segment, Ok(SegmentKind::Terminate { .. })) {
                    // R8.5-6
                    if self.phase.sends_stream() {
                        self.controls.add(Controls::FIN_ACK);
                    }
                } else if self.terminate.is_some() {
                    // R8.5-3
                    self.controls.add(Controls::TERMINATE);
                } else {
                    return Some(ResetReason::Failed);
                }
            }
            _ => {}
        }
        None
    }
}
