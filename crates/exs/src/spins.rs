//! Whether a thread that waits looks again before it yields the processor.
//!
//! A yield takes about as long as the answer of a peer that runs on another processor, and an
//! answer that comes meanwhile waits for its end. If the peer is on the same processor, nothing
//! comes without a yield. A wait therefore begins with looks without a yield while that pays.
//!
//! Two ends that yield to each other stay on one processor, although another is idle: the kernel
//! chooses a processor for a thread when it wakes it. If most waits end with their first yield,
//! which shows that the peer runs meanwhile, the thread therefore sleeps.

/// Looks of one wait without a yield; some microseconds.
const LOOKS: u32 = 128;
/// The most waits that begin with a yield after looks that were in vain.
const REST_MAX: u32 = 64;
/// How many of the waits that begin with a yield must have ended with it before the thread sleeps.
const QUICK_MIN: u32 = 3;

/// What is known from the waits before.
#[derive(Debug, Default)]
pub(crate) struct Spins {
    /// Waits that are still to begin with a yield, and how many that were.
    rest: u32,
    last_rest: u32,
    /// How many of those have ended with their first yield.
    quick: u32,
}

/// The looks of one wait.
#[derive(Debug)]
pub(crate) struct Looks {
    left: u32,
    /// Whether there is none.
    begins_with_yield: bool,
    yields: u32,
    must_sleep: bool,
}

impl Looks {
    /// Whether the thread is to sleep now, and not to yield.
    pub(crate) fn must_sleep(&self) -> bool {
        self.must_sleep
    }

    /// The thread yields.
    pub(crate) fn yielded(&mut self) {
        self.yields += 1;
    }
}

impl Spins {
    /// A wait begins.
    pub(crate) fn begin(&mut self) -> Looks {
        let left = match self.rest.checked_sub(1) {
            Some(rest) => {
                self.rest = rest;
                0
            }
            None => LOOKS,
        };
        Looks {
            left,
            begins_with_yield: left == 0,
            yields: 0,
            must_sleep: false,
        }
    }

    /// Whether to look again without a yield. The looks have been in vain if not.
    pub(crate) fn again(&mut self, looks: &mut Looks) -> bool {
        match looks.left.checked_sub(1) {
            None => return false,
            Some(0) => self.rest_after(looks),
            Some(_) => {}
        }
        looks.left -= 1;
        true
    }

    /// The looks of a wait have been in vain.
    fn rest_after(&mut self, looks: &mut Looks) {
        looks.must_sleep = self.quick >= QUICK_MIN.max(self.last_rest / 2 + 1);
        self.quick = 0;
        self.last_rest = (self.last_rest * 2 + 1).min(REST_MAX);
        // Looks show whether the peer is now on another processor.
        self.rest = if looks.must_sleep { 0 } else { self.last_rest };
    }

    /// What is waited for has come.
    pub(crate) fn found(&mut self, looks: &Looks) {
        if (1..LOOKS).contains(&looks.left) {
            self.last_rest = 0;
        }
        if looks.begins_with_yield && looks.yields == 1 {
            self.quick += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wait that ends after so many yields, or while it looks: how many times it looks before,
    /// and whether it sleeps then.
    fn wait(spins: &mut Spins, yields: u32) -> (u32, bool) {
        let mut looks = spins.begin();
        let count = (0..).find(|_| !spins.again(&mut looks)).unwrap();
        for _ in 0..yields {
            looks.yielded();
        }
        spins.found(&looks);
        (count, looks.must_sleep())
    }

    fn pay(spins: &mut Spins) {
        let mut looks = spins.begin();
        assert!(spins.again(&mut looks));
        spins.found(&looks);
    }

    #[test]
    fn looks_in_vain_become_rare_until_one_pays() {
        let mut spins = Spins::default();
        for rest in [1, 3, 7, 15, 31, 63, 64, 64] {
            assert_eq!(wait(&mut spins, 2), (LOOKS, false));
            for _ in 0..rest {
                assert_eq!(wait(&mut spins, 2), (0, false));
            }
        }
        pay(&mut spins);
        for rest in [1, 3] {
            assert_eq!(wait(&mut spins, 2), (LOOKS, false));
            for _ in 0..rest {
                assert_eq!(wait(&mut spins, 2), (0, false));
            }
        }
    }

    #[test]
    fn what_comes_after_a_yield_does_not_make_looks_pay() {
        let mut spins = Spins::default();
        assert_eq!(wait(&mut spins, 1), (LOOKS, false));
        assert_eq!(wait(&mut spins, 1), (0, false));
        assert_eq!(wait(&mut spins, 1), (LOOKS, false));
        assert_eq!(spins.rest, 3);
    }

    #[test]
    fn a_thread_sleeps_that_finds_by_its_first_yield_what_it_waits_for() {
        let mut spins = Spins::default();
        for rest in [1, 3] {
            assert_eq!(wait(&mut spins, 1), (LOOKS, false));
            for _ in 0..rest {
                assert_eq!(wait(&mut spins, 1), (0, false));
            }
        }
        assert_eq!(wait(&mut spins, 0), (LOOKS, true));
        // The processor is still the same.
        assert_eq!(wait(&mut spins, 1), (LOOKS, false));
        for _ in 0..15 {
            assert_eq!(wait(&mut spins, 1), (0, false));
        }
        assert_eq!(wait(&mut spins, 0), (LOOKS, true));
        // It is another one now.
        pay(&mut spins);
        assert_eq!(wait(&mut spins, 1), (LOOKS, false));
        assert_eq!(spins.rest, 1);
    }

    #[test]
    fn a_thread_does_not_sleep_whose_peer_takes_longer_than_a_yield() {
        let mut spins = Spins::default();
        for rest in [1, 3, 7, 15] {
            assert_eq!(wait(&mut spins, 1), (LOOKS, false));
            for at in 0..rest {
                let yields = if 2 * at < rest { 2 } else { 1 };
                assert_eq!(wait(&mut spins, yields), (0, false));
            }
        }
    }
}
