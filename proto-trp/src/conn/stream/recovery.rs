//! Round-trip times, probe timeouts, and the timeouts of verbs (RFC 9002, with the bounds of
//! `ibv_modify_qp`).

use super::super::ack_state::MAX_ACK_DELAY_NS;
use super::super::config::RtsParams;
use super::tx_window::is_later;
use urdma_types::Time;

/// RTT before the first sample (kInitialRtt of RFC 9002).
const INITIAL_RTT_NS: u64 = 1_000_000;
/// Minimum of the variance term of the probe timeout (kGranularity of RFC 9002).
const GRANULARITY_NS: u64 = 1_000_000;

/// One unit of the acknowledge timeout, 4.096 us, in nanoseconds.
const TIMEOUT_UNIT_NS: u64 = 4_096;
/// The InfiniBand specification (section 9.7.6.1.3) lets a timeout take up to four times its
/// nominal time. All of it is used: the peer is a process, which may have to wait for a processor
/// longer than an adapter ever does.
const TIMEOUT_STRETCH: u64 = 4;
/// Bound of the probe interval's back-off, so that a path that recovers is noticed.
const MAX_PROBE_INTERVAL_NS: u64 = 250_000_000;
/// The minimum RTT is kept for one to two times this.
const MIN_RTT_AGE_NS: u64 = 10_000_000_000;

/// Timers and estimates of the sending half.
#[derive(Debug)]
pub(super) struct Recovery {
    smoothed_ns: u64,
    variance_ns: u64,
    latest_ns: u64,
    /// The minimum RTT of the present period and the previous one.
    min_rtt_ns: u64,
    /// The minimum RTT of the present period, which began at `age_began`.
    age_min_rtt_ns: u64,
    age_began: Time,
    has_sample: bool,
    /// The count of the latest transmission known to have arrived.
    pub(super) largest_transmission: u32,
    /// Start of the probe timeout: the latest transmission or progress.
    probe_base: Time,
    /// Consecutive probe timeouts, until a packet that was sent once is acknowledged.
    pub(super) backoff: u32,
    /// Start of the peer's silence: its last packet, or the first packet sent after everything had
    /// been acknowledged; later by the time for which this process did not run.
    silent_since: Time,
    /// When a packet older than one that has arrived is declared lost.
    pub(super) loss_deadline: Time,
    /// Probes that may be sent beyond the congestion window.
    pub(super) probe_credit: u32,
    /// Silence after which the peer counts as gone; `None` for no bound.
    budget_ns: Option<u64>,
    /// Nominal time after which a device would give up; `None` for no bound.
    nominal_ns: Option<u64>,
    /// Minimum of probe timeouts before the peer counts as gone.
    min_probes: u32,
    /// Probe timeouts during the present silence.
    unheard_probes: u32,
    /// Bound of the probe interval's back-off.
    max_interval_ns: u64,
}

impl Recovery {
    pub(super) fn new() -> Self {
        Self {
            smoothed_ns: 0,
            variance_ns: 0,
            latest_ns: 0,
            min_rtt_ns: u64::MAX,
            age_min_rtt_ns: u64::MAX,
            age_began: Time::ZERO,
            has_sample: false,
            largest_transmission: 0,
            probe_base: Time::ZERO,
            backoff: 0,
            silent_since: Time::ZERO,
            loss_deadline: Time::NEVER,
            probe_credit: 0,
            budget_ns: None,
            nominal_ns: None,
            min_probes: 1,
            unheard_probes: 0,
            max_interval_ns: MAX_PROBE_INTERVAL_NS,
        }
    }

    /// Resets everything for a new stream.
    pub(super) fn start(&mut self, params: &RtsParams) {
        *self = Self::new();
        self.smoothed_ns = INITIAL_RTT_NS;
        self.variance_ns = INITIAL_RTT_NS / 2;
        self.latest_ns = INITIAL_RTT_NS;
        self.bound(params);
    }

