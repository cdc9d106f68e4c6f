//! The two changes of a direction: from TCP to the ring, and back.
//!
//! The stream is always: what was taken, the octets in TCP, the octets in the ring. An upgrade
//! therefore only notes how many octets are before the ring, and octets of the ring may be given to
//! TCP at any time while none are sent otherwise.

use crate::block::{End, Word, RING, TCP};
use crate::fault::{has, Fault};
use crate::host::{Host, Refused};
use crate::lock::{lock_reader, unlock, wake_sleepers};

/// Whether both ends use rings.
pub(crate) async fn is_ring_wanted<H: Host>(h: &H) -> bool {
    h.load(Word::Refusals(End::First)).await == 0 && h.load(Word::Refusals(End::Second)).await == 0
}

/// Moves the outgoing direction to the ring if that is possible now; true if it is there. The
/// caller has the lock of the writers, which orders this with the demotion of the peer: it refuses
/// first, and then looks at the mode with that lock.
pub(crate) async fn upgrade<H: Host>(h: &H) -> bool {
    let me = h.end();
    let is_possible =
        is_ring_wanted(h).await && (has(Fault::UpgradeAfterEnd) || h.tcp_has_reserve().await);
    if is_possible {
        if has(Fault::ModeBeforeCount) {
            h.store(Word::Mode(me), RING).await;
        }
        let sent = h.tcp_sent(me).await;
        h.store(Word::TcpUntil(me), sent).await;
        h.store(Word::Mode(me), RING).await;
    }
    is_possible
}

/// Gives the octets of the outgoing ring to TCP, and the direction with them. The caller has the
/// lock of the writers.
///
/// # Errors
/// [`Refused::WouldBlock`] if TCP has no room; the ring has the rest.
pub(crate) async fn downgrade<H: Host>(h: &H) -> Result<(), Refused> {
    let me = h.end();
    if h.load(Word::Mode(me)).await == TCP {
        return Ok(());
    }
    if !has(Fault::HandBackUnlocked) {
        lock_reader(h, me).await;
    }
    if has(Fault::TcpBeforeEmpty) {
        h.store(Word::Mode(me), TCP).await;
    }
    let result = empty_ring(h).await;
    if result.is_ok() {
        h.store(Word::Mode(me), TCP).await;
    }
    if !has(Fault::HandBackUnlocked) {
        unlock(h, Word::Reader(me)).await;
    }
    // The peer may wait for the mode, other threads of this end for room.
    wake_sleepers(h, Word::ReaderSleeps(me), me.peer()).await;
    wake_sleepers(h, Word::WriterSleeps(me), me).await;
    result
}

/// Gives TCP the octets of the outgoing ring. The caller has both locks.
async fn empty_ring<H: Host>(h: &H) -> Result<(), Refused> {
    let me = h.end();
    loop {
        let head = h.load(Word::Head(me)).await;
        let tail = h.load(Word::Tail(me)).await;
        if head == tail {
            return Ok(());
        }
        let until = h.load(Word::TcpUntil(me)).await;
        let is_late = has(Fault::LateRecord);
        if !is_late {
            begin_move(h, tail, until).await;
        }
        let moved = match h.tcp_return(tail, head.wrapping_sub(tail)).await {
            Ok(moved) => moved,
            Err(Refused::WouldBlock) => {
                h.store(Word::Moving(me), 0).await;
                return Err(Refused::WouldBlock);
            }
            // The connection is broken: the octets are lost, as those in TCP are.
            Err(Refused::Broken) => {
                h.store(Word::Moving(me), 0).await;
                h.store(Word::Tail(me), head).await;
                return Ok(());
            }
        };
        if is_late {
            begin_move(h, tail, until).await;
        }
        // A receiver asks TCP before the ring is empty: see [`crate::Block::is_tcp_quiet`].
        h.store(Word::TcpUntil(me), until.wrapping_add(moved)).await;
        h.store(Word::Tail(me), tail.wrapping_add(moved)).await;
        h.store(Word::Moving(me), 0).await;
    }
}

/// Records what [`lock_reader`] needs if this thread is killed.
async fn begin_move<H: Host>(h: &H, tail: u64, until: u64) {
    let me = h.end();
    h.store(Word::MovingTail(me), tail).await;
    h.store(Word::MovingUntil(me), until).await;
    h.store(Word::Moving(me), 1).await;
}
