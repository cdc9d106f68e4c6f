//! How long a thread looks for what it waits for before it sleeps.
//!
//! Two threads that answer one another take less than a microsecond for it while both are awake,
//! and tens of microseconds if each has to be woken. A thread therefore spins first, as long as
//! that has lately paid. It yields the processor between its looks, so that a peer on the same
//! processor can answer; a yield that returns late shows that other programs want the processor.
//! For some time after that, a spin is brief and does not yield: a peer on another processor, which
//! a wake-up has put before the programs there, still answers it, and each thread computes no more
//! than the share that the scheduler gives it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Longest spin: longer than it takes to wake the peer, so that two threads that both sleep find
/// one another awake.
const SPIN_NS: u64 = 100_000;
/// Longest spin without a yield, for the same reason; shorter, since other programs wait meanwhile.
const BRIEF_NS: u64 = 50_000;
/// Time between two looks at the other descriptors.
const LOOK_NS: u64 = 5_000;
/// A yield that takes so long shows that the processor is in demand.
const LATE_NS: u64 = 200_000;
/// Most waits without a spin after patient spins that were in vain, and after brief ones. Those are
/// in vain where the peer is on the same processor; a wait there is so short that one spin in 64
/// waits takes 5 % of the processor.
const PATIENT_REST_MAX: u32 = 64;
const BRIEF_REST_MAX: u32 = 512;
/// Least and most time of brief spins after a late yield, which costs a time slice of another
/// program, a few milliseconds.
const BUSY_NS: (u64, u64) = (100_000_000, 1_600_000_000);

/// Whether waits begin with a spin.
#[derive(Debug, Default)]
pub struct Spins {
    patient: Rests,
    brief: Rests,
    /// The time until which other programs are assumed to want the processor; 0 if they do not.
    busy_until: AtomicU64,
    /// How long that was assumed after the last late yield; 0 if the last spin had none.
    last_busy: AtomicU64,
}

/// Waits without a spin after spins that were in vain.
#[derive(Debug, Default)]
struct Rests {
    /// How many are still to come.
    left: AtomicU32,
    /// How many there were after the last spin.
    last: AtomicU32,
}

impl Rests {
    const fn new() -> Self {
        Self {
            left: AtomicU32::new(0),
            last: AtomicU32::new(0),
        }
    }

    /// Whether the next wait spins.
    fn are_over(&self) -> bool {
        let order = Ordering::Relaxed;
        let less = |left: u32| left.checked_sub(1);
        self.left.fetch_update(order, order, less).is_err()
    }

    /// A spin has ended; at most `max` waits without one follow.
    fn learn(&self, was_in_vain: bool, max: u32) {
        let order = Ordering::Relaxed;
        let rest = match was_in_vain {
            true => (self.last.load(order) * 2 + 1).min(max),
            false => 0,
        };
        self.last.store(rest, order);
        self.left.store(rest, order);
    }
}

