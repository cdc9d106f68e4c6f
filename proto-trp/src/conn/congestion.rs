//! How many packets may be in flight: congestion control behind a trait.

use super::config::MAX_WINDOW_PACKETS;
use super::num::low32;
use super::{Connection, NETWORK_ACK_REQUEST_INTERVAL};
use urdma_types::Time;

/// Acknowledgements that are asked for in a small window.
const ACKS_IN_WINDOW: u32 = 4;

/// What an acknowledgement tells about the path.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckInfo {
    /// When it arrived.
    pub(super) now: Time,
    /// Packets newly acknowledged.
    pub(super) packets: u32,
    /// Packets still in flight.
    pub(super) in_flight: u32,
    /// The round trip, if one was measured that the peer did not lengthen.
    pub(super) rtt_ns: Option<u64>,
    /// The smallest round trip of late.
    pub(super) min_rtt_ns: u64,
    /// The smoothed round trip.
    pub(super) smoothed_rtt_ns: u64,
    /// Some of them were marked by the network.
    pub(super) marked: bool,
}

/// A congestion controller.
pub(super) trait CongestionControl {
    /// Packets that may be in flight, at least 1.
    fn window(&self) -> u32;
    /// Something new was acknowledged; says what the window is now if it is one that changes.
    fn on_ack(&mut self, ack: &AckInfo) -> Option<u32>;
    /// Packets were found lost.
    fn on_loss(&mut self, packets: u32);
    /// Nothing was heard for several probe timeouts.
    fn on_silence(&mut self);
}

/// The whole window, always: for paths that lose nothing and queue nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct FixedWindow {
    packets: u32,
}

impl FixedWindow {
    pub(super) const fn new(packets: u32) -> Self {
        Self { packets }
    }
}

impl CongestionControl for FixedWindow {
    #[inline]
    fn window(&self) -> u32 {
        self.packets
    }

    #[inline]
    fn on_ack(&mut self, _: &AckInfo) -> Option<u32> {
        None
    }

    fn on_loss(&mut self, _: u32) {}

    fn on_silence(&mut self) {}
}

/// Packets in flight at the least.
const MIN_WINDOW: u32 = 1;
const FIRST_WINDOW: u32 = 32;
/// On a path with a round trip below this, both ends are near and made of software: what looks like a queue is most likely the wait for a processor.
const SHORT_PATH_NS: u64 = 100_000;
/// Delay that is tolerated on a short path, as if the path were that much longer.
const SHORT_PATH_NOISE_NS: u64 = 1_000_000;
/// Delay alone shrinks the window to no less on a short path, where it would only lengthen the wait.
const SHORT_PATH_WINDOW: u32 = 64;
/// Samples in a row above the threshold that end the doubling.
const SLOW_START_SAMPLES: u32 = 4;
/// Rounds in a row in which every sample shows a queue before it counts as one.
const STANDING_ROUNDS: u32 = 2;
/// Rounds in a row without a queue after which the growth doubles with each.
const EMPTY_ROUNDS: u32 = 3;
/// A queue that never goes away hides the true round trip: each connection lets go of the path for a moment once in this time, or in this many round trips if
/// those take longer.
const DRAIN_EVERY_NS: u64 = 500_000_000;
const DRAIN_EVERY_ROUNDS: u64 = 24;
/// What is kept of the window then, in 1024, and for how many rounds, that others can join: thoroughly where it is due every so many rounds or more, so that it
/// costs little.
const DRAIN_THOROUGHLY: (u32, u32) = (256, 4);
const DRAIN: (u32, u32) = (512, 2);
const SELDOM_ROUNDS: u64 = 128;
/// A round trip that falls by more than this part within a round shows that another connection lets go.
const JOIN_PART: u64 = 24;
/// So few packets in flight make no queue that matters.
const FEW_PACKETS: u32 = 4;
/// Loss is taken for congestion when more than one packet in this many is lost in a round: below, it is noise.
const LOSS_SHIFT: u32 = 3;
/// Packets that are lost in a round at least when it is congestion.
const LOSS_LEAST: u32 = 4;
/// Growth per round on a path that marks, in 1/16 of a packet: a link marks from so short a queue on that more would overshoot it with each round.
const MARKED_STEP: u32 = 16;
/// A path marks if it has marked this share of the packets of late, in 1/1024.
const MARKED_LEAST: u32 = 16;

