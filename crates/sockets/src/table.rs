//! The table of descriptors: what this library knows of each, in one word that calls enter and
//! leave.
//!
//! A call on a descriptor that may get rings is counted in the word from its begin to its end, so
//! that no call of the kernel's is in progress when rings are used first, and so that a connection
//! stays as long as a call uses it. A thread that sleeps until a ring changes is not counted: it
//! may end there, by a handler of a signal that does not return or by pthread_cancel. So may one in
//! a call of the kernel's, which is counted: the next socket of the number begins an era, in which
//! the calls of earlier ones do not count.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

use crate::connection::Connection;
use crate::lent;
use crate::link::Link;
use crate::signals;

/// Descriptors from this number on use TCP.
pub(crate) const DESCRIPTORS: usize = 1 << 16;

/// What is known of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum State {
    /// The kernel's: no TCP socket, inherited, or with TCP for good.
    Kernel = 0,
    /// A TCP socket that this process has made, or may be left by the one that has forked it.
    /// It is offered if no other process has it.
    Alone = 1,
    /// The agent is to offer it to urdmad, or has.
    Offered = 2,
    /// urdmad has closed its copy of the socket; the other end is not offered.
    Waits = 3,
    /// There are rings. They are used from the next call on that begins while none is in progress.
    Ready = 4,
    /// It has rings.
    Rings = 5,
    /// The kernel's, while a call that began before is in progress.
    Ending = 6,
    /// The same, and it may get rings again after that.
    Pausing = 7,
}

const ONE_USER: u64 = 1;
const USERS: u64 = (1 << ERA_SHIFT) - 1;
const ERA_SHIFT: u32 = 20;
const ERA: u64 = (1 << STATE_SHIFT) - 1 - USERS;
const STATE_SHIFT: u32 = 32;
const GENERATION_SHIFT: u32 = 40;

/// The word of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen(u64);

impl Seen {
    pub(crate) fn state(self) -> State {
        match (self.0 >> STATE_SHIFT) & 0xff {
            1 => State::Alone,
            2 => State::Offered,
            3 => State::Waits,
            4 => State::Ready,
            5 => State::Rings,
            6 => State::Ending,
            7 => State::Pausing,
            _ => State::Kernel,
        }
    }

    /// Whether it is a socket that gets no rings while a call is in progress.
    #[inline]
    pub(crate) fn has_no_rings(self) -> bool {
        matches!(self.state(), State::Alone | State::Offered | State::Waits)
    }

    pub(crate) fn users(self) -> u64 {
        self.0 & USERS
    }

    /// How often the descriptor was closed, or got a new socket, modulo 2^24.
    pub(crate) fn generation(self) -> u64 {
        self.0 >> GENERATION_SHIFT
    }

    fn with(self, state: State) -> Self {
        Self(self.0 & !(0xff << STATE_SHIFT) | (state as u64) << STATE_SHIFT)
    }

    fn with_one_more(self) -> Self {
        Self(self.0.wrapping_add(ONE_USER))
    }

    /// Without calls in progress: those that have begun before do not count any more. No era after
    /// the first one is 0, so that a count below 0 does not reach into the state.
    fn with_next_era(self) -> Self {
        let next = self.0.wrapping_add(1 << ERA_SHIFT) & ERA;
        let era = if next == 0 { 1 << ERA_SHIFT } else { next };
        Self(self.0 & !(ERA | USERS) | era)
    }

    fn is_of_era(self, other: Self) -> bool {
        self.0 & ERA == other.0 & ERA
    }

    fn next_generation(self) -> Self {
        Self(self.0.wrapping_add(1 << GENERATION_SHIFT))
    }
}

/// What is known of one descriptor. It has a cache line of its own: threads of a server or a client
/// use neighbouring descriptors.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Cell {
    word: AtomicU64,
    connection: AtomicPtr<Connection>,
    /// Calls that received and that sent octets, while the state is `Alone`.
    calls: [AtomicU32; 2],
    /// Whether the socket was accepted.
    is_accepted: AtomicU32,
    /// How many forks there were when the socket was made.
    forks: AtomicU64,
    /// Whether it is a socket of a process that has forked this one.
    is_inherited: AtomicU32,
    /// The epoll set of which it is a member.
    pub(crate) set: Link,
}

