//! The engine's lock: one atomic operation to take it and one to release it. It is held for
//! microseconds, so a waiter spins, at ever longer intervals, and then yields the processor between
//! its looks.
//!
//! The lock is not fair on purpose. What it protects follows it from one processor's cache to the
//! other's, which takes longer than most calls do. A waiter that looks rarely leaves the lock to
//! the thread whose cache has it for several calls in a row.
//!
//! A thread that does little but take the lock would keep a waiter out for seconds, though. After
//! some looks a waiter therefore claims the lock: the next release is for that waiter alone.
//!
//! The kernel may take the processor from the thread that holds the lock. It then runs waiters that
//! yield before that thread, for longer the longer that thread has run, so a waiter sleeps in the
//! end.
//!
//! The lock names the thread that holds it, so that a handler of signals, which may take no lock,
//! can ask whether the thread that it runs in does (`engine/unmapped.rs`).

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use urdma_abi::cancel::Disabled;

use crate::thread::{this_thread, NO_THREAD};

/// Pauses of the processor before the first look and the longest, a few microseconds; where threads
/// run one at a time, all are in vain.
const PAUSES: (u32, u32) = if cfg!(test) { (1, 1) } else { (64, 512) };
/// Looks before the first yield.
const LOOKS_TO_YIELD: u32 = 4;
/// Looks before a claim: about a hundred microseconds if the processor is free.
const LOOKS_TO_CLAIM: u32 = 8;
/// From the first yield to the first sleep: longer than the lock is held by a thread that runs.
const YIELDING: Duration = Duration::from_micros(200);
/// A sleep, to which the kernel adds up to 50 us.
const SLEEP: Duration = Duration::from_micros(20);

/// A lock around a value; a waiting thread yields the processor.
#[derive(Debug)]
pub(super) struct SpinLock<T> {
    holder: AtomicUsize,
    /// A waiter has the next turn. It alone sets `holder` meanwhile, but for threads that have seen
    /// no claim just before.
    is_claimed: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `holder` lets only one thread at a time reach the value, which may move between threads.
unsafe impl<T: Send> Sync for SpinLock<T> {}

/// Access to the value while the lock is held.
#[derive(Debug)]
pub(super) struct Guard<'a, T> {
    lock: &'a SpinLock<T>,
}

impl<T> SpinLock<T> {
    /// A free lock.
    pub(super) const fn new(value: T) -> Self {
        Self {
            holder: AtomicUsize::new(NO_THREAD),
            is_claimed: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the lock if it is free and not claimed.
    #[inline]
    pub(super) fn try_lock(&self) -> Option<Guard<'_, T>> {
        if self.is_claimed.load(Ordering::Relaxed) {
            return None;
        }
        self.take()
    }

    #[inline]
    fn take(&self) -> Option<Guard<'_, T>> {
        #[cfg(test)]
        crate::check::point();
        // A load first keeps the cache line shared while another thread holds the lock.
        if self.holder.load(Ordering::Relaxed) != NO_THREAD || !self.become_holder() {
            return None;
        }
        Some(Guard { lock: self })
    }

    #[inline]
    fn become_holder(&self) -> bool {
        let (free, me) = (NO_THREAD, this_thread());
        let taken = self
            .holder
            .compare_exchange(free, me, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok()
    }

    /// Whether the calling thread holds the lock. A handler of signals may ask.
    pub(super) fn is_held_here(&self) -> bool {
        self.holder.load(Ordering::Relaxed) == this_thread()
    }

    /// The value, for a handler of signals in the thread that holds the lock.
    pub(super) fn value(&self) -> *const T {
        self.value.get()
    }

    /// Takes the lock as the next one, unless another waiter is the next one; `since` is when this
    /// one yielded first.
    fn claim(&self, since: Instant) -> Option<Guard<'_, T>> {
        if self.is_claimed.swap(true, Ordering::Relaxed) {
            return None;
        }
        let _claim = Claim(&self.is_claimed);
        loop {
            std::hint::spin_loop();
            if let Some(held) = self.take() {
                return Some(held);
            }
            leave_processor(since);
        }
    }

    /// Takes the lock.
    #[inline]
    pub(super) fn lock(&self) -> Guard<'_, T> {
        #[cfg(test)]
        crate::check::point();
        // As a rule it is free: there is no load of `holder` first.
        if self.is_claimed.load(Ordering::Relaxed) || !self.become_holder() {
            return self.wait();
        }
        Guard { lock: self }
    }

    #[cold]
    fn wait(&self) -> Guard<'_, T> {
        let mut looks = 0;
        let mut pauses = PAUSES.0;
        let mut yields_since = None;
        loop {
            #[cfg(test)]
            crate::check::point();
            for _ in 0..pauses {
                std::hint::spin_loop();
            }
            if let Some(held) = self.try_lock() {
                return held;
            }
            pauses = (pauses * 2).min(PAUSES.1);
            looks += 1;
            if looks < LOOKS_TO_YIELD {
                continue;
            }
            let since = *yields_since.get_or_insert_with(Instant::now);
            if looks >= LOOKS_TO_CLAIM {
                if let Some(held) = self.claim(since) {
                    return held;
                }
            }
            leave_processor(since);
        }
    }
}

