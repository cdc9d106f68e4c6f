//! The seat: which thread of a process makes progress and sleeps on the bells.
//!
//! One thread at a time may call [`OwnPage::park`]: the *driver*. It is the background thread of
//! the engine unless a thread of the application, which is about to sleep until something arrives,
//! takes the seat; a message then wakes that thread and no other one.
//!
//! | state | driver | next state |
//! |---|---|---|
//! | BACKGROUND | background thread | REQUESTED |
//! | REQUESTED | background thread | SITTING, or BACKGROUND again |
//! | SITTING(n) | thread in a wait | AWAY(n + 1), or BACKGROUND |
//! | AWAY(n) | none | SITTING(n), or BACKGROUND |
//!
//! A thread that is about to sleep stores REQUESTED; the background thread stores SITTING once its
//! own park has ended, or the requester withdraws the request. The driver stores AWAY when it
//! returns to the application, or BACKGROUND if other threads need progress meanwhile; the next
//! thread that waits takes an AWAY seat without a system call. The background thread takes it if n
//! does not change, and a SITTING one if the driver does not answer.
//!
//! While the seat is AWAY, the background thread is in a bounded sleep, after which it takes the
//! seat unless the application polls meanwhile, which makes progress as a driver does. It therefore
//! costs a program that returns to its wait in less time no wake-up of another thread. When a
//! driver sits for longer, the background thread sleeps without a limit; the driver then wakes it
//! when it leaves. The driver stores AWAY and loads whether that sleep is without a limit; the
//! background thread stores that it is and loads the seat. One of them sees what the other has
//! stored.

use std::time::Duration;

use crate::futex::{self, Ended, Waiter};
use crate::page::OwnPage;
use crate::signal::Signal;
use crate::sync::{fence, AtomicU32, Ordering};

const BACKGROUND: u32 = 0;
const REQUESTED: u32 = 1;
const SITTING: u32 = 2;
const AWAY: u32 = 3;
/// The bits of the word that hold the state; the others are n.
const STATE: u32 = 3;
const ONE: u32 = STATE + 1;

/// How long a thread waits for the background thread to leave its sleep. The model has no time.
#[cfg(not(loom))]
const REQUEST_MAX: Option<Duration> = Some(Duration::from_millis(10));
#[cfg(loom)]
const REQUEST_MAX: Option<Duration> = None;

/// See the module.
#[derive(Debug)]
pub struct Seat {
    word: AtomicU32,
    /// The background thread sleeps without a limit until the seat changes.
    is_unbounded: AtomicU32,
}

impl Default for Seat {
    fn default() -> Self {
        Self {
            word: AtomicU32::new(BACKGROUND),
            is_unbounded: AtomicU32::new(0),
        }
    }
}

/// A driver's hold of the seat, for [`Seat::leave`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Seated(u32);

/// What the background thread has found at the seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// The background thread drives.
    Mine,
    /// Another thread drives or may soon; the seat has changed.
    Changed,
    /// Another thread sits and has not moved in the time given.
    Still,
    /// The seat is AWAY, and the application makes progress without a wait.
    Busy,
}

const fn with(word: u32, state: u32) -> u32 {
    (word & !STATE) | state
}

impl Seat {
    /// Before the background thread starts: a driver is expected, as if it had left for a moment.
    /// The first thread that waits takes the seat without the background thread, which takes it
    /// after a bounded sleep if none comes.
    pub fn expect_driver(&self) {
        self.change(BACKGROUND, AWAY);
    }

    fn change(&self, from: u32, to: u32) -> bool {
        let order = Ordering::SeqCst;
        self.word.compare_exchange(from, to, order, order).is_ok()
    }

    /// Makes the calling thread the driver, unless another thread of the application is or is about
    /// to be, the background thread does not answer soon, or the signal that the thread is going to
    /// wait for is raised meanwhile: it was raised `seen` times.
    pub fn sit(&self, page: &OwnPage, signal: &Signal, seen: u32) -> Option<Seated> {
        let word = self.word.load(Ordering::SeqCst);
        let seated = with(word, SITTING);
        match word & STATE {
            AWAY => self.change(word, seated).then_some(Seated(seated)),
            BACKGROUND => {
                let requested = with(word, REQUESTED);
                let is_mine = self.change(word, requested) && {
                    page.unpark();
                    signal.await_with(|| self.await_grant(requested, signal, seen))
                };
                is_mine.then_some(Seated(seated))
            }
            _ => None,
        }
    }