/// Delay-based control: the window grows per round trip by half its square root in packets, and when a queue of half a round trip stands, shrinks to what the
/// path holds without one. So the queue is empty once in each cycle, all see the same smallest round trip, and shares become equal, since a small window grows
/// by a larger part of itself than a large one and both shrink by the same. Marks shrink it as in DCTCP, loss only when it is heavy.
#[derive(Clone, Copy, Debug)]
pub(super) struct DelayBased {
    window: u32,
    max: u32,
    slow_start: bool,
    /// Samples in a row that would end the doubling.
    late_samples: u32,
    /// Growth that does not make a packet yet, in 1/16 of a packet times the window.
    credit: u32,
    /// Growth per round in 1/16 of a packet.
    step: u32,
    round_began: Time,
    /// The smoothed round trip then.
    round_ns: u64,
    round_acked: u32,
    round_lost: u32,
    round_marked: u32,
    /// The smallest round trip of the round; `u64::MAX` when none was measured.
    round_rtt_ns: u64,
    /// Rounds in a row that showed a queue.
    standing: u32,
    /// Rounds in a row that showed none.
    empty: u32,
    /// The round is one in which packets sent before the last cut are acknowledged.
    settling: bool,
    /// When the path is let go of next.
    drain_at: Time,
    /// It was let go of since then because another connection did.
    joined: bool,
    /// The smallest round trip of the round before.
    last_rtt_ns: u64,
    /// Rounds for which the path is still let go of, and window and round trip before.
    drain_rounds: u32,
    before_drain: (u32, u64),
    /// Round trips of the last rounds of letting go, and the middle one of the last time: what a round takes when no queue lengthens it, processors included.
    drained_rtts_ns: [u64; 3],
    unloaded_ns: u64,
    /// The same of the last time that was begun with so few packets in flight that they make no queue, or what was shorter since; 0 for none.
    proven_ns: u64,
    /// Share of marked packets, in 1/1024.
    marked_share: u32,
}

impl DelayBased {
    pub(super) fn new(max: u32) -> Self {
        Self {
            window: FIRST_WINDOW.min(max),
            max,
            slow_start: true,
            late_samples: 0,
            credit: 0,
            step: 16,
            round_began: Time::ZERO,
            round_ns: 0,
            round_acked: 0,
            round_lost: 0,
            round_marked: 0,
            round_rtt_ns: u64::MAX,
            standing: 0,
            settling: false,
            empty: 0,
            drain_at: Time::NEVER,
            joined: false,
            last_rtt_ns: 0,
            drain_rounds: 0,
            before_drain: (0, 0),
            drained_rtts_ns: [0; 3],
            unloaded_ns: 0,
            proven_ns: 0,
            marked_share: 0,
        }
    }

    fn grow(&mut self, packets: u32) {
        if self.slow_start {
            self.window = (self.window + packets).min(self.max);
            self.slow_start = self.window < self.max;
            return;
        }
        self.credit += packets.min(self.window) * self.step;
        while self.credit >= 16 * self.window {
            self.credit -= 16 * self.window;
            self.window = (self.window + 1).min(self.max);
        }
    }

    /// Scales the window to `keep` in 1024, but not below `least`.
    fn shrink(&mut self, keep: u32, least: u32) {
        self.slow_start = false;
        let scaled = (u64::from(self.window) * u64::from(keep)) >> 10;
        self.window = low32(scaled).max(least.min(self.window));
        self.credit = 0;
        (self.standing, self.empty) = (0, 0);
        self.settling = true;
    }

