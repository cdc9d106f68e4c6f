//! Sleeping until a datagram arrives, and waking.

use std::time::{Duration, Instant};

use super::short::Rings;
use crate::futex;
use crate::park::{self, Bell, Parked};
use crate::ring::Ring;
use crate::slot::SlotEntry;
use crate::sync::Ordering;

/// Puts the slot's consumer to sleep and wakes it; usable without the endpoint's lock.
#[derive(Clone, Copy, Debug)]
pub struct Parker {
    pub(super) entry: &'static SlotEntry,
    pub(super) ring: Ring<'static>,
    pub(super) shorts: Rings,
}

impl Parker {
    /// Sleeps until the doorbell is rung, `timeout` has passed (`None`: no limit) or the slot is
    /// declared dead.
    ///
    /// `has_work` is called after the word is PARKED, just before sleeping: a condition that
    /// another thread of this process sets before it calls [`Parker::unpark`] is seen here or ends
    /// the sleep. One thread at a time.
    pub fn park(&self, timeout: Option<Duration>, has_work: impl FnOnce() -> bool) -> Parked {
        let word = &self.entry.public.park;
        if !park::announce(word) {
            return Parked::Vacant;
        }
        if self.has_work() || has_work() {
            park::cancel(word);
            return Parked::HadWork;
        }
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        loop {
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            let in_time = futex::wait(word, park::PARKED, left);
            match word.load(Ordering::SeqCst) {
                park::RUNNING => {
                    return if in_time {
                        Parked::Woken
                    } else {
                        Parked::Timeout
                    }
                }
                park::PARKED if !in_time => {
                    // A doorbell since the load counts as a timeout: the caller checks the ring in
                    // either case.
                    park::cancel(word);
                    return Parked::Timeout;
                }
                park::PARKED => {}
                _ => return Parked::Vacant,
            }
        }
    }

    /// Sleeps at most `limit` without requesting doorbells: for a thread while another one of this
    /// process polls.
    ///
    /// Ends early at a doorbell, after [`Parker::hand_over`], or by [`Parker::rouse`]. Does not
    /// sleep when senders ring already, which is the state of [`Parker::park`], or when the slot is
    /// vacant.
    pub fn nap(&self, limit: Duration) -> Parked {
        let word = &self.entry.public.park;
        let in_time = futex::wait(word, park::RUNNING, Some(limit));
        match word.load(Ordering::SeqCst) {
            park::RUNNING if !in_time => Parked::Timeout,
            park::RUNNING => Parked::Woken,
            park::PARKED => Parked::HadWork,
            _ => Parked::Vacant,
        }
    }

    /// Wakes the sleeping thread from another thread of this process.
    pub fn unpark(&self) {
        if park::ring(&self.entry.public.park) == Bell::MustWake {
            futex::wake(&self.entry.public.park);
        }
    }

    /// Marks the slot as polled without waking the sleeping thread, which sleeps on until its
    /// timeout or [`Parker::rouse`].
    ///
    /// For a process whose application thread polls while its background thread sleeps: senders
    /// then need no system call. True when the word was PARKED.
    #[inline]
    pub fn take_over(&self) -> bool {
        let word = &self.entry.public.park;
        word.load(Ordering::Relaxed) == park::PARKED && !park::cancel(word)
    }

    /// The opposite of [`Parker::take_over`]: requests doorbells again, on behalf of the thread
    /// that sleeps or checks the ring before it sleeps.
    ///
    /// Entries that are already in the ring, for which no doorbell follows, wake the thread at
    /// once.
    #[inline]
    pub fn hand_over(&self) {
        if park::announce(&self.entry.public.park) && self.has_work() {
            self.unpark();
        }
    }

    /// Wakes the sleeping thread whatever the word says.
    pub fn rouse(&self) {
        let word = &self.entry.public.park;
        let _ = word.compare_exchange(
            park::PARKED,
            park::RUNNING,
            Ordering::SeqCst,
            Ordering::Relaxed,
        );
        futex::wake(word);
    }

    /// Whether senders have to ring.
    #[inline]
    pub fn is_parked(&self) -> bool {
        self.entry.public.park.load(Ordering::Relaxed) == park::PARKED
    }

    /// Whether the ring or a short ring has entries.
    #[inline]
    pub fn has_work(&self) -> bool {
        let head = self.entry.owner.head.load(Ordering::Acquire);
        !self.ring.is_empty_at(head) || self.shorts.have_entry()
    }
}
