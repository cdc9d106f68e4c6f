//! The state of keep-alive probes.

use urdma_types::Time;

/// Keep-alive: finds out whether the peer of an idle connection is gone.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeepAlive {
    interval_ns: u64,
    pub(super) base: Time,
    pub(super) unanswered: u32,
    /// Unanswered keep-alive probes after which the peer counts as gone.
    pub(super) limit: u32,
}

impl KeepAlive {
    pub(super) const fn new(now: Time, interval_ns: u64, limit: u32) -> Self {
        Self {
            interval_ns,
            base: now,
            unanswered: 0,
            limit,
        }
    }

    #[inline]
    pub(super) fn on_heard(&mut self, now: Time) {
        if self.interval_ns != 0 {
            self.base = now;
            self.unanswered = 0;
        }
    }

    pub(super) fn deadline(&self) -> Time {
        if self.interval_ns == 0 {
            Time::NEVER
        } else {
            self.base.plus_ns(self.interval_ns)
        }
    }
}
