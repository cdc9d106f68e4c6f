//! Requests that wait in their send queues so that several leave together.
//!
//! While an application posts requests to another host without polling in between, the later ones
//! stay in their queues until they fill a packet. All then leave at once, so that the queue pair,
//! the clock and the timers are looked at once for all of them. They leave earlier with the
//! application's next poll, and at the latest with the next turn of the background thread, which is
//! woken for that if its sleep would be long.

/// Requests in a row, without a poll, after which further ones wait: before that the application
/// may be waiting for an answer.
const POSTS_TO_HOLD: u32 = 8;
/// Requests that wait at most, and octets of their messages: what a train takes (doc/adr/0012).
const REQUESTS_MAX: usize = 14;
const OCTETS_MAX: usize = 960;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Requests since the application polled last.
    posts: u32,
    /// Requests that wait.
    requests: usize,
    /// Octets of their messages.
    octets: usize,
}

impl Batch {
    /// Whether nothing waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.requests == 0
    }

    /// Whether exactly one request waits, so that waiting has just begun.
    #[inline]
    pub(crate) fn has_begun(&self) -> bool {
        self.requests == 1
    }

    /// Notes a posted request of `octets`; returns whether it waits.
    #[inline]
    pub(crate) fn add(&mut self, octets: u32) -> bool {
        self.posts = self.posts.saturating_add(1);
        if self.posts <= POSTS_TO_HOLD {
            return false;
        }
        self.requests += 1;
        self.octets += octets as usize;
        self.requests < REQUESTS_MAX && self.octets < OCTETS_MAX
    }

    /// Notes a poll of the application.
    #[inline]
    pub(crate) fn polled(&mut self) {
        self.posts = 0;
    }

    /// Notes that the waiting requests have left.
    #[inline]
    pub(crate) fn clear(&mut self) {
        (self.requests, self.octets) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests of these octets, after which one leaves at once; the first of them has begun to
    /// wait.
    fn waiting(octets: u32) -> usize {
        let mut batch = Batch::default();
        assert!((0..POSTS_TO_HOLD).all(|_| !batch.add(octets) && batch.is_empty()));
        let mut count = 0;
        while batch.add(octets) {
            count += 1;
            assert_eq!(batch.has_begun(), count == 1);
        }
        batch.clear();
        assert!(batch.is_empty() && !batch.has_begun());
        count
    }

    #[test]
    fn requests_wait_until_they_fill_a_packet() {
        assert_eq!(waiting(0), REQUESTS_MAX - 1);
        assert_eq!(waiting(240), 3);
        assert_eq!(waiting(1 << 20), 0);
    }

    #[test]
    fn request_after_a_poll_does_not_wait() {
        let mut batch = Batch::default();
        assert!((0..2 * POSTS_TO_HOLD).any(|_| batch.add(1)));
        batch.polled();
        assert!(!batch.add(1));
    }
}
