//! Delay-based congestion control (doc/spec/trp.md, section 7.8).
//!
//! The controller works in rounds of one round trip. Its phases:
//!
//! - **Slow start**: the window doubles each round until a queue, a mark or heavy loss shows.
//! - **Congestion avoidance**: the window grows each round by half its square root, in packets.
//!   When a queue of half a base RTT stands for two rounds, the window is cut to what the path
//!   holds without a queue. A small window grows by a larger part of itself than a large one, and
//!   both are cut by the same factor, so the shares of connections converge. The queue is empty
//!   once in each cycle, so all connections see the same minimum RTT.
//! - **Drain**: from time to time the window is reduced for a few rounds, so that the queue empties
//!   and the base RTT can be measured, as in BBR's ProbeRTT (draft-ietf-ccwg-bbr). All connections
//!   of a host drain at the same time, and connections of other hosts join (synchronised drain).
//!
//! ECN marks reduce the window as in DCTCP (RFC 8257). Loss reduces it only when it is heavy.
//! Measurements and rejected variants are in doc/performance-log.md, "Links of limited rate and
//! delay". Constants whose comment names no other source were tuned there or in the simulator
//! (`proto-trp/tests/sim_links.rs`).

use super::super::super::num::low32;
use super::control::{AckInfo, CongestionControl};
use urdma_types::Time;

/// Gains and shares are in units of 1/1024.
const UNIT_SHIFT: u32 = 10;
const UNIT: u32 = 1 << UNIT_SHIFT;

/// The smallest window, in packets.
const MIN_WINDOW: u32 = 1;
/// The initial window, in packets. RFC 6928 has 10 for TCP.
const INITIAL_WINDOW: u32 = 32;

/// The path is short if its minimum RTT is below this: both ends are software on near hosts, and a
/// delay is most likely the wait for a processor, not a queue.
const SHORT_PATH_NS: u64 = 100_000;
/// The delay tolerated on a short path, as if its base RTT were that much longer. On other paths,
/// the most by which the base RTT may exceed the minimum RTT.
const SCHEDULING_NOISE_NS: u64 = 1_000_000;
/// The smallest window to which delay alone reduces on a short path: a smaller one would only
/// lengthen the wait for a processor.
const SHORT_PATH_MIN_WINDOW: u32 = 64;

/// Slow start ends after this number of consecutive RTT samples above the threshold. HyStart++
/// (RFC 9406) takes the minimum of 8 samples of a round.
const SLOW_START_SAMPLES: u32 = 4;
/// The threshold exceeds the base RTT by base RTT / 4. HyStart++ has 1/8, but at least 4 ms.
const SLOW_START_DELAY_DIVISOR: u64 = 4;
/// The window after slow start: half, because the samples that end it belong to packets that were
/// sent a round trip ago, with under half the window.
const BETA_SLOW_START: u32 = UNIT / 2;

/// The growth of a window of w packets is GROWTH_UNIT * sqrt(w) / 2 per round.
const GROWTH_UNIT: u32 = 16;
/// The growth doubles with each round after this number of consecutive rounds without a queue.
const EMPTY_ROUNDS: u32 = 3;
/// The limit of that doubling, as a shift.
const MAX_GROWTH_SHIFT: u32 = 12;

/// A round is without a queue if its minimum RTT exceeds the base RTT by at most base RTT / 32.
const EMPTY_QUEUE_DIVISOR: u64 = 32;
/// There is a queue if the excess is more than base RTT / 2.
const STANDING_QUEUE_DIVISOR: u64 = 2;
/// Consecutive rounds with a queue before it counts as a standing queue and not as a burst.
const STANDING_ROUNDS: u32 = 2;
/// The window after a standing queue or a drain, relative to what the path holds without a queue
/// (window * base RTT / RTT). Below 1, so that the queue surely empties; BBR drains with a pacing
/// gain of 0.90 in ProbeBW_DOWN (draft-ietf-ccwg-bbr).
const DRAIN_GAIN: u32 = 922;
/// A reduction for delay keeps at least this share of the window.
const MIN_DELAY_GAIN: u32 = UNIT / 4;

