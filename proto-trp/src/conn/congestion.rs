//! How many packets may be in flight: congestion control behind a trait.

use super::config::MAX_WINDOW_PACKETS;
use super::time::Time;
use super::{Connection, NETWORK_ACK_REQUEST_INTERVAL};

/// Acknowledgements that are asked for in a small window.
const ACKS_IN_WINDOW: u32 = 4;

/// What an acknowledgement tells about the path.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckInfo {
    /// When it arrived.
    pub(super) now: Time,
    /// Packets newly acknowledged.
    pub(super) packets: u32,
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

const MIN_WINDOW: u32 = 4;
/// Delay alone shrinks the window to no less: at software ends it may as well be the wait for a processor, which a smaller window only makes worse.
const MIN_WINDOW_BY_DELAY: u32 = 64;
const FIRST_WINDOW: u32 = 64;
/// Queueing delay that is always tolerated: what software at the ends may add.
const TOLERATED_DELAY_NS: u64 = 1_000_000;
/// Loss is taken for congestion when more than one packet in this many is lost in a round: below, it is noise.
const LOSS_SHIFT: u32 = 3;

/// Delay-based control in the manner of Swift (SIGCOMM 2020): grows by a packet per round trip while the delay is below a target, shrinks in proportion
/// to the excess, at most once per round trip. Random loss alone does not shrink it; ECN marks do as in DCTCP.
#[derive(Clone, Copy, Debug)]
pub(super) struct DelayBased {
    window: u32,
    max: u32,
    slow_start: bool,
    /// Packets acknowledged since the window last grew.
    credit: u32,
    round_end: Time,
    round_acked: u32,
    round_lost: u32,
    round_marked: u32,
    round_max_rtt_ns: u64,
    /// Share of marked packets, in 1/1024.
    marked_share: u32,
}

impl DelayBased {
    pub(super) fn new(max: u32) -> Self {
        Self {
            window: FIRST_WINDOW.min(max),
            max,
            slow_start: true,
            credit: 0,
            round_end: Time::ZERO,
            round_acked: 0,
            round_lost: 0,
            round_marked: 0,
            round_max_rtt_ns: 0,
            marked_share: 0,
        }
    }

    fn grow(&mut self, packets: u32) {
        if self.slow_start {
            self.window = (self.window + packets).min(self.max);
            return;
        }
        self.credit += packets;
        if self.credit >= self.window {
            self.credit -= self.window;
            self.window = (self.window + 1).min(self.max);
        }
    }

    /// Scales the window to `keep` in 1024, but not below `least`.
    fn shrink(&mut self, keep: u32, least: u32) {
        self.slow_start = false;
        let scaled = (self.window * keep) >> 10;
        self.window = scaled.max(least.min(self.window));
    }

    /// Once per round trip: looks at what the round has shown.
    #[cold]
    fn end_round(&mut self, ack: &AckInfo) {
        let target_ns = ack
            .min_rtt_ns
            .saturating_mul(2)
            .saturating_add(TOLERATED_DELAY_NS);
        let share = (self.round_marked << 10).checked_div(self.round_acked);
        let share = share.unwrap_or(0);
        self.marked_share = self.marked_share - self.marked_share / 16 + share / 16;
        if self.round_max_rtt_ns > target_ns {
            let excess = self.round_max_rtt_ns - target_ns;
            let cut = (excess * 820 / self.round_max_rtt_ns).min(512);
            let keep = 1024 - u32::try_from(cut).unwrap_or(512);
            self.shrink(keep, MIN_WINDOW_BY_DELAY);
        } else if self.round_lost > 4 && self.round_lost << LOSS_SHIFT > self.round_acked {
            self.shrink(717, MIN_WINDOW);
        } else if self.round_marked > 0 {
            self.shrink(1024 - self.marked_share / 2, MIN_WINDOW);
        }
        self.round_end = ack.now.plus_ns(ack.smoothed_rtt_ns);
        (self.round_acked, self.round_lost, self.round_marked) = (0, 0, 0);
        self.round_max_rtt_ns = 0;
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
            self.round_max_rtt_ns = self.round_max_rtt_ns.max(rtt_ns);
        }
        self.grow(ack.packets);
        if ack.now >= self.round_end {
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

    fn run(control: &mut DelayBased, rounds: u64, rtt_ns: u64, lost_of_100: u32, marked: bool) {
        for round in 0..rounds {
            let now = Time::from_ns(round * rtt_ns * 2);
            control.on_loss(control.window() * lost_of_100 / 100);
            control.on_ack(&AckInfo {
                now,
                packets: control.window(),
                rtt_ns: Some(rtt_ns),
                min_rtt_ns: 50_000,
                smoothed_rtt_ns: rtt_ns,
                marked,
            });
        }
    }

    #[test]
    fn delay_based_one_percent_loss_keeps_the_window_open() {
        let mut control = DelayBased::new(256);
        run(&mut control, 100, 60_000, 1, false);
        assert_eq!(control.window(), 256);
    }

    #[test]
    fn delay_based_heavy_loss_closes_the_window() {
        let mut control = DelayBased::new(256);
        run(&mut control, 100, 60_000, 20, false);
        assert!(control.window() < 64, "{}", control.window());
    }

    #[test]
    fn delay_based_standing_queue_closes_the_window() {
        let mut control = DelayBased::new(256);
        run(&mut control, 50, 3_000_000, 0, false);
        assert_eq!(control.window(), MIN_WINDOW_BY_DELAY);
    }

    #[test]
    fn delay_based_marks_shrink_the_window() {
        let mut control = DelayBased::new(256);
        run(&mut control, 100, 60_000, 0, true);
        assert!(control.window() < 64, "{}", control.window());
    }
}