    /// While the window doubles: packets sent a round trip ago, under half the window, have met a queue.
    fn look_for_queue(&mut self, ack: &AckInfo, rtt_ns: u64) {
        let base_ns = self.base_ns(ack.min_rtt_ns);
        if rtt_ns <= base_ns + base_ns / 4 {
            self.late_samples = 0;
            return;
        }
        self.late_samples += 1;
        if self.late_samples >= SLOW_START_SAMPLES {
            self.shrink(512, least_by_delay(ack.min_rtt_ns));
        }
    }

    /// The round trip without a queue. The smallest of late was seen when no processor had to be waited for, or on another path; no queue, but we can bring
    /// about that there is none.
    fn base_ns(&self, min_rtt_ns: u64) -> u64 {
        let (least_ns, most_ns) = if min_rtt_ns < SHORT_PATH_NS {
            let tolerated_ns = min_rtt_ns + SHORT_PATH_NOISE_NS;
            (tolerated_ns, tolerated_ns)
        } else {
            let noise_ns = min_rtt_ns.min(SHORT_PATH_NOISE_NS);
            (min_rtt_ns, min_rtt_ns + noise_ns)
        };
        let most_ns = most_ns.max(self.proven_ns);
        self.unloaded_ns.clamp(least_ns, most_ns)
    }

    /// Once per round trip: looks at what the round has shown.
    #[cold]
    fn end_round(&mut self, ack: &AckInfo) {
        let share = (self.round_marked << 10).checked_div(self.round_acked);
        let share = share.unwrap_or(0);
        self.marked_share = self.marked_share - self.marked_share / 16 + share / 16;
        let heavy =
            self.round_lost > LOSS_LEAST && self.round_lost << LOSS_SHIFT > self.round_acked;
        let settled = !std::mem::take(&mut self.settling);
        if heavy {
            self.shrink(717, MIN_WINDOW);
        } else if self.round_marked > 0 && settled {
            let keep = if self.slow_start {
                512
            } else {
                1024 - self.marked_share / 2
            };
            self.shrink(keep, MIN_WINDOW);
        } else if settled && self.round_rtt_ns != u64::MAX {
            self.judge_delay(ack);
        }
        let mut usual = (8 * self.window.isqrt()).min(4 * self.window);
        if self.marked_share >= MARKED_LEAST {
            usual = usual.min(MARKED_STEP);
        }
        let doubled = usual << self.empty.saturating_sub(EMPTY_ROUNDS).min(12);
        self.step = doubled.min(2 * self.window).max(usual);
        (self.round_began, self.round_ns) = (ack.now, ack.smoothed_rtt_ns);
        (self.round_acked, self.round_lost, self.round_marked) = (0, 0, 0);
        self.round_rtt_ns = u64::MAX;
    }

    /// Has let go of the path: what a round trip takes without a queue is known anew, and the window becomes what the path holds.
    fn end_drain(&mut self, min_rtt_ns: u64) {
        let least = least_by_delay(min_rtt_ns);
        let mut rtts_ns = self.drained_rtts_ns;
        rtts_ns.sort_unstable();
        self.unloaded_ns = rtts_ns[1];
        let (window, rtt_ns) = self.before_drain;
        self.proven_ns = if window <= FEW_PACKETS {
            self.unloaded_ns
        } else {
            self.proven_ns.min(self.unloaded_ns)
        };
        self.window = window;
        self.shrink(share_of(self.base_ns(min_rtt_ns), rtt_ns), least);
    }

