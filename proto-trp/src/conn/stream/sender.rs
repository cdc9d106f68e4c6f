//! The outgoing stream: which sequence numbers are in flight, whether another may be sent, and the
//! timers of what was sent.

use super::super::config::{RtsParams, MAX_WINDOW_PACKETS};
use super::super::queues::{SegmentSource, SegmentSpec};
use super::congestion::{CongestionAlgorithm, Controller};
use super::recovery::Recovery;
use super::rnr_pause::RnrPause;
use super::tx_window::TxWindow;
use crate::wire::Flags;
use urdma_types::{Psn, Time};

/// Segments after which a sender requests an acknowledgement, for an RTT sample.
const ACK_REQUEST_INTERVAL: u32 = 16;
/// Acknowledgements that are requested per window, if the window is small.
const ACKS_IN_WINDOW: u32 = 4;

/// The outgoing stream. A sequence number counts packets from 0; its PSN is the one on the wire.
#[derive(Debug)]
pub(in crate::conn) struct Sender {
    pub(super) window: TxWindow,
    pub(super) recovery: Recovery,
    pub(super) control: Controller,
    pub(super) pause: RnrPause,
    /// The epoch of requests; it alternates with each RNR.
    epoch: Flags,
    /// The last segment that requested an acknowledgement.
    last_ack_request: u64,
    /// Segments after which an acknowledgement is requested.
    ack_request_interval: u64,
}

/// A request that the peer has refused (RNR).
#[derive(Clone, Copy, Debug)]
pub(in crate::conn) struct Refused {
    /// The sequence number of its first refused segment.
    pub(in crate::conn) seq: u64,
    /// What that segment carries.
    pub(in crate::conn) spec: SegmentSpec,
    /// Consecutive refusals, this one included.
    pub(in crate::conn) refusals: u32,
}

impl Sender {
    /// A sender without a stream, whose window never exceeds `max_packets`.
    pub(in crate::conn) fn new(max_packets: u32) -> Self {
        Self {
            window: TxWindow::new(),
            recovery: Recovery::new(),
            control: Controller::new(CongestionAlgorithm::FixedWindow, max_packets),
            pause: RnrPause::NONE,
            epoch: Flags::NONE,
            last_ack_request: 0,
            ack_request_interval: 1,
        }
    }

    /// Starts a stream.
    pub(in crate::conn) fn start(
        &mut self,
        algorithm: CongestionAlgorithm,
        max_packets: u32,
        params: &RtsParams,
    ) {
        self.window.start(params.local_psn);
        // Each of the first packets requests an acknowledgement, for an RTT sample before they
        // queue behind one another.
        self.ack_request_interval = 1;
        self.control = Controller::new(algorithm, max_packets);
        if algorithm == CongestionAlgorithm::FixedWindow {
            // No later acknowledgement changes the window, so the send window follows now.
            self.follow_window(max_packets);
        }
        self.recovery.start(params);
    }

    /// Starts a stream without acknowledgements, timers and congestion control.
    pub(in crate::conn) fn start_unreliable(&mut self, initial: Psn, max_packets: u32) {
        self.window.start(initial);
        self.ack_request_interval = u64::MAX;
        self.control = Controller::new(CongestionAlgorithm::FixedWindow, max_packets);
    }

    /// Sets the bounds of the peer's silence.
    pub(in crate::conn) fn bound_silence(&mut self, params: &RtsParams) {
        self.recovery.bound(params);
    }

    /// Sets the counters to `count`, for simulations.
    pub(in crate::conn) fn count_from(&mut self, count: u32) {
        self.window.count_transmissions_from(count);
        self.recovery.largest_transmission = count;
    }

    /// Drops everything in flight.
    pub(in crate::conn) fn abandon(&mut self) {
        self.window.abandon();
    }

    /// Drops everything in flight, and stops timers.
    pub(in crate::conn) fn silence(&mut self) {
        self.window.abandon();
        self.pause.clear();
        self.recovery.loss_deadline = Time::NEVER;
    }

