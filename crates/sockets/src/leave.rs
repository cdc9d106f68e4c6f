//! The ends of rings: for good, before what only the kernel can do; and with the descriptor.

use std::ffi::c_int;
use std::ptr::null;
use std::sync::atomic::Ordering::SeqCst;

use urdma_abi::cancel::Disabled;
use urdma_socket_switch::{close, demote, Closing, Demotion, Word};

use crate::begin::{begin_as_is, Begun};
use crate::connection::{self, Connection};
use crate::host::Call;
use crate::octets::Window;
use crate::reasons::{self, Reason};
use crate::sets::{self, Set};
use crate::signals::Masked;
use crate::table::{self, Cell, State};
use crate::{bell, lent, process, real, spawned};

/// How often a close looks whether TCP has room for what a ring has; each time it waits for
/// [`ROOM_MS`].
const CLOSE_TRIES: u32 = 500;
const ROOM_MS: c_int = 10;

/// Refusals of an end that does not offer its socket again.
pub(crate) const FOR_GOOD: u64 = 1 << 32;

/// From now on a descriptor is the kernel's: both directions have moved to TCP. If it is an epoll
/// set, this is so for its members.
pub(crate) fn retire(fd: c_int, reason: Reason) {
    keep_one(fd);
    retire_here(fd, reason);
}

/// The same of a descriptor that this process does not hand on.
fn retire_here(fd: c_int, reason: Reason) {
    let (cell, set) = (table::hit(fd), sets::known(fd));
    if (cell.is_some() || set.is_some()) && !process::is_home() {
        if let Some(set) = set.filter(|_| !bell::is_heard()) {
            // No agent: its members have no rings.
            give_up(set, reason);
        }
        return spawned::hand_on(fd);
    }
    if let Some(cell) = cell {
        retire_cell(fd, cell, reason);
    }
    if let Some(set) = set {
        give_up(set, reason);
    }
}

/// The members of a set are the kernel's for good, and so is what is added later.
#[cold]
pub(crate) fn give_up(set: &'static Set, reason: Reason) {
    if let Some(members) = set.begin_plain() {
        members.into_iter().for_each(|fd| retire(fd, reason));
        set.end_plain();
    }
}

/// A descriptor is about to get another number or process: if a process that has forked this one
/// made it, it gets no rings there.
fn keep_one(fd: c_int) {
    if lent::is_child() {
        let is_socket = table::cell(fd).is_some_and(table::Cell::is_inherited);
        if is_socket || sets::is_inherited(fd) {
            lent::keep();
        }
    }
}

/// Whether a descriptor stays open in a program that is executed.
fn survives(fd: c_int) -> bool {
    // SAFETY: the command takes no argument.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFD, std::ptr::null_mut()) };
    flags >= 0 && flags & libc::FD_CLOEXEC == 0
}

/// The same as [`keep_one`] with all descriptors, or with `is_exec` those that stay open.
fn keep_all(is_exec: bool) {
    if !lent::is_child() || !process::is_home() {
        return;
    }
    let before = real::errno();
    let mut inherited = table::inherited().chain(sets::inherited());
    if inherited.any(|fd| !is_exec || survives(fd)) {
        lent::keep();
    }
    real::set_errno(before);
}

#[cold]
fn retire_cell(fd: c_int, cell: &'static Cell, reason: Reason) {
    let _uncancelled = Disabled::new();
    let _masked = Masked::sleeping();
    let before = real::errno();
    let begun = begin_as_is(cell);
    if let Begun::Rings(connection) = begun {
        move_to_tcp(connection, FOR_GOOD);
    }
    let state = cell.end(false);
    if !cell.is_inherited() {
        count(state, reason);
    }
    sets::part(fd, cell, false);
    begun.leave(cell);
    if let Begun::Rings(_) = begun {
        // If the program closes the socket next, the agent does not hold the end back.
        bell::notice_closed();
    } else {
        bell::notice();
    }
    real::set_errno(before);
}

/// Counts a socket that had a state when it became the kernel's. One that is shut down before it
/// has rings is at its end.
fn count(state: State, reason: Reason) {
    match state {
        State::Kernel | State::Ending | State::Pausing => {}
        State::Alone if reason == Reason::Shutdown => {}
        State::Offered | State::Waits if reason == Reason::Shutdown => {
            reasons::count(Reason::PeerAbsent);
        }
        _ => reasons::count(reason),
    }
}

