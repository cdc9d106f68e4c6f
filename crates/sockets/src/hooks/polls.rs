//! poll and ppoll on connections with rings. A list that has more of them than [`MANY_BELLS`], or
//! more entries than [`MANY`], moves them to TCP.

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::ptr::null;
use std::time::{Duration, Instant};

use libc::{nfds_t, pollfd, sigset_t, timespec};
use urdma_abi::cancel::Disabled;

use crate::begin::{begin, Begun};
use crate::connection::Connection;
use crate::readiness::{self, is_out_of_ring, of_rings, OUT};
use crate::reasons::Reason;
use crate::spins::spin;
use crate::table::{self, Cell, Seen};
use crate::{bell, leave, limits, real, sets, signals};

/// Entries of a list that is copied, and bells: one for each connection with rings among the
/// entries, and one of the thread.
const FEW: usize = 64;
const FEW_BELLS: usize = 9;
/// The same of a longer list, which takes more of the stack.
pub(super) const MANY: usize = 1024;
const MANY_BELLS: usize = 257;

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn poll(list: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
    // SAFETY: the arguments of the caller.
    if !unsafe { has_hit(list, count) } {
        // SAFETY: the arguments of the caller.
        return unsafe { real::poll(list, count, timeout_ms) };
    }
    let limit = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
    // SAFETY: the arguments of the caller.
    unsafe { poll_ours(list, entries(count), limit, null()) }
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn ppoll(
    list: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: null or the timeout of the caller.
    let limit = unsafe { timeout.as_ref() }.map(duration);
    // SAFETY: the arguments of the caller.
    match (limit, unsafe { has_hit(list, count) }) {
        // SAFETY: the arguments of the caller.
        (None, true) => unsafe { poll_ours(list, entries(count), None, mask) },
        // SAFETY: the arguments of the caller.
        (Some(Some(limit)), true) => unsafe { poll_ours(list, entries(count), Some(limit), mask) },
        // SAFETY: the arguments of the caller.
        _ => unsafe { real::ppoll(list, count, timeout, mask) },
    }
}

urdma_abi::sized_polls!(real);

/// `None` for a timeout that is not valid.
pub(super) fn duration(timeout: &timespec) -> Option<Duration> {
    let nanoseconds = u32::try_from(timeout.tv_nsec).ok()?;
    let is_valid = nanoseconds < 1_000_000_000;
    let seconds = u64::try_from(timeout.tv_sec).ok().filter(|_| is_valid)?;
    Some(Duration::new(seconds, nanoseconds))
}

fn entries(count: nfds_t) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// Whether a list has a descriptor that is not the kernel's alone.
///
/// # Safety
/// The list is null or has `count` entries.
unsafe fn has_hit(list: *const pollfd, count: nfds_t) -> bool {
    let mut has_hit = false;
    let count = if list.is_null() { 0 } else { entries(count) };
    for index in 0..count {
        // SAFETY: guaranteed by the caller.
        let fd = unsafe { (*list.add(index)).fd };
        if let Some(set) = sets::known(fd) {
            // The kernel does not know whether its members with rings are ready.
            leave::give_up(set, Reason::Epoll);
        }
        has_hit |= table::hit(fd).is_some();
    }
    has_hit
}

/// An entry whose connection has rings.
#[derive(Clone, Copy)]
struct Ringed {
    index: usize,
    cell: &'static Cell,
    connection: *mut Connection,
    generation: u64,
}

const NOTHING: pollfd = pollfd {
    fd: -1,
    events: 0,
    revents: 0,
};

/// What the kernel is asked: the bells, which end their array, and the entries of the program.
#[repr(C)]
struct Asked<const ENTRIES: usize, const BELLS: usize> {
    bells: [pollfd; BELLS],
    entries: [pollfd; ENTRIES],
}

/// A list that is looked at and slept for, again and again. It has no values to be dropped.
struct Lists<const ENTRIES: usize, const BELLS: usize> {
    count: usize,
    ringed: [Option<Ringed>; BELLS],
    ringed_count: usize,
    /// Cells of entries that may get rings: a call on each is in progress.
    others: [Option<(&'static Cell, Seen)>; ENTRIES],
    asked: Asked<ENTRIES, BELLS>,
    /// The bell of this thread, if it sleeps.
    mine: Option<c_int>,
}

/// How an attempt has ended.
enum Attempt {
    Returns(c_int),
    Again,
    /// The list is too long, or there is no bell for the thread.
    Impossible,
}

/// poll(2) on a list of which an entry is not the kernel's alone.
///
/// # Safety
/// The list has `count` entries, and the mask is null or one of the caller. A cancellation point.
pub(super) unsafe fn poll_ours(
    list: *mut pollfd,
    count: usize,
    limit: Option<Duration>,
    mask: *const sigset_t,
) -> c_int {
    let end = limit.and_then(|limit| Instant::now().checked_add(limit));
    signals::begin_call();
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        // SAFETY: guaranteed by the caller.
        let mut attempt = unsafe { try_poll::<FEW, FEW_BELLS>(list, count, left, mask) };
        if matches!(attempt, Attempt::Impossible) {
            // SAFETY: guaranteed by the caller.
            attempt = unsafe { try_poll::<MANY, MANY_BELLS>(list, count, left, mask) };
        }
        match attempt {
            Attempt::Returns(result) => return result,
            Attempt::Again => {}
            Attempt::Impossible => {
                // SAFETY: guaranteed by the caller.
                unsafe { retire_list(list, count, Reason::Poll) };
                // SAFETY: guaranteed by the caller.
                return unsafe { ask(list, count, left, mask) };
            }
        }
    }
}

/// The kernel's call.
unsafe fn ask(
    list: *mut pollfd,
    count: usize,
    left: Option<Duration>,
    mask: *const sigset_t,
) -> c_int {
    let time = left.map(limits::timespec);
    let time = time.as_ref().map_or(null(), std::ptr::from_ref);
    // SAFETY: the arguments of the caller.
    unsafe { real::ppoll(list, count as nfds_t, time, mask) }
}

/// All entries of a list move to TCP.
///
/// # Safety
/// The list is null or has `count` entries.
pub(super) unsafe fn retire_list(list: *const pollfd, count: usize, reason: Reason) {
    let count = if list.is_null() { 0 } else { count };
    for index in 0..count {
        // SAFETY: the list of the caller.
        leave::retire(unsafe { (*list.add(index)).fd }, reason);
    }
}

/// Looks at all entries, and sleeps once if none is ready. Its frame is as large as the lists, and
/// has no values to be dropped.
#[inline(never)]
unsafe fn try_poll<const ENTRIES: usize, const BELLS: usize>(
    list: *mut pollfd,
    count: usize,
    left: Option<Duration>,
    mask: *const sigset_t,
) -> Attempt {
    let mut lists = Lists::<ENTRIES, BELLS> {
        count,
        ringed: [None; BELLS],
        ringed_count: 0,
        others: [None; ENTRIES],
        asked: Asked {
            bells: [NOTHING; BELLS],
            entries: [NOTHING; ENTRIES],
        },
        mine: None,
    };
    let may_sleep = left.is_none_or(|left| !left.is_zero());
    // SAFETY: the list of the caller.
    let has_entered = unsafe { lists.enter(list) };
    if has_entered && lists.ringed_count > 0 && may_sleep && mask.is_null() {
        spin(|| lists.is_ready(), || lists.is_ready());
        if signals::has_ended_call(true) {
            lists.leave();
            real::set_errno(libc::EINTR);
            return Attempt::Returns(-1);
        }
    }
    if !(has_entered && lists.arm(may_sleep)) {
        lists.leave();
        return Attempt::Impossible;
    }
    // SAFETY: the list of the caller.
    unsafe { lists.sleep(list, left, mask) }
}

impl<const ENTRIES: usize, const BELLS: usize> Lists<ENTRIES, BELLS> {
    /// Begins a call on each entry; false if the list is too long.
    unsafe fn enter(&mut self, list: *const pollfd) -> bool {
        let _uncancelled = Disabled::new();
        if self.count > ENTRIES {
            return false;
        }
        for index in 0..self.count {
            // SAFETY: the list of the caller.
            let entry = unsafe { *list.add(index) };
            self.asked.entries[index] = entry;
            let Some(cell) = table::hit(entry.fd) else {
                continue;
            };
            let connection = match begin(cell) {
                Begun::Rings(connection) => connection,
                Begun::Kernel(entered) => {
                    self.others[index] = Some((cell, entered));
                    continue;
                }
            };
            // One bell is the thread's.
            if self.ringed_count + 1 == BELLS {
                cell.leave();
                return false;
            }
            let pointer = std::ptr::from_ref(connection).cast_mut();
            // SAFETY: the call has entered.
            unsafe { Connection::hold(pointer) };
            self.ringed[self.ringed_count] = Some(Ringed {
                index,
                cell,
                connection: pointer,
                generation: cell.seen().generation(),
            });
            self.ringed_count += 1;
            cell.leave();
        }
        true
    }

    /// Ends what `enter` and `arm` have begun.
    fn leave(&mut self) {
        for (cell, entered) in self.others.iter_mut().filter_map(Option::take) {
            cell.leave_since(entered);
        }
        for ringed in self.ringed.iter_mut().filter_map(Option::take) {
            if let Some(mine) = self.mine {
                ringed.connection().sleepers.end(mine);
            }
            // SAFETY: the reference that `enter` has taken; the connection is not used any more.
            drop(unsafe { Connection::from_raw(ringed.connection) });
        }
    }

    /// Has the peers wake this thread if it may sleep and no ring is ready; false if there is no
    /// bell for it.
    fn arm(&mut self, may_sleep: bool) -> bool {
        let _uncancelled = Disabled::new();
        if self.ringed_count == 0 || !may_sleep || self.is_ready() {
            return true;
        }
        for ringed in self.ringed.into_iter().flatten() {
            self.mine = ringed.connection().sleepers.enter();
            if self.mine.is_none() {
                return false;
            }
            let events = self.asked.entries[ringed.index].events;
            readiness::arm(ringed.connection(), u32::from(events.cast_unsigned()), 0);
        }
        true
    }

    /// Whether a ring is ready.
    fn is_ready(&self) -> bool {
        self.ringed.iter().flatten().any(|ringed| {
            let events = self.asked.entries[ringed.index].events;
            of_rings(ringed.connection(), events) != 0
        })
    }

    /// Asks the kernel, and says what the call returns. It does not sleep if a ring is ready.
    unsafe fn sleep(
        &mut self,
        list: *mut pollfd,
        left: Option<Duration>,
        mask: *const sigset_t,
    ) -> Attempt {
        let left = if self.is_ready() {
            Some(Duration::ZERO)
        } else {
            left
        };
        let bells = self.prepare();
        let asked = (&raw mut self.asked).cast::<pollfd>();
        // SAFETY: within the array of bells, which the entries follow.
        let asked = unsafe { asked.add(BELLS - bells) };
        // SAFETY: the list has the entries that are counted; a cancellation point.
        let result = unsafe { ask(asked, bells + self.count, left, mask) };
        let errno = real::errno();
        let _uncancelled = Disabled::new();
        self.silence(bells);
        // SAFETY: the list of the caller.
        let found = unsafe { self.report(list) };
        let is_over = left.is_some_and(|left| left.is_zero()) || result == 0;
        self.leave();
        match (result, found) {
            (..0, _) => {
                real::set_errno(errno);
                Attempt::Returns(-1)
            }
            (_, 1..) => Attempt::Returns(found),
            // Only a bell was rung, or the time is over.
            _ if is_over => Attempt::Returns(0),
            _ => Attempt::Again,
        }
    }

    /// Asks for what the kernel knows of entries with rings, and for the bells, whose number is
    /// returned: none if the thread does not sleep.
    fn prepare(&mut self) -> usize {
        for ringed in self.ringed.into_iter().flatten() {
            // Its number may be another file's.
            let is_same = ringed.cell.seen().generation() == ringed.generation;
            if is_same && is_out_of_ring(ringed.connection()) {
                self.asked.entries[ringed.index].events &= !OUT;
            }
        }
        let Some(mine) = self.mine else {
            return 0;
        };
        let ringed = self.ringed.iter().flatten();
        let bells = ringed.map(|ringed| ringed.connection().bell.as_raw_fd());
        let places = self.asked.bells.iter_mut().rev();
        for (place, fd) in places.zip(std::iter::once(mine).chain(bells)) {
            *place = pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            };
        }
        self.ringed_count + 1
    }

    /// Takes what was rung.
    fn silence(&self, bells: usize) {
        let Some(mine) = self.mine else {
            return;
        };
        for place in &self.asked.bells[BELLS - bells..] {
            if place.revents == 0 {
                continue;
            }
            let mut ringed = self.ringed.iter().flatten();
            match ringed.find(|ringed| ringed.connection().bell.as_raw_fd() == place.fd) {
                Some(ringed) => sets::silence(ringed.connection(), mine),
                None => bell::silence(mine),
            }
        }
    }

    /// Writes what was found to the list of the caller; returns how many entries have something.
    unsafe fn report(&mut self, list: *mut pollfd) -> c_int {
        let mut found = 0;
        for ringed in self.ringed.into_iter().flatten() {
            let connection = ringed.connection();
            let entry = &mut self.asked.entries[ringed.index];
            connection.note_socket(entry.revents);
            // SAFETY: the list of the caller.
            let events = unsafe { (*list.add(ringed.index)).events };
            entry.revents |= of_rings(connection, events);
        }
        for (index, asked) in self.asked.entries[..self.count].iter().enumerate() {
            // SAFETY: the list of the caller.
            unsafe { (*list.add(index)).revents = asked.revents };
            found += c_int::from(asked.revents != 0);
        }
        found
    }
}

impl Ringed {
    fn connection(&self) -> &Connection {
        // SAFETY: `enter` has taken a reference, which `leave` gives back.
        unsafe { &*self.connection }
    }
}
