//! epoll sets of this process, as far as they have members with rings.
//!
//! The kernel's set stays the program's, and waits sleep in it. What a program has registered of
//! a socket is noted; when the socket gets rings, the kernel's registration becomes this library's,
//! edge-triggered, beside one of the bell of the connection. Either tells that the member is to be
//! looked at; [`Ready`] says what is reported. The data of these registrations are addresses of
//! [`MARKS`], which no program uses.
//!
//! Nothing here begins a call on a descriptor or moves a connection to TCP: what is to be moved is
//! returned.
//!
//! A set that other processes or sets may have is given up: its members are the kernel's for good.

mod others;
mod ready;
mod waits;

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64};
use std::sync::Arc;

use libc::epoll_event;
use urdma_abi::cancel::Disabled;
use urdma_socket_switch::Word;

use crate::connection::Connection;
use crate::own::{Own, Spin};
use crate::readiness;
use crate::table::{self, Cell, State, DESCRIPTORS};
use crate::{bell, lent, process, real};

use others::Others;
pub(crate) use ready::Events;
use ready::{Ready, Source};

/// What the data of a registration of this library's names.
const KINDS: usize = 2;
const SOCKET: usize = 0;
const BELL: usize = 1;
/// One address for each registration; the last one is that of the bell of a set.
static MARKS: [AtomicBool; KINDS * DESCRIPTORS + 1] =
    [const { AtomicBool::new(false) }; KINDS * DESCRIPTORS + 1];

static SETS: [AtomicPtr<Set>; DESCRIPTORS] = [const { AtomicPtr::new(null_mut()) }; DESCRIPTORS];
/// One more than the highest descriptor that was ever a set.
static HIGHEST: AtomicU32 = AtomicU32::new(0);

fn mark(fd: c_int, kind: usize) -> u64 {
    let index = KINDS * usize::try_from(fd).unwrap_or(0) + kind;
    std::ptr::from_ref(&MARKS[index]) as u64
}

/// The data of the bell of a set.
fn set_mark() -> u64 {
    std::ptr::from_ref(&MARKS[KINDS * DESCRIPTORS]) as u64
}

/// The index in [`MARKS`] of some data.
fn index_of(data: u64) -> Option<usize> {
    let index = usize::try_from(data.wrapping_sub(mark(0, SOCKET))).ok()?;
    (index < MARKS.len()).then_some(index)
}

/// A connection with rings as a member.
#[derive(Debug)]
struct Ringed(Arc<Connection>);

impl Source for Ringed {
    fn ready(&self, events: u32) -> u32 {
        readiness::all(&self.0, events)
    }

    fn arrived(&self) -> u64 {
        self.0.load(Word::Head(self.0.end.peer()))
    }

    fn stamp(&self) -> u64 {
        self.0.load(Word::Stamp(self.0.end.peer()))
    }

    fn arm(&self, events: u32, sleep: u64) {
        readiness::arm(&self.0, events, sleep);
    }

    fn disarm(&self) {
        self.0.end_sleep();
    }
}

/// What is known of a set.
#[derive(Debug)]
struct Members {
    ready: Ready<Ringed>,
    /// The interest in sockets that may get rings.
    others: Others,
    /// Wakes a thread that waits; there from the first member with rings on.
    bell: Option<Own>,
    /// Waits that have not asked the kernel.
    unasked: u32,
    /// How many members have got rings.
    joins: u64,
    /// The kernel's reports have left no room for those of members with rings, whose turn it is.
    is_rings_turn: bool,
    /// The kernel is to report registrations of this library's that are new: in the wait that
    /// reports the members, so that an edge is one.
    has_new: bool,
}

impl Members {
    fn new() -> Self {
        Self {
            ready: Ready::new(),
            others: Others::new(),
            bell: None,
            unasked: 0,
            joins: 0,
            is_rings_turn: false,
            has_new: false,
        }
    }

    fn fds(&self) -> Vec<c_int> {
        self.ready.fds().chain(self.others.fds()).collect()
    }
}

/// A set of this process. It is never freed; the next set of its number takes it over.
pub(crate) struct Set {
    fd: c_int,
    members: Spin<Members>,
    /// Threads that sleep in the kernel; more, if some have ended there.
    waiters: AtomicU32,
    is_open: AtomicBool,
    /// Its members get no rings.
    is_plain: AtomicBool,
    /// It has had a member with rings.
    is_ringed: AtomicBool,
    /// How many forks there were when it was made.
    forks: AtomicU64,
    /// A process that has forked this one has made it.
    is_inherited: AtomicBool,
}

