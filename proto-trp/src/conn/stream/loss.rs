//! Loss detection (RFC 9002 section 6.1), by order of transmission, so that it covers
//! retransmissions too.

use super::sender::Sender;
use super::tx_window::{is_later, Fate, TxRecord};
use urdma_types::Time;

/// Later transmissions that must arrive before a packet is declared lost: kPacketThreshold (RFC
/// 9002 section 6.1.1).
const PACKET_THRESHOLD: u32 = 3;

/// The verdict on a packet in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// No later transmission has arrived.
    Open,
    /// Lost if it is not acknowledged until then.
    Late(Time),
    Lost,
}

impl Sender {
    /// Handles the expiry of loss detection's timer and of the pause after a refusal (RNR).
    pub(in crate::conn) fn on_time(&mut self, now: Time) {
        self.pause.on_time(now);
        if self.recovery.loss_deadline <= now {
            self.detect_loss(now);
        }
    }

    /// Finds lost packets: those that were sent well before one that has arrived.
    ///
    /// Packets sent once are in order of transmission as they are in order of their numbers;
    /// retransmitted ones are queued in it. Both are judged up to the first that is not lost, so
    /// each is visited a few times only, however large the window is.
    #[cold]
    pub(super) fn detect_loss(&mut self, now: Time) {
        let delay_ns = self.recovery.loss_delay_ns();
        let (fresh, found) = self.judge_fresh(now, delay_ns);
        let (resent, found_again) = self.judge_resent(now, delay_ns);
        self.recovery.loss_deadline = fresh.earlier(resent);
        if found + found_again > 0 {
            self.control.on_loss(found + found_again);
        }
    }

    fn judge_fresh(&mut self, now: Time, delay_ns: u64) -> (Time, u32) {
        let mut found = 0;
        let mut seq = self.window.unjudged.max(self.window.una);
        let mut deadline = Time::NEVER;
        while seq < self.window.next {
            let record = self.window.get(seq);
            if record.fate == Fate::InFlight && !record.retransmitted {
                match self.judge(record, now, delay_ns) {
                    Verdict::Lost => {
                        self.window.mark_lost(seq);
                        found += 1;
                    }
                    Verdict::Late(until) => {
                        deadline = until;
                        break;
                    }
                    Verdict::Open => break,
                }
            }
            seq += 1;
        }
        self.window.unjudged = seq;
        (deadline, found)
    }

    fn judge_resent(&mut self, now: Time, delay_ns: u64) -> (Time, u32) {
        let mut found = 0;
        while let Some(&(seq, transmission)) = self.window.resent.front() {
            if self.window.is_in_flight(seq, transmission) {
                match self.judge(self.window.get(seq), now, delay_ns) {
                    Verdict::Lost => {
                        self.window.mark_lost(seq);
                        found += 1;
                    }
                    Verdict::Late(until) => return (until, found),
                    Verdict::Open => break,
                }
            }
            self.window.resent.pop_front();
        }
        (Time::NEVER, found)
    }

    fn judge(&self, record: &TxRecord, now: Time, delay_ns: u64) -> Verdict {
        let largest = self.recovery.largest_transmission;
        if !is_later(largest, record.transmission) {
            return Verdict::Open;
        }
        let lost_at = record.sent_at.plus_ns(delay_ns);
        if largest.wrapping_sub(record.transmission) >= PACKET_THRESHOLD || lost_at <= now {
            Verdict::Lost
        } else {
            Verdict::Late(lost_at)
        }
    }
}
