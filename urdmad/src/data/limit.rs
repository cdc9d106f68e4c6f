//! A limit on answers to strangers.

/// Answers that may follow one another at once.
const BURST: u64 = 64;
const INTERVAL_NS: u64 = 1_000_000;

/// Lets [`BURST`] through, then one a millisecond.
#[derive(Debug, Default)]
pub(crate) struct RateLimit {
    /// The time at which the bucket would be full again.
    full_at_ns: u64,
}

impl RateLimit {
    /// Whether one more may go.
    pub(crate) fn allows(&mut self, now_ns: u64) -> bool {
        let full_at_ns = self.full_at_ns.max(now_ns);
        if full_at_ns - now_ns >= BURST * INTERVAL_NS {
            return false;
        }
        self.full_at_ns = full_at_ns + INTERVAL_NS;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flood_passes_a_burst_and_then_one_a_millisecond() {
        let mut limit = RateLimit::default();
        let passed = (0..1000).filter(|_| limit.allows(5)).count();
        assert_eq!(passed, 64);
        let passed = (0..1000u64)
            .filter(|ms| limit.allows(5 + ms * 1_000_000))
            .count();
        assert!((999..=1000).contains(&passed), "{passed}");
    }
}