static TABLE: [Cell; DESCRIPTORS] = [const { Cell::new() }; DESCRIPTORS];
/// One more than the highest descriptor that was ever another than the kernel's.
static HIGHEST: AtomicU32 = AtomicU32::new(0);

/// The cell of a descriptor that the table has.
pub(crate) fn cell(fd: c_int) -> Option<&'static Cell> {
    TABLE.get(usize::try_from(fd).ok()?)
}

/// The cell of a descriptor that is not the kernel's alone.
#[inline]
pub(crate) fn hit(fd: c_int) -> Option<&'static Cell> {
    hit_as_seen(fd).map(|(cell, _)| cell)
}

/// The same, with its word.
#[inline]
pub(crate) fn hit_as_seen(fd: c_int) -> Option<(&'static Cell, Seen)> {
    let cell = cell(fd)?;
    let seen = cell.seen();
    (seen.state() != State::Kernel).then_some((cell, seen))
}

/// The descriptors in a range that are not the kernel's alone.
pub(crate) fn hits(first: u32, last: u32) -> impl Iterator<Item = c_int> {
    let end = HIGHEST.load(SeqCst).min(last.saturating_add(1));
    let range = first.min(end)..end;
    range.filter_map(|fd| c_int::try_from(fd).ok().filter(|fd| hit(*fd).is_some()))
}

/// This is a forked child.
#[cfg_attr(test, allow(dead_code))]
pub(crate) fn in_child() {
    for fd in hits(0, u32::MAX) {
        if let Some(cell) = cell(fd) {
            cell.inherit(lent::may_be_left(fd));
        }
    }
}

/// The sockets that this process has from that which has forked it.
pub(crate) fn inherited() -> impl Iterator<Item = c_int> {
    let fds = (0..HIGHEST.load(SeqCst)).filter_map(|fd| c_int::try_from(fd).ok());
    fds.filter(|fd| cell(*fd).is_some_and(Cell::is_inherited))
}

/// The sockets that a forked child may be left: descriptors, and how many forks there were when
/// they were made.
#[cfg_attr(test, allow(dead_code))]
pub(crate) fn lendable() -> impl Iterator<Item = (c_int, u64)> {
    hits(0, u32::MAX).filter_map(|fd| {
        let cell = cell(fd).filter(|cell| cell.is_lendable())?;
        Some((fd, cell.forks.load(SeqCst)))
    })
}

/// One more than the highest descriptor that is or was another than the kernel's alone.
#[cfg_attr(test, allow(dead_code))]
pub(crate) fn len() -> usize {
    usize::try_from(HIGHEST.load(SeqCst)).unwrap_or(0)
}

impl Cell {
    const fn new() -> Self {
        Self {
            word: AtomicU64::new(0),
            connection: AtomicPtr::new(null_mut()),
            calls: [const { AtomicU32::new(0) }; 2],
            is_accepted: AtomicU32::new(0),
            forks: AtomicU64::new(0),
            is_inherited: AtomicU32::new(0),
            set: Link::new(),
        }
    }

    pub(crate) fn seen(&self) -> Seen {
        Seen(self.word.load(SeqCst))
    }

    pub(crate) fn is_accepted(&self) -> bool {
        self.is_accepted.load(SeqCst) != 0
    }

    /// Whether another process may have the socket, whose descriptor is `fd`. An inherited one is
    /// this process's own from the first call on that finds it so.
    pub(crate) fn is_lent(&self, fd: c_int) -> bool {
        if self.is_inherited() && lent::is_left(fd) {
            self.end_inherited();
        }
        self.is_inherited() || lent::is_lent(fd, self.forks.load(SeqCst))
    }

    /// Whether a forked child may be left the socket: it is not offered, no call on it is in
    /// progress, and it is in no epoll set.
    fn is_lendable(&self) -> bool {
        let seen = self.seen();
        let is_idle = seen.state() == State::Alone && seen.users() == 0;
        is_idle && !self.is_inherited() && self.set.get().is_none()
    }

    /// The socket is about to be closed, no call on it is in progress, and it was not offered: the
    /// process that has forked this one, or was forked, may use it alone.
    pub(crate) fn give_back(&self, fd: c_int) {
        if self.is_inherited() {
            lent::give_back_inherited(fd);
        } else {
            lent::give_back(fd, self.forks.load(SeqCst));
        }
    }