/// A new set has a descriptor. `forks`: how many there were before it was made.
pub(crate) fn begin_set(fd: c_int, forks: u64) {
    if process::run_dir().is_some() && process::is_home() {
        adopt(fd, forks);
    }
}

fn adopt(fd: c_int, forks: u64) {
    let slot = usize::try_from(fd).ok().and_then(|fd| SETS.get(fd));
    let Some(slot) = slot else {
        return;
    };
    if let Some(before) = known(fd) {
        // It was closed by a call that no library sees.
        before.end();
    }
    let mut set = slot.load(SeqCst);
    if set.is_null() {
        set = Box::into_raw(Box::new(Set {
            fd,
            members: Spin::new(Members::new()),
            waiters: AtomicU32::new(0),
            is_open: AtomicBool::new(false),
            is_plain: AtomicBool::new(false),
            is_ringed: AtomicBool::new(false),
            forks: AtomicU64::new(0),
            is_inherited: AtomicBool::new(false),
        }));
        slot.store(set, SeqCst);
        HIGHEST.fetch_max(fd.cast_unsigned() + 1, SeqCst);
    }
    // SAFETY: sets are never freed.
    let set = unsafe { &*set };
    set.waiters.store(0, SeqCst);
    set.is_plain.store(false, SeqCst);
    set.is_ringed.store(false, SeqCst);
    set.forks.store(forks, SeqCst);
    set.is_inherited.store(false, SeqCst);
    set.is_open.store(true, SeqCst);
}

/// The set that has a descriptor.
#[inline]
pub(crate) fn known(fd: c_int) -> Option<&'static Set> {
    let set = SETS.get(usize::try_from(fd).ok()?)?.load(SeqCst);
    // SAFETY: sets are never freed.
    unsafe { set.as_ref() }.filter(|set| set.is_open.load(SeqCst))
}

/// The sets whose descriptors are in a range.
pub(crate) fn known_in(first: u32, last: u32) -> impl Iterator<Item = &'static Set> {
    let end = HIGHEST.load(SeqCst).min(last.saturating_add(1));
    (first.min(end)..end).filter_map(|fd| known(fd.cast_signed()))
}

/// Whether a process that has forked this one has made the set.
pub(crate) fn is_inherited(fd: c_int) -> bool {
    known(fd).is_some_and(|set| set.is_inherited.load(SeqCst))
}

/// The sets that this process has from that which has forked it.
pub(crate) fn inherited() -> impl Iterator<Item = c_int> {
    let sets = known_in(0, u32::MAX);
    sets.map(Set::fd).filter(|fd| is_inherited(*fd))
}

/// A fork is about to happen.
#[cfg_attr(test, allow(dead_code))]
pub(crate) fn before_fork() {
    known_in(0, u32::MAX).for_each(|set| set.members.lock());
}

/// It has happened, and this is the parent.
#[cfg_attr(test, allow(dead_code))]
pub(crate) fn after_fork() {
    known_in(0, u32::MAX).for_each(|set| set.members.unlock());
}

/// It has happened, and this is the child: the sets are the parent's. Nothing is allocated or
/// freed.
#[cfg_attr(test, allow(dead_code))]
pub(crate) fn in_child() {
    for set in known_in(0, u32::MAX) {
        set.is_plain.store(true, SeqCst);
        set.is_inherited.store(true, SeqCst);
        set.members.unlock();
        set.members
            .with(|members| std::mem::forget(std::mem::replace(members, Members::new())));
    }
}

/// A socket gets rings: from now on its set looks at them. False if that is impossible, or has to
/// wait for the next epoll_ctl(2): whether the kernel has reported a member with EPOLLONESHOT
/// already is not known. False, too, if the descriptor has been closed since: the agent has not
/// entered, and a member of its number may be another socket.
pub(crate) fn join(connection: &Connection, cell: &Cell) -> bool {
    let set = cell.set.get().and_then(known);
    let once = libc::EPOLLONESHOT.cast_unsigned();
    set.is_none_or(|set| {
        set.with(|members| {
            let event = members.others.get(connection.fd);
            let may_be_spent = event.is_some_and(|event| event.events & once != 0);
            cell.has(connection)
                && !may_be_spent
                && set.convert(members, connection, libc::EPOLL_CTL_MOD)
        })
    })
}