    /// Skips a number, which the receiver counts as lost. Nothing is in flight.
    pub(in crate::conn) fn skip(&mut self) {
        self.window.skip();
    }

    /// The first PSN of the stream.
    pub(in crate::conn) const fn initial(&self) -> Psn {
        self.window.initial()
    }

    /// The oldest unacknowledged number (SND.UNA of TCP).
    #[inline(always)]
    pub(in crate::conn) const fn oldest(&self) -> u64 {
        self.window.una
    }

    /// The next number to be used (SND.NXT).
    #[inline(always)]
    pub(in crate::conn) const fn next(&self) -> u64 {
        self.window.next
    }

    /// The PSN of a sequence number.
    #[inline(always)]
    pub(in crate::conn) const fn psn(&self, seq: u64) -> Psn {
        self.window.psn(seq)
    }

    /// Whether everything that was sent is acknowledged.
    #[inline]
    pub(in crate::conn) const fn is_empty(&self) -> bool {
        self.window.is_empty()
    }

    /// Packets that are neither acknowledged nor lost.
    #[inline]
    pub(in crate::conn) const fn in_flight(&self) -> u32 {
        self.window.in_flight
    }

    /// Whether a lost packet is to be retransmitted.
    #[inline]
    pub(in crate::conn) const fn has_lost(&self) -> bool {
        self.window.lost > 0
    }

    /// The epoch of requests.
    #[inline]
    pub(in crate::conn) const fn epoch(&self) -> Flags {
        self.epoch
    }

    /// Whether an unacknowledged packet carries a part of this.
    pub(in crate::conn) fn carries(&self, source: SegmentSource) -> bool {
        let mut unacknowledged = self.window.una..self.window.next;
        unacknowledged.any(|seq| self.window.get(seq).spec.source == source)
    }

    /// Whether no lost packet and no refused request comes before the next new segment, and the
    /// congestion window allows one.
    #[inline(always)]
    pub(in crate::conn) fn is_undisturbed(&self) -> bool {
        // No `&&`: the usual case is one branch.
        (self.window.lost | self.pause.retries == 0)
            & (self.window.in_flight < self.control.window())
    }

    /// Whether the peer's window and the allocated records allow a new packet.
    #[inline(always)]
    pub(in crate::conn) fn has_room(&self) -> bool {
        self.window.has_room()
    }

    /// Whether all windows allow a new packet.
    #[inline(always)]
    pub(in crate::conn) fn may_send(&self) -> bool {
        self.window.has_room() && self.window.in_flight < self.control.window()
    }

    /// New packets that all windows allow.
    #[inline(always)]
    pub(in crate::conn) fn sendable(&self) -> u32 {
        let in_window = self.control.window().saturating_sub(self.window.in_flight);
        in_window.min(self.window.room())
    }

    /// The oldest lost packet, if the congestion window or a probe allows its retransmission.
    pub(in crate::conn) fn may_send_again(&self) -> Option<(u64, SegmentSpec)> {
        let is_allowed =
            self.window.in_flight < self.control.window() || self.recovery.probe_credit > 0;
        let seq = self.window.first_lost().filter(|_| is_allowed)?;
        Some((seq, self.window.get(seq).spec))
    }

    /// Whether a segment with this number requests an acknowledgement because the last one that did
    /// is long ago.
    #[inline(always)]
    pub(in crate::conn) const fn requests_ack(&self, seq: u64) -> bool {
        seq - self.last_ack_request >= self.ack_request_interval
    }

    /// The next segment requests an acknowledgement.
    pub(in crate::conn) fn request_ack_next(&mut self) {
        let asked = self.window.next.wrapping_sub(self.ack_request_interval);
        self.last_ack_request = self.last_ack_request.min(asked);
    }

    /// The last segment that was sent requests an acknowledgement.
    pub(in crate::conn) fn request_ack_of_last(&mut self) {
        let last = self.window.next - 1;
        self.window.get_mut(last).ack_requested = true;
        self.last_ack_request = last;
    }

