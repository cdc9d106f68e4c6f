//! poll and ppoll on connections with rings. A list that has more of them than [`CONNECTIONS`], or
//! more entries than [`ENTRIES`], moves them to TCP.

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::ptr::null;
use std::time::{Duration, Instant};

use libc::{nfds_t, pollfd, sigset_t, timespec};
use urdma_abi::cancel::Disabled;

use crate::begin::{begin, Begun};
use crate::connection::Connection;
use crate::readiness::{self, is_out_of_ring, of_rings, OUT};
use crate::table::{self, Cell};
use crate::{leave, real, sets};

/// Entries of a list that is copied.
const ENTRIES: usize = 64;
/// Connections with rings among them.
const CONNECTIONS: usize = 8;

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn poll(list: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
    // SAFETY: the arguments of the caller.
    if !unsafe { has_hit(list, count) } {
        // SAFETY: as above.
        return unsafe { real::poll(list, count, timeout_ms) };
    }
    let limit = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
    // SAFETY: as above.
    unsafe { poll_ours(list, count, limit, null()) }
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
        // SAFETY: as above.
        (None, true) => unsafe { poll_ours(list, count, None, mask) },
        // SAFETY: as above.
        (Some(Some(limit)), true) => unsafe { poll_ours(list, count, Some(limit), mask) },
        // SAFETY: as above.
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
unsafe fn has_hit(list: *const pollfd, count: nfds_t) -> bool {
    (0..entries(count)).any(|index| {
        // SAFETY: the list of the caller has so many entries.
        let entry = unsafe { list.add(index) };
        // SAFETY: as above, if there is a list.
        let fd = (!list.is_null()).then(|| unsafe { (*entry).fd });
        if let Some(set) = fd.and_then(sets::known) {
            // The kernel does not know whether its members with rings are ready.
            leave::give_up(set);
        }
        fd.and_then(table::hit).is_some()
    })
}

/// An entry whose connection has rings.
#[derive(Clone, Copy)]
struct Ringed {
    index: usize,
    cell: &'static Cell,
    connection: *mut Connection,
    /// No entry before it has the connection.
    is_first: bool,
    generation: u64,
}

/// A list that is looked at and slept for, again and again. It has no values to be dropped.
struct Lists {
    ringed: [Option<Ringed>; CONNECTIONS],
    /// Cells of entries that may get rings: a call on each is in progress.
    others: [Option<&'static Cell>; ENTRIES],
    /// What the kernel is asked; behind it the bells.
    asked: [pollfd; ENTRIES + CONNECTIONS],
    asked_count: usize,
}

const NOTHING: pollfd = pollfd {
    fd: -1,
    events: 0,
    revents: 0,
};

unsafe fn poll_ours(
    list: *mut pollfd,
    count: nfds_t,
    limit: Option<Duration>,
    mask: *const sigset_t,
) -> c_int {
    let count = entries(count);
    let end = limit.and_then(|limit| Instant::now().checked_add(limit));
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let mut lists = Lists {
            ringed: [None; CONNECTIONS],
            others: [None; ENTRIES],
            asked: [NOTHING; ENTRIES + CONNECTIONS],
            asked_count: 0,
        };
        // SAFETY: the list of the caller.
        if !unsafe { lists.enter(list, count) } {
            // SAFETY: as above.
            unsafe { retire_list(list, count) };
            let left = left.map(|left| timespec {
                tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            });
            let time = left.as_ref().map_or(null(), std::ptr::from_ref);
            // SAFETY: as above.
            return unsafe { real::ppoll(list, count as nfds_t, time, mask) };
        }
        // SAFETY: as above; this frame has no values to be dropped.
        if let Some(result) = unsafe { lists.sleep(list, count, left, mask) } {
            return result;
        }
    }
}

/// All entries of a list move to TCP.
unsafe fn retire_list(list: *const pollfd, count: usize) {
    for index in 0..count {
        // SAFETY: the list of the caller.
        leave::retire(unsafe { (*list.add(index)).fd });
    }
}

impl Lists {
    /// Begins a call on each entry, and prepares what the kernel is asked; false if the list is too
    /// long, or another thread sleeps for one of its connections. Nothing is in progress then.
    unsafe fn enter(&mut self, list: *const pollfd, count: usize) -> bool {
        let _uncancelled = Disabled::new();
        if count > ENTRIES {
            return false;
        }
        self.asked_count = count;
        let mut ringed = 0;
        for index in 0..count {
            // SAFETY: the list of the caller.
            let entry = unsafe { *list.add(index) };
            self.asked[index] = entry;
            let Some(cell) = table::hit(entry.fd) else {
                continue;
            };
            let Begun::Rings(connection) = begin(cell) else {
                self.others[index] = Some(cell);
                continue;
            };
            let pointer = std::ptr::from_ref(connection).cast_mut();
            // A list may name a descriptor more than once.
            let mut known = self.ringed.iter().flatten();
            let is_first = known.all(|known| known.connection != pointer);
            let can_sleep = !is_first || connection.begin_poll();
            if ringed == CONNECTIONS || !can_sleep {
                if is_first && can_sleep {
                    connection.end_poll();
                }
                cell.leave();
                self.leave();
                return false;
            }
            // SAFETY: the call has entered.
            unsafe { Connection::hold(pointer) };
            self.ringed[ringed] = Some(Ringed {
                index,
                cell,
                connection: pointer,
                is_first,
                generation: cell.seen().generation(),
            });
            ringed += 1;
            cell.leave();
        }
        true
    }

    /// Ends what `enter` has begun.
    fn leave(&mut self) {
        for cell in self.others.iter_mut().filter_map(Option::take) {
            cell.leave();
        }
        for ringed in self.ringed.iter_mut().filter_map(Option::take) {
            if ringed.is_first {
                ringed.connection().end_poll();
            }
            // SAFETY: the reference that `enter` has taken; the connection is not used any more.
            drop(unsafe { Connection::from_raw(ringed.connection) });
        }
    }

    /// Asks the kernel, after it is known that no ring is ready, and says what the call returns;
    /// `None` to look again.
    unsafe fn sleep(
        &mut self,
        list: *mut pollfd,
        count: usize,
        left: Option<Duration>,
        mask: *const sigset_t,
    ) -> Option<c_int> {
        let mut is_ready = false;
        for ringed in self.ringed.into_iter().flatten() {
            let ready = self.prepare(ringed);
            is_ready |= ready != 0;
        }
        let left = if is_ready { Some(Duration::ZERO) } else { left };
        let time = left.map(|left| timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        let time = time.as_ref().map_or(null(), std::ptr::from_ref);
        let asked = self.asked.as_mut_ptr();
        // SAFETY: a list of so many entries; a cancellation point.
        let result = unsafe { real::ppoll(asked, self.asked_count as nfds_t, time, mask) };
        let errno = real::errno();
        let _uncancelled = Disabled::new();
        // SAFETY: the list of the caller.
        let found = unsafe { self.report(list, count) };
        let is_over = left.is_some_and(|left| left.is_zero()) || result == 0;
        self.leave();
        match (result, found) {
            (..0, _) => {
                real::set_errno(errno);
                Some(-1)
            }
            (_, 1..) => Some(found),
            // Only a bell was rung, or the time is over.
            _ if is_over => Some(0),
            _ => None,
        }
    }

    /// Asks for what the kernel knows of an entry with rings, and for its bell; returns what the
    /// rings are ready for.
    fn prepare(&mut self, ringed: Ringed) -> libc::c_short {
        let connection = ringed.connection();
        let events = self.asked[ringed.index].events;
        readiness::arm(connection, u32::from(events.cast_unsigned()));
        if is_out_of_ring(connection) {
            self.asked[ringed.index].events &= !OUT;
        }
        // Its number may be another file's.
        if ringed.cell.seen().generation() != ringed.generation {
            self.asked[ringed.index].events = events;
        }
        self.asked[self.asked_count] = pollfd {
            fd: connection.bell.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        self.asked_count += 1;
        of_rings(connection, events)
    }

    /// Writes what was found to the list of the caller; returns how many entries have something.
    unsafe fn report(&mut self, list: *mut pollfd, count: usize) -> c_int {
        let mut found = 0;
        let mut ready_of = [0; ENTRIES];
        for ringed in self.ringed.into_iter().flatten() {
            let connection = ringed.connection();
            connection.note_socket(self.asked[ringed.index].revents);
            // SAFETY: the list of the caller.
            let events = unsafe { (*list.add(ringed.index)).events };
            ready_of[ringed.index] = of_rings(connection, events);
            sets::silence(connection);
        }
        for (index, ready) in ready_of.iter().enumerate().take(count) {
            // SAFETY: the list of the caller.
            let entry = unsafe { &mut *list.add(index) };
            entry.revents = self.asked[index].revents | ready;
            found += c_int::from(entry.revents != 0);
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
