//! The start of the background thread, which may be put off: how far it has come, and when the
//! control thread looks. The rules are in `engine/start.rs`.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::sleep_control::NAP_MAX_NS;

/// Between two looks. The control thread waits in whole milliseconds: up to one more.
const INTERVAL: Duration = Duration::from_nanos(NAP_MAX_NS);

/// Not asked for, and not put off if it is.
pub(crate) const IDLE: u8 = 0;
/// The same, and the control thread looks soon: the start may be put off.
pub(crate) const WATCHED: u8 = 1;
/// Asked for and put off.
pub(crate) const AWAITED: u8 = 2;
/// Started.
pub(crate) const STARTED: u8 = 3;

/// How far the start has come.
#[derive(Debug, Default)]
pub(crate) struct Start {
    stage: AtomicU8,
    /// Locked while the stage changes.
    changes: Mutex<()>,
}

/// The looks of the control thread.
#[derive(Debug)]
pub(crate) struct Looks {
    /// None after the last one.
    next: Option<Instant>,
    /// Those at a start that was put off.
    pub(crate) made: u32,
    /// What the last one has found at the seat.
    pub(crate) seat: Option<u32>,
}

impl Looks {
    /// How long until the next one.
    pub(crate) fn due_in(&self) -> Option<Duration> {
        let left = |next: Instant| next.saturating_duration_since(Instant::now());
        self.next.map(left)
    }

    /// The next one is in an interval, or there is none.
    pub(crate) fn look_again(&mut self, again: bool) {
        self.next = again.then(|| Instant::now() + INTERVAL);
    }

    /// The next one is due, as if its time had passed.
    #[cfg(test)]
    pub(crate) fn make_due(&mut self) {
        self.next = Some(Instant::now());
    }
}

impl Start {
    pub(crate) fn stage(&self) -> u8 {
        self.stage.load(Ordering::Acquire)
    }

    /// Whether the thread runs or is to run.
    pub(crate) fn is_wanted(&self) -> bool {
        self.stage() >= AWAITED
    }

    /// Before the control thread starts, which makes these looks.
    pub(crate) fn watch(&self) -> Looks {
        let _changes = self.lock();
        self.change(IDLE, WATCHED);
        let mut looks = Looks {
            next: None,
            made: 0,
            seat: None,
        };
        looks.look_again(true);
        looks
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread has started, or a test or a measurement makes its turns.
    pub(crate) fn set_started(&self) {
        self.stage.store(STARTED, Ordering::Release);
    }

    /// Changes the stage, with the lock; false if it is not `from`.
    pub(crate) fn change(&self, from: u8, to: u8) -> bool {
        let (order, failed) = (Ordering::AcqRel, Ordering::Acquire);
        self.stage.compare_exchange(from, to, order, failed).is_ok()
    }
}