    /// Uses the next sequence number. [`Sender::on_sent`] is called besides.
    #[inline(always)]
    pub(in crate::conn) fn push(&mut self, now: Time, spec: SegmentSpec, ack_requested: bool) {
        let seq = self.window.next;
        self.window.push(now, spec, ack_requested);
        if ack_requested {
            self.last_ack_request = seq;
        }
    }

    /// New packets were sent; `was_empty` if everything before them is acknowledged.
    #[inline(always)]
    pub(in crate::conn) fn on_sent(&mut self, now: Time, was_empty: bool) {
        self.recovery.on_sent(now, was_empty);
    }

    /// Records the retransmission of a lost packet, the oldest.
    pub(in crate::conn) fn resent(&mut self, now: Time, seq: u64) {
        self.recovery.on_sent(now, false);
        self.recovery.probe_credit = self.recovery.probe_credit.saturating_sub(1);
        self.window.resent(now, seq, true);
        self.window.note_lost_from(seq + 1);
    }

    /// Drops a lost packet, which is neither retransmitted nor acknowledged.
    pub(in crate::conn) fn give_up(&mut self, seq: u64) {
        self.window.give_up(seq);
    }

    /// Declares the oldest packet in flight lost.
    pub(in crate::conn) fn lose_first(&mut self) {
        if let Some(seq) = self.window.first_in_flight() {
            self.window.mark_lost(seq);
        }
    }

    /// A valid packet was received.
    #[inline(always)]
    pub(in crate::conn) fn on_heard(&mut self, now: Time) {
        self.recovery.on_heard(now);
    }

    /// The number of packets that the peer accepts from the oldest unacknowledged on.
    #[inline(always)]
    pub(in crate::conn) fn set_peer_window(&mut self, packets: u32) {
        self.window.peer_window = packets;
    }

    /// The sequence number of a cumulative acknowledgement; `None` if it was never sent. Old ones
    /// give the oldest unacknowledged.
    #[inline]
    pub(in crate::conn) fn acked_seq(&self, ack: Psn) -> Option<u64> {
        self.window.acked_seq(ack)
    }

    /// The congestion window has changed. The send window gets room for twice as many packets, so
    /// that new ones can be sent while lost ones are retransmitted, and the peer is asked for
    /// several acknowledgements per window.
    pub(super) fn follow_window(&mut self, window: u32) {
        let interval = (window / ACKS_IN_WINDOW).clamp(1, ACK_REQUEST_INTERVAL);
        self.ack_request_interval = u64::from(interval);
        let room = (2 * window).min(MAX_WINDOW_PACKETS).next_power_of_two();
        if room > self.window.capacity() {
            self.window.grow(room);
        }
    }

    /// The congestion window in packets, and the smoothed round-trip time in nanoseconds; zeroes
    /// before the first sample.
    pub(in crate::conn) fn window_and_rtt(&self) -> (u32, u64) {
        if !self.recovery.has_sample() {
            return (0, 0);
        }
        (self.control.window(), self.recovery.smoothed_rtt_ns())
    }

    /// The smoothed round-trip time.
    pub(in crate::conn) const fn smoothed_rtt_ns(&self) -> u64 {
        self.recovery.smoothed_rtt_ns()
    }

    /// The earliest timer; the probe timeout is one only if `may_probe`.
    #[inline]
    pub(in crate::conn) fn deadline(&self, may_probe: bool) -> Time {
        let deadline = self.pause.until.earlier(self.recovery.loss_deadline);
        if may_probe && self.window.in_flight > 0 {
            return deadline.earlier(self.recovery.probe_deadline());
        }
        deadline
    }

    /// Whether the probe timeout has expired.
    pub(in crate::conn) fn probe_is_due(&self, now: Time) -> bool {
        self.window.in_flight > 0 && self.recovery.probe_deadline() <= now
    }

