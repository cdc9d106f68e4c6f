//! What a connection with rings is ready for, in the events of poll(2), which are those of
//! epoll(7).

use std::ffi::{c_int, c_short};
use std::ptr::null;
use std::sync::atomic::Ordering::SeqCst;

use urdma_socket_switch::Word;

use crate::connection::Connection;
use crate::real;

/// A connection is writable if one of this number of equal parts of its ring is free.
const ROOM_PART: u64 = 4;

pub(crate) const IN: c_short = libc::POLLIN | libc::POLLRDNORM;
pub(crate) const OUT: c_short = libc::POLLOUT | libc::POLLWRNORM;
/// Bits that are events.
const EVENTS: u32 = 0x3fff;

/// Whether the ring, rather than TCP, says if a connection is writable.
pub(crate) fn is_out_of_ring(connection: &Connection) -> bool {
    let is_gone = connection.is_peer_gone.load(SeqCst);
    connection.is_in_ring(connection.end) && connection.is_wanted() && !is_gone
}

/// Which of some events the rings are ready for.
pub(crate) fn of_rings(connection: &Connection, events: c_short) -> c_short {
    let mut ready = 0;
    let peer = connection.end.peer();
    let has_octets = || connection.is_in_ring(peer) && connection.in_ring(peer) != 0;
    // Octets that are handed back are TCP's, and may have been taken.
    let is_drained = || is_drained(connection) && !connection.is_moving() && has_octets();
    if events & IN != 0 && has_octets() && (connection.is_tcp_quiet() || is_drained()) {
        ready |= events & IN;
    }
    if events & OUT != 0 && is_out_of_ring(connection) && has_room(connection) {
        ready |= events & OUT;
    }
    ready
}

fn has_room(connection: &Connection) -> bool {
    let ring_len = connection.ring_len(connection.end);
    ring_len.wrapping_sub(connection.in_ring(connection.end)) >= ring_len / ROOM_PART
}

/// Which of some events the socket is ready for.
pub(crate) fn of_socket(connection: &Connection, events: c_short) -> c_short {
    of_file(connection.socket(), events)
}

/// Which of some events a file is ready for. No cancellation point, as poll(2) is one.
pub(crate) fn of_file(fd: c_int, events: c_short) -> c_short {
    let mut list = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    let at_once = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let before = real::errno();
    // SAFETY: a list of one entry, a time, and no mask of signals.
    unsafe {
        libc::syscall(
            libc::SYS_ppoll,
            &raw mut list,
            1,
            &raw const at_once,
            null::<u8>(),
            8,
        )
    };
    real::set_errno(before);
    list.revents
}

/// Which of some events a connection is ready for. While TCP is quiet, a system call is made for
/// writing by TCP alone.
pub(crate) fn all(connection: &Connection, events: u32) -> u32 {
    let events = c_short::try_from(events & EVENTS).unwrap_or(0);
    let of_tcp = if is_out_of_ring(connection) {
        events & !OUT
    } else {
        events
    };
    let is_quiet = connection.is_tcp_quiet() && !connection.tcp_speaks.load(SeqCst);
    let mut ready = of_rings(connection, events);
    if !is_quiet || of_tcp & OUT != 0 {
        let said = of_socket(connection, of_tcp);
        connection.note_socket(said);
        ready |= said;
        // The mode may have changed meanwhile.
        ready |= of_rings(connection, events);
    }
    u32::from(ready.cast_unsigned())
}

/// Has the peer wake this end when the rings are ready for some events, for which the caller looks
/// again. While there is room, a send that finds none has the peer wake this end. `sleep`: that of
/// a set, or 0.
pub(crate) fn arm(connection: &Connection, events: u32, sleep: u64) {
    let wants = |bits: c_short| events & u32::from(bits.cast_unsigned()) != 0;
    if wants(IN) {
        connection.ask_for_bell(sleep);
    }
    if wants(OUT) && is_out_of_ring(connection) && !has_room(connection) {
        let word = connection.block().word(Word::WriterSleeps(connection.end));
        word.store(1, SeqCst);
    }
}

/// Whether all octets of TCP were taken.
fn is_drained(connection: &Connection) -> bool {
    connection.tcp_taken() == connection.load(Word::TcpUntil(connection.end.peer()))
}
