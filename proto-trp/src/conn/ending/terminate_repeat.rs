//! The retransmission of a Terminate.

use urdma_types::Time;

/// When a Terminate is retransmitted without a packet of the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct TerminateRepeat {
    pub(super) deadline: Time,
    left: u32,
}

/// Transmissions of a Terminate at most, not counting those that answer a late packet of the peer.
const TERMINATE_TIMES: u32 = 6;

impl TerminateRepeat {
    pub(super) const NONE: Self = Self {
        deadline: Time::NEVER,
        left: 0,
    };

    pub(super) const fn start() -> Self {
        Self {
            deadline: Time::NEVER,
            left: TERMINATE_TIMES,
        }
    }

    /// The Terminate was sent; the interval to the next one grows each time.
    pub(super) fn on_sent(&mut self, now: Time, interval_ns: u64) {
        self.left = self.left.saturating_sub(1);
        self.deadline = match self.left {
            0 => Time::NEVER,
            left => now.plus_ns(interval_ns << (TERMINATE_TIMES - left)),
        };
    }

    /// The peer has the Terminate.
    pub(super) fn stop(&mut self) {
        *self = Self::NONE;
    }
}