    /// The probe timeout has expired: the oldest packet in flight is retransmitted. True, and
    /// nothing is done, if the peer has been silent for too long.
    pub(in crate::conn) fn on_probe_timeout(&mut self, now: Time) -> bool {
        if self.recovery.on_probe_timeout(now) {
            return true;
        }
        if self.recovery.backoff > 1 && self.recovery.has_sample() {
            self.control.on_timeout();
        }
        self.lose_first();
        false
    }

    /// Consecutive probe timeouts.
    pub(in crate::conn) const fn backoff(&self) -> u32 {
        self.recovery.backoff
    }

    /// The probe timeout.
    pub(in crate::conn) fn probe_interval_ns(&self) -> u64 {
        self.recovery.probe_interval_ns()
    }

    /// Silence after which the peer counts as gone; `None` for no bound.
    pub(in crate::conn) const fn budget_ns(&self) -> Option<u64> {
        self.recovery.budget_ns()
    }

    /// The nominal time of `timeout` and `retry_cnt`; `None` for no bound.
    pub(in crate::conn) const fn nominal_ns(&self) -> Option<u64> {
        self.recovery.nominal_ns()
    }

    /// Whether the silence has lasted for the nominal time of `timeout` and `retry_cnt`, and for as
    /// many probes.
    pub(in crate::conn) fn nominal_time_is_over(&self, now: Time) -> bool {
        self.recovery.nominal_time_is_over(now)
    }

    /// Whether a refused request waits to be sent again, or was not accepted since.
    #[inline]
    pub(in crate::conn) const fn is_refused(&self) -> bool {
        self.pause.retries > 0
    }

    /// Whether the refused request may be sent again now.
    #[inline]
    pub(in crate::conn) fn may_retry(&self) -> bool {
        self.pause.may_retry()
    }

    /// The refused request was sent again with this number.
    pub(in crate::conn) fn note_retry(&mut self, seq: u64) {
        self.pause.retry = Some(seq);
    }

    /// The peer refuses the request that begins with `psn` until `until`. `None` if that is not
    /// new, or not of the present stream.
    pub(in crate::conn) fn on_refusal(&mut self, psn: Psn, until: Time) -> Option<Refused> {
        if self.pause.until != Time::NEVER && psn == self.pause.refused {
            // R7.9-11
            //# An RNR for the PSN that the sender waits with ends the wait earlier, if its time is
            //# over earlier, and MUST NOT be counted.
            // A repeated RNR: the peer may have become ready in the meantime.
            self.pause.until = self.pause.until.earlier(until);
            return None;
        }
        let seq = self.window.seq_of(psn)?;
        // R7.9-13
        //# Until the segment that is sent again is accepted, an RNR for any other PSN MUST have no
        //# effect but that of its acknowledgement: no receiver sends one, and each would void a
        //# window.
        if self.pause.retries > 0 && self.pause.retry != Some(seq) {
            return None;
        }
        Some(Refused {
            seq,
            spec: self.window.get(seq).spec,
            refusals: self.pause.retries + 1,
        })
    }

    /// Voids the requests from a refused one on until `until`; they are sent again under other
    /// numbers, in the other epoch.
    pub(in crate::conn) fn void_from(&mut self, refused: &Refused, now: Time, until: Time) {
        self.recovery.on_progress(now);
        // R7.9-5
        //# A sender that receives RNR for a PSN in its window MUST treat all requests from n on as
        //# void before it processes the acknowledgement.
        for seq in refused.seq..self.window.next {
            let spec = &mut self.window.get_mut(seq).spec;
            if !matches!(spec.source, SegmentSource::Response(_)) {
                spec.source = SegmentSource::Void;
                (spec.len, spec.last) = (0, true);
            }
        }
        // R7.9-6
        //# It MUST begin epoch e + 1, wait for the time of the code, and then send the segment that
        //# had PSN n again, under its next PSN and alone.
        self.epoch = self.epoch ^ Flags::EPOCH;
        self.pause = RnrPause {
            until,
            retries: refused.refusals,
            refused: self.window.psn(refused.seq),
            retry: None,
        };
    }
}
