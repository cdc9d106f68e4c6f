//! Acknowledgements: what was acknowledged is released, and completes requests.

use super::connection::Connection;
use super::host::Host;
use super::packet::Datagram;
use super::types::Trace;
use crate::wire::{ConnectionId, Sack};
use urdma_types::{Psn, Time};

impl Connection {
    /// Processes the acknowledgement that every packet carries: the PSN, the peer's window in
    /// packets, and whether marks are reported.
    #[inline]
    pub(super) fn on_ack<H: Host>(
        &mut self,
        now: Time,
        (ack, window_packets, marked): (Psn, u32, bool),
        sack: Option<&Sack>,
        host: &mut H,
    ) {
        if !self.phase.sends_stream() {
            return;
        }
        // R7.4-2
        //# Acknowledgements that are older than the newest MUST NOT change the window.
        if ack.precedes(self.sender.psn(self.sender.oldest())) {
            return;
        }
        let Some(acked) = self.sender.acked_seq(ack) else {
            self.stats.rx_malformed += 1;
            return;
        };
        self.sender.set_peer_window(window_packets);
        if acked == self.sender.oldest() && sack.is_none() {
            return;
        }
        let (responder, stats) = (&mut self.responder, &mut self.stats);
        let marks = (sack, marked);
        if let Some(packets) = self.sender.take_ack(now, acked, marks, responder, stats) {
            let rtt_ns = self.sender.smoothed_rtt_ns();
            host.trace(Trace::Window { packets, rtt_ns });
        }
        self.complete_sends(host);
    }

    /// The driver reports that the peer has accepted every packet of [`Connection::sent_stream`]
    /// before `next`.
    pub fn peer_took<H: Host>(&mut self, now: Time, next: Psn, host: &mut H) {
        let is_old = || next.precedes(self.sender.psn(self.sender.oldest()));
        if !self.phase.receives() || self.sent_stream().is_none() || is_old() {
            return;
        }
        if let Some(acked) = self.sender.acked_seq(next) {
            let (responder, stats) = (&mut self.responder, &mut self.stats);
            self.sender
                .take_ack(now, acked, (None, false), responder, stats);
            self.complete_sends(host);
        }
    }

    /// Acknowledges at once what was accepted, because no later packet may carry it.
    pub fn acknowledge_now(&mut self) {
        if self.phase.receives() {
            self.acks.hasten();
        }
    }

    /// The connection id of the outgoing stream; `None` before it exists, and without sequence
    /// numbers.
    pub fn sent_stream(&self) -> Option<ConnectionId> {
        let is_sequenced = self.phase.sends_stream() && self.transport.is_stream();
        is_sequenced.then_some(self.peer.tx_id)
    }

    #[inline]
    pub(super) fn note_mark<B: ?Sized>(&mut self, datagram: &Datagram<'_, B>) {
        if datagram.congestion_experienced {
            // R7.10-1
            //# A receiver of DATA marked CE MUST set ECE in its next packet that acknowledges.
            self.acks.marked = true;
            self.stats.ecn_marks += 1;
        }
    }
}
