//! The pause after the peer has refused a request (RNR).

use urdma_types::{Psn, Time};

/// A request of this end that the peer has refused.
#[derive(Clone, Copy, Debug)]
pub(super) struct RnrPause {
    /// When it is sent again; `NEVER` without a pause.
    pub(super) until: Time,
    /// Consecutive refusals; 0 if no request is refused.
    pub(super) retries: u32,
    /// Its PSN in the last refusal.
    pub(super) refused: Psn,
    /// Its sequence number since it was sent again, alone.
    pub(super) retry: Option<u64>,
}

impl RnrPause {
    pub(super) const NONE: Self = Self {
        until: Time::NEVER,
        retries: 0,
        refused: Psn::new(0),
        retry: None,
    };

    /// Whether the refused request may be sent again now.
    #[inline]
    pub(super) fn may_retry(&self) -> bool {
        self.until == Time::NEVER && self.retry.is_none()
    }

    /// Ends the pause when its time is over.
    pub(super) fn on_time(&mut self, now: Time) {
        if self.until <= now {
            self.until = Time::NEVER;
        }
    }

    /// Everything before `una` was acknowledged.
    pub(super) fn on_taken(&mut self, una: u64) {
        if self.retry.is_some_and(|retry| retry < una) {
            *self = Self::NONE;
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::NONE;
    }
}
