//! Acknowledgements: the effect of a received one on the sending half.

use super::config::MAX_WINDOW_PACKETS;
use super::congestion::AckInfo;
use super::connection::Connection;
use super::host::Host;
use super::peer::ACK_REQUEST_INTERVAL;
use super::txwindow::{is_later, SegmentSource};
use super::types::Trace;
use crate::wire::Sack;
use urdma_types::{Psn, Time};

/// Acknowledgements that are requested per window, if the window is small.
const ACKS_IN_WINDOW: u32 = 4;

/// What one acknowledgement newly acknowledges.
#[derive(Debug, Default)]
struct Tally {
    packets: u32,
    /// The last packet of those transmitted once, whose time of transmission is unambiguous.
    once: Option<u64>,
    /// The latest transmission of retransmitted packets, and its sequence number. Which
    /// transmission has arrived is ambiguous (Karn).
    again: Option<(u32, u64)>,
    /// One of them requested this acknowledgement, which therefore was not delayed.
    prompt: bool,
}

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
        if !self.sends_stream {
            return;
        }
        // R7.4-2
        if ack.precedes(self.tx.psn(self.tx.una)) {
            return;
        }
        let Some(acked) = self.tx.acked_seq(ack) else {
            self.stats.rx_malformed += 1;
            return;
        };
        self.tx.peer_window = window_packets;
        if acked == self.tx.una && sack.is_none() {
            return;
        }
        if let Some(packets) = self.take_ack(now, acked, sack, marked) {
            let rtt_ns = self.recovery.smoothed_rtt_ns();
            host.trace(Trace::Window { packets, rtt_ns });
        }
        self.complete_sends(host);
    }

    /// Returns the congestion window if it has changed.
    pub(super) fn take_ack(
        &mut self,
        now: Time,
        acked: u64,
        sack: Option<&Sack>,
        marked: bool,
    ) -> Option<u32> {
        let mut tally = Tally::default();
        for seq in self.tx.una..acked {
            self.ack_record(seq, &mut tally);
        }
        self.tx.una = acked;
        if let Some(sack) = sack {
            for bit in sack {
                let seq = acked + 1 + u64::from(bit);
                if seq >= self.tx.next {
                    self.stats.rx_malformed += 1;
                    break;
                }
                self.ack_record(seq, &mut tally);
            }
        }
        if tally.packets == 0 {
            return None;
        }
        self.stats.ecn_echoes += u64::from(marked);
        let rtt_ns = self.note_arrival(now, &tally);
        if self.rnr.retries > 0 {
            self.rnr.on_taken(acked);
        }
        let window = self.control.on_ack(&AckInfo {
            now,
            packets: tally.packets,
            in_flight: self.tx.in_flight,
            rtt_ns,
            min_rtt_ns: self.recovery.min_rtt_ns(),
            smoothed_rtt_ns: self.recovery.smoothed_rtt_ns(),
            marked,
        });
        if let Some(window) = window {
            self.follow_window(window);
        }
        let again = tally.again.is_some();
        if sack.is_some() || again || self.recovery.loss_deadline != Time::NEVER {
            self.detect_loss(now);
        }
        window
    }

    #[inline(always)]
    fn ack_record(&mut self, seq: u64, tally: &mut Tally) {
        let Some(record) = self.tx.mark_acked(seq) else {
            return;
        };
        tally.packets += 1;
        tally.prompt |= record.ack_requested;
        if record.retransmitted {
            tally.note_again(record.transmission, seq);
        } else {
            // Packets that were sent once are transmitted in the order of their numbers.
            tally.once = Some(seq);
        }
        if let SegmentSource::Response(entry) = record.spec.source {
            self.responder.acked(entry);
        }
    }

    /// Updates recovery; returns the RTT if it is unambiguous and not lengthened by the peer.
    #[inline]
    fn note_arrival(&mut self, now: Time, tally: &Tally) -> Option<u64> {
        self.recovery.on_progress(now);
        // R7.5-1
        let Some(seq) = tally.once else {
            if let Some((_, seq)) = tally.again {
                self.note_uncertain(now, seq);
            }
            return None;
        };
        let record = self.tx.get(seq);
        let elapsed_ns = now.since_ns(record.sent_at);
        let prompt = tally.prompt;
        self.recovery.on_arrival(record.transmission);
        self.recovery.backoff = 0;
        self.recovery.sample(now, elapsed_ns, prompt);
        prompt.then_some(elapsed_ns)
    }

    /// Only retransmitted packets were acknowledged: if it cannot be an earlier transmission it is
    /// the latest. The back-off of the probe timeout stays, since the timeout may have been too
    /// short. Beside packets sent once nothing is concluded from retransmitted ones: a probe that
    /// was sent too early would make everything before it look lost.
    #[cold]
    fn note_uncertain(&mut self, now: Time, seq: u64) {
        let record = self.tx.get(seq);
        if self.recovery.is_plausible(now.since_ns(record.sent_at)) {
            self.recovery.on_arrival(record.transmission);
        } else if self.recovery.has_only_probes_acked() {
            // Everything in flight is retransmitted, with the window of a new path, so that not
            // every packet needs a probe.
            for seq in self.tx.una..self.tx.next {
                self.tx.mark_lost(seq);
            }
            self.control.on_timeout();
        }
    }

    /// The congestion window has changed. The send window gets room for twice as many packets, so
    /// that new ones can be sent while lost ones are retransmitted, and the peer is asked for
    /// several acknowledgements per window.
    pub(super) fn follow_window(&mut self, window: u32) {
        let interval = (window / ACKS_IN_WINDOW).clamp(1, ACK_REQUEST_INTERVAL);
        self.peer.ack_request_interval = u64::from(interval);
        let room = (2 * window).min(MAX_WINDOW_PACKETS).next_power_of_two();
        if room > self.tx.capacity() {
            self.tx.grow(room);
        }
    }
}

impl Tally {
    #[cold]
    fn note_again(&mut self, transmission: u32, seq: u64) {
        if self
            .again
            .is_none_or(|(latest, _)| is_later(transmission, latest))
        {
            self.again = Some((transmission, seq));
        }
    }
}
