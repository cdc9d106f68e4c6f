//! Sending and receiving.

use crate::block::{End, Word, RING, TCP};
use crate::fault::{has, Fault};
use crate::host::{Event, Host, Received, Refused, Rings, Waits};
use crate::lock::{lock_reader, lock_writer, unlock, wake_sleepers};
use crate::mode::{downgrade, is_ring_wanted, upgrade};

/// The least number of pieces in which a ring moves: while one end copies a piece, the other one
/// copies the piece before.
const PIECES: u64 = 4;
/// How often a receive looks again for octets that have come since its last look.
const LOOKS: u32 = 3;
/// How often a receive that does not wait looks for octets that were handed back.
const WAY_LOOKS: u32 = 200;

/// What a send returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// So many octets, at least one.
    Octets(u64),
    /// EPIPE or ECONNRESET.
    Broken,
}

/// What a receive returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// So many octets, at least one.
    Octets(u64),
    /// The end of the stream.
    End,
    /// The connection was reset: ECONNRESET.
    Reset,
    /// Nothing has arrived, and the call does not wait: EAGAIN.
    Nothing,
}

/// Sends up to `len_octets` octets, waits until at least one is taken, and returns how many were.
/// `may_upgrade`: whether the direction may move to its ring now.
///
/// # Errors
/// [`Waits`]
pub fn send<H: Host>(h: &H, len_octets: u64, may_upgrade: bool) -> Result<Sent, Waits> {
    let me = h.end();
    loop {
        lock_writer(h, me);
        let mut is_ring = h.load(Word::Mode(me)) == RING;
        let may_ring = is_ring_wanted(h) && !is_ending(h);
        if is_ring && !may_ring {
            if downgrade(h).is_err() {
                unlock(h, Word::Writer(me));
                h.wait(Event::Writable)?;
                continue;
            }
            is_ring = false;
        } else if !is_ring && may_ring && may_upgrade {
            is_ring = upgrade(h);
        }
        let sent = if is_ring {
            put(h, len_octets)
        } else {
            h.tcp_send(len_octets)
        };
        unlock(h, Word::Writer(me));
        match sent {
            Ok(sent) => return Ok(Sent::Octets(sent)),
            Err(Refused::WouldBlock) if is_ring => {
                if h.is_peer_gone() && !has(Fault::WaitForTheGone) {
                    return Ok(Sent::Broken);
                }
                h.wait(Event::Peer)?;
            }
            Err(Refused::WouldBlock) => h.wait(Event::Writable)?,
            Err(Refused::Broken) => return Ok(Sent::Broken),
        }
    }
}

/// Whether the peer has closed its socket, or TCP has its end or an error, as far as is known.
#[inline(always)]
pub(crate) fn is_ending<H: Rings>(h: &H) -> bool {
    h.load(Word::Closes(h.end().peer())) != 0 || h.is_known_to_end()
}

/// Puts octets into the outgoing ring. The caller has the lock of the writers.
fn put<H: Host>(h: &H, len_octets: u64) -> Result<u64, Refused> {
    let me = h.end();
    let head = h.load(Word::Head(me));
    let mut ring_len = ring_len_octets(h, me);
    let mut tail = h.load(Word::SeenTail(me));
    let room = |ring_len: u64, tail: u64| ring_len.wrapping_sub(head.wrapping_sub(tail));
    if room(ring_len, tail) < len_octets {
        tail = see_tail(h);
        if room(ring_len, tail) < len_octets.min(piece_len_octets(ring_len)) {
            ring_len = grow(h, tail, ring_len);
        }
    }
    if room(ring_len, tail) == 0 {
        h.store(Word::WriterSleeps(me), 1);
        if !has(Fault::WaitAsSeen) {
            tail = see_tail(h);
        }
    }
    let len = len_octets.min(room(ring_len, tail));
    let len = len.min(piece_len_octets(ring_len));
    if len == 0 {
        return Err(Refused::WouldBlock);
    }
    publish(h, head, len);
    Ok(len)
}