/// Moves both directions to TCP, with one refusal and `more`.
fn move_to_tcp(connection: &Connection, more: u64) {
    let nothing = Window::NONE;
    let call = Call::to_the_end(connection, &nothing);
    // Before the demotion, at whose end the peer looks whether it may offer its end again.
    let refusals = connection.block().word(Word::Refusals(connection.end));
    refusals.fetch_add(more, SeqCst);
    if demote(&call) == Ok(Demotion::Stranded) {
        connection.reset();
    }
    connection.settle_cork();
    connection.wait_for_arrival();
    // Its end may get rings again too.
    connection.call_peer();
}

/// A descriptor has moved to TCP, and may get rings again. The caller has entered, and leaves after
/// this.
pub(crate) fn pause_cell(fd: c_int, cell: &Cell) {
    cell.pause();
    sets::pause(fd, cell);
}

/// All descriptors have moved to TCP, and may get rings again: before a fork.
#[cfg_attr(test, allow(dead_code))]
pub(crate) fn pause_all() {
    let _uncancelled = Disabled::new();
    let _masked = Masked::sleeping();
    let before = real::errno();
    for fd in table::hits(0, u32::MAX) {
        let Some(cell) = table::hit(fd).filter(|cell| cell.seen().state() != State::Alone) else {
            continue;
        };
        let begun = begin_as_is(cell);
        if let Begun::Rings(connection) = begun {
            move_to_tcp(connection, 0);
            reasons::count(Reason::Fork);
        }
        pause_cell(fd, cell);
        begun.leave(cell);
    }
    bell::notice();
    real::set_errno(before);
}

/// All descriptors, before this process starts another one that may use them.
pub(crate) fn retire_all(reason: Reason) {
    keep_all(reason == Reason::Exec);
    if process::is_home() {
        table::hits(0, u32::MAX).for_each(|fd| retire_here(fd, reason));
        sets::known_in(0, u32::MAX).for_each(|set| give_up(set, reason));
    }
}

/// This process, which was forked, is about to fork: what another one may have besides gets no
/// rings in both.
#[cfg_attr(test, allow(dead_code))]
pub(crate) fn retire_inherited() {
    for fd in table::inherited() {
        let is_lent = |cell: &Cell| cell.is_lent(fd) && cell.is_inherited();
        if table::hit(fd).is_some_and(is_lent) {
            retire_here(fd, Reason::Fork);
        }
    }
}

/// The descriptors that a program has which is about to be started.
pub(crate) fn retire_surviving() {
    keep_all(true);
    let before = real::errno();
    let sets = sets::known_in(0, u32::MAX).map(Set::fd);
    let fds = table::hits(0, u32::MAX).chain(sets);
    fds.filter(|fd| survives(*fd))
        .for_each(|fd| retire(fd, Reason::Inherited));
    real::set_errno(before);
}

/// A descriptor is about to be closed.
pub(crate) fn before_close(fd: c_int) {
    if !process::is_home() {
        return;
    }
    if let Some(cell) = table::cell(fd) {
        if cell.seen().state() == State::Kernel {
            // urdmad may have a copy of a socket that has moved to TCP.
            sets::part(fd, cell, true);
        } else if !close_alone(fd, cell) {
            close_cell(fd, cell);
        }
        if cell.is_inherited() {
            cell.end_inherited();
        }
    }
    if let Some(set) = sets::known(fd) {
        set.end();
    }
}

/// The same of a socket that was not offered and on which no call is in progress, as short
/// connections end; false if it is another one.
fn close_alone(fd: c_int, cell: &'static Cell) -> bool {
    let is_done = cell.end_alone();
    if is_done {
        cell.give_back(fd);
        sets::forget(fd, cell);
    }
    is_done
}