    /// Sets the bounds of the peer's silence.
    pub(super) fn bound(&mut self, params: &RtsParams) {
        self.min_probes = u32::from(params.retry_cnt) + 1;
        (self.budget_ns, self.nominal_ns) = (None, None);
        self.max_interval_ns = MAX_PROBE_INTERVAL_NS;
        if params.timeout != 0 {
            let timeout_ns = (TIMEOUT_UNIT_NS * TIMEOUT_STRETCH) << params.timeout;
            let budget_ns = timeout_ns * u64::from(self.min_probes);
            self.nominal_ns = Some(budget_ns / TIMEOUT_STRETCH);
            self.budget_ns = Some(budget_ns);
            // Two probes fit into the nominal time of a timeout.
            let fitting_ns = budget_ns / (2 * TIMEOUT_STRETCH * u64::from(self.min_probes));
            self.max_interval_ns = MAX_PROBE_INTERVAL_NS.min(fitting_ns);
        }
    }

    /// Silence after which the peer counts as gone.
    pub(super) const fn budget_ns(&self) -> Option<u64> {
        self.budget_ns
    }

    /// The nominal time of `timeout` and `retry_cnt`; `None` for no bound.
    pub(super) const fn nominal_ns(&self) -> Option<u64> {
        self.nominal_ns
    }

    /// Whether the silence has lasted for the nominal time of `timeout` and `retry_cnt`, and for as
    /// many probes.
    pub(super) fn nominal_time_is_over(&self, now: Time) -> bool {
        self.unheard_probes >= self.min_probes
            && self
                .nominal_ns
                .is_some_and(|nominal_ns| now.since_ns(self.silent_since) >= nominal_ns)
    }

    /// Whether there is an RTT sample.
    pub(super) const fn has_sample(&self) -> bool {
        self.has_sample
    }

    /// The minimum RTT.
    pub(super) const fn min_rtt_ns(&self) -> u64 {
        self.min_rtt_ns
    }

    /// The smoothed RTT.
    pub(super) const fn smoothed_rtt_ns(&self) -> u64 {
        self.smoothed_ns
    }

    /// An RTT sample; `prompt` if the acknowledgement was requested, so that the peer did not delay
    /// it.
    pub(super) fn sample(&mut self, now: Time, rtt_ns: u64, prompt: bool) {
        self.latest_ns = rtt_ns;
        if prompt {
            if now.since_ns(self.age_began) > MIN_RTT_AGE_NS {
                self.min_rtt_ns = self.age_min_rtt_ns;
                self.age_min_rtt_ns = rtt_ns;
                self.age_began = now;
            }
            self.age_min_rtt_ns = self.age_min_rtt_ns.min(rtt_ns);
            self.min_rtt_ns = self.min_rtt_ns.min(rtt_ns);
        }
        if self.has_sample {
            let deviation = self.smoothed_ns.abs_diff(rtt_ns);
            self.variance_ns = self.variance_ns - self.variance_ns / 4 + deviation / 4;
            self.smoothed_ns = self.smoothed_ns - self.smoothed_ns / 8 + rtt_ns / 8;
        } else {
            self.has_sample = true;
            self.smoothed_ns = rtt_ns;
            self.variance_ns = rtt_ns / 2;
        }
    }

    /// Whether an acknowledgement `elapsed_ns` after a retransmission can be for it and not for an
    /// earlier transmission.
    pub(super) const fn is_plausible(&self, elapsed_ns: u64) -> bool {
        elapsed_ns >= self.min_rtt_ns - self.min_rtt_ns / 4
    }

    /// Whether this is the second probe timeout or later and only probes were acknowledged so far,
    /// so that there is no RTT sample.
    pub(super) fn has_only_probes_acked(&mut self) -> bool {
        let has_only_probes_acked = !self.has_sample && self.backoff >= 2;
        if has_only_probes_acked {
            self.backoff = 1;
        }
        has_only_probes_acked
    }

    /// The time threshold of loss (RFC 9002 section 6.1.2).
    pub(super) fn loss_delay_ns(&self) -> u64 {
        let rtt = self.smoothed_ns.max(self.latest_ns);
        (rtt + rtt / 8).max(GRANULARITY_NS / 16)
    }