/// Puts octets into the outgoing ring, which has room for them behind `head`. The caller has the
/// lock of the writers.
#[inline(always)]
pub(crate) fn publish<H: Rings>(h: &H, head: u64, len_octets: u64) {
    let me = h.end();
    stamp(h);
    h.copy_in(head, len_octets);
    h.store(Word::Head(me), head.wrapping_add(len_octets));
    if !has(Fault::NoWakeReader) {
        wake_sleepers(h, Word::ReaderSleeps(me), me.peer());
    }
}

/// The most octets that are copied before the other end sees them.
#[inline(always)]
pub(crate) fn piece_len_octets(ring_len_octets: u64) -> u64 {
    (ring_len_octets / PIECES).max(1)
}

/// Octets that the ring of a sender may have.
#[inline(always)]
pub(crate) fn ring_len_octets<H: Rings>(h: &H, sender: End) -> u64 {
    match h.load(Word::LongFrom(sender)) {
        0 => h.ring_len_octets(),
        _ => h.long_ring_len_octets(),
    }
}

/// Has the outgoing ring, which has octets from `tail` on, go on in the long one if that is
/// possible and was not done; returns its length. The caller has the lock of the writers.
fn grow<H: Host>(h: &H, tail: u64, ring_len_octets: u64) -> u64 {
    let me = h.end();
    let is_long = h.load(Word::LongFrom(me)) != 0;
    let head = h.load(Word::Head(me));
    if is_long || !h.may_grow(head) {
        return ring_len_octets;
    }
    // The receiver loads the head first, which is stored behind this.
    let is_early = has(Fault::LongBeforeHead);
    let from = if is_early { tail } else { head };
    h.store(Word::LongFrom(me), from);
    if !has(Fault::SilentGrowth) {
        // Other threads of this end may wait for room.
        wake_sleepers(h, Word::WriterSleeps(me), me);
    }
    h.long_ring_len_octets()
}

/// Looks at the tail of the outgoing ring. The caller has the lock of the writers.
fn see_tail<H: Host>(h: &H) -> u64 {
    let tail = h.load(Word::Tail(h.end()));
    h.store(Word::SeenTail(h.end()), tail);
    tail
}

/// Says that something comes now to the receiver, if it wants to know and the ring is empty.
#[inline(always)]
pub(crate) fn stamp<H: Rings>(h: &H) {
    let me = h.end();
    if h.load(Word::WantsStamp(me)) != 0 && h.load(Word::Head(me)) == h.load(Word::Tail(me)) {
        let now = h.now();
        h.store(Word::Stamp(me), now);
    }
}

/// Receives up to `len_octets` octets; waits for the first, the end or a reset if `does_wait`.
///
/// # Errors
/// [`Waits`]
pub fn recv<H: Host>(h: &H, len_octets: u64, does_wait: bool) -> Result<Taken, Waits> {
    let peer = h.end().peer();
    let mut looks = 0;
    loop {
        let had_octets = has_octets(h);
        // Octets in TCP precede those in the ring. While none come by TCP, it is not asked.
        if had_octets && is_ring_next(h) {
            if let Some(taken) = take(h, len_octets) {
                return Ok(Taken::Octets(taken));
            }
        }
        let received = h.tcp_recv(len_octets);
        if let Received::Octets(taken) = received {
            if has_octets(h) && !has(Fault::SilentTake) {
                // Another thread may sleep until TCP has these octets: those of the ring are next.
                wake_sleepers(h, Word::ReaderSleeps(peer), h.end());
            }
            return Ok(Taken::Octets(taken));
        }
        let is_end = matches!(received, Received::End | Received::Reset);
        // The peer may have filled the ring and closed its socket since.
        if has_octets(h) && !(is_end && has(Fault::EndBeforeRing)) {
            if let Some(taken) = take(h, len_octets) {
                return Ok(Taken::Octets(taken));
            }
        }
        match received {
            Received::Reset => return Ok(Taken::Reset),
            Received::End if has_left_octets(h) => return Ok(Taken::Reset),
            Received::End => return Ok(Taken::End),
            Received::Octets(_) | Received::WouldBlock => {}
        }
        if does_wait {
            sleep(h, &mut looks)?;
        } else if !looks_again(h, had_octets, &mut looks) {
            // The peer does not wake a thread that does not sleep.
            return Ok(Taken::Nothing);
        }
    }
}

