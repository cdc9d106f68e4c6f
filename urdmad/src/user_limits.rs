//! Rate limits per user.

use std::collections::HashMap;

use proto_trp::limit::RateLimit;
use urdma_types::MAX_SLOTS;

const SECOND_NS: u64 = 1_000_000_000;
/// With fewer limits none is looked for that can be forgotten.
const KEPT: usize = MAX_SLOTS as usize;

/// One limit for each user, whose processes share it.
#[derive(Debug)]
pub(crate) struct UserLimits {
    /// The limit of a user that has used nothing of it.
    unused: RateLimit,
    /// Those of the other users, and some that are unused again.
    used: HashMap<u32, RateLimit>,
    /// With this number of users, those whose limit is unused again are forgotten.
    forget_at: usize,
}

impl UserLimits {
    /// Limits that are each equal to `unused`.
    pub(crate) fn new(unused: RateLimit) -> Self {
        Self {
            unused,
            used: HashMap::new(),
            forget_at: KEPT,
        }
    }

    /// Lets through what a user may do in a second at once, then `per_second` each second.
    pub(crate) fn per_second(per_second: u32) -> Self {
        let per_second = u64::from(per_second);
        Self::new(RateLimit::new(per_second, SECOND_NS / per_second))
    }

    /// Whether `uid` may do one thing more at `now_ns`, which never goes back.
    pub(crate) fn allows(&mut self, now_ns: u64, uid: u32) -> bool {
        if self.used.len() >= self.forget_at && !self.used.contains_key(&uid) {
            self.used.retain(|_, limit| !limit.is_unused(now_ns));
            // The time of this does not grow with the number of users for each call.
            self.forget_at = KEPT.max(2 * self.used.len());
        }
        let limit = self.used.entry(uid).or_insert(self.unused);
        limit.allows(now_ns)
    }

    /// The first time at which [`Self::allows`] says yes to `uid`.
    pub(crate) fn allows_at_ns(&self, uid: u32) -> u64 {
        self.used.get(&uid).map_or(0, RateLimit::allows_at_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flood_of_one_user_leaves_those_of_others_alone() {
        let mut limits = UserLimits::per_second(100);
        let mut passed = |now_ns, uid| {
            let all = 0..1000;
            all.filter(|_| limits.allows(now_ns, uid)).count()
        };
        assert_eq!(passed(5, 7), 100);
        assert_eq!(passed(5, 7), 0);
        assert_eq!(passed(5, 8), 100);
        assert_eq!(passed(5 + SECOND_NS / 2, 7), 50);
    }

    #[test]
    fn limits_that_are_unused_again_are_forgotten_and_the_others_are_not() {
        let mut limits = UserLimits::new(RateLimit::new(2, SECOND_NS));
        let flooder = 0;
        let mut now_ns = 5;
        for uid in 1..10_000 {
            limits.allows(now_ns, flooder);
            assert!(limits.allows(now_ns, uid));
            now_ns += SECOND_NS / 100;
        }
        // Each user's limit is unused again after a second, in which 100 others come.
        assert!(limits.used.len() <= KEPT, "{}", limits.used.len());
        while limits.allows(now_ns, flooder) {}
        let again = limits.allows_at_ns(flooder);
        assert!(again > now_ns && again <= now_ns + SECOND_NS);
        assert!(!limits.allows(again - 1, flooder));
        assert!(limits.allows(again, flooder));
    }
}
