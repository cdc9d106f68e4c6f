//! The rate limit of answers to packets that belong to no connection (doc/spec/trp.md, section 15).

/// Answers that may follow one another at once, and the time for one more.
const ANSWERS: u64 = 64;
const ANSWER_NS: u64 = 1_000_000;

/// Lets a burst through, then one in each interval.
#[derive(Clone, Copy, Debug)]
pub struct RateLimit {
    burst_ns: u64,
    interval_ns: u64,
    /// The time at which a whole burst may pass again.
    full_at_ns: u64,
}

impl Default for RateLimit {
    /// The limit of answers: 64 at once, then one a millisecond.
    fn default() -> Self {
        Self::new(ANSWERS, ANSWER_NS)
    }
}

impl RateLimit {
    /// Lets `burst` through at once, then one each `interval_ns`.
    pub const fn new(burst: u64, interval_ns: u64) -> Self {
        Self {
            burst_ns: burst * interval_ns,
            interval_ns,
            full_at_ns: 0,
        }
    }

    /// Whether one more may go at `now_ns`, which never goes back.
    pub fn allows(&mut self, now_ns: u64) -> bool {
        let full_at_ns = self.full_at_ns.max(now_ns);
        if full_at_ns - now_ns >= self.burst_ns {
            return false;
        }
        self.full_at_ns = full_at_ns + self.interval_ns;
        true
    }

    /// The first time at which [`Self::allows`] says yes.
    pub fn allows_at_ns(&self) -> u64 {
        (self.full_at_ns + 1).saturating_sub(self.burst_ns)
    }

    /// Whether a whole burst may pass at `now_ns`, as if nothing had passed before.
    pub fn is_unused(&self, now_ns: u64) -> bool {
        self.full_at_ns <= now_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flood_passes_a_burst_and_then_one_an_interval() {
        let mut limit = RateLimit::default();
        let passed = (0..1000).filter(|_| limit.allows(5)).count();
        assert_eq!(passed, 64);
        let passed = (0..1000u64)
            .filter(|ms| limit.allows(5 + ms * 1_000_000))
            .count();
        assert!((999..=1000).contains(&passed), "{passed}");
    }

    #[test]
    fn limit_that_is_reached_allows_again_at_the_time_that_it_says() {
        let mut limit = RateLimit::new(3, 1000);
        assert_eq!(limit.allows_at_ns(), 0);
        for _ in 0..3 {
            assert!(limit.allows_at_ns() <= 5);
            assert!(limit.allows(5));
        }
        let again = limit.allows_at_ns();
        assert!(!limit.allows(again - 1));
        assert!(limit.allows(again));
        // Four have passed since 5.
        assert!(!limit.is_unused(5 + 3999));
        assert!(limit.is_unused(5 + 4000));
    }
}
