//! Sending and receiving while nothing but the rings is needed: no lock has an owner, both ends use
//! rings, and the octets have room or are there. Whatever else there is to do is left to [`send`]
//! and [`recv`], of which these are the shortest ways, with their order of accesses.
//!
//! [`send`]: crate::send
//! [`recv`]: crate::recv

use crate::block::{Word, RING};
use crate::fault::{has, Fault};
use crate::host::Rings;
use crate::lock::{try_lock, unlock};
use crate::mode::is_ring_wanted;
use crate::transfer::{
    consume, is_ending, is_ring_next, piece_len_octets, publish, ring_len_octets,
};

/// Sends `len_octets` octets, at least one, if all of them go to the ring now; false if none do.
#[inline(always)]
pub fn send_at_once<H: Rings>(h: &H, len_octets: u64) -> bool {
    let me = h.end();
    if !try_lock(h, Word::Writer(me)) {
        return false;
    }
    let is_ring = h.load(Word::Mode(me)) == RING || has(Fault::ModeUnseenAtOnce);
    let is_ring = is_ring && is_ring_wanted(h) && !is_ending(h);
    let is_sent = is_ring && put_all(h, len_octets);
    unlock(h, Word::Writer(me));
    is_sent
}

/// Puts octets into the outgoing ring if it has room for all of them, by what was seen. The caller
/// has the lock of the writers.
#[inline(always)]
fn put_all<H: Rings>(h: &H, len_octets: u64) -> bool {
    let me = h.end();
    let head = h.load(Word::Head(me));
    let ring_len = ring_len_octets(h, me);
    let held = head.wrapping_sub(h.load(Word::SeenTail(me)));
    // A piece is not longer than the ring; what is held may be any number.
    if len_octets > piece_len_octets(ring_len) || held > ring_len - len_octets {
        return false;
    }
    publish(h, head, len_octets);
    true
}

/// Takes up to `len_octets` octets, at least one, if the next ones are in the ring, and a receive
/// gets no more of them than one piece; returns how many.
#[inline(always)]
pub fn recv_at_once<H: Rings>(h: &H, len_octets: u64) -> Option<u64> {
    let peer = h.end().peer();
    if !try_lock(h, Word::Reader(peer)) {
        return None;
    }
    let taken = take_all(h, len_octets);
    unlock(h, Word::Reader(peer));
    taken
}

/// The caller has the lock of the readers.
#[inline(always)]
fn take_all<H: Rings>(h: &H, len_octets: u64) -> Option<u64> {
    let peer = h.end().peer();
    let is_unseen = || has(Fault::TcpUnseenAtOnce) && h.load(Word::Mode(peer)) == RING;
    if !is_ring_next(h) && !is_unseen() {
        return None;
    }
    let head = h.load(Word::Head(peer));
    let tail = h.load(Word::Tail(peer));
    let len = len_octets.min(head.wrapping_sub(tail));
    if len == 0 || len > piece_len_octets(ring_len_octets(h, peer)) {
        return None;
    }
    consume(h, tail, len);
    Some(len)
}