#[cold]
fn close_cell(fd: c_int, cell: &'static Cell) {
    let _uncancelled = Disabled::new();
    let before = real::errno();
    let state = cell.seen().state();
    // A socket that was not offered has nothing for which this sleeps.
    let _masked = match state {
        State::Alone => Masked::new(),
        _ => Masked::sleeping(),
    };
    let begun = begin_as_is(cell);
    let closing = match begun {
        Begun::Rings(connection) => closing_of(connection),
        Begun::Kernel(_) => Closing::End,
    };
    if is_known_to_urdmad(state) {
        end_now(fd, closing);
    }
    match cell.end(true) {
        State::Offered | State::Waits => reasons::count(Reason::PeerAbsent),
        State::Alone if cell.seen().users() == 1 => cell.give_back(fd),
        _ => {}
    }
    if state == State::Alone {
        sets::forget(fd, cell);
        begun.leave(cell);
    } else {
        sets::part(fd, cell, true);
        begun.leave(cell);
        bell::notice();
    }
    real::set_errno(before);
}

/// Whether urdmad was given a socket, of which this process has the only other descriptor.
fn is_known_to_urdmad(state: State) -> bool {
    matches!(
        state,
        State::Offered | State::Waits | State::Ready | State::Rings
    )
}

/// Ends a connection as close(2) does with the last descriptor: urdmad and the agent may have
/// copies of the socket, which must not hold the end back.
fn end_now(fd: c_int, closing: Closing) {
    let mut unread: c_int = 0;
    // SAFETY: the request fills an int.
    unsafe { libc::syscall(libc::SYS_ioctl, fd, libc::FIONREAD, &raw mut unread) };
    if closing == Closing::Reset || unread > 0 || is_reset_by_close(fd) {
        connection::reset(fd);
    } else {
        // SAFETY: no memory is named.
        unsafe { real::shutdown(fd, libc::SHUT_RDWR) };
    }
}

/// Whether SO_LINGER has a time of 0.
fn is_reset_by_close(fd: c_int) -> bool {
    let mut linger = libc::linger {
        l_onoff: 0,
        l_linger: 0,
    };
    let mut len: libc::socklen_t = 8;
    let at = (&raw mut linger).cast();
    // SAFETY: the option has the length of the struct.
    let rc = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, at, &raw mut len) };
    rc == 0 && linger.l_onoff != 0 && linger.l_linger == 0
}

/// All descriptors of a range are about to be closed.
pub(crate) fn before_close_range(first: u32, last: u32) {
    table::hits(first, last).for_each(before_close);
    if lent::is_child() {
        let fds = table::inherited();
        fds.filter(|fd| (first..=last).contains(&fd.cast_unsigned()))
            .for_each(before_close);
    }
    if process::is_home() {
        sets::known_in(first, last).for_each(Set::end);
    }
}

/// Gives TCP what the outgoing ring has, and says how the socket is to be closed.
fn closing_of(connection: &Connection) -> Closing {
    let nothing = Window::NONE;
    for _ in 0..CLOSE_TRIES {
        let call = Call::new(connection, &nothing, 0);
        if let Ok(closing) = close(&call) {
            return closing;
        }
        let mut list = libc::pollfd {
            fd: connection.socket(),
            events: libc::POLLOUT,
            revents: 0,
        };
        // SAFETY: a list of one entry.
        unsafe { real::ppoll(&raw mut list, 1, &timespec_ms(ROOM_MS), null()) };
    }
    Closing::Reset
}

fn timespec_ms(ms: c_int) -> libc::timespec {
    libc::timespec {
        tv_sec: 0,
        tv_nsec: i64::from(ms) * 1_000_000,
    }
}

/// The program exits: TCP gets what the outgoing rings have, as far as it has room, and resets what
/// has unread octets.
#[cfg_attr(test, allow(dead_code))]
pub(crate) fn settle_all() {
    let _masked = Masked::sleeping();
    for cell in table::hits(0, u32::MAX).filter_map(table::cell) {
        let generation = cell.seen().generation();
        let mut waiting = [State::Offered, State::Waits].into_iter();
        if waiting.any(|state| cell.advance(generation, state, State::Kernel).is_some()) {
            reasons::count(Reason::PeerAbsent);
        }
        let begun = begin_as_is(cell);
        if let Begun::Rings(connection) = begun {
            let nothing = Window::NONE;
            let closing = close(&Call::new(connection, &nothing, 0));
            if closing == Ok(Closing::Reset) {
                connection.reset();
            }
        }
        begun.leave(cell);
    }
}

#[cfg(test)]
mod tests;