    /// Shrinks the window to what the path holds when every sample of some rounds has shown a queue.
    fn judge_delay(&mut self, ack: &AckInfo) {
        let base_ns = self.base_ns(ack.min_rtt_ns);
        let least = least_by_delay(ack.min_rtt_ns);
        let last_ns = std::mem::replace(&mut self.last_rtt_ns, self.round_rtt_ns);
        if self.drain_rounds > 0 {
            self.drain_rounds -= 1;
            self.drained_rtts_ns.rotate_left(1);
            self.drained_rtts_ns[2] = self.round_rtt_ns;
            if self.drain_rounds == 0 {
                self.end_drain(ack.min_rtt_ns);
            }
            return;
        }
        let queue_ns = self.round_rtt_ns.saturating_sub(base_ns);
        if queue_ns <= base_ns / 32 {
            self.empty += 1;
        } else {
            self.empty = 0;
        }
        if self.lets_go(ack.now, base_ns, last_ns, least) {
            return;
        }
        if queue_ns <= base_ns / 2 {
            self.standing = 0;
            return;
        }
        self.standing += 1;
        if self.standing >= STANDING_ROUNDS {
            self.shrink(share_of(base_ns, self.round_rtt_ns), least);
            // That shortens the round trip, which is no reason to let go of the path, too, unless it costs little and may show others.
            if !is_seldom(pause_ns(base_ns), base_ns) {
                self.last_rtt_ns = 0;
            }
        }
    }

    /// Lets go of the path if that is due or another connection does so, if `last_ns` was the smallest round trip of the round before; whether it did.
    fn lets_go(&mut self, now: Time, base_ns: u64, last_ns: u64, least: u32) -> bool {
        let pause_ns = pause_ns(base_ns);
        let next_drain = Time::from_ns((now.as_ns() | (pause_ns - 1)).saturating_add(1));
        if self.drain_at == Time::NEVER {
            self.drain_at = next_drain;
        }
        let due = self.drain_at <= now;
        // Another connection has let go of the path: if all do so together, all see the true round trip.
        let joins = !self.joined
            && self.round_rtt_ns < last_ns - last_ns / JOIN_PART
            && self.drain_at <= now.plus_ns(pause_ns / 2);
        if due {
            self.drain_at = next_drain;
        }
        // While the window doubles there is nothing to let go of, and the doubling would end.
        if self.slow_start || !(joins || due) {
            return false;
        }
        self.joined = !due;
        self.drain_at = next_drain;
        self.before_drain = (self.window, self.round_rtt_ns);
        let (keep, rounds) = if is_seldom(pause_ns, base_ns) {
            DRAIN_THOROUGHLY
        } else {
            DRAIN
        };
        self.drain_rounds = rounds;
        self.shrink(keep, least);
        true
    }
}

/// How often a path with this round trip is let go of: a power of two, so that all of a host, which have one clock, do it at the same time.
fn pause_ns(base_ns: u64) -> u64 {
    DRAIN_EVERY_NS
        .max(DRAIN_EVERY_ROUNDS * base_ns)
        .next_power_of_two()
}

/// Whether that is so seldom that it costs little.
fn is_seldom(pause_ns: u64, base_ns: u64) -> bool {
    pause_ns >= SELDOM_ROUNDS * base_ns
}

/// What remains of a window in 1024 when a round trip is to become the one without a queue, and a little less, so that the queue is surely empty.
fn share_of(base_ns: u64, rtt_ns: u64) -> u32 {
    low32((base_ns * 922).checked_div(rtt_ns).unwrap_or(512)).clamp(256, 1024)
}

fn least_by_delay(min_rtt_ns: u64) -> u32 {
    if min_rtt_ns < SHORT_PATH_NS {
        SHORT_PATH_WINDOW
    } else {
        MIN_WINDOW
    }
}

impl CongestionControl for DelayBased {
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
                self.look_for_queue(ack, rtt_ns);
            }
        }
        let uses_window = ack.in_flight + ack.packets >= self.window - self.window / 4;
        if uses_window && self.drain_rounds == 0 {
            self.grow(ack.packets);
        }
        // The first one measured may have taken a thousand times as long as those of now, as the peer's process was asleep.
        let round_ns = self.round_ns.min(2 * ack.smoothed_rtt_ns);
        if ack.now.since_ns(self.round_began) >= round_ns {
            self.end_round(ack);
        }
        Some(self.window)
    }

    fn on_loss(&mut self, packets: u32) {
        self.round_lost += packets;
    }

    fn on_silence(&mut self) {
        self.shrink(512, MIN_WINDOW);
        self.slow_start = true;
    }
}