/// The window after heavy loss: beta of CUBIC, 0.7 (RFC 9438 section 4.6).
const BETA_LOSS: u32 = 717;
/// Loss is heavy if more than one packet in 2^3 of a round is lost. Less is noise: the path may
/// lose packets without congestion. BBR tolerates 2 % (LossThresh, draft-ietf-ccwg-bbr).
const HEAVY_LOSS_SHIFT: u32 = 3;
/// Heavy loss is more packets of a round than this.
const HEAVY_LOSS_PACKETS: u32 = 4;
/// The window after a timeout (RFC 5681 equation 4 halves the slow-start threshold).
const BETA_TIMEOUT: u32 = UNIT / 2;

/// The smoothed share of marked packets changes by 1/16 of the difference per round: g of DCTCP,
/// the default of RFC 8257.
const MARK_GAIN_DIVISOR: u32 = 16;
/// The path marks if the smoothed share of marked packets is at least this.
const MARKING_PATH_SHARE: u32 = UNIT / 64;
/// The growth per round on a path that marks: one packet. A link marks from so short a queue on
/// that faster growth would overshoot it in each round.
const MARKING_PATH_GROWTH: u32 = GROWTH_UNIT;

/// The interval of drains: the next power of two of the longer of these. A standing queue hides
/// the base RTT until a drain. BBR has 5 s (ProbeRTTInterval, draft-ietf-ccwg-bbr).
const DRAIN_INTERVAL_NS: u64 = 500_000_000;
/// The same in round trips.
const DRAIN_INTERVAL_ROUNDS: u64 = 24;
/// The drain where the interval is long, in round trips.
const DEEP_DRAIN: Drain = Drain {
    gain: UNIT / 4,
    rounds: 4,
};
/// The drain elsewhere: shallow, because it is frequent. BBR halves as well (ProbeRTTCwndGain).
const SHALLOW_DRAIN: Drain = Drain {
    gain: UNIT / 2,
    rounds: 2,
};
/// An interval of this number of round trips is long: a deep drain then costs little.
const LONG_INTERVAL_ROUNDS: u64 = 128;
/// Another connection drains if the minimum RTT of a round falls by more than 1/24.
const JOIN_DIVISOR: u64 = 24;
/// So few packets in flight cause no queue that matters.
const FEW_PACKETS: u32 = 4;

/// How far and for how long a drain reduces the window.
#[derive(Clone, Copy)]
struct Drain {
    /// Share of the window that remains, in 1/1024. Connections that start later find room.
    gain: u32,
    rounds: u32,
}

/// The state of the controller.
#[derive(Clone, Copy, Debug)]
pub(in crate::conn) struct DelayBased {
    window: u32,
    max: u32,
    slow_start: bool,
    /// Consecutive RTT samples above the threshold that ends slow start.
    delayed_samples: u32,
    /// Growth that is not a whole packet yet, in 1/16 of a packet times the window.
    credit: u32,
    /// Growth per round, in 1/16 of a packet.
    growth: u32,
    round_start: Time,
    /// The smoothed RTT at the start of the round, which is the length of the round.
    round_len_ns: u64,
    round_acked: u32,
    round_lost: u32,
    round_marked: u32,
    /// The minimum RTT of the round; `u64::MAX` without a sample.
    round_rtt_ns: u64,
    /// Consecutive rounds with a queue.
    queue_rounds: u32,
    /// Consecutive rounds without a queue.
    empty_rounds: u32,
    /// The round acknowledges packets that were sent before the last reduction, so it is not
    /// judged.
    after_reduction: bool,
    /// When the next drain is due.
    drain_at: Time,
    /// The last drain was one that another connection began.
    joined: bool,
    /// The minimum RTT of the previous round.
    previous_rtt_ns: u64,
    /// Rounds that the drain still takes, and the window and the minimum RTT before it.
    drain_rounds: u32,
    before_drain: (u32, u64),
    /// The minimum RTTs of the last rounds of drains, and the median of those of the last drain:
    /// the RTT without a queue, including scheduling delay.
    drain_rtts_ns: [u64; 3],
    probed_rtt_ns: u64,
    /// The probed RTT of the last drain that began with so few packets in flight that they cause no
    /// queue, or a smaller one probed since; 0 for none.
    confirmed_rtt_ns: u64,
    /// Smoothed share of marked packets (alpha of DCTCP), in 1/1024.
    marked_share: u32,
}