/// A descriptor is the kernel's from now on, or is about to be closed: the caller has moved its
/// connection to TCP, if it has one.
/// `is_removed`: the kernel is to forget it, which it does not when copies of the socket are open.
/// Else the cell keeps the set, since the program may close the descriptor before the last copy is.
pub(crate) fn part(fd: c_int, cell: &Cell, is_removed: bool) {
    if let Some(set) = cell.set.get().and_then(known) {
        set.with(|members| {
            set.part(members, fd, is_removed);
            if is_removed {
                cell.set.replace(None);
            }
        });
    }
}

/// The same, and the set has the descriptor as one that may get rings.
pub(crate) fn pause(fd: c_int, cell: &Cell) {
    if let Some(set) = cell.set.get().and_then(known) {
        set.with(|members| set.pause(members, fd, cell));
    }
}

/// A socket that was not offered is about to be closed: the kernel forgets it, and the next file of
/// its number is no member.
pub(crate) fn forget(fd: c_int, cell: &Cell) {
    if let Some(set) = cell.set.get().and_then(known) {
        set.members.with(|members| {
            members.others.remove(fd);
            cell.set.replace(None);
        });
    }
}

/// Whether another process may have the set of a socket.
pub(crate) fn is_lent(cell: &Cell) -> bool {
    cell.set.get().and_then(known).is_some_and(Set::is_lent)
}

/// A socket is about to be added to a set, and leaves the one that it was in. False if it is in
/// both: it has to move to TCP.
pub(crate) fn leave_other(set: &Set, fd: c_int, cell: &Cell, op: c_int) -> bool {
    let other = cell.set.get().filter(|other| *other != set.fd);
    let other = other.and_then(known);
    let Some(other) = other.filter(|_| op == libc::EPOLL_CTL_ADD) else {
        return true;
    };
    let has_left =
        other.with(|members| members.ready.source(fd).is_some() && members.ready.has_left(fd));
    if has_left {
        part(fd, cell, true);
    }
    has_left
}

/// A thread that slept for a connection takes what was rung, which a set waits for too, and other
/// threads. `mine`: its own bell.
pub(crate) fn silence(connection: &Connection, mine: c_int) {
    let bell = connection.bell.as_raw_fd();
    connection.sleepers.take(mine, || bell::silence(bell));
    if let Some(set) = connection.set.get().and_then(known) {
        set.with(|members| {
            members.ready.notice(connection.fd);
            members.ready.wake();
            set.poke(members);
        });
    }
}

impl Set {
    /// Uses the members with their lock. What reaches no cancellation point, as a look at them
    /// ([`Source`]) does not, and drops no descriptor, uses `members` itself.
    fn with<R>(&self, use_it: impl FnOnce(&mut Members) -> R) -> R {
        let _uncancelled = Disabled::new();
        self.members.with(use_it)
    }

    /// A system call; errno stays if it fails.
    fn ask(&self, op: c_int, fd: c_int, events: u32, data: u64) -> bool {
        let before = real::errno();
        let mut event = epoll_event { events, u64: data };
        // SAFETY: an event, which the kernel reads.
        let is_done = unsafe { real::epoll_ctl(self.fd, op, fd, &raw mut event) } == 0;
        real::set_errno(before);
        is_done
    }

    /// Gives a member its rings, if it is one; `op`: what is done to the kernel's registration.
    /// Repeated without effect.
    fn convert(&self, members: &mut Members, connection: &Connection, op: c_int) -> bool {
        let (fd, bell) = (connection.fd, connection.bell.as_raw_fd());
        let Some(event) = members.others.get(fd) else {
            return true;
        };
        if self.is_plain() || self.is_lent() {
            return false;
        }
        let edge = libc::EPOLLET.cast_unsigned();
        let input = libc::EPOLLIN.cast_unsigned();
        let all =
            (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLPRI | libc::EPOLLRDHUP | libc::EPOLLET)
                .cast_unsigned();
        if members.bell.is_none() {
            let is_there = |bell: &Own| {
                let bell = bell.as_raw_fd();
                self.ask(libc::EPOLL_CTL_ADD, bell, input | edge, set_mark())
            };
            members.bell = Own::bell().filter(is_there);
        }
        // The flag is first: a wait that the kernel ends by these is one that looks at marks.
        self.is_ringed.store(true, SeqCst);
        let is_done = members.bell.is_some()
            && self.ask(libc::EPOLL_CTL_ADD, bell, input | edge, mark(fd, BELL));
        if !is_done {
            return false;
        }
        if !self.ask(op, fd, all, mark(fd, SOCKET)) {
            self.ask(libc::EPOLL_CTL_DEL, bell, 0, 0);
            return false;
        }
        members.others.remove(fd);
        members.has_new = true;
        members.joins += 1;
        let wants_stamp = connection
            .block()
            .word(Word::WantsStamp(connection.end.peer()));
        wants_stamp.store(1, SeqCst);
        let pointer = std::ptr::from_ref(connection).cast_mut();
        // SAFETY: all connections are from `Connection::into_raw`.
        unsafe { Connection::hold(pointer) };
        // SAFETY: the reference of the line above.
        if let Some(held) = unsafe { Connection::from_raw(pointer) } {
            members.ready.insert(fd, Ringed(held), event);
        }
        connection.set.replace(Some(self.fd));
        // A thread that sleeps on the shared word sleeps for its bell from now on.
        connection.ring(connection.end);
        true
    }