/// The controllers that a connection may have.
#[derive(Clone, Copy, Debug)]
pub(super) enum Controller {
    Fixed(FixedWindow),
    Delay(DelayBased),
}

impl CongestionControl for Controller {
    #[inline]
    fn window(&self) -> u32 {
        match self {
            Controller::Fixed(control) => control.window(),
            Controller::Delay(control) => control.window(),
        }
    }

    #[inline]
    fn on_ack(&mut self, ack: &AckInfo) -> Option<u32> {
        match self {
            Controller::Fixed(control) => control.on_ack(ack),
            Controller::Delay(control) => control.on_ack(ack),
        }
    }

    fn on_loss(&mut self, packets: u32) {
        match self {
            Controller::Fixed(control) => control.on_loss(packets),
            Controller::Delay(control) => control.on_loss(packets),
        }
    }

    fn on_silence(&mut self) {
        match self {
            Controller::Fixed(control) => control.on_silence(),
            Controller::Delay(control) => control.on_silence(),
        }
    }
}

impl Connection {
    /// The congestion window has moved: there is to be room for twice as many packets, so that new ones go out while lost ones are sent again, and the
    /// peer is to answer several times in each window.
    pub(super) fn follow_window(&mut self, window: u32) {
        let interval = (window / ACKS_IN_WINDOW).clamp(1, NETWORK_ACK_REQUEST_INTERVAL);
        self.peer.ack_request_interval = u64::from(interval);
        let room = (2 * window).min(MAX_WINDOW_PACKETS).next_power_of_two();
        if room > self.tx.capacity() {
            self.tx.grow(room);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds in which the whole window is acknowledged by one packet; begins at the round with the number `from`.
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
        for (min_rtt_ns, least) in [(50_000, SHORT_PATH_WINDOW), (1_000_000, MIN_WINDOW)] {
            let mut control = DelayBased::new(256);
            run(&mut control, 0..100, &ack(3_000_000, min_rtt_ns), 0);
            assert!(
                (least..=least + least / 4 + 4).contains(&control.window()),
                "{}",
                control.window()
            );
        }
    }

    // It closed the window: the smallest round trip was seen when no processor had to be waited for, and passed for the path's.
    #[test]
    fn delay_based_round_trip_that_no_smaller_window_shortens_is_no_queue() {
        let mut control = DelayBased::new(256);
        run(&mut control, 0..12_000, &ack(200_000, 120_000), 0);
        assert!(control.window() > 128, "{}", control.window());
    }

    // No round ended for as long as the first round trip had taken.
    #[test]
    fn delay_based_standing_queue_after_a_first_answer_that_came_late_closes_the_window() {
        let mut control = DelayBased::new(256);
        run(&mut control, 1..2, &ack(2_500_000_000, 500_000), 0);
        let began = 2 * 2_500_000_000 / 6_000_000;
        run(&mut control, began..began + 50, &ack(3_000_000, 500_000), 0);
        assert!(control.window() < 16, "{}", control.window());
    }

    // Everything after looked like a queue, and it stayed at a packet a round for as long as the smallest round trip is remembered.
    #[test]
    fn delay_based_path_that_has_become_longer_opens_the_window_again() {
        let mut control = DelayBased::new(256);
        run(&mut control, 0..2_000, &ack(650_000, 150_000), 0);
        assert!(control.window() > 128, "{}", control.window());
    }

    // A path of 48 ms stayed at 31 packets, growing by a few each round.
    #[test]
    fn delay_based_letting_go_of_the_path_does_not_end_the_doubling() {
        let mut control = DelayBased::new(MAX_WINDOW_PACKETS);
        let clear = ack(48_000_000, 48_000_000);
        let rounds = u64::from((MAX_WINDOW_PACKETS / FIRST_WINDOW).ilog2()) + 1;
        // The clock passes one of the moments at which all let go of their paths.
        let due = (DRAIN_EVERY_ROUNDS * 48_000_000).next_power_of_two() / (2 * 48_000_000);
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
    fn delay_based_lets_go_of_the_path_now_and_then_and_comes_back() {
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
