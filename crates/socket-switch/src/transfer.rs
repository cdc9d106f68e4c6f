//! Sending and receiving.

use crate::block::{End, Word, RING, TCP};
use crate::fault::{has, Fault};
use crate::host::{Event, Host, Received, Refused};
use crate::lock::{lock_reader, lock_writer, unlock, wake_sleepers};
use crate::mode::{downgrade, is_ring_wanted, upgrade};

/// The least number of pieces in which a ring moves: while one end copies a piece, the other one
/// copies the piece before.
const PIECES: u64 = 4;
/// How often a receive looks again for octets that have come since its last look.
const LOOKS: u32 = 3;
/// How often a receive that does not wait looks for octets that were handed back.
const WAY_LOOKS: u32 = 200;

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
/// [`Refused::Broken`]: EPIPE or ECONNRESET.
pub async fn send<H: Host>(h: &H, len_octets: u64, may_upgrade: bool) -> Result<u64, Refused> {
    let me = h.end();
    loop {
        lock_writer(h, me).await;
        let mut is_ring = h.load(Word::Mode(me)).await == RING;
        let may_ring = is_ring_wanted(h).await && !is_ending(h).await;
        if is_ring && !may_ring {
            if downgrade(h).await.is_err() {
                unlock(h, Word::Writer(me)).await;
                h.wait(Event::Writable).await;
                continue;
            }
            is_ring = false;
        } else if !is_ring && may_ring && may_upgrade {
            is_ring = upgrade(h).await;
        }
        let sent = if is_ring {
            put(h, len_octets).await
        } else {
            h.tcp_send(len_octets).await
        };
        unlock(h, Word::Writer(me)).await;
        match sent {
            Ok(sent) => return Ok(sent),
            Err(Refused::WouldBlock) if is_ring => {
                if h.is_peer_gone().await && !has(Fault::WaitForTheGone) {
                    return Err(Refused::Broken);
                }
                h.wait(Event::Peer).await;
            }
            Err(Refused::WouldBlock) => h.wait(Event::Writable).await,
            Err(Refused::Broken) => return Err(Refused::Broken),
        }
    }
}

/// Whether the peer has closed its socket, or TCP has its end or an error, as far as is known.
async fn is_ending<H: Host>(h: &H) -> bool {
    h.load(Word::Closes(h.end().peer())).await != 0 || h.is_known_to_end().await
}

/// Puts octets into the outgoing ring. The caller has the lock of the writers.
async fn put<H: Host>(h: &H, len_octets: u64) -> Result<u64, Refused> {
    let me = h.end();
    let head = h.load(Word::Head(me)).await;
    let mut ring_len = ring_len_octets(h, me).await;
    let mut tail = h.load(Word::SeenTail(me)).await;
    let room = |ring_len: u64, tail: u64| ring_len.wrapping_sub(head.wrapping_sub(tail));
    if room(ring_len, tail) < len_octets {
        tail = see_tail(h).await;
        if room(ring_len, tail) < len_octets.min(piece_len_octets(ring_len)) {
            ring_len = grow(h, tail, ring_len).await;
        }
    }
    if room(ring_len, tail) == 0 {
        h.store(Word::WriterSleeps(me), 1).await;
        if !has(Fault::WaitAsSeen) {
            tail = see_tail(h).await;
        }
    }
    let len = len_octets.min(room(ring_len, tail));
    let len = len.min(piece_len_octets(ring_len));
    if len == 0 {
        return Err(Refused::WouldBlock);
    }
    stamp(h).await;
    h.copy_in(head, len).await;
    h.store(Word::Head(me), head.wrapping_add(len)).await;
    if !has(Fault::NoWakeReader) {
        wake_sleepers(h, Word::ReaderSleeps(me), me.peer()).await;
    }
    Ok(len)
}

/// The most octets that are copied before the other end sees them.
fn piece_len_octets(ring_len_octets: u64) -> u64 {
    (ring_len_octets / PIECES).max(1)
}

/// Octets that the ring of a sender may have.
async fn ring_len_octets<H: Host>(h: &H, sender: End) -> u64 {
    match h.load(Word::LongFrom(sender)).await {
        0 => h.ring_len_octets(),
        _ => h.long_ring_len_octets(),
    }
}

/// Has the outgoing ring, which has octets from `tail` on, go on in the long one if that is
/// possible and was not done; returns its length. The caller has the lock of the writers.
async fn grow<H: Host>(h: &H, tail: u64, ring_len_octets: u64) -> u64 {
    let me = h.end();
    let is_long = h.load(Word::LongFrom(me)).await != 0;
    let head = h.load(Word::Head(me)).await;
    if is_long || !h.may_grow(head).await {
        return ring_len_octets;
    }
    // The receiver loads the head first, which is stored behind this.
    let is_early = has(Fault::LongBeforeHead);
    let from = if is_early { tail } else { head };
    h.store(Word::LongFrom(me), from).await;
    if !has(Fault::SilentGrowth) {
        // Other threads of this end may wait for room.
        wake_sleepers(h, Word::WriterSleeps(me), me).await;
    }
    h.long_ring_len_octets()
}

