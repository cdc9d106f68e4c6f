//! When a sender pauses indirect transfers so that fresh adverts can reach it.
//!
//! While a flow does not pause, something is on the way whenever the receiver has emptied its ring,
//! so its adverts name a position that has passed. A pause lets them catch up, for one round trip
//! in which the link is idle. What that costs is known from a stale advert: the octets between its
//! position and the next one to be sent. A pause is made when enough octets have been sent since
//! the last, and less often while pauses do not lead to direct transfers.

/// The most times that the distance between pauses is doubled.
const MAX_DOUBLINGS: u32 = 10;

/// How far a pause has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// There is none.
    None,
    /// PAUSE is to be sent.
    Due,
    /// PAUSE is sent. Adverts that arrive now were sent before it was received.
    Asked,
    /// The first advert that was sent after it has arrived.
    Renewed,
}

/// The pauses of one sender.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Resync {
    pub(crate) pause: Pause,
    /// Octets to be sent since the last pause, as a multiple of what a pause costs; 0: no pauses.
    every: u32,
    doublings: u32,
    /// What a pause costs, in octets, if the receiver has been ahead since the last one.
    cost_octets: Option<u64>,
    sent_octets: u64,
    direct_octets: u64,
}

impl Resync {
    pub(crate) fn new(every: u32) -> Self {
        Self {
            pause: Pause::None,
            every,
            doublings: 0,
            cost_octets: None,
            // The first pause need not wait: at the beginning no advert can be ahead.
            sent_octets: u64::MAX,
            direct_octets: 0,
        }
    }

    /// A stale advert: its receive was posted while `on_the_way_octets` octets were on the way.
    pub(crate) fn handle_stale(&mut self, on_the_way_octets: u64) {
        // Adverts that arrive during a pause say nothing: what was on the way has arrived by then.
        if self.pause == Pause::None {
            self.cost_octets = Some(on_the_way_octets.max(1));
        }
    }

    /// A transfer begins.
    pub(crate) fn count(&mut self, octets: u64, direct: bool) {
        self.sent_octets = self.sent_octets.saturating_add(octets);
        if direct {
            self.direct_octets = self.direct_octets.saturating_add(octets);
        }
    }

    /// Whether enough was sent since the last pause for another one.
    pub(crate) fn is_due(&self) -> bool {
        self.cost_octets.is_some_and(|cost_octets| {
            let factor = u64::from(self.every) << self.doublings;
            self.every > 0 && self.sent_octets >= cost_octets.saturating_mul(factor)
        })
    }

    /// Decides whether to pause instead of the transfer that is next. A pause that is not
    /// announced is not made if a fresh advert arrives before that.
    pub(crate) fn consider(&mut self, next_is_indirect: bool) {
        if self.pause == Pause::Due && !next_is_indirect {
            self.pause = Pause::None;
        }
        if !next_is_indirect || self.pause != Pause::None || !self.is_due() {
            return;
        }
        let useful = self.direct_octets >= self.sent_octets / 2;
        let more = (self.doublings + 1).min(MAX_DOUBLINGS);
        self.doublings = if useful { 0 } else { more };
        self.pause = Pause::Due;
        self.cost_octets = None;
        self.sent_octets = 0;
        self.direct_octets = 0;
    }
}