/// Whether a receive that does not wait, and has found nothing, is to look again. `had_octets`: the
/// ring had some before.
fn looks_again<H: Host>(h: &H, had_octets: bool, looks: &mut u32) -> bool {
    // The peer may have handed them back since TCP was asked.
    let is_at_once = had_octets && *looks < LOOKS;
    if !is_at_once {
        if *looks >= WAY_LOOKS || !are_on_the_way(h) {
            return false;
        }
        h.relax();
    }
    *looks += 1;
    true
}

/// Whether octets that were in the ring, of which the program may have been told, have been given
/// to TCP and are not taken. The kernel does not always carry them at once.
fn are_on_the_way<H: Host>(h: &H) -> bool {
    let peer = h.end().peer();
    if h.load(Word::Moving(peer)) != 0 {
        // The ring is empty, and TCP is not known to have what was in it.
        return true;
    }
    if is_ring_next(h) || h.load(Word::Head(peer)) == 0 {
        return false;
    }
    let until = h.load(Word::TcpUntil(peer));
    let missing = until.wrapping_sub(h.tcp_taken());
    missing != 0 && missing <= ring_len_octets(h, peer)
}

/// Sleeps until there may be octets, an end or a reset, unless the ring has octets.
fn sleep<H: Host>(h: &H, looks: &mut u32) -> Result<(), Waits> {
    h.store(Word::ReaderSleeps(h.end().peer()), 1);
    if !has(Fault::SleepUnseen) && has_octets(h) {
        if *looks < LOOKS {
            *looks += 1;
            h.relax();
            return Ok(());
        }
        // Octets that cannot be taken follow some that are on their way in TCP, and wake; or the
        // peer breaks the rules, and the ring of a direction that is TCP's has them.
        let peer = h.end().peer();
        let until = h.load(Word::TcpUntil(peer));
        if h.load(Word::Mode(peer)) == RING && h.tcp_taken() == until {
            h.relax();
            return Ok(());
        }
    }
    *looks = 0;
    h.wait(Event::Readable)
}

/// Copies up to `len_octets` of the next octets, in TCP and in the ring, and leaves them
/// (MSG_PEEK); waits as [`recv`] does.
///
/// # Errors
/// [`Waits`]
pub fn peek<H: Host>(h: &H, len_octets: u64, does_wait: bool) -> Result<Taken, Waits> {
    let peer = h.end().peer();
    let (mut looks, mut ends) = (0, 0);
    loop {
        let had_octets = has_octets(h);
        // The ring's octets stay there meanwhile.
        lock_reader(h, peer);
        let received = look(h, len_octets);
        unlock(h, Word::Reader(peer));
        match received {
            Received::Octets(found) => return Ok(Taken::Octets(found)),
            Received::Reset => return Ok(Taken::Reset),
            // The peer has filled the ring and closed its socket since, or breaks the rules.
            Received::End if ends < LOOKS && has_octets(h) => {
                ends += 1;
                continue;
            }
            Received::End if has_left_octets(h) => return Ok(Taken::Reset),
            Received::End => return Ok(Taken::End),
            Received::WouldBlock => {}
        }
        if does_wait {
            sleep(h, &mut looks)?;
        } else if !looks_again(h, had_octets, &mut looks) {
            return Ok(Taken::Nothing);
        }
    }
}

