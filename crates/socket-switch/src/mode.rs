//! The two changes of a direction: from TCP to the ring, and back.
//!
//! The stream is always: what was taken, the octets in TCP, the octets in the ring. An upgrade
//! therefore only notes how many octets are before the ring, and octets of the ring may be given to
//! TCP at any time while none are sent otherwise.

use crate::block::{End, Word, RING, TCP};
use crate::fault::{has, Fault};
use crate::host::{Host, Refused, Rings};
use crate::lock::{lock_reader, unlock, wake_sleepers};

/// Whether both ends use rings.
#[inline(always)]
pub(crate) fn is_ring_wanted<H: Rings>(h: &H) -> bool {
    h.load(Word::Refusals(End::First)) == 0 && h.load(Word::Refusals(End::Second)) == 0
}

/// Moves the outgoing direction to the ring if that is possible now; true if it is there. The
/// caller has the lock of the writers, which orders this with the demotion of the peer: it refuses
/// first, and then looks at the mode with that lock.
pub(crate) fn upgrade<H: Host>(h: &H) -> bool {
    let me = h.end();
    let is_possible = is_ring_wanted(h) && (has(Fault::UpgradeAfterEnd) || h.tcp_has_reserve());
    if is_possible {
        if has(Fault::ModeBeforeCount) {
            h.store(Word::Mode(me), RING);
        }
        let sent = h.tcp_sent(me);
        h.store(Word::TcpUntil(me), sent);
        h.store(Word::Mode(me), RING);
    }
    is_possible
}

/// Gives the octets of the outgoing ring to TCP, and the direction with them. The caller has the
/// lock of the writers.
///
/// # Errors
/// [`Refused::WouldBlock`] if TCP has no room; the ring has the rest.
pub(crate) fn downgrade<H: Host>(h: &H) -> Result<(), Refused> {
    let me = h.end();
    if h.load(Word::Mode(me)) == TCP {
        return Ok(());
    }
    if !has(Fault::HandBackUnlocked) {
        lock_reader(h, me);
    }
    if has(Fault::TcpBeforeEmpty) {
        h.store(Word::Mode(me), TCP);
    }
    let result = empty_ring(h);
    if result.is_ok() {
        h.store(Word::Mode(me), TCP);
    }
    if !has(Fault::HandBackUnlocked) {
        unlock(h, Word::Reader(me));
    }
    // The peer may wait for the mode, other threads of this end for room.
    wake_sleepers(h, Word::ReaderSleeps(me), me.peer());
    wake_sleepers(h, Word::WriterSleeps(me), me);
    result
}

/// Gives TCP the octets of the outgoing ring. The caller has both locks.
fn empty_ring<H: Host>(h: &H) -> Result<(), Refused> {
    let me = h.end();
    loop {
        let head = h.load(Word::Head(me));
        let tail = h.load(Word::Tail(me));
        if head == tail {
            return Ok(());
        }
        let until = h.load(Word::TcpUntil(me));
        let is_late = has(Fault::LateRecord);
        if !is_late {
            begin_move(h, tail, until);
        }
        let moved = match h.tcp_return(tail, head.wrapping_sub(tail)) {
            Ok(moved) => moved,
            Err(Refused::WouldBlock) => {
                h.store(Word::Moving(me), 0);
                return Err(Refused::WouldBlock);
            }
            // The connection is broken: the octets are lost, as those in TCP are.
            Err(Refused::Broken) => {
                h.store(Word::Moving(me), 0);
                h.store(Word::Tail(me), head);
                return Ok(());
            }
        };
        if is_late {
            begin_move(h, tail, until);
        }
        // A receiver asks TCP before the ring is empty: see [`crate::Block::is_tcp_quiet`].
        h.store(Word::TcpUntil(me), until.wrapping_add(moved));
        h.store(Word::Tail(me), tail.wrapping_add(moved));
        h.store(Word::Moving(me), 0);
    }
}

/// Records what [`lock_reader`] needs if this thread is killed.
fn begin_move<H: Host>(h: &H, tail: u64, until: u64) {
    let me = h.end();
    h.store(Word::MovingTail(me), tail);
    h.store(Word::MovingUntil(me), until);
    h.store(Word::Moving(me), 1);
}
