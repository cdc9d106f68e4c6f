//! The park word of a slot: VACANT, RUNNING or PARKED.
//!
//! Consumer: RUNNING -> PARKED, full fence, check the ring and its other wake-up conditions, sleep
//! while PARKED. Producer: append, full fence, load; if PARKED, swap to RUNNING and wake. The side
//! whose fence is second sees the other's store, so no wake-up is lost. VACANT (also: dead) is in
//! the same word, so that the same load shows a sender that no process will receive its entry.

use crate::sync::{fence, fence_after_rmw, AtomicU32, Ordering};

/// No process uses the slot, or its process is dead. All zeroes, as in a new arena.
pub const VACANT: u32 = 0;
/// The consumer polls, or will look before it sleeps.
pub const RUNNING: u32 = 1;
/// The consumer sleeps or is about to: ring its bell.
pub const PARKED: u32 = 2;

/// How a call to park ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parked {
    /// A doorbell was rung.
    Woken,
    /// The time was up.
    Timeout,
    /// There was something to do, so it did not sleep.
    HadWork,
    /// The slot is not attached any more.
    Vacant,
}

/// What a producer has to do after it appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bell {
    /// Nothing, the consumer runs.
    Running,
    /// The consumer slept and is RUNNING now: wake it by its futex.
    MustWake,
    /// The slot has no process.
    Vacant,
}

/// Consumer: announces that it will sleep; false when the slot is vacant. After it, look for work,
/// then sleep or [`cancel`].
#[inline]
pub fn announce(word: &AtomicU32) -> bool {
    let announced =
        match word.compare_exchange(RUNNING, PARKED, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) | Err(PARKED) => true,
            Err(_) => false,
        };
    fence(Ordering::SeqCst);
    announced
}

/// Consumer: is awake again; true when the doorbell had already been rung.
#[inline]
pub fn cancel(word: &AtomicU32) -> bool {
    word.compare_exchange(PARKED, RUNNING, Ordering::SeqCst, Ordering::Relaxed)
        .is_err()
}

/// Producer: to be called directly after a SeqCst read-modify-write that appended.
#[inline]
pub fn ring_after_rmw(word: &AtomicU32) -> Bell {
    fence_after_rmw();
    match word.load(Ordering::SeqCst) {
        RUNNING => Bell::Running,
        PARKED => wake(word),
        _ => Bell::Vacant,
    }
}

/// Anyone: rings, whatever was done before.
#[inline]
pub fn ring(word: &AtomicU32) -> Bell {
    fence(Ordering::SeqCst);
    match word.load(Ordering::SeqCst) {
        RUNNING => Bell::Running,
        PARKED => wake(word),
        _ => Bell::Vacant,
    }
}

#[cold]
fn wake(word: &AtomicU32) -> Bell {
    match word.compare_exchange(PARKED, RUNNING, Ordering::SeqCst, Ordering::Relaxed) {
        Ok(_) => Bell::MustWake,
        Err(VACANT) => Bell::Vacant,
        Err(_) => Bell::Running,
    }
}