    /// Waits until the background thread has left its park: what it stores then would cancel the
    /// PARKED of this thread. False if the request was withdrawn.
    fn await_grant(&self, requested: u32, signal: &Signal, seen: u32) -> bool {
        let words = [
            Waiter::new(&self.word, requested),
            Waiter::new(signal.word(), seen),
        ];
        while self.word.load(Ordering::SeqCst) == requested {
            let is_late = futex::wait(&words, REQUEST_MAX) == Ended::Timeout;
            let gives_up = is_late || signal.count() != seen;
            if gives_up && self.change(requested, with(requested, BACKGROUND)) {
                return false;
            }
        }
        true
    }

    /// Whether a thread waits for the background thread to leave its sleep: it looks at this
    /// between storing PARKED and its sleep, since it may have read its bells after the request.
    pub fn is_requested(&self) -> bool {
        self.word.load(Ordering::SeqCst) & STATE == REQUESTED
    }

    /// Whether no thread sleeps on the bells because the driver is expected back.
    #[inline]
    pub fn is_away(&self) -> bool {
        self.word.load(Ordering::Relaxed) & STATE == AWAY
    }

    /// A thread has found what it would have waited for: if the seat is AWAY, the background thread
    /// does not take it yet.
    pub fn touch(&self) {
        let word = self.word.load(Ordering::SeqCst);
        if word & STATE == AWAY {
            self.change(word, word.wrapping_add(ONE));
        }
    }

    /// Whether the seat is still that of the thread that took it.
    pub fn is_held(&self, seated: Seated) -> bool {
        self.word.load(Ordering::SeqCst) == seated.0
    }

    /// A look in place of the background thread, which has not started: whether it is to drive, as
    /// it would after a bounded sleep since the look that left `before`.
    pub fn is_left_alone(&self, before: &mut Option<u32>) -> bool {
        let word = self.word.load(Ordering::SeqCst);
        let last = before.replace(word);
        match word & STATE {
            SITTING => false,
            AWAY => last == Some(word),
            _ => true,
        }
    }

    /// The driver, which is not in [`OwnPage::park`], leaves: for a moment, or, if `for_good`, to
    /// have the background thread drive at once.
    pub fn leave(&self, seated: Seated, for_good: bool) {
        let state = if for_good { BACKGROUND } else { AWAY };
        let is_left = self.change(seated.0, with(seated.0.wrapping_add(ONE), state));
        fence(Ordering::SeqCst);
        if is_left && (for_good || self.is_unbounded.load(Ordering::SeqCst) != 0) {
            futex::wake(&self.word);
        }
    }

    /// Has the background thread drive at once if the seat is AWAY: another thread needs progress
    /// while it sleeps elsewhere.
    pub fn recall(&self) {
        let word = self.word.load(Ordering::SeqCst);
        if word & STATE == AWAY && self.change(word, with(word, BACKGROUND)) {
            futex::wake(&self.word);
        }
    }

    /// Whether the background thread drives and is not asked to make room.
    #[inline]
    pub fn is_background(&self) -> bool {
        self.word.load(Ordering::SeqCst) & STATE == BACKGROUND
    }

    /// One step of the background thread, between two turns: gives the seat to a thread that has
    /// requested it, and sleeps while another thread has it: at most `away_max` while that thread
    /// may have left, and `still_max`, which is longer, while it sits. A seat that is AWAY for so
    /// long stays so if `is_busy`.
    pub fn watch(
        &self,
        away_max: Duration,
        still_max: Duration,
        is_busy: impl FnOnce() -> bool,
    ) -> Watched {
        let word = self.word.load(Ordering::SeqCst);
        match word & STATE {
            BACKGROUND => Watched::Mine,
            REQUESTED => {
                if self.change(word, with(word, SITTING)) {
                    futex::wake(&self.word);
                }
                Watched::Changed
            }
            state => {
                if self.has_moved(word, away_max) {
                    return Watched::Changed;
                }
                if state == SITTING {
                    return self.watch_sitter(word, still_max);
                }
                if is_busy() {
                    return Watched::Busy;
                }
                if self.change(word, with(word, BACKGROUND)) {
                    return Watched::Mine;
                }
                Watched::Changed
            }
        }
    }

    fn watch_sitter(&self, word: u32, still_max: Duration) -> Watched {
        self.is_unbounded.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let has_moved = self.word.load(Ordering::SeqCst) != word || self.has_moved(word, still_max);
        self.is_unbounded.store(0, Ordering::SeqCst);
        if has_moved {
            Watched::Changed
        } else {
            Watched::Still
        }
    }

    /// Sleeps until the seat differs from `word` and the driver says so, for a time; returns
    /// whether it differs.
    fn has_moved(&self, word: u32, limit: Duration) -> bool {
        let words = [Waiter::new(&self.word, word)];
        let has_ended = futex::wait(&words, Some(limit)) != Ended::Timeout;
        has_ended || self.word.load(Ordering::SeqCst) != word
    }