impl DelayBased {
    fn grow(&mut self, packets: u32) {
        if self.slow_start {
            self.window = (self.window + packets).min(self.max);
            self.slow_start = self.window < self.max;
            return;
        }
        self.credit += packets.min(self.window) * self.growth;
        while self.credit >= GROWTH_UNIT * self.window {
            self.credit -= GROWTH_UNIT * self.window;
            self.window = (self.window + 1).min(self.max);
        }
    }

    /// Ends slow start and scales the window by `gain` / 1024, but not below `least`.
    fn reduce(&mut self, gain: u32, least: u32) {
        self.slow_start = false;
        let scaled = (u64::from(self.window) * u64::from(gain)) >> UNIT_SHIFT;
        self.window = low32(scaled).max(least.min(self.window));
        self.credit = 0;
        (self.queue_rounds, self.empty_rounds) = (0, 0);
        self.after_reduction = true;
    }

    /// In slow start: ends it when consecutive RTT samples show a queue.
    fn check_slow_start(&mut self, ack: &AckInfo, rtt_ns: u64) {
        let base_ns = self.base_rtt_ns(ack.min_rtt_ns);
        if rtt_ns <= base_ns + base_ns / SLOW_START_DELAY_DIVISOR {
            self.delayed_samples = 0;
            return;
        }
        self.delayed_samples += 1;
        if self.delayed_samples >= SLOW_START_SAMPLES {
            self.reduce(BETA_SLOW_START, min_window_by_delay(ack.min_rtt_ns));
        }
    }

    /// The base RTT: the RTT without a queue. The minimum RTT alone is too small where it was
    /// sampled without scheduling delay, or before the path became longer; so the RTT that the last
    /// drain has measured counts, within bounds.
    fn base_rtt_ns(&self, min_rtt_ns: u64) -> u64 {
        let (least_ns, most_ns) = if min_rtt_ns < SHORT_PATH_NS {
            let tolerated_ns = min_rtt_ns + SCHEDULING_NOISE_NS;
            (tolerated_ns, tolerated_ns)
        } else {
            let noise_ns = min_rtt_ns.min(SCHEDULING_NOISE_NS);
            (min_rtt_ns, min_rtt_ns + noise_ns)
        };
        let most_ns = most_ns.max(self.confirmed_rtt_ns);
        self.probed_rtt_ns.clamp(least_ns, most_ns)
    }

    /// Once per round trip: adjusts window and growth to what the round has shown.
    #[cold]
    fn end_round(&mut self, ack: &AckInfo) {
        let share = (self.round_marked << UNIT_SHIFT).checked_div(self.round_acked);
        let share = share.unwrap_or(0);
        self.marked_share =
            self.marked_share - self.marked_share / MARK_GAIN_DIVISOR + share / MARK_GAIN_DIVISOR;
        let heavy_loss = self.round_lost > HEAVY_LOSS_PACKETS
            && self.round_lost << HEAVY_LOSS_SHIFT > self.round_acked;
        let judged = !std::mem::take(&mut self.after_reduction);
        if heavy_loss {
            self.reduce(BETA_LOSS, MIN_WINDOW);
        } else if self.round_marked > 0 && judged {
            let gain = if self.slow_start {
                BETA_SLOW_START
            } else {
                // DCTCP: 1 - alpha / 2 (RFC 8257 section 3.3).
                UNIT - self.marked_share / 2
            };
            self.reduce(gain, MIN_WINDOW);
        } else if judged && self.round_rtt_ns != u64::MAX {
            self.judge_delay(ack);
        }
        let root = GROWTH_UNIT / 2 * self.window.isqrt();
        let mut usual = root.min(GROWTH_UNIT / 4 * self.window);
        if self.marked_share >= MARKING_PATH_SHARE {
            usual = usual.min(MARKING_PATH_GROWTH);
        }
        let shift = self.empty_rounds.saturating_sub(EMPTY_ROUNDS);
        let doubled = usual << shift.min(MAX_GROWTH_SHIFT);
        let eighth = GROWTH_UNIT / 8 * self.window;
        self.growth = doubled.min(eighth).max(usual);
        (self.round_start, self.round_len_ns) = (ack.now, ack.smoothed_rtt_ns);
        (self.round_acked, self.round_lost, self.round_marked) = (0, 0, 0);
        self.round_rtt_ns = u64::MAX;
    }

