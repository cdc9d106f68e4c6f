//! What is still to be done at the end of a connection: sends that will fail, and a Terminate.

use super::terminate_repeat::TerminateRepeat;
use crate::wire::Terminate;
use urdma_types::Time;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(in crate::conn) struct Ending {
    /// When sends to a peer that closed fail; `NEVER` if none are to.
    fail_deadline: Time,
    /// The Terminate that the peer gets in ERROR.
    terminate: Option<Terminate>,
    repeat: TerminateRepeat,
}

impl Ending {
    /// Nothing is to be done.
    pub(in crate::conn) const NONE: Self = Self {
        fail_deadline: Time::NEVER,
        terminate: None,
        repeat: TerminateRepeat::NONE,
    };

    /// When sends fail that the peer will not accept; `NEVER` if none are to.
    #[inline]
    pub(in crate::conn) const fn fail_deadline(&self) -> Time {
        self.fail_deadline
    }

    /// Sends fail at this time.
    pub(super) fn fail_at(&mut self, deadline: Time) {
        self.fail_deadline = deadline;
    }

    /// Whether sends fail now; then they are not expected to any more.
    pub(in crate::conn) fn take_failure(&mut self, now: Time) -> bool {
        let is_due = self.fail_deadline <= now;
        if is_due {
            self.fail_deadline = Time::NEVER;
        }
        is_due
    }

    /// The peer is to get this Terminate, again and again until it answers.
    pub(super) fn begin_terminate(&mut self, terminate: Terminate) {
        self.terminate = Some(terminate);
        self.repeat = TerminateRepeat::start();
    }

    /// The Terminate that the peer gets.
    pub(in crate::conn) const fn terminate(&self) -> Option<Terminate> {
        self.terminate
    }

    /// The Terminate was sent; `interval_ns` is the first time until it is sent again.
    pub(in crate::conn) fn on_terminate_sent(&mut self, now: Time, interval_ns: u64) {
        self.repeat.on_sent(now, interval_ns);
    }

    /// The peer has the Terminate.
    pub(super) fn stop_terminate(&mut self) {
        self.repeat.stop();
    }

    /// When the Terminate is sent again; `NEVER` if it is not.
    pub(in crate::conn) const fn repeat_deadline(&self) -> Time {
        self.repeat.deadline
    }

    /// Whether the Terminate is to be sent again now.
    pub(in crate::conn) fn take_repeat(&mut self, now: Time) -> bool {
        let is_due = self.repeat.deadline <= now;
        if is_due {
            self.repeat.deadline = Time::NEVER;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::TerminateCause;

    #[test]
    fn terminate_is_repeated_at_growing_intervals_until_it_is_answered() {
        let mut ending = Ending::NONE;
        ending.begin_terminate(Terminate::new(TerminateCause::RDMAP_CATASTROPHIC));
        let (mut now, mut intervals) = (Time::ZERO, Vec::new());
        loop {
            ending.on_terminate_sent(now, 10);
            let next = ending.repeat_deadline();
            if next == Time::NEVER {
                break;
            }
            intervals.push(next.since_ns(now));
            now = next;
            assert!(ending.take_repeat(now) && !ending.take_repeat(now));
        }
        assert!(intervals.len() > 2 && intervals.is_sorted());
        assert!(ending.terminate().is_some());
    }

    #[test]
    fn failure_is_due_once() {
        let mut ending = Ending::NONE;
        assert!(!ending.take_failure(Time::from_ns(1_000)));
        ending.fail_at(Time::from_ns(10));
        assert!(!ending.take_failure(Time::from_ns(9)));
        assert!(ending.take_failure(Time::from_ns(10)));
        assert!(!ending.take_failure(Time::from_ns(11)));
    }
}