/// Looks at what TCP has, and at what the ring has if that follows. The caller has the lock of the
/// readers.
fn look<H: Host>(h: &H, len_octets: u64) -> Received {
    let peer = h.end().peer();
    let is_drained = is_ring_next(h);
    let taken = if is_drained { 0 } else { h.tcp_taken() };
    let received = h.tcp_peek(len_octets);
    let in_tcp = match received {
        Received::Octets(found) => found,
        _ => 0,
    };
    if h.load(Word::Mode(peer)) == TCP {
        return received;
    }
    let until = h.load(Word::TcpUntil(peer));
    // No other thread has taken octets of TCP meanwhile, and none are behind these.
    let is_all = || taken.wrapping_add(in_tcp) == until && h.tcp_taken() == taken;
    if !is_drained && !has(Fault::PeekOverGap) && !is_all() {
        return received;
    }
    let head = h.load(Word::Head(peer));
    let tail = h.load(Word::Tail(peer));
    let in_ring = head.wrapping_sub(tail).min(len_octets - in_tcp);
    if in_ring == 0 {
        return received;
    }
    h.look_out(tail, in_ring, in_tcp);
    Received::Octets(in_tcp + in_ring)
}

/// Whether TCP was drained before, so that the next octet is in the ring. Without the lock of the
/// readers it is a hint: [`take`] looks again.
#[inline(always)]
pub(crate) fn is_ring_next<H: Rings>(h: &H) -> bool {
    let peer = h.end().peer();
    let until = h.load(Word::TcpUntil(peer));
    let drained = h.load(Word::Drained(peer));
    drained == until.wrapping_add(1) && h.load(Word::Mode(peer)) == RING
}

/// Whether the incoming ring has octets.
pub(crate) fn has_octets<H: Host>(h: &H) -> bool {
    let peer = h.end().peer();
    h.load(Word::Head(peer)) != h.load(Word::Tail(peer))
}

/// Takes octets out of the incoming ring if the next octet is there.
fn take<H: Host>(h: &H, len_octets: u64) -> Option<u64> {
    let peer = h.end().peer();
    lock_reader(h, peer);
    let taken = take_locked(h, len_octets);
    unlock(h, Word::Reader(peer));
    taken
}

fn take_locked<H: Host>(h: &H, len_octets: u64) -> Option<u64> {
    let peer = h.end().peer();
    if h.load(Word::Mode(peer)) == TCP {
        return None;
    }
    let until = h.load(Word::TcpUntil(peer));
    let drained = h.load(Word::Drained(peer));
    let is_known = drained == until.wrapping_add(1) || (has(Fault::DrainedForGood) && drained != 0);
    if !is_known && !has(Fault::RingBeforeTcp) {
        if h.tcp_taken() != until {
            return None;
        }
        h.store(Word::Drained(peer), until.wrapping_add(1));
    }
    let head = h.load(Word::Head(peer));
    let tail = h.load(Word::Tail(peer));
    let held = head.wrapping_sub(tail);
    let ring_len = ring_len_octets(h, peer);
    let len = len_octets.min(held).min(piece_len_octets(ring_len));
    if len == 0 {
        return None;
    }
    consume(h, tail, len);
    Some(len)
}

/// Takes octets out of the incoming ring, which has them from `tail` on. The caller has the lock of
/// the readers.
#[inline(always)]
pub(crate) fn consume<H: Rings>(h: &H, tail: u64, len_octets: u64) {
    let peer = h.end().peer();
    h.copy_out(tail, len_octets);
    h.store(Word::Tail(peer), tail.wrapping_add(len_octets));
    if !has(Fault::NoWakeWriter) {
        wake_sleepers(h, Word::WriterSleeps(peer), peer);
    }
}

/// Whether the peer is gone and has left octets of this end unread. TCP answers that with a reset.
fn has_left_octets<H: Host>(h: &H) -> bool {
    let me = h.end();
    !has(Fault::UnreadIsEnd)
        && h.is_peer_gone()
        && !h.is_reset()
        && h.load(Word::Head(me)) != h.load(Word::Tail(me))
}