    /// Takes the seat from a driver that has not moved for long although messages wait: a handler
    /// of a signal has left its wait for good. If the driver is only slow, it finds the seat taken
    /// when it wakes, and then wakes the background thread, whose PARKED it may have cancelled.
    pub fn seize(&self, page: &OwnPage) {
        let word = self.word.load(Ordering::SeqCst);
        if word & STATE == SITTING && self.change(word, with(word.wrapping_add(ONE), BACKGROUND)) {
            page.forget_call();
            page.unpark();
        }
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    const SHORT: Duration = Duration::from_millis(1);
    const LONG: Duration = Duration::from_secs(20);

    fn page() -> OwnPage {
        OwnPage::create().unwrap().0
    }

    fn sit(seat: &Seat) -> Option<Seated> {
        seat.sit(&page(), &Signal::default(), 0)
    }

    /// A seat that a driver has taken and left.
    fn away() -> Seat {
        let seat = Seat::default();
        seat.word.store(AWAY, Ordering::SeqCst);
        seat
    }

    #[test]
    fn request_without_an_answer_is_withdrawn() {
        let seat = Seat::default();
        assert!(sit(&seat).is_none());
        assert!(!seat.is_requested());
        assert_eq!(seat.watch(LONG, LONG, || false), Watched::Mine);
    }

    #[test]
    fn first_thread_that_waits_sits_before_the_background_thread_has_started() {
        let seat = Seat::default();
        seat.expect_driver();
        let seated = sit(&seat).unwrap();
        assert!(seat.is_held(seated));
        assert_eq!(seat.watch(SHORT, SHORT, || false), Watched::Still);
    }

    #[test]
    fn background_thread_takes_the_seat_to_which_no_driver_comes() {
        let seat = Seat::default();
        seat.expect_driver();
        assert!(seat.is_away());
        assert_eq!(seat.watch(SHORT, LONG, || false), Watched::Mine);
    }

    #[test]
    fn request_of_a_thread_whose_signal_is_raised_is_withdrawn() {
        let (seat, signal) = (Seat::default(), Signal::default());
        signal.raise();
        assert!(seat.sit(&page(), &signal, 0).is_none());
        assert!(!seat.is_requested());
    }

    #[test]
    fn request_is_granted_between_two_turns_of_the_background_thread() {
        let seat = Arc::new(Seat::default());
        let other = Arc::clone(&seat);
        let sits = thread::spawn(move || sit(&other));
        while !seat.is_requested() {
            thread::yield_now();
        }
        assert_eq!(seat.watch(LONG, LONG, || false), Watched::Changed);
        let seated = sits.join().unwrap().unwrap();
        assert!(seat.is_held(seated));
        assert!(sit(&seat).is_none(), "the seat is taken");
    }

    #[test]
    fn driver_away_keeps_the_seat_only_while_it_returns() {
        let seat = away();
        let seated = sit(&seat).unwrap();
        seat.leave(seated, false);
        seat.touch();
        assert!(seat.is_away());
        assert_eq!(seat.watch(SHORT, LONG, || false), Watched::Mine);
        assert!(!seat.is_away());
    }

    #[test]
    fn driver_away_keeps_the_seat_while_it_polls() {
        let seat = away();
        assert_eq!(seat.watch(SHORT, LONG, || true), Watched::Busy);
        assert!(seat.is_away());
        assert_eq!(seat.watch(SHORT, LONG, || false), Watched::Mine);
    }

    #[test]
    fn driver_that_leaves_for_good_wakes_the_background_thread() {
        let seat = Arc::new(away());
        let seated = sit(&seat).unwrap();
        let other = Arc::clone(&seat);
        let background =
            thread::spawn(move || while other.watch(LONG, LONG, || false) != Watched::Mine {});
        seat.leave(seated, true);
        background.join().unwrap();
    }

    #[test]
    fn driver_that_sits_and_does_not_move_keeps_the_seat() {
        let seat = away();
        let seated = sit(&seat).unwrap();
        assert_eq!(seat.watch(SHORT, SHORT, || false), Watched::Still);
        assert!(seat.is_held(seated));
    }

    #[test]
    fn driver_whose_seat_was_seized_does_not_store_that_it_is_away() {
        let (seat, page) = (away(), page());
        let seated = sit(&seat).unwrap();
        seat.seize(&page);
        assert!(!seat.is_held(seated));
        seat.leave(seated, false);
        assert_eq!(seat.watch(LONG, LONG, || false), Watched::Mine);
    }

    #[test]
    fn thread_that_needs_progress_recalls_the_background_thread() {
        let seat = away();
        seat.recall();
        assert_eq!(seat.watch(LONG, LONG, || false), Watched::Mine);
    }
}