    /// An ack-eliciting packet was sent.
    #[inline]
    pub(super) fn on_sent(&mut self, now: Time, window_was_empty: bool) {
        self.probe_base = now;
        if window_was_empty {
            self.on_heard(now);
        }
    }

    /// A valid packet was received.
    #[inline]
    pub(super) fn on_heard(&mut self, now: Time) {
        self.silent_since = now;
        self.unheard_probes = 0;
    }

    /// Something was newly acknowledged, or refused (RNR).
    #[inline]
    pub(super) fn on_progress(&mut self, now: Time) {
        self.probe_base = now;
        self.probe_credit = 0;
    }

    /// A transmission has arrived.
    #[inline]
    pub(super) fn on_arrival(&mut self, transmission: u32) {
        if is_later(transmission, self.largest_transmission) {
            self.largest_transmission = transmission;
        }
    }

    /// The probe timeout.
    #[inline]
    pub(super) fn probe_interval_ns(&self) -> u64 {
        let variance = (4 * self.variance_ns).max(GRANULARITY_NS);
        let base = self.smoothed_ns + variance + MAX_ACK_DELAY_NS;
        let doubled = base.saturating_mul(1 << self.backoff.min(16));
        doubled.min(self.max_interval_ns.max(base))
    }

    /// When to probe next.
    #[inline]
    pub(super) fn probe_deadline(&self) -> Time {
        let probe = self.probe_base.plus_ns(self.probe_interval_ns());
        match self.budget_ns {
            Some(budget) if self.unheard_probes >= self.min_probes => {
                probe.earlier(self.silent_since.plus_ns(budget))
            }
            _ => probe,
        }
    }

    /// The probe timeout has expired; true if the peer has been silent for too long.
    pub(super) fn on_probe_timeout(&mut self, now: Time) -> bool {
        // The timer is late when this process has waited for a processor: nothing from the peer
        // could be heard in that time, and nothing asked it for a packet.
        let late_ns = now.since_ns(self.probe_deadline());
        self.silent_since = self.silent_since.plus_ns(late_ns);
        if let Some(budget) = self.budget_ns {
            let silent_ns = now.since_ns(self.silent_since);
            // R7.7-1
            //# **Errors.** `timeout` and `retry_cnt` of the queue pair bound the retransmission:
            //# after `retry_cnt + 1` PTOs in a silence of at least `4 * 4.096 us * 2^timeout *
            //# (retry_cnt + 1)`, the work request at the head of the send queue MUST end with
            //# RETRY_EXC_ERR and the queue pair goes to ERR.
            if self.unheard_probes >= self.min_probes && silent_ns >= budget {
                return true;
            }
        }
        self.backoff = self.backoff.saturating_add(1);
        self.unheard_probes = self.unheard_probes.saturating_add(1);
        self.probe_base = now;
        self.probe_credit = 2;
        false
    }
}

#[cfg(test)]
mod tests {
    use urdma_types::Psn;

    use super::*;

    // Programs of a busy machine got RETRY_EXC_ERR after they had waited for a processor.
    #[test]
    fn time_without_a_processor_is_no_silence_of_the_peer() {
        const WAIT_NS: u64 = 100_000_000;
        let params = RtsParams {
            local_psn: Psn::new(0),
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 1,
            keepalive_ns: 0,
        };
        let silence = |wait_ns: u64| {
            let mut recovery = Recovery::new();
            recovery.start(&params);
            recovery.on_sent(Time::ZERO, true);
            let mut waited_ns = 0;
            loop {
                waited_ns += wait_ns;
                let now = recovery.probe_deadline().plus_ns(wait_ns);
                if recovery.on_probe_timeout(now) {
                    return now.since_ns(Time::ZERO) - waited_ns;
                }
            }
        };
        let budget_ns = 8 * ((TIMEOUT_UNIT_NS * TIMEOUT_STRETCH) << 14);
        assert_eq!(silence(0), budget_ns);
        assert_eq!(silence(WAIT_NS), budget_ns);
    }
}