    /// Whether it is a socket of a process that has forked this one.
    pub(crate) fn is_inherited(&self) -> bool {
        self.is_inherited.load(SeqCst) != 0
    }

    /// Whether it is known to be a TCP socket.
    pub(crate) fn is_of_tcp(&self) -> bool {
        self.seen().state() != State::Kernel || self.is_inherited()
    }

    /// An inherited descriptor is about to be closed, or is this process's alone.
    pub(crate) fn end_inherited(&self) {
        self.is_inherited.store(0, SeqCst);
    }

    /// No calls have moved octets.
    pub(crate) fn restart(&self) {
        for calls in &self.calls {
            calls.store(0, SeqCst);
        }
    }

    /// Counts a call that moved octets; returns how many did in this direction, modulo 2^32. Of
    /// calls that several threads make at once, one may count alone, which spares each call a
    /// locked instruction.
    pub(crate) fn count_call(&self, is_send: bool) -> u32 {
        let calls = &self.calls[usize::from(is_send)];
        let count = calls.load(Relaxed).wrapping_add(1);
        calls.store(count, Relaxed);
        count
    }

    /// A new TCP socket has the descriptor, and another generation, also if the earlier one was the
    /// kernel's when it was closed: what is known of that one is not this one's. `forks`: how many
    /// there were ([`lent::forks`]) before the call that has made it. A child that is forked since
    /// may have it too.
    pub(crate) fn begin(&self, fd: c_int, is_accepted: bool, forks: u64) {
        // The word is written last, which orders these before it.
        for calls in &self.calls {
            calls.store(0, Relaxed);
        }
        self.forks.store(forks, Relaxed);
        self.is_inherited.store(0, Relaxed);
        self.is_accepted.store(u32::from(is_accepted), Relaxed);
        self.set.clear();
        let highest = u32::try_from(fd).unwrap_or(0).saturating_add(1);
        if HIGHEST.load(SeqCst) < highest {
            HIGHEST.fetch_max(highest, SeqCst);
        }
        // Not while a call on an earlier file is in progress: this one is the kernel's then.
        let seen = self.seen();
        let new = seen.with(State::Alone).next_generation();
        if seen.users() > 0 && self.is_left(seen) {
            self.exchange(seen, new.with_next_era());
        } else if seen.state() == State::Kernel {
            self.exchange(seen, new);
        }
    }

    /// Whether the calls in progress on an earlier file may have ended without saying so. They do
    /// not use a connection.
    #[cold]
    fn is_left(&self, seen: Seen) -> bool {
        let is_ended = matches!(seen.state(), State::Kernel | State::Ending | State::Pausing);
        let is_plain = is_ended && self.connection().is_null();
        is_plain && signals::has_left_calls()
    }

    /// Begins a call; the word is that from before it.
    pub(crate) fn enter(&self) -> Seen {
        Seen(self.word.fetch_add(ONE_USER, SeqCst))
    }

    /// Ends a call that uses the connection. The last one ends the use of a connection that is
    /// ending.
    #[inline]
    pub(crate) fn leave(&self) {
        let seen = self.count_out();
        if matches!(seen.state(), State::Ending | State::Pausing) {
            self.end_if_last(seen);
        }
    }

    /// Ends another call, which has `entered`. If an era begins meanwhile, the word names an
    /// earlier one with the most calls from then on, and the next socket begins another.
    #[inline]
    pub(crate) fn leave_since(&self, entered: Seen) {
        if self.seen().is_of_era(entered) {
            self.leave();
        }
    }

    /// Takes a call from the count; the word is that from after it.
    fn count_out(&self) -> Seen {
        let before = self.word.fetch_sub(ONE_USER, SeqCst);
        Seen(before.wrapping_sub(ONE_USER))
    }