    /// Ends a drain: takes over the probed RTT, and sets the window to what the path holds.
    fn end_drain(&mut self, min_rtt_ns: u64) {
        let least = min_window_by_delay(min_rtt_ns);
        let mut rtts_ns = self.drain_rtts_ns;
        rtts_ns.sort_unstable();
        self.probed_rtt_ns = rtts_ns[1];
        let (window, rtt_ns) = self.before_drain;
        self.confirmed_rtt_ns = if window <= FEW_PACKETS {
            self.probed_rtt_ns
        } else {
            self.confirmed_rtt_ns.min(self.probed_rtt_ns)
        };
        self.window = window;
        self.reduce(delay_gain(self.base_rtt_ns(min_rtt_ns), rtt_ns), least);
    }

    /// Continues or begins a drain, or reduces the window for a standing queue.
    fn judge_delay(&mut self, ack: &AckInfo) {
        let base_ns = self.base_rtt_ns(ack.min_rtt_ns);
        let least = min_window_by_delay(ack.min_rtt_ns);
        let previous_ns = std::mem::replace(&mut self.previous_rtt_ns, self.round_rtt_ns);
        if self.drain_rounds > 0 {
            self.drain_rounds -= 1;
            self.drain_rtts_ns.rotate_left(1);
            self.drain_rtts_ns[2] = self.round_rtt_ns;
            if self.drain_rounds == 0 {
                self.end_drain(ack.min_rtt_ns);
            }
            return;
        }
        let queue_ns = self.round_rtt_ns.saturating_sub(base_ns);
        if queue_ns <= base_ns / EMPTY_QUEUE_DIVISOR {
            self.empty_rounds += 1;
        } else {
            self.empty_rounds = 0;
        }
        if self.begin_drain(ack.now, base_ns, previous_ns, least) {
            return;
        }
        if queue_ns <= base_ns / STANDING_QUEUE_DIVISOR {
            self.queue_rounds = 0;
            return;
        }
        self.queue_rounds += 1;
        if self.queue_rounds >= STANDING_ROUNDS {
            self.reduce(delay_gain(base_ns, self.round_rtt_ns), least);
            // The reduction shortens the RTT, which must not look like the drain of another
            // connection, unless a drain costs little.
            if !is_long_interval(drain_interval_ns(base_ns), base_ns) {
                self.previous_rtt_ns = 0;
            }
        }
    }

    /// Begins a drain if one is due, or if the RTT fell from `previous_ns`, the minimum of the
    /// previous round, because another connection drains. Returns whether it did.
    fn begin_drain(&mut self, now: Time, base_ns: u64, previous_ns: u64, least: u32) -> bool {
        let interval_ns = drain_interval_ns(base_ns);
        let next_drain = Time::from_ns((now.as_ns() | (interval_ns - 1)).saturating_add(1));
        if self.drain_at == Time::NEVER {
            self.drain_at = next_drain;
        }
        let due = self.drain_at <= now;
        // If all connections drain at the same time, all of them measure the base RTT.
        let joins = !self.joined
            && self.round_rtt_ns < previous_ns - previous_ns / JOIN_DIVISOR
            && self.drain_at <= now.plus_ns(interval_ns / 2);
        if due {
            self.drain_at = next_drain;
        }
        // In slow start there is no queue to drain yet, and a drain would end it.
        if self.slow_start || !(joins || due) {
            return false;
        }
        self.joined = !due;
        self.drain_at = next_drain;
        self.before_drain = (self.window, self.round_rtt_ns);
        let drain = if is_long_interval(interval_ns, base_ns) {
            DEEP_DRAIN
        } else {
            SHALLOW_DRAIN
        };
        self.drain_rounds = drain.rounds;
        self.reduce(drain.gain, least);
        true
    }
}