    /// The set does not look at the rings of a member any more; its registration stays this
    /// library's. Returns the connection and the program's registration, unless that was removed.
    fn take_rings(
        &self,
        members: &mut Members,
        fd: c_int,
    ) -> Option<(Arc<Connection>, Option<epoll_event>)> {
        let (Ringed(connection), event) = members.ready.remove(fd)?;
        connection.set.replace(None);
        // The peer may have rung, or ring, its bell for all that are armed for a sleep.
        members.ready.wake();
        self.pass_on(members);
        self.ask(libc::EPOLL_CTL_DEL, connection.bell.as_raw_fd(), 0, 0);
        Some((connection, event))
    }

    /// A member is the kernel's, or its descriptor is about to be closed.
    fn part(&self, members: &mut Members, fd: c_int, is_removed: bool) {
        members.others.remove(fd);
        let taken = self.take_rings(members, fd);
        if taken.is_none() && !is_removed {
            return;
        }
        let event = taken.and_then(|(_, event)| event);
        match event.filter(|_| !is_removed) {
            Some(event) => self.ask(libc::EPOLL_CTL_MOD, fd, event.events, event.u64),
            None => self.ask(libc::EPOLL_CTL_DEL, fd, 0, 0),
        };
    }

    /// The same, and it may get rings again.
    fn pause(&self, members: &mut Members, fd: c_int, cell: &Cell) {
        let Some((_held, event)) = self.take_rings(members, fd) else {
            return;
        };
        if let Some(event) = event {
            self.ask(libc::EPOLL_CTL_MOD, fd, event.events, event.u64);
            members.others.insert(fd, event);
        } else {
            self.ask(libc::EPOLL_CTL_DEL, fd, 0, 0);
            cell.set.replace(None);
        }
    }

    /// Has a thread look that sleeps in the kernel.
    fn poke(&self, members: &Members) {
        if let Some(bell) = members
            .bell
            .as_ref()
            .filter(|_| self.waiters.load(SeqCst) != 0)
        {
            bell::ring(bell.as_raw_fd());
        }
    }

    pub(crate) fn fd(&self) -> c_int {
        self.fd
    }

    /// Whether another process may have it.
    fn is_lent(&self) -> bool {
        lent::is_lent(self.fd, self.forks.load(SeqCst))
    }

    /// Whether its members get no rings.
    pub(crate) fn is_plain(&self) -> bool {
        self.is_plain.load(SeqCst)
    }

    /// Whether it has no registration of this library's.
    pub(crate) fn is_given_up(&self) -> bool {
        self.is_plain() && !self.is_ringed()
    }

    /// What is added from now on gets no rings. Returns the members, which are to be moved to TCP,
    /// unless that was done before; [`Self::end_plain`] follows.
    pub(crate) fn begin_plain(&self) -> Option<Vec<c_int>> {
        let is_first = !self.is_plain.swap(true, SeqCst);
        is_first.then(|| self.with(|members| members.fds()))
    }

    /// The members have been moved to TCP.
    pub(crate) fn end_plain(&self) {
        self.with(|members| members.bell = None);
    }

    /// The descriptor is about to be closed.
    #[cold]
    pub(crate) fn end(&'static self) {
        self.is_open.store(false, SeqCst);
        self.with(|members| {
            for fd in members.fds() {
                if let Some(Ringed(connection)) = members.ready.source(fd) {
                    connection.set.replace(None);
                }
                let cell = table::cell(fd);
                if let Some(cell) = cell.filter(|cell| cell.set.get() == Some(self.fd)) {
                    cell.set.replace(None);
                }
            }
            *members = Members::new();
        });
    }

