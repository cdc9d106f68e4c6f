//! How long a thread looks for what it waits for before it sleeps.
//!
//! Two threads that answer one another take less than a microsecond for it while both are awake,
//! and tens of microseconds if each has to be woken. A thread therefore spins first, as long as
//! that has lately paid. It yields the processor between its looks, so that a peer on the same
//! processor can answer; a yield that returns late shows that other programs want the processor.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Longest spin: longer than it takes to wake the peer, so that two threads that both sleep find
/// one another awake.
const SPIN_NS: u64 = 100_000;
/// Time between two looks at the other descriptors.
const LOOK_NS: u64 = 5_000;
/// A yield that takes so long shows that the processor is in demand.
const LATE_NS: u64 = 200_000;
/// Most waits without a spin after spins that were in vain.
const REST_MAX: u32 = 64;
/// Least and most time without a spin after a late yield, which costs a time slice of another
/// program, a few milliseconds.
const BUSY_NS: (u64, u64) = (100_000_000, 1_600_000_000);

/// Whether waits begin with a spin.
#[derive(Debug, Default)]
pub struct Spins {
    /// Waits that are still to begin without one.
    rest: AtomicU32,
    /// Waits without one after the last spin that was in vain.
    last_rest: AtomicU32,
    /// The time until which other programs are assumed to want the processor; 0 if they do not.
    busy_until: AtomicU64,
    /// How long that was assumed after the last late yield; 0 if the last spin had none.
    last_busy: AtomicU64,
}

/// How a spin ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spun {
    /// What the thread waits for came.
    Found,
    /// It did not come in time.
    Nothing,
    /// It did not come, and other programs want the processor.
    Busy,
}

impl Spins {
    /// Whether a wait that begins now spins.
    pub fn allow(&self, now: impl FnOnce() -> u64) -> bool {
        let order = Ordering::Relaxed;
        let busy_until = self.busy_until.load(order);
        if busy_until != 0 {
            if now() < busy_until {
                return false;
            }
            self.busy_until.store(0, order);
        }
        let less = |left: u32| left.checked_sub(1);
        self.rest.fetch_update(order, order, less).is_err()
    }

    /// Judges by a spin whether the next waits spin.
    pub fn learn(&self, spun: Spun, now: impl FnOnce() -> u64) {
        let order = Ordering::Relaxed;
        let rest = match spun {
            Spun::Nothing => (self.last_rest.load(order) * 2 + 1).min(REST_MAX),
            Spun::Found | Spun::Busy => 0,
        };
        self.last_rest.store(rest, order);
        self.rest.store(rest, order);
        let busy = match spun {
            Spun::Busy => (self.last_busy.load(order) * 2).clamp(BUSY_NS.0, BUSY_NS.1),
            Spun::Found | Spun::Nothing => 0,
        };
        self.last_busy.store(busy, order);
        if busy != 0 {
            self.busy_until.store(now() + busy, order);
        }
    }
}

/// Calls `turn` until it finds something, and `look` now and then, for a limited time.
pub fn spin(
    now_ns: impl Fn() -> u64,
    mut turn: impl FnMut() -> bool,
    mut look: impl FnMut() -> bool,
) -> Spun {
    let begin = now_ns();
    let mut looked = begin;
    loop {
        if turn() && look() {
            return Spun::Found;
        }
        let now = now_ns();
        if now - looked < LOOK_NS {
            std::hint::spin_loop();
            continue;
        }
        std::thread::yield_now();
        if look() {
            return Spun::Found;
        }
        looked = now_ns();
        if looked - now > LATE_NS {
            return Spun::Busy;
        }
        if looked - begin > SPIN_NS {
            return Spun::Nothing;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::cell::Cell;
    use std::time::Instant;

    use super::*;

    /// Waits until one spins.
    fn waits_before_a_spin(spins: &Spins) -> usize {
        (0..).take_while(|_| !spins.allow(|| 0)).count()
    }

    #[test]
    fn spins_in_vain_become_rare_until_one_pays() {
        let spins = Spins::default();
        let mut rests = Vec::new();
        for _ in 0..9 {
            rests.push(waits_before_a_spin(&spins));
            spins.learn(Spun::Nothing, || 0);
        }
        assert_eq!(rests, [0, 1, 3, 7, 15, 31, 63, 64, 64]);
        spins.learn(Spun::Found, || 0);
        assert_eq!(waits_before_a_spin(&spins), 0);
    }

    #[test]
    fn late_yields_in_a_row_end_spins_for_longer_each_time() {
        let spins = Spins::default();
        let mut now = 5;
        for rest_ns in [
            100_000_000,
            200_000_000,
            400_000_000,
            800_000_000,
            1_600_000_000,
            1_600_000_000,
        ] {
            assert!(spins.allow(|| now));
            spins.learn(Spun::Busy, || now);
            assert!(!spins.allow(|| now + rest_ns - 1));
            now += rest_ns;
        }
        assert!(spins.allow(|| now));
        spins.learn(Spun::Found, || now);
        spins.learn(Spun::Busy, || now);
        assert!(spins.allow(|| now + 100_000_000));
    }

    #[test]
    fn spin_ends_with_what_is_found_and_with_time() {
        let begin = Instant::now();
        let now = || u64::try_from(begin.elapsed().as_nanos()).unwrap();
        let turns = Cell::new(0);
        let turn = || turns.replace(turns.get() + 1) == 2;
        assert_eq!(spin(now, turn, || turns.get() == 3), Spun::Found);
        assert_ne!(spin(now, || false, || false), Spun::Found);
    }
}