/// How a thread spins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spin {
    /// For [`SPIN_NS`], with yields.
    Patient,
    /// For [`BRIEF_NS`], without: other programs want the processor.
    Brief,
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
    /// The first wait spins.
    pub const fn new() -> Self {
        Self {
            patient: Rests::new(),
            brief: Rests::new(),
            busy_until: AtomicU64::new(0),
            last_busy: AtomicU64::new(0),
        }
    }

    /// How a wait that begins now spins; `None`: it does not.
    pub fn begin(&self, now: impl FnOnce() -> u64) -> Option<Spin> {
        let order = Ordering::Relaxed;
        let busy_until = self.busy_until.load(order);
        if busy_until != 0 {
            if now() < busy_until {
                return self.brief.are_over().then_some(Spin::Brief);
            }
            self.busy_until.store(0, order);
        }
        self.patient.are_over().then_some(Spin::Patient)
    }

    /// Whether other programs are assumed to want the processor, because a yield was late.
    pub fn are_brief(&self, now: impl FnOnce() -> u64) -> bool {
        let busy_until = self.busy_until.load(Ordering::Relaxed);
        busy_until != 0 && now() < busy_until
    }

    /// Judges by the end of a spin how the next waits spin.
    pub fn learn(&self, spin: Spin, spun: Spun, now: impl FnOnce() -> u64) {
        if spin == Spin::Brief {
            self.brief.learn(spun != Spun::Found, BRIEF_REST_MAX);
            return;
        }
        self.patient.learn(spun == Spun::Nothing, PATIENT_REST_MAX);
        let order = Ordering::Relaxed;
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

impl Spin {
    /// Calls `turn` until it finds something, and `look` now and then, for a limited time.
    pub fn run(
        self,
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
            if self == Spin::Brief && now - begin > BRIEF_NS {
                return Spun::Nothing;
            }
            if self == Spin::Brief || now - looked < LOOK_NS {
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
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A clock that advances by `step_ns` whenever it is read.
    fn clock(step_ns: u64) -> impl Fn() -> u64 {
        let now = Cell::new(0);
        move || now.replace(now.get() + step_ns)
    }

    /// Waits until one spins.
    fn waits_before_a_spin(spins: &Spins, now_ns: u64) -> usize {
        (0..)
            .take_while(|_| spins.begin(|| now_ns).is_none())
            .count()
    }

    #[test]
    fn spins_in_vain_become_rare_until_one_pays() {
        for (spin, now_ns, most) in [
            (Spin::Patient, 0, [63, 64, 64, 64, 64]),
            (Spin::Brief, 1, [63, 127, 255, 511, 512]),
        ] {
            let spins = Spins::new();
            if spin == Spin::Brief {
                spins.learn(Spin::Patient, Spun::Busy, || now_ns);
            }
            let mut rests = Vec::new();
            for _ in 0..11 {
                rests.push(waits_before_a_spin(&spins, now_ns));
                spins.learn(spin, Spun::Nothing, || now_ns);
            }
            assert_eq!(rests[..6], [0, 1, 3, 7, 15, 31]);
            assert_eq!(rests[6..], most);
            spins.learn(spin, Spun::Found, || now_ns);
            assert_eq!(waits_before_a_spin(&spins, now_ns), 0);
        }
    }

    #[test]
    fn spins_are_brief_after_late_yields_and_for_longer_each_time() {
        let spins = Spins::new();
        let mut now = 5;
        for busy_ns in [
            100_000_000,
            200_000_000,
            400_000_000,
            800_000_000,
            1_600_000_000,
            1_600_000_000,
        ] {
            assert!(!spins.are_brief(|| now));
            assert_eq!(spins.begin(|| now), Some(Spin::Patient));
            spins.learn(Spin::Patient, Spun::Busy, || now);
            assert!(spins.are_brief(|| now + busy_ns - 1));
            assert_eq!(spins.begin(|| now + busy_ns - 1), Some(Spin::Brief));
            spins.learn(Spin::Brief, Spun::Found, || now + busy_ns - 1);
            now += busy_ns;
        }
        assert_eq!(spins.begin(|| now), Some(Spin::Patient));
        spins.learn(Spin::Patient, Spun::Found, || now);
        spins.learn(Spin::Patient, Spun::Busy, || now);
        assert_eq!(spins.begin(|| now + 100_000_000), Some(Spin::Patient));
    }

    #[test]
    fn spin_ends_with_what_is_found_and_with_time() {
        for spin in [Spin::Patient, Spin::Brief] {
            let turns = Cell::new(0);
            let turn = || turns.replace(turns.get() + 1) == 2;
            let look = || turns.get() == 3;
            assert_eq!(spin.run(clock(1_000), turn, look), Spun::Found);
            let nothing = spin.run(clock(1_000), || false, || false);
            assert_eq!(nothing, Spun::Nothing);
        }
        let late = Spin::Patient.run(clock(LATE_NS + 1), || false, || false);
        assert_eq!(late, Spun::Busy);
    }

    #[test]
    fn brief_spin_looks_at_no_descriptor_before_a_turn_has_found_something() {
        let clock = Cell::new(0);
        let now = || clock.replace(clock.get() + 1_000);
        let look = || panic!("a look is a system call");
        assert_eq!(Spin::Brief.run(now, || false, look), Spun::Nothing);
        assert!(clock.get() > BRIEF_NS && clock.get() < SPIN_NS);
    }
}