/// Looks at the tail of the outgoing ring. The caller has the lock of the writers.
async fn see_tail<H: Host>(h: &H) -> u64 {
    let tail = h.load(Word::Tail(h.end())).await;
    h.store(Word::SeenTail(h.end()), tail).await;
    tail
}

/// Says that something comes now to the receiver, if it wants to know and the ring is empty.
pub(crate) async fn stamp<H: Host>(h: &H) {
    let me = h.end();
    if h.load(Word::WantsStamp(me)).await != 0
        && h.load(Word::Head(me)).await == h.load(Word::Tail(me)).await
    {
        let now = h.now().await;
        h.store(Word::Stamp(me), now).await;
    }
}

/// Receives up to `len_octets` octets; waits for the first, the end or a reset if `does_wait`.
pub async fn recv<H: Host>(h: &H, len_octets: u64, does_wait: bool) -> Taken {
    let peer = h.end().peer();
    let mut looks = 0;
    loop {
        let had_octets = has_octets(h).await;
        // Octets in TCP precede those in the ring. While none come by TCP, it is not asked.
        if had_octets && is_ring_next(h).await {
            if let Some(taken) = take(h, len_octets).await {
                return Taken::Octets(taken);
            }
        }
        let received = h.tcp_recv(len_octets).await;
        if let Received::Octets(taken) = received {
            if has_octets(h).await && !has(Fault::SilentTake) {
                // Another thread may sleep until TCP has these octets: those of the ring are next.
                wake_sleepers(h, Word::ReaderSleeps(peer), h.end()).await;
            }
            return Taken::Octets(taken);
        }
        let is_end = matches!(received, Received::End | Received::Reset);
        // The peer may have filled the ring and closed its socket since.
        if has_octets(h).await && !(is_end && has(Fault::EndBeforeRing)) {
            if let Some(taken) = take(h, len_octets).await {
                return Taken::Octets(taken);
            }
        }
        match received {
            Received::Reset => return Taken::Reset,
            Received::End if has_left_octets(h).await => return Taken::Reset,
            Received::End => return Taken::End,
            Received::Octets(_) | Received::WouldBlock => {}
        }
        if does_wait {
            sleep(h, &mut looks).await;
        } else if !looks_again(h, had_octets, &mut looks).await {
            // The peer does not wake a thread that does not sleep.
            return Taken::Nothing;
        }
    }
}

/// Whether a receive that does not wait, and has found nothing, is to look again. `had_octets`: the
/// ring had some before.
async fn looks_again<H: Host>(h: &H, had_octets: bool, looks: &mut u32) -> bool {
    // The peer may have handed them back since TCP was asked.
    let is_at_once = had_octets && *looks < LOOKS;
    if !is_at_once {
        if *looks >= WAY_LOOKS || !are_on_the_way(h).await {
            return false;
        }
        h.relax().await;
    }
    *looks += 1;
    true
}

/// Whether octets that were in the ring, of which the program may have been told, have been given
/// to TCP and are not taken. The kernel does not always carry them at once.
async fn are_on_the_way<H: Host>(h: &H) -> bool {
    let peer = h.end().peer();
    if h.load(Word::Moving(peer)).await != 0 {
        // The ring is empty, and TCP is not known to have what was in it.
        return true;
    }
    if is_ring_next(h).await || h.load(Word::Head(peer)).await == 0 {
        return false;
    }
    let until = h.load(Word::TcpUntil(peer)).await;
    let missing = until.wrapping_sub(h.tcp_taken().await);
    missing != 0 && missing <= ring_len_octets(h, peer).await
}

/// Sleeps until there may be octets, an end or a reset, unless the ring has octets.
async fn sleep<H: Host>(h: &H, looks: &mut u32) {
    h.store(Word::ReaderSleeps(h.end().peer()), 1).await;
    if !has(Fault::SleepUnseen) && has_octets(h).await {
        if *looks < LOOKS {
            *looks += 1;
            return h.relax().await;
        }
        // Octets that cannot be taken follow some that are on their way in TCP, and wake; or the
        // peer breaks the rules, and the ring of a direction that is TCP's has them.
        let peer = h.end().peer();
        let until = h.load(Word::TcpUntil(peer)).await;
        if h.load(Word::Mode(peer)).await == RING && h.tcp_taken().await == until {
            return h.relax().await;
        }
    }
    *looks = 0;
    h.wait(Event::Readable).await;
}