/// Lets other threads run, for a waiter that yielded first at `since`.
fn leave_processor(since: Instant) {
    if since.elapsed() < YIELDING {
        std::thread::yield_now();
    } else {
        // A cancellation point, and calls of the data path do not disable cancellation.
        let _uncancelled = Disabled::new();
        std::thread::sleep(SLEEP);
    }
}

/// The next turn. It ends also when the waiter unwinds, as one does whose schedule has a finding.
struct Claim<'a>(&'a AtomicBool);

impl Drop for Claim<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard exists, so this thread alone holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard exists, so this thread alone holds the lock; the guard is borrowed
        // exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.holder.store(NO_THREAD, Ordering::Release);
        #[cfg(test)]
        crate::check::point();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{point, Scheduler};

    #[test]
    fn lock_taken_refuses_a_second_taker_until_dropped() {
        let lock = SpinLock::new(1);
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        assert!(lock.try_lock().is_none());
        drop(held);
        *lock.lock() += 1;
        assert_eq!(*lock.lock(), 2);
    }

    #[test]
    fn lock_knows_the_thread_that_holds_it() {
        let lock = SpinLock::new(1);
        assert!(!lock.is_held_here());
        let held = lock.lock();
        assert!(lock.is_held_here());
        std::thread::scope(|scope| {
            let other = scope.spawn(|| lock.is_held_here());
            assert!(!other.join().unwrap());
        });
        drop(held);
        assert!(!lock.is_held_here());
    }

    // A thread that posted in a loop kept one that moved the queue pair to ERR waiting for 2 s.
    #[test]
    fn lock_that_is_claimed_is_for_the_one_that_claims_it() {
        let lock = SpinLock::new(1);
        let held = lock.lock();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| *lock.lock());
            while !lock.is_claimed.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            assert!(lock.try_lock().is_none());
            assert!(lock.claim(Instant::now()).is_none());
            drop(held);
            assert_eq!(waiting.join().unwrap(), 1);
        });
        assert!(lock.try_lock().is_some());
    }

    // A waiter that only yielded kept the thread that held the lock from its processor for 17 ms.
    #[test]
    fn waiter_of_a_lock_held_for_long_sleeps() {
        let lock = SpinLock::new(1);
        let held = lock.lock();
        let (say, hear) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                // SAFETY: gettid has no arguments.
                say.send(unsafe { libc::gettid() }).unwrap();
                *lock.lock()
            });
            wait_for_a_sleep(&lock, hear.recv().unwrap());
            drop(held);
            assert_eq!(waiting.join().unwrap(), 1);
        });
    }

    /// Waits until a thread sleeps for the lock.
    fn wait_for_a_sleep(lock: &SpinLock<i32>, thread: libc::pid_t) {
        let status = format!("/proc/self/task/{thread}/status");
        // A yield is none.
        let sleeps = || {
            let status = std::fs::read_to_string(&status).unwrap();
            let line = |line: &&str| line.starts_with("voluntary_ctxt_switches");
            status.lines().find(line).unwrap().to_owned()
        };
        while !lock.is_claimed.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        let before = sleeps();
        while sleeps() == before {
            std::thread::yield_now();
        }
    }

    // Calls of the data path do not disable cancellation: the process ended when a cancelled thread
    // slept here.
    #[test]
    fn waiter_that_sleeps_is_not_cancelled() {
        let lock = SpinLock::new(1);
        let held = lock.lock();
        let (say, hear) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                // SAFETY: both have no arguments.
                say.send(unsafe { (libc::gettid(), libc::pthread_self()) })
                    .unwrap();
                let value = *lock.lock();
                // Until the thread has ended.
                std::mem::forget(Disabled::new());
                value
            });
            let (id, thread) = hear.recv().unwrap();
            wait_for_a_sleep(&lock, id);
            // SAFETY: the thread waits for the lock.
            assert_eq!(unsafe { libc::pthread_cancel(thread) }, 0);
            wait_for_a_sleep(&lock, id);
            drop(held);
            assert_eq!(waiting.join().unwrap(), 1);
        });
    }

    // A claim outlived its thread, so what was dropped after a finding waited for ever.
    #[test]
    fn claim_of_a_waiter_ends_when_a_finding_unwinds_it() {
        let lock = SpinLock::new(1);
        let scheduler = Scheduler::new(1, None);
        let hold = || {
            let _held = lock.lock();
            while !lock.is_claimed.load(Ordering::Relaxed) {
                point();
            }
            panic!("a finding");
        };
        let wait = || {
            while lock.holder.load(Ordering::Relaxed) == NO_THREAD {
                point();
            }
            lock.lock();
        };
        let outcome = scheduler.run(vec![("holds", Box::new(hold)), ("waits", Box::new(wait))]);
        Scheduler::leave();
        assert!(outcome.unwrap_err().starts_with("holds: a finding"));
        assert!(lock.try_lock().is_some());
    }

    #[test]
    fn lock_under_contention_loses_no_increment() {
        let lock = SpinLock::new(0u32);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| *lock.lock() += 1));
            }
        });
        assert_eq!(*lock.lock(), 40_000);
    }
}
