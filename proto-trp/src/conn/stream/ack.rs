//! The effect of an acknowledgement on the outgoing stream.

use super::super::queues::SegmentSource;
use super::super::responder::Responder;
use super::super::stats::ConnStats;
use super::congestion::AckInfo;
use super::sender::Sender;
use super::tx_window::is_later;
use crate::wire::Sack;
use urdma_types::Time;

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

impl Sender {
    /// Processes the acknowledgement of everything before number `acked`, and of what `sack` names.
    /// Returns the congestion window if it has changed.
    pub(in crate::conn) fn take_ack(
        &mut self,
        now: Time,
        acked: u64,
        (sack, marked): (Option<&Sack>, bool),
        responder: &mut Responder,
        stats: &mut ConnStats,
    ) -> Option<u32> {
        let mut tally = Tally::default();
        for seq in self.window.una..acked {
            self.ack_record(seq, &mut tally, responder);
        }
        self.window.una = acked;
        if let Some(sack) = sack {
            for bit in sack {
                let seq = acked + 1 + u64::from(bit);
                if seq >= self.window.next {
                    stats.rx_malformed += 1;
                    break;
                }
                self.ack_record(seq, &mut tally, responder);
            }
        }
        if tally.packets == 0 {
            return None;
        }
        stats.ecn_echoes += u64::from(marked);
        let rtt_ns = self.note_arrival(now, &tally);
        if self.pause.retries > 0 {
            self.pause.on_taken(acked);
        }
        let window = self.control.on_ack(&AckInfo {
            now,
            packets: tally.packets,
            in_flight: self.window.in_flight,
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
    fn ack_record(&mut self, seq: u64, tally: &mut Tally, responder: &mut Responder) {
        let Some(record) = self.window.mark_acked(seq) else {
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
            responder.acked(entry);
        }
    }

    /// Updates recovery; returns the RTT if it is unambiguous and not lengthened by the peer.
    #[inline]
    fn note_arrival(&mut self, now: Time, tally: &Tally) -> Option<u64> {
        self.recovery.on_progress(now);
        // R7.5-1
        //# The round-trip time MUST be measured from packets that were sent once only (Karn's
        //# algorithm), as the time from sending to the acknowledgement that covers them.
        let Some(seq) = tally.once else {
            if let Some((_, seq)) = tally.again {
                self.note_uncertain(now, seq);
            }
            return None;
        };
        let record = self.window.get(seq);
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
        let record = self.window.get(seq);
        if self.recovery.is_plausible(now.since_ns(record.sent_at)) {
            self.recovery.on_arrival(record.transmission);
        } else if self.recovery.has_only_probes_acked() {
            // Everything in flight is retransmitted, with the window of a new path, so that not
            // every packet needs a probe.
            for seq in self.window.una..self.window.next {
                self.window.mark_lost(seq);
            }
            self.control.on_timeout();
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
