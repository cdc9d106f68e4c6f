//! Round-trip times, probe timeouts, and the time bounds of verbs (RFC 9002, with the bounds of `ibv_modify_qp`).

use super::config::RtsParams;
use super::loss::is_later;
use urdma_types::Time;

/// What the path allows timers to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathTiming {
    /// Round trip assumed before the first sample.
    pub(super) initial_rtt_ns: u64,
    /// The least that is added to the smoothed round trip for its variance.
    pub(super) granularity_ns: u64,
    /// How long a receiver may hold an acknowledgement back.
    pub(super) max_ack_delay_ns: u64,
    /// The least silence after which a peer counts as gone.
    pub(super) min_budget_ns: u64,
}

impl PathTiming {
    /// A network.
    pub(super) const NETWORK: Self = Self {
        initial_rtt_ns: 1_000_000,
        granularity_ns: 1_000_000,
        max_ack_delay_ns: 200_000,
        min_budget_ns: 0,
    };

    /// One host's memory: nothing is lost, but the peer's process may have to wait for a processor.
    pub(super) const MEMORY: Self = Self {
        initial_rtt_ns: 1_000_000,
        granularity_ns: 20_000_000,
        max_ack_delay_ns: 1_000_000,
        min_budget_ns: 8_000_000_000,
    };
}

/// One unit of the acknowledge timeout, 4.096 us, in nanoseconds.
const TIMEOUT_UNIT_NS: u64 = 4_096;
/// The InfiniBand specification (section 9.7.6.1.3) lets a timeout take up to four times its nominal time. All of it is used: the peer here is a
/// process, which may have to wait for a processor longer than an adapter ever does.
const TIMEOUT_STRETCH: u64 = 4;
/// Probe timeouts double up to this at most, so that a path that comes back is noticed.
const MAX_PROBE_INTERVAL_NS: u64 = 250_000_000;
/// The smallest round trip is forgotten after one to two times this.
const MIN_RTT_AGE_NS: u64 = 10_000_000_000;

/// Timers and estimates of the sending half.
#[derive(Debug)]
pub(super) struct Recovery {
    timing: PathTiming,
    smoothed_ns: u64,
    variance_ns: u64,
    latest_ns: u64,
    /// The smallest round trip of this age and the one before.
    min_rtt_ns: u64,
    /// The smallest of this age alone, which began at `age_began`.
    age_min_rtt_ns: u64,
    age_began: Time,
    has_sample: bool,
    /// The transmission count of the latest transmission known to have arrived.
    pub(super) largest_transmission: u32,
    /// When the probe timeout counts from: the latest transmission or progress.
    probe_base: Time,
    /// Probe timeouts since a packet that was sent once was acknowledged.
    pub(super) backoff: u32,
    /// When the peer was last heard of, or the first packet was sent after everything had been acknowledged.
    silent_since: Time,
    /// When a packet older than one that has arrived counts as lost.
    pub(super) loss_deadline: Time,
    /// Probes that may be sent regardless of the window.
    pub(super) probe_credit: u32,
    /// Silence that means the peer is gone; `None` for no bound.
    budget_ns: Option<u64>,
    /// Silence within which a device would have given up; `None` for no bound.
    nominal_ns: Option<u64>,
    /// Probe timeouts in silence before the peer counts as gone.
    min_probes: u32,
    /// Probe timeouts since the peer was last heard of.
    unheard_probes: u32,
    /// Probe timeouts double up to this.
    max_interval_ns: u64,
}

