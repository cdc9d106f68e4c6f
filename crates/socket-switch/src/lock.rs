//! Locks that outlive their owners.
//!
//! The writer's lock of a direction comes before its reader's. No lock is held across
//! [`Host::wait`].

use crate::block::{End, Owner, Word};
use crate::fault::{has, Fault};
use crate::host::{Host, Rings};

/// Takes a lock that has an owner; true if that was killed with it.
fn contend<H: Host>(h: &H, word: Word) -> bool {
    let me = h.owner().0;
    loop {
        let Err(owner) = h.compare_exchange(word, 0, me) else {
            return false;
        };
        let is_dead = h.is_dead(Owner(owner)) && !has(Fault::LockOfTheDead);
        let may_take = is_dead || (has(Fault::StolenLock) && owner != 0);
        if may_take && h.compare_exchange(word, owner, me).is_ok() {
            return true;
        }
        h.relax();
    }
}

/// Takes the lock of the threads that send in a direction. What a killed thread has not published,
/// it has not sent; what it has published, it may not have announced.
pub(crate) fn lock_writer<H: Host>(h: &H, sender: End) {
    let word = Word::Writer(sender);
    if !try_lock(h, word) && contend(h, word) {
        wake_all(h);
    }
}

/// Takes the lock of the threads that take octets out of a ring, and settles a transfer to TCP in
/// the midst of which a thread was killed: the octets that TCP was given have left the ring.
pub(crate) fn lock_reader<H: Host>(h: &H, sender: End) {
    let word = Word::Reader(sender);
    if try_lock(h, word) || !contend(h, word) {
        return;
    }
    if h.load(Word::Moving(sender)) != 0 && !has(Fault::NoRecovery) {
        settle_move(h, sender);
    }
    wake_all(h);
}

fn settle_move<H: Host>(h: &H, sender: End) {
    let tail = h.load(Word::MovingTail(sender));
    let until = h.load(Word::MovingUntil(sender));
    let sent = if has(Fault::RecoveryRestarts) {
        until
    } else {
        h.tcp_sent(sender)
    };
    let moved = sent.saturating_sub(until);
    h.store(Word::Tail(sender), tail.wrapping_add(moved));
    h.store(Word::TcpUntil(sender), sent);
    h.store(Word::Moving(sender), 0);
}

fn wake_all<H: Host>(h: &H) {
    if !has(Fault::SilentRecovery) {
        h.wake(End::First);
        h.wake(End::Second);
    }
}

/// Releases the locks of threads that were killed, which wakes those that wait for what these
/// threads have not announced.
pub(crate) fn release_locks<H: Host>(h: &H) {
    if has(Fault::LocksKept) {
        return;
    }
    for sender in [End::First, End::Second] {
        if is_owner_dead(h, Word::Writer(sender)) {
            lock_writer(h, sender);
            unlock(h, Word::Writer(sender));
        }
        if is_owner_dead(h, Word::Reader(sender)) {
            lock_reader(h, sender);
            unlock(h, Word::Reader(sender));
        }
    }
}

fn is_owner_dead<H: Host>(h: &H, word: Word) -> bool {
    let owner = h.load(word);
    owner != 0 && h.is_dead(Owner(owner))
}

/// Takes a lock that has no owner; true if this thread has it.
#[inline(always)]
pub(crate) fn try_lock<H: Rings>(h: &H, word: Word) -> bool {
    h.compare_exchange(word, 0, h.owner().0).is_ok()
}

/// Releases a lock.
#[inline(always)]
pub(crate) fn unlock<H: Rings>(h: &H, word: Word) {
    h.store(word, 0);
}

/// Wakes the threads of an end if one of them said in `word` that it may sleep. The caller has the
/// lock under which it changed what they wait for: if it is killed before it has woken them, the
/// next owner of the lock does.
#[inline(always)]
pub(crate) fn wake_sleepers<H: Rings>(h: &H, word: Word, end: End) {
    if h.swap(word, 0) != 0 {
        h.wake(end);
    }
}
