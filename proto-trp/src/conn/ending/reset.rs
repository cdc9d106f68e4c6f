//! RESETs, and packets that arrive in a state that accepts none (doc/spec/trp.md, section 8.4).

use super::super::connection::Connection;
use super::super::host::Host;
use super::super::qp_state::QpState;
use super::super::transmit::Controls;
use crate::wire::{PacketType, ResetReason, Segment, SegmentKind, TrpHeader};
use urdma_types::Time;

impl Connection {
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
    pub(in crate::conn) fn on_reset<H: Host>(&mut self, now: Time, trp: &TrpHeader, host: &mut H) {
        // R8.4-5
        //# If there is none, it MUST drop the packet and counts it.
        if !self.transport.is_stream() || !self.is_reset_of_ours(trp) {
            self.stats.rx_wrong_id += 1;
            return;
        }
        let is_of_sent = self.is_sent_stream(trp);
        // R8.4-6
        //# Otherwise it MUST process the acknowledgement, if the id is that of the stream it sends,
        //# before it acts by the reason.
        if let Some(next) = trp.reset_acknowledges().filter(|_| is_of_sent) {
            self.peer_took(now, next, host);
        }
        match trp.reset_reason() {
            ResetReason::NotConnected => {
                // R7.7-3
                //# If RESETs say that the peer's queue pair is not connected (section 8.4), the
                //# peer's process runs, and a silence of `4.096 us * 2^timeout * (retry_cnt + 1)`
                //# and as many PTOs MUST end the request.
                if self.sender.in_flight() > 0 && self.sender.nominal_time_is_over(now) {
                    self.give_up(host);
                }
            }
            _ if self.phase.peer_has_ended() => {}
            // R8.4-8
            //# If the id is that of the received stream and packets are in flight, the oldest of
            //# these MUST be sent again before the receiver acts by reason 0 or 1: only the answer
            //# to that packet can say what was accepted.
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
    pub(in crate::conn) fn handle_late(
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
                self.ending.stop_terminate();
            }
            return None;
        }
        if !self.transport.is_stream() || !self.is_ours(trp) {
            return None;
        }
        match trp.kind {
            PacketType::FinAck => self.ending.stop_terminate(),
            PacketType::Data | PacketType::Train | PacketType::Probe => {
                let segment = Segment::parse_after(trp, head, len).map(|segment| segment.kind);
                if matches!(segment, Ok(SegmentKind::Terminate { .. })) {
                    // R8.5-6
                    //# It MUST answer each Terminate with FIN_ACK.
                    if self.phase.sends_stream() {
                        self.controls.add(Controls::FIN_ACK);
                    }
                } else if self.ending.terminate().is_some() {
                    // R8.5-3
                    //# As it may be lost, the sender MUST repeat it as the answer to each DATA and
                    //# PROBE of the connection that arrives later, and up to five times at doubling
                    //# intervals from twice the PTO on, until the receiver has answered with
                    //# FIN_ACK.
                    self.controls.add(Controls::TERMINATE);
                } else {
                    return Some(ResetReason::Failed);
                }
            }
            _ => {}
        }
        None
    }

    /// Whether a packet that is not a RESET belongs to this incarnation of the connection.
    #[inline]
    pub(in crate::conn) fn is_ours(&self, trp: &TrpHeader) -> bool {
        let id = trp.connection_id;
        trp.destination_index == self.config.local_qpn.index()
            && !self.transport.is_channel()
            && trp.kind != PacketType::Reset
            && if trp.kind.carries_acknowledged_stream() {
                self.phase.sends_stream() && id == self.peer.tx_id
            } else {
                id == self.peer.rx_id
            }
    }
}