impl Recovery {
    pub(super) fn new() -> Self {
        Self {
            timing: PathTiming::NETWORK,
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

    /// Begins anew on a path.
    pub(super) fn start(&mut self, timing: PathTiming, params: &RtsParams) {
        *self = Self::new();
        self.timing = timing;
        self.smoothed_ns = timing.initial_rtt_ns;
        self.variance_ns = timing.initial_rtt_ns / 2;
        self.latest_ns = timing.initial_rtt_ns;
        self.bound(params);
    }

    /// Sets how long a peer may be silent.
    pub(super) fn bound(&mut self, params: &RtsParams) {
        self.min_probes = u32::from(params.retry_cnt) + 1;
        (self.budget_ns, self.nominal_ns) = (None, None);
        self.max_interval_ns = MAX_PROBE_INTERVAL_NS;
        if params.timeout != 0 {
            let timeout_ns = (TIMEOUT_UNIT_NS * TIMEOUT_STRETCH) << params.timeout;
            let budget_ns = timeout_ns * u64::from(self.min_probes);
            self.nominal_ns = Some(budget_ns / TIMEOUT_STRETCH);
            let budget_ns = budget_ns.max(self.timing.min_budget_ns);
            self.budget_ns = Some(budget_ns);
            // Two probes fit into the nominal time of a timeout.
            let fitting_ns = budget_ns / (2 * TIMEOUT_STRETCH * u64::from(self.min_probes));
            self.max_interval_ns = MAX_PROBE_INTERVAL_NS.min(fitting_ns);
        }
    }

    /// Silence that means the peer is gone.
    pub(super) const fn budget_ns(&self) -> Option<u64> {
        self.budget_ns
    }

    /// Whether the silence has lasted for as long as `timeout` and `retry_cnt` say nominally, and been probed as often.
    pub(super) fn nominal_time_is_over(&self, now: Time) -> bool {
        self.unheard_probes >= self.min_probes
            && self
                .nominal_ns
                .is_some_and(|nominal_ns| now.since_ns(self.silent_since) >= nominal_ns)
    }

    /// Whether a round trip was ever measured.
    pub(super) const fn has_sample(&self) -> bool {
        self.has_sample
    }

    /// The smallest round trip of late.
    pub(super) const fn min_rtt_ns(&self) -> u64 {
        self.min_rtt_ns
    }

    /// The smoothed round trip.
    pub(super) const fn smoothed_rtt_ns(&self) -> u64 {
        self.smoothed_ns
    }

    /// A round trip was measured; `prompt` when the peer was asked to answer at once.
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

    /// Whether an acknowledgement that comes `elapsed_ns` after a retransmission can be for that and not for an earlier transmission.
    pub(super) const fn is_plausible(&self, elapsed_ns: u64) -> bool {
        elapsed_ns >= self.min_rtt_ns - self.min_rtt_ns / 4
    }

    /// Whether only probes have been answered so far, so that no round trip could be measured, and this is the second of late.
    pub(super) fn gropes(&mut self) -> bool {
        let gropes = !self.has_sample && self.backoff >= 2;
        if gropes {
            self.backoff = 1;
        }
        gropes
    }

    /// Time after which a packet older than one that has arrived counts as lost (RFC 9002 section 6.1.2).
    pub(super) fn loss_delay_ns(&self) -> u64 {
        let rtt = self.smoothed_ns.max(self.latest_ns);
        (rtt + rtt / 8).max(self.timing.granularity_ns / 16)
    }

    /// A packet that is to be acknowledged was sent.
    #[inline]
    pub(super) fn on_sent(&mut self, now: Time, window_was_empty: bool) {
        self.probe_base = now;
        if window_was_empty {
            self.on_heard(now);
        }
    }

    /// Anything valid was received.
    #[inline]
    pub(super) fn on_heard(&mut self, now: Time) {
        self.silent_since = now;
        self.unheard_probes = 0;
    }

    /// Something new was acknowledged, or refused for the time being.
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
    pub(super) fn probe_interval_ns(&self) -> u64 {
        let variance = (4 * self.variance_ns).max(self.timing.granularity_ns);
        let base = self.smoothed_ns + variance + self.timing.max_ack_delay_ns;
        let doubled = base.saturating_mul(1 << self.backoff.min(16));
        doubled.min(self.max_interval_ns.max(base))
    }

    /// When to probe if nothing is heard.
    pub(super) fn probe_deadline(&self) -> Time {
        let probe = self.probe_base.plus_ns(self.probe_interval_ns());
        match self.budget_ns {
            Some(budget) if self.unheard_probes >= self.min_probes => {
                probe.earlier(self.silent_since.plus_ns(budget))
            }
            _ => probe,
        }
    }

    /// The probe timeout has fired; true when the peer has been silent for too long.
    pub(super) fn on_probe_timeout(&mut self, now: Time) -> bool {
        if let Some(budget) = self.budget_ns {
            let silent_ns = now.since_ns(self.silent_since);
            // R7.7-1
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