    /// Ends the use of a connection that is ending, if the word that a call has left says that no
    /// other one is in progress. Calls that begin and end meanwhile may end it too, and the
    /// descriptor may have another connection then: this call counts again until it is done, and
    /// does nothing if the word has changed.
    #[cold]
    fn end_if_last(&self, mut seen: Seen) {
        loop {
            let next = match seen.state() {
                State::Ending => State::Kernel,
                State::Pausing => State::Alone,
                _ => return,
            };
            let counted = seen.with_one_more();
            if seen.users() != 0 || !self.exchange(seen, counted) {
                return;
            }
            self.drop_connection();
            self.restart();
            if self.exchange(counted, seen.with(next)) {
                return;
            }
            seen = self.count_out();
        }
    }

    /// Changes the state if the word is still `seen`.
    pub(crate) fn change(&self, seen: Seen, state: State) -> bool {
        self.exchange(seen, seen.with(state))
    }

    fn exchange(&self, seen: Seen, new: Seen) -> bool {
        self.word
            .compare_exchange(seen.0, new.0, SeqCst, SeqCst)
            .is_ok()
    }

    /// Changes the state if it is `from` and the generation is `generation`, whatever calls are in
    /// progress.
    pub(crate) fn advance(&self, generation: u64, from: State, to: State) -> Option<Seen> {
        loop {
            let seen = self.seen();
            if seen.generation() != generation || seen.state() != from {
                return None;
            }
            if self.change(seen, to) {
                return Some(seen.with(to));
            }
        }
    }

    /// From now on the descriptor is the kernel's. The caller has entered, and leaves after this.
    /// Returns the state before.
    pub(crate) fn end(&self, is_closed: bool) -> State {
        loop {
            let seen = self.seen();
            let new = if seen.state() == State::Kernel {
                seen
            } else {
                seen.with(State::Ending)
            };
            let new = if is_closed {
                new.next_generation()
            } else {
                new
            };
            if self.exchange(seen, new) {
                self.has_ended(seen);
                return seen.state();
            }
        }
    }

    /// The descriptor is about to be closed, and the kernel's from now on, if its socket was not
    /// offered and no call is in progress.
    pub(crate) fn end_alone(&self) -> bool {
        let seen = self.seen();
        let is_idle = seen.state() == State::Alone && seen.users() == 0;
        is_idle && self.exchange(seen, seen.with(State::Kernel).next_generation())
    }

    /// The descriptor is the kernel's until the calls in progress end. It may get rings then.
    /// The caller has entered, and leaves after this.
    pub(crate) fn pause(&self) {
        loop {
            let seen = self.seen();
            let has_more = !matches!(seen.state(), State::Kernel | State::Alone | State::Ending);
            if !has_more {
                return;
            }
            if self.change(seen, State::Pausing) {
                return self.has_ended(seen);
            }
        }
    }

    /// The word was `seen` before the use of the connection began to end. No call has used one that
    /// was ready.
    fn has_ended(&self, seen: Seen) {
        if seen.state() == State::Ready {
            self.drop_connection();
        }
    }

    /// This is a forked child: the connection is the parent's, and the socket the kernel's, unless
    /// it may be left.
    #[cfg_attr(test, allow(dead_code))]
    fn inherit(&self, may_be_left: bool) {
        let is_kept = may_be_left && self.is_lendable();
        self.is_inherited.store(1, SeqCst);
        self.set_connection(null_mut());
        self.set.replace(None);
        self.restart();
        if !is_kept {
            self.change(self.seen(), State::Kernel);
        }
    }

    /// The connection; null without one. The caller has entered while the state was `Rings`, or it
    /// is the agent.
    pub(crate) fn connection(&self) -> *mut Connection {
        self.connection.load(SeqCst)
    }

    /// Whether the descriptor has the rings of a connection, to which the caller has a reference.
    pub(crate) fn has(&self, connection: &Connection) -> bool {
        self.seen().state() == State::Rings && std::ptr::eq(self.connection(), connection)
    }

    /// Gives the cell a connection, which has none; takes it back with null.
    pub(crate) fn set_connection(&self, connection: *mut Connection) -> *mut Connection {
        self.connection.swap(connection, SeqCst)
    }

    fn drop_connection(&self) {
        let connection = self.set_connection(null_mut());
        // SAFETY: the cell's pointer is one from `Connection::into_raw`, and was taken out of it.
        if let Some(connection) = unsafe { Connection::from_raw(connection) } {
            connection.close();
        }
    }
}

#[cfg(test)]
mod tests;