/// The interval of drains on a path with this base RTT: a power of two, so that the connections of
/// a host, which have one clock, drain at the same time.
fn drain_interval_ns(base_ns: u64) -> u64 {
    DRAIN_INTERVAL_NS
        .max(DRAIN_INTERVAL_ROUNDS * base_ns)
        .next_power_of_two()
}

/// Whether a drain per interval costs little.
fn is_long_interval(interval_ns: u64, base_ns: u64) -> bool {
    interval_ns >= LONG_INTERVAL_ROUNDS * base_ns
}

/// The gain that reduces the RTT from `rtt_ns` to the base RTT, and empties the queue.
fn delay_gain(base_ns: u64, rtt_ns: u64) -> u32 {
    let gain = (base_ns * u64::from(DRAIN_GAIN)).checked_div(rtt_ns);
    low32(gain.unwrap_or(u64::from(UNIT / 2))).clamp(MIN_DELAY_GAIN, UNIT)
}

/// The smallest window to which delay alone reduces.
fn min_window_by_delay(min_rtt_ns: u64) -> u32 {
    if min_rtt_ns < SHORT_PATH_NS {
        SHORT_PATH_MIN_WINDOW
    } else {
        MIN_WINDOW
    }
}

impl CongestionControl for DelayBased {
    fn new(max: u32) -> Self {
        Self {
            window: INITIAL_WINDOW.min(max),
            max,
            slow_start: true,
            delayed_samples: 0,
            credit: 0,
            growth: GROWTH_UNIT,
            round_start: Time::ZERO,
            round_len_ns: 0,
            round_acked: 0,
            round_lost: 0,
            round_marked: 0,
            round_rtt_ns: u64::MAX,
            queue_rounds: 0,
            empty_rounds: 0,
            after_reduction: false,
            drain_at: Time::NEVER,
            joined: false,
            previous_rtt_ns: 0,
            drain_rounds: 0,
            before_drain: (0, 0),
            drain_rtts_ns: [0; 3],
            probed_rtt_ns: 0,
            confirmed_rtt_ns: 0,
            marked_share: 0,
        }
    }

    #[inline]
    fn window(&self) -> u32 {
        self.window
    }

    #[inline]
    fn on_ack(&mut self, ack: &AckInfo) -> Option<u32> {
        self.round_acked += ack.packets;
        if ack.marked {
            self.round_marked += ack.packets;
        }
        if let Some(rtt_ns) = ack.rtt_ns {
            self.round_rtt_ns = self.round_rtt_ns.min(rtt_ns);
            if self.slow_start {
                self.check_slow_start(ack, rtt_ns);
            }
        }
        // A window that the application does not use does not grow (RFC 7661).
        let uses_window = ack.in_flight + ack.packets >= self.window - self.window / 4;
        if uses_window && self.drain_rounds == 0 {
            self.grow(ack.packets);
        }
        // The first sample may be a thousand times the present RTT, if the peer's process slept.
        let round_len_ns = self.round_len_ns.min(2 * ack.smoothed_rtt_ns);
        if ack.now.since_ns(self.round_start) >= round_len_ns {
            self.end_round(ack);
        }
        Some(self.window)
    }

    fn on_loss(&mut self, packets: u32) {
        self.round_lost += packets;
    }

