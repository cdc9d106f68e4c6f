//! Whether a thread that waits looks again before it yields the processor.
//!
//! A yield takes about as long as the answer of a peer that runs on another processor, and an
//! answer that comes meanwhile waits for its end. If the peer is on the same processor, nothing
//! comes without a yield. A wait therefore begins with looks without a yield while that pays.

/// Looks of one wait without a yield; some microseconds.
const LOOKS: u32 = 128;
/// The most waits that begin with a yield after looks that were in vain.
const REST_MAX: u32 = 64;

/// What is known from the waits before.
#[derive(Debug, Default)]
pub(crate) struct Spins {
    /// Waits that are still to begin with a yield, and how many that were.
    rest: u32,
    last_rest: u32,
}

/// The looks of one wait.
#[derive(Debug)]
pub(crate) struct Looks(u32);

impl Spins {
    /// A wait begins.
    pub(crate) fn begin(&mut self) -> Looks {
        match self.rest.checked_sub(1) {
            Some(rest) => {
                self.rest = rest;
                Looks(0)
            }
            None => Looks(LOOKS),
        }
    }

    /// Whether to look again without a yield. The looks have been in vain if not.
    pub(crate) fn again(&mut self, looks: &mut Looks) -> bool {
        match looks.0.checked_sub(1) {
            None => return false,
            Some(0) => {
                self.last_rest = (self.last_rest * 2 + 1).min(REST_MAX);
                self.rest = self.last_rest;
            }
            Some(_) => {}
        }
        looks.0 -= 1;
        true
    }

    /// What is waited for has come.
    pub(crate) fn found(&mut self, looks: &Looks) {
        if (1..LOOKS).contains(&looks.0) {
            self.last_rest = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many times a wait looks without a yield, if nothing comes.
    fn looks_in_vain(spins: &mut Spins) -> u32 {
        let mut looks = spins.begin();
        (0..).find(|_| !spins.again(&mut looks)).unwrap()
    }

    #[test]
    fn looks_in_vain_become_rare_until_one_pays() {
        let mut spins = Spins::default();
        for rest in [1, 3, 7, 15, 31, 63, 64, 64] {
            assert_eq!(looks_in_vain(&mut spins), LOOKS);
            for _ in 0..rest {
                assert_eq!(looks_in_vain(&mut spins), 0);
            }
        }
        let mut looks = spins.begin();
        assert!(spins.again(&mut looks));
        spins.found(&looks);
        assert_eq!(looks_in_vain(&mut spins), LOOKS);
        assert_eq!(looks_in_vain(&mut spins), 0);
        assert_eq!(looks_in_vain(&mut spins), LOOKS);
    }

    #[test]
    fn what_comes_after_a_yield_does_not_make_looks_pay() {
        let mut spins = Spins::default();
        assert_eq!(looks_in_vain(&mut spins), LOOKS);
        let mut looks = spins.begin();
        assert!(!spins.again(&mut looks));
        spins.found(&looks);
        assert_eq!(looks_in_vain(&mut spins), LOOKS);
        assert_eq!(spins.rest, 3);
    }
}
