//! Threads that are about to sleep look for octets in rings first, while that has lately paid
//! (`urdma_waiting::spins`): a wake-up takes longer than the answer of a peer that is awake.

use std::cell::Cell;

use urdma_waiting::spins::{Spin, Spins, Spun};

use crate::clock::now_ns;
use crate::signals;
use crate::yields::{LastYields, Yields};

/// A yield that takes so long, in nanoseconds, was a time slice of another program.
const LATE_NS: u64 = 1_000_000;

/// What a thread knows of its waits.
struct Known {
    spins: Spins,
    yields: Yields,
    last: LastYields,
}

thread_local! {
    static KNOWN: Known = const {
        Known {
            spins: Spins::new(),
            yields: Yields::new(),
            last: LastYields::new(),
        }
    };
}

/// Calls `turn`, which makes no system call, and `look` for a limited time, and after a yield if it
/// has not yielded. `true`: a look has found something. It ends early with a handler of a signal
/// that has run since [`signals::begin_call`], as the sleep would that follows; where handlers are
/// not seen, nothing is done.
pub(crate) fn spin(turn: impl Fn() -> bool, look: impl FnMut() -> bool) -> bool {
    spin_by(now_ns, turn, look)
}

/// As [`spin`], with the time of a clock in nanoseconds.
fn spin_by(
    now_ns: impl Fn() -> u64,
    turn: impl Fn() -> bool,
    mut look: impl FnMut() -> bool,
) -> bool {
    if signals::HANDLERS.has_direct() {
        return false;
    }
    KNOWN.with(|known| {
        let spin = known.spins.begin(&now_ns);
        let has_found = spin.is_some_and(|spin| known.spin(spin, &now_ns, &turn, &mut look));
        // A patient spin has yielded.
        has_found || spin != Some(Spin::Patient) && known.yield_last(now_ns, turn, look)
    })
}

impl Known {
    /// Spins; returns whether a look has found something.
    fn spin(
        &self,
        spin: Spin,
        now_ns: impl Fn() -> u64,
        turn: impl Fn() -> bool,
        mut look: impl FnMut() -> bool,
    ) -> bool {
        // When the time was last read, which is before each yield.
        let read = Cell::new(0);
        let clock = || {
            read.set(now_ns());
            read.get()
        };
        let mut has_found = false;
        let mut look = || {
            has_found = look();
            has_found || signals::has_ended_call(true)
        };
        // Whether the last look was that of a turn, and not that after a yield.
        let is_turn = Cell::new(false);
        let turn = || {
            is_turn.set(turn() || signals::has_ended_call(true));
            is_turn.get()
        };
        let yields_first = spin == Spin::Patient && self.yields.come_first();
        let spun = if yields_first && is_found_by_yield(clock, &mut look) {
            Spun::Found
        } else {
            spin.run(clock, turn, look)
        };
        let is_by_yield = has_found && !is_turn.get();
        // Another program has had the time in which the octets came.
        let is_late = is_by_yield && now_ns() - read.get() > LATE_NS;
        self.yields.learn(is_by_yield && !is_late);
        let spun = if is_late { Spun::Busy } else { spun };
        if has_found || spun != Spun::Found {
            self.spins.learn(spin, spun, now_ns);
        }
        has_found
    }

    /// Yields once, and looks if a turn finds something. The sleep would give the processor to
    /// another thread too, but then the peer, if it is that, has to wake this one.
    fn yield_last(
        &self,
        now_ns: impl Fn() -> u64,
        turn: impl Fn() -> bool,
        look: impl FnOnce() -> bool,
    ) -> bool {
        let begin = now_ns();
        if signals::has_ended_call(true) || !self.last.is_due(begin) {
            return false;
        }
        std::thread::yield_now();
        let end = now_ns();
        self.last.learn(end.saturating_sub(begin) > LATE_NS, end);
        turn() && look()
    }
}

/// Whether a look after a yield has found something.
fn is_found_by_yield(clock: impl Fn() -> u64, look: impl FnOnce() -> bool) -> bool {
    clock();
    std::thread::yield_now();
    look()
}

#[cfg(test)]
mod tests {
    use std::ffi::c_int;
    use std::ptr::null_mut;

    use super::*;

    /// A clock that advances by a microsecond whenever it is read.
    fn clock() -> impl Fn() -> u64 {
        let now = Cell::new(0);
        move || now.replace(now.get() + 1_000)
    }

    #[test]
    fn late_yield_that_has_found_something_makes_spins_brief() {
        signals::begin_call();
        let now = Cell::new(0);
        let clock = || now.replace(now.get() + 1_000);
        let is_brief = || KNOWN.with(|known| known.spins.are_brief(clock));
        let after_a_yield_of = |ns: u64| {
            let look = || {
                now.set(now.get() + ns);
                true
            };
            spin_by(clock, || false, look)
        };
        for _ in 0..20 {
            assert!(after_a_yield_of(10_000));
        }
        assert!(!is_brief());
        assert!(after_a_yield_of(2 * LATE_NS));
        assert!(is_brief());
        // No look follows a yield now.
        assert!(!after_a_yield_of(10_000));
    }

    #[test]
    fn wait_that_does_not_spin_finds_what_comes_while_it_yields() {
        signals::begin_call();
        let now = clock();
        assert!(!spin_by(&now, || false, || false));
        // This wait is one without a spin.
        assert!(spin_by(&now, || true, || true));
        assert!(!spin_by(&now, || false, || false));
        let looks = Cell::new(0);
        let look = || looks.replace(looks.get() + 1) == 9;
        assert!(!spin_by(&now, || false, look));
        assert_eq!(
            looks.get(),
            0,
            "a look without a turn that has found something"
        );
    }

    extern "C" fn ignore(_: c_int) {}

    #[test]
    fn what_a_look_finds_ends_the_spin() {
        signals::begin_call();
        let now = clock();
        let looks = Cell::new(0);
        let look = || looks.replace(looks.get() + 1) == 2;
        assert!(spin_by(&now, || true, look));
        assert_eq!(looks.get(), 3);
        assert!(!spin_by(&now, || false, || false));
        // The next wait does not spin, since that one was in vain, but yields once.
        let turns = Cell::new(0);
        let turn = || turns.replace(turns.get() + 1) == 0;
        assert!(!spin_by(&now, turn, || false));
        assert_eq!(turns.get(), 1);
        assert!(spin_by(&now, || true, || true));
    }

    #[test]
    fn handler_ends_the_spin_and_the_call() {
        let signal = libc::SIGWINCH;
        // SAFETY: zeroes are a valid sigaction.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = ignore as *const () as libc::sighandler_t;
        // SAFETY: a valid action.
        let failed = unsafe { signals::HANDLERS.install(signal, &raw const action, null_mut()) };
        assert_eq!(failed, 0);
        signals::begin_call();
        let turns = Cell::new(0);
        let turn = || {
            if turns.replace(turns.get() + 1) == 1 {
                // SAFETY: the thread lives.
                unsafe { libc::pthread_kill(libc::pthread_self(), signal) };
            }
            false
        };
        assert!(!spin_by(clock(), turn, || false));
        assert_eq!(turns.get(), 2);
        assert!(signals::has_ended_call(true));
    }
}