    fn on_timeout(&mut self) {
        self.reduce(BETA_TIMEOUT, MIN_WINDOW);
        self.slow_start = true;
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::super::MAX_WINDOW_PACKETS;
    use super::*;

    /// Runs the rounds with these numbers; in each the whole window is acknowledged by one packet.
    fn run(
        control: &mut DelayBased,
        rounds: std::ops::Range<u64>,
        ack: &AckInfo,
        lost_of_100: u32,
    ) {
        for round in rounds {
            let rtt_ns = ack.rtt_ns.unwrap_or(0);
            control.on_loss(control.window() * lost_of_100 / 100);
            control.on_ack(&AckInfo {
                now: Time::from_ns(round * rtt_ns * 2),
                packets: control.window(),
                smoothed_rtt_ns: rtt_ns,
                ..*ack
            });
        }
    }

    fn ack(rtt_ns: u64, min_rtt_ns: u64) -> AckInfo {
        AckInfo {
            now: Time::ZERO,
            packets: 0,
            in_flight: 0,
            rtt_ns: Some(rtt_ns),
            min_rtt_ns,
            smoothed_rtt_ns: rtt_ns,
            marked: false,
        }
    }

    #[test]
    fn delay_based_one_percent_loss_keeps_the_window_open() {
        let mut control = DelayBased::new(256);
        run(&mut control, 0..100, &ack(60_000, 50_000), 1);
        assert_eq!(control.window(), 256);
    }

    #[test]
    fn delay_based_heavy_loss_closes_the_window() {
        let mut control = DelayBased::new(256);
        run(&mut control, 0..100, &ack(60_000, 50_000), 20);
        assert!(control.window() < 32, "{}", control.window());
    }

    #[test]
    fn delay_based_standing_queue_closes_the_window() {
        for (min_rtt_ns, least) in [(50_000, SHORT_PATH_MIN_WINDOW), (1_000_000, MIN_WINDOW)] {
            let mut control = DelayBased::new(256);
            run(&mut control, 0..100, &ack(3_000_000, min_rtt_ns), 0);
            assert!(
                (least..=least + least / 4 + 4).contains(&control.window()),
                "{}",
                control.window()
            );
        }
    }

    // The window closed: the minimum RTT had been sampled without scheduling delay and was taken
    // for the base RTT.
    #[test]
    fn delay_based_rtt_that_a_smaller_window_does_not_shorten_is_no_queue() {
        let mut control = DelayBased::new(256);
        run(&mut control, 0..12_000, &ack(200_000, 120_000), 0);
        assert!(control.window() > 128, "{}", control.window());
    }

    // The first round lasted as long as the first RTT sample.
    #[test]
    fn delay_based_standing_queue_after_a_long_first_sample_closes_the_window() {
        let mut control = DelayBased::new(256);
        run(&mut control, 1..2, &ack(2_500_000_000, 500_000), 0);
        let began = 2 * 2_500_000_000 / 6_000_000;
        run(&mut control, began..began + 50, &ack(3_000_000, 500_000), 0);
        assert!(control.window() < 16, "{}", control.window());
    }

    // Every later round looked like one with a queue, and the window stayed at one packet for as
    // long as the minimum RTT is kept.
    #[test]
    fn delay_based_path_that_became_longer_opens_the_window_again() {
        let mut control = DelayBased::new(256);
        run(&mut control, 0..2_000, &ack(650_000, 150_000), 0);
        assert!(control.window() > 128, "{}", control.window());
    }

    // On a path of 48 ms the window stayed at 31 packets and grew by a few each round.
    #[test]
    fn delay_based_due_drain_does_not_end_slow_start() {
        let mut control = DelayBased::new(MAX_WINDOW_PACKETS);
        let clear = ack(48_000_000, 48_000_000);
        let rounds = u64::from((MAX_WINDOW_PACKETS / INITIAL_WINDOW).ilog2()) + 1;
        // The clock passes the time of a synchronised drain.
        let due = (DRAIN_INTERVAL_ROUNDS * 48_000_000).next_power_of_two() / (2 * 48_000_000);
        run(&mut control, due - 2..due - 2 + rounds, &clear, 0);
        assert_eq!(control.window(), MAX_WINDOW_PACKETS);
    }

    #[test]
    fn delay_based_marks_shrink_the_window() {
        let mut control = DelayBased::new(256);
        let marked = AckInfo {
            marked: true,
            ..ack(60_000, 50_000)
        };
        run(&mut control, 0..100, &marked, 0);
        assert!(control.window() < 64, "{}", control.window());
    }

    #[test]
    fn delay_based_drain_reduces_the_window_from_time_to_time_and_restores_it() {
        let mut control = DelayBased::new(256);
        let clear = ack(1_000_000, 1_000_000);
        let mut windows = Vec::new();
        for round in 0..1000 {
            run(&mut control, round..round + 1, &clear, 0);
            windows.push(control.window());
        }
        let low = windows
            .iter()
            .skip(100)
            .filter(|&&window| window < 128)
            .count();
        assert!((3..100).contains(&low), "{low} rounds of 900");
        assert!(windows.iter().filter(|&&window| window == 256).count() > 800);
    }
}
