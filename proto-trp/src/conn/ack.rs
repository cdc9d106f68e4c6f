//! Acknowledgements: when the receiving half owes one, and what one does to the sending half.

use super::congestion::{AckInfo, CongestionControl};
use super::host::Host;
use super::loss::is_later;
use super::time::Time;
use super::txwindow::{SegmentSource, TxRecord};
use super::Connection;
use crate::wire::{Flags, Sack, TrpHeader};

/// What the receiving half owes the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckState {
    /// An acknowledgement is to be sent now.
    pub(super) due: bool,
    /// Segments taken since the last acknowledgement.
    unacked: u32,
    /// When one is due at the latest.
    pub(super) deadline: Time,
    /// A congestion mark has arrived that was not echoed.
    pub(super) marked: bool,
    /// Segments after which one is due at once.
    every: u32,
    delay_ns: u64,
}

impl AckState {
    pub(super) const fn new(every: u32, delay_ns: u64) -> Self {
        Self {
            due: false,
            unacked: 0,
            deadline: Time::NEVER,
            marked: false,
            every,
            delay_ns,
        }
    }

    /// A segment was taken in order.
    #[inline]
    pub(super) fn on_segment(&mut self, now: Time, requested: bool) {
        self.unacked += 1;
        if requested || self.unacked >= self.every {
            self.due = true;
        } else if !self.due && self.deadline == Time::NEVER {
            self.deadline = now.plus_ns(self.delay_ns);
        }
    }

    /// An acknowledgement went out, with everything there is to say.
    #[inline]
    pub(super) fn on_sent(&mut self) {
        self.due = false;
        self.unacked = 0;
        self.deadline = Time::NEVER;
        self.marked = false;
    }
}

/// What one acknowledgement has brought.
#[derive(Debug, Default)]
struct Tally {
    packets: u32,
    retransmitted: bool,
    /// The latest transmission among the records acknowledged, and its record's number.
    latest: Option<(u32, u64)>,
}

impl Connection {
    /// Takes the acknowledgement that every packet carries.
    #[inline]
    pub(super) fn on_ack<H: Host>(
        &mut self,
        now: Time,
        trp: &TrpHeader,
        sack: Option<&Sack>,
        host: &mut H,
    ) {
        if !self.sends_stream {
            return;
        }
        if trp.ack.precedes(self.tx.psn(self.tx.una)) {
            return;
        }
        let Some(acked) = self.tx.acked_seq(trp.ack) else {
            self.stats.rx_malformed += 1;
            return;
        };
        self.tx.peer_window = trp.window_packets();
        if acked == self.tx.una && sack.is_none() {
            return;
        }
        self.take_ack(now, acked, sack, trp.flags.contains(Flags::ECN_ECHO));
        self.complete_sends(host);
    }

    fn take_ack(&mut self, now: Time, acked: u64, sack: Option<&Sack>, marked: bool) {
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
        let Some((_, latest)) = tally.latest else {
            return;
        };
        let latest = *self.tx.get(latest);
        let rtt_ns = self.note_latest(now, &latest);
        self.recovery.on_progress(now);
        if self.rnr.retries > 0 {
            self.rnr.on_taken(acked);
        }
        let window = self.control.on_ack(&AckInfo {
            now,
            packets: tally.packets,
            rtt_ns: rtt_ns.filter(|_| latest.ack_requested),
            min_rtt_ns: self.recovery.min_rtt_ns(),
            smoothed_rtt_ns: self.recovery.smoothed_rtt_ns(),
            marked,
        });
        if let Some(window) = window {
            self.follow_window(window);
        }
        if sack.is_some() || tally.retransmitted || self.recovery.loss_deadline != Time::NEVER {
            self.detect_loss(now);
        }
    }

    #[inline]
    fn ack_record(&mut self, seq: u64, tally: &mut Tally) {
        if !self.tx.mark_acked(seq) {
            return;
        }
        let record = self.tx.get(seq);
        if let SegmentSource::Response(entry) = record.spec.source {
            self.responder.acked(entry);
        }
        tally.packets += 1;
        tally.retransmitted |= record.retransmitted;
        match tally.latest {
            Some((latest, _)) if !is_later(record.transmission, latest) => {}
            _ => tally.latest = Some((record.transmission, seq)),
        }
    }

    /// Learns from the latest transmission that has arrived; gives the round trip if it is certain (Karn).
    #[inline]
    fn note_latest(&mut self, now: Time, latest: &TxRecord) -> Option<u64> {
        let elapsed_ns = now.since_ns(latest.sent_at);
        let certain = !latest.retransmitted;
        if (certain || self.recovery.is_plausible(elapsed_ns))
            && is_later(latest.transmission, self.recovery.largest_transmission)
        {
            self.recovery.largest_transmission = latest.transmission;
        }
        if !certain {
            return None;
        }
        self.recovery.sample(now, elapsed_ns, latest.ack_requested);
        Some(elapsed_ns)
    }
}