/// Copies up to `len_octets` of the next octets, in TCP and in the ring, and leaves them
/// (MSG_PEEK); waits as [`recv`] does.
pub async fn peek<H: Host>(h: &H, len_octets: u64, does_wait: bool) -> Taken {
    let peer = h.end().peer();
    let (mut looks, mut ends) = (0, 0);
    loop {
        let had_octets = has_octets(h).await;
        // The ring's octets stay there meanwhile.
        lock_reader(h, peer).await;
        let received = look(h, len_octets).await;
        unlock(h, Word::Reader(peer)).await;
        match received {
            Received::Octets(found) => return Taken::Octets(found),
            Received::Reset => return Taken::Reset,
            // The peer has filled the ring and closed its socket since, or breaks the rules.
            Received::End if ends < LOOKS && has_octets(h).await => {
                ends += 1;
                continue;
            }
            Received::End if has_left_octets(h).await => return Taken::Reset,
            Received::End => return Taken::End,
            Received::WouldBlock => {}
        }
        if does_wait {
            sleep(h, &mut looks).await;
        } else if !looks_again(h, had_octets, &mut looks).await {
            return Taken::Nothing;
        }
    }
}

/// Looks at what TCP has, and at what the ring has if that follows. The caller has the lock of the
/// readers.
async fn look<H: Host>(h: &H, len_octets: u64) -> Received {
    let peer = h.end().peer();
    let is_drained = is_ring_next(h).await;
    let taken = if is_drained { 0 } else { h.tcp_taken().await };
    let received = h.tcp_peek(len_octets).await;
    let in_tcp = match received {
        Received::Octets(found) => found,
        _ => 0,
    };
    if h.load(Word::Mode(peer)).await == TCP {
        return received;
    }
    let until = h.load(Word::TcpUntil(peer)).await;
    // No other thread has taken octets of TCP meanwhile, and none are behind these.
    let is_all = || async { taken.wrapping_add(in_tcp) == until && h.tcp_taken().await == taken };
    if !is_drained && !has(Fault::PeekOverGap) && !is_all().await {
        return received;
    }
    let head = h.load(Word::Head(peer)).await;
    let tail = h.load(Word::Tail(peer)).await;
    let in_ring = head.wrapping_sub(tail).min(len_octets - in_tcp);
    if in_ring == 0 {
        return received;
    }
    h.look_out(tail, in_ring, in_tcp).await;
    Received::Octets(in_tcp + in_ring)
}

/// Whether TCP was drained before, so that the next octet is in the ring. A hint: [`take`] looks
/// again.
async fn is_ring_next<H: Host>(h: &H) -> bool {
    let peer = h.end().peer();
    let until = h.load(Word::TcpUntil(peer)).await;
    let drained = h.load(Word::Drained(peer)).await;
    drained == until.wrapping_add(1) && h.load(Word::Mode(peer)).await == RING
}

/// Whether the incoming ring has octets.
pub(crate) async fn has_octets<H: Host>(h: &H) -> bool {
    let peer = h.end().peer();
    h.load(Word::Head(peer)).await != h.load(Word::Tail(peer)).await
}

/// Takes octets out of the incoming ring if the next octet is there.
async fn take<H: Host>(h: &H, len_octets: u64) -> Option<u64> {
    let peer = h.end().peer();
    lock_reader(h, peer).await;
    let taken = take_locked(h, len_octets).await;
    unlock(h, Word::Reader(peer)).await;
    taken
}

async fn take_locked<H: Host>(h: &H, len_octets: u64) -> Option<u64> {
    let peer = h.end().peer();
    if h.load(Word::Mode(peer)).await == TCP {
        return None;
    }
    let until = h.load(Word::TcpUntil(peer)).await;
    let drained = h.load(Word::Drained(peer)).await;
    let is_known = drained == until.wrapping_add(1) || (has(Fault::DrainedForGood) && drained != 0);
    if !is_known && !has(Fault::RingBeforeTcp) {
        if h.tcp_taken().await != until {
            return None;
        }
        h.store(Word::Drained(peer), until.wrapping_add(1)).await;
    }
    let head = h.load(Word::Head(peer)).await;
    let tail = h.load(Word::Tail(peer)).await;
    let held = head.wrapping_sub(tail);
    let ring_len = ring_len_octets(h, peer).await;
    let len = len_octets.min(held).min(piece_len_octets(ring_len));
    if len == 0 {
        return None;
    }
    h.copy_out(tail, len).await;
    h.store(Word::Tail(peer), tail.wrapping_add(len)).await;
    if !has(Fault::NoWakeWriter) {
        wake_sleepers(h, Word::WriterSleeps(peer), peer).await;
    }
    Some(len)
}

/// Whether the peer is gone and has left octets of this end unread. TCP answers that with a reset.
async fn has_left_octets<H: Host>(h: &H) -> bool {
    let me = h.end();
    !has(Fault::UnreadIsEnd)
        && h.is_peer_gone().await
        && !h.is_reset().await
        && h.load(Word::Head(me)).await != h.load(Word::Tail(me)).await
}