    /// epoll_ctl(2) on a descriptor that is not the kernel's alone, in a call that has begun on it
    /// and found rings or not. Returns the result, and false if the descriptor has to move to TCP.
    ///
    /// # Safety
    /// The event is the caller's.
    pub(crate) unsafe fn control(
        &self,
        (op, fd): (c_int, c_int),
        cell: &Cell,
        connection: Option<&Connection>,
        event: *mut epoll_event,
    ) -> (c_int, bool) {
        // SAFETY: null or the event of the caller.
        let given = (!event.is_null()).then(|| unsafe { event.read_unaligned() });
        self.with(|members| {
            if members.ready.source(fd).is_some() {
                let result = self.control_ringed(members, op, fd, given);
                return (result, true);
            }
            let is_member = members.others.get(fd).is_some();
            let is_usual =
                op == libc::EPOLL_CTL_ADD && !is_member || op == libc::EPOLL_CTL_MOD && is_member;
            if let (Some(connection), Some(given), true) = (connection, given, is_usual) {
                // Without a registration of the program's between, of which the kernel might report
                // what the rings report too.
                let before = members.others.insert(fd, given);
                if self.convert(members, connection, op) {
                    cell.set.replace(Some(self.fd));
                    return (0, true);
                }
                match before {
                    Some(before) => members.others.insert(fd, before),
                    None => members.others.remove(fd),
                };
            }
            // SAFETY: the arguments of the caller.
            let result = unsafe { real::epoll_ctl(self.fd, op, fd, event) };
            if result < 0 {
                return (result, true);
            }
            match given.filter(|_| op != libc::EPOLL_CTL_DEL) {
                Some(given) => members.others.insert(fd, given),
                None => members.others.remove(fd),
            };
            cell.set
                .replace((op != libc::EPOLL_CTL_DEL).then_some(self.fd));
            (result, connection.is_none() || op == libc::EPOLL_CTL_DEL)
        })
    }

    /// The same on a socket that was not offered, and is a member of no set, or of this one; `None`
    /// and nothing is done in other cases. Most calls are such, and begin none on the cell: what
    /// gives a socket rings changes its state, and then looks for its set and waits for the lock.
    ///
    /// # Safety
    /// The event is the caller's.
    pub(crate) unsafe fn control_alone(
        &self,
        (op, fd): (c_int, c_int),
        cell: &Cell,
        event: *mut epoll_event,
    ) -> Option<c_int> {
        let is_member = cell.set.get() == Some(self.fd);
        let is_removal = op == libc::EPOLL_CTL_DEL;
        if is_member == (op == libc::EPOLL_CTL_ADD) || event.is_null() && !is_removal {
            return None;
        }
        // SAFETY: the event of the caller.
        let given = (!is_removal).then(|| unsafe { event.read_unaligned() });
        // No cancellation point is reached with the lock.
        self.members.with(|members| {
            let before = match is_member {
                true => cell.set.get(),
                false => cell.set.replace(Some(self.fd)),
            };
            if before != is_member.then_some(self.fd) || !self.may_note(cell) {
                if !is_member {
                    cell.set.replace(before);
                }
                return None;
            }
            // SAFETY: the arguments of the caller.
            let result = unsafe { real::epoll_ctl(self.fd, op, fd, event) };
            match given {
                Some(given) if result == 0 => _ = members.others.insert(fd, given),
                Some(_) if is_member => {}
                None if result != 0 => {}
                _ => {
                    members.others.remove(fd);
                    cell.set.replace(None);
                }
            }
            Some(result)
        })
    }

    /// Whether the interest in a socket is noted without a begin of the call.
    fn may_note(&self, cell: &Cell) -> bool {
        cell.seen().state() == State::Alone && !self.is_plain()
    }

    /// The same on a member with rings: no system call.
    fn control_ringed(
        &self,
        members: &mut Members,
        op: c_int,
        fd: c_int,
        event: Option<epoll_event>,
    ) -> c_int {
        let done = match (event, op) {
            (Some(event), _) => members.ready.control(fd, op, event),
            (None, libc::EPOLL_CTL_DEL) => {
                let nothing = epoll_event { events: 0, u64: 0 };
                members.ready.control(fd, op, nothing)
            }
            (None, _) => Err(libc::EFAULT),
        };
        match done {
            Ok(()) => {
                self.poke(members);
                0
            }
            Err(errno) => {
                real::set_errno(errno);
                -1
            }
        }
    }

    /// Whether it has had a member with rings, whose registrations are this library's.
    pub(crate) fn is_ringed(&self) -> bool {
        self.is_ringed.load(SeqCst)
    }

    /// Members that are still ready are another thread's, if one sleeps.
    fn pass_on(&self, members: &Members) {
        if members.ready.has_queued() {
            self.poke(members);
        }
    }
}

#[cfg(test)]
mod tests;
