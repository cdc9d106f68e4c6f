//! Rate limits on the connection requests of local users.

use std::collections::HashMap;

use proto_trp::limit::RateLimit;
use urdma_types::MAX_SLOTS;

const SECOND_NS: u64 = 1_000_000_000;

/// One limit for each user, whose processes share it.
#[derive(Debug)]
pub(super) struct RequestLimits {
    per_second: u32,
    limits: HashMap<u32, RateLimit>,
}

impl RequestLimits {
    /// Lets through what a user may send in a second at once, then `per_second` each second.
    pub(super) fn new(per_second: u32) -> Self {
        Self {
            per_second,
            limits: HashMap::new(),
        }
    }

    /// Whether a request of `uid` may pass. `is_attached` says which users the instance has: only
    /// their limits are remembered when there are many.
    pub(super) fn allows(
        &mut self,
        now_ns: u64,
        uid: u32,
        is_attached: impl Fn(u32) -> bool,
    ) -> bool {
        if !self.limits.contains_key(&uid) && self.limits.len() >= usize::from(MAX_SLOTS) {
            self.limits.retain(|uid, _| is_attached(*uid));
        }
        let per_second = u64::from(self.per_second);
        let limit = RateLimit::new(per_second, SECOND_NS / per_second);
        let limit = self.limits.entry(uid).or_insert(limit);
        limit.allows(now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flood_of_one_user_leaves_the_requests_of_others_alone() {
        let mut limits = RequestLimits::new(100);
        let mut passed = |now_ns, uid| {
            let requests = 0..1000;
            requests
                .filter(|_| limits.allows(now_ns, uid, |_| true))
                .count()
        };
        assert_eq!(passed(5, 7), 100);
        assert_eq!(passed(5, 7), 0);
        assert_eq!(passed(5, 8), 100);
        assert_eq!(passed(5 + SECOND_NS / 2, 7), 50);
    }

    #[test]
    fn limits_of_users_that_have_gone_are_forgotten() {
        let mut limits = RequestLimits::new(1);
        assert!(limits.allows(5, 0, |_| true));
        for uid in 1..10_000 {
            assert!(limits.allows(5, uid, |uid| uid == 0));
        }
        assert!(limits.limits.len() <= usize::from(MAX_SLOTS));
        assert!(!limits.allows(5, 0, |_| true));
    }
}
