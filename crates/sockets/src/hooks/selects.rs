//! select and pselect: as poll, if a connection is named that has rings or may get some.

use std::ffi::c_int;
use std::ptr::null;
use std::time::{Duration, Instant};

use libc::{fd_set, pollfd, sigset_t, timespec, timeval};

use super::polls::{duration, poll_ours, MANY};
use crate::reasons::Reason;
use crate::{leave, limits, real, sets, table};

/// Descriptors of a list on the stack of a call that names few.
const FEW: usize = 64;
/// Events for which a descriptor is in each of the sets, and those that are reported as these, as
/// `POLLIN_SET` and others of the kernel.
const ASKED: [i16; 3] = [IN, OUT, libc::POLLPRI];
const REPORTED: [i16; 3] = [
    IN | libc::POLLHUP | libc::POLLERR,
    OUT | libc::POLLERR,
    libc::POLLPRI,
];
const IN: i16 = libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND;
const OUT: i16 = libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND;
const MICROSECONDS: i64 = 1_000_000;

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let named = Named {
        count,
        sets: [read, write, except],
    };
    // SAFETY: the timeout and the sets of the caller.
    let limit = unsafe { timeout.as_ref() }.map(limit_of);
    // SAFETY: the timeout and the sets of the caller.
    if limit == Some(None) || !unsafe { named.has_hit() } {
        // SAFETY: the arguments of the caller; a cancellation point.
        return unsafe { real::select(count, read, write, except, timeout) };
    }
    let limit = limit.flatten();
    let end = limit.and_then(|limit| Instant::now().checked_add(limit));
    // SAFETY: the sets of the caller; a cancellation point.
    let found = unsafe { named.run(limit, null()) };
    // SAFETY: null or the timeout of the caller.
    if let (Some(timeout), Some(end)) = (unsafe { timeout.as_mut() }, end) {
        let left = end.saturating_duration_since(Instant::now());
        timeout.tv_sec = left.as_secs().try_into().unwrap_or(i64::MAX);
        timeout.tv_usec = left.subsec_micros().into();
    }
    found
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let named = Named {
        count,
        sets: [read, write, except],
    };
    // SAFETY: null or the timeout of the caller.
    let limit = unsafe { timeout.as_ref() }.map(duration);
    // SAFETY: the sets of the caller.
    if limit == Some(None) || !unsafe { named.has_hit() } {
        // SAFETY: the arguments of the caller; a cancellation point.
        return unsafe { real::pselect(count, read, write, except, timeout, mask) };
    }
    // SAFETY: the sets and the mask of the caller.
    unsafe { named.run(limit.flatten(), mask) }
}

/// `None` for a timeout that is not valid. Microseconds may be more than a second.
fn limit_of(timeout: &timeval) -> Option<Duration> {
    let seconds = timeout.tv_sec.checked_add(timeout.tv_usec / MICROSECONDS)?;
    let microseconds = u64::try_from(timeout.tv_usec).ok()? % MICROSECONDS.unsigned_abs();
    let is_valid = timeout.tv_sec >= 0;
    let seconds = u64::try_from(seconds).ok().filter(|_| is_valid)?;
    Some(Duration::from_secs(seconds) + Duration::from_micros(microseconds))
}

/// What a call names moves to TCP.
///
/// # Safety
/// The sets are null or have `count` bits.
pub(super) unsafe fn retire_sets(count: c_int, sets: [*mut fd_set; 3], reason: Reason) {
    // SAFETY: guaranteed by the caller.
    let fds = unsafe { Named { count, sets }.fds() };
    fds.for_each(|(fd, _)| leave::retire(fd, reason));
}

/// The sets that a call names: for reading, for writing, and of exceptions.
#[derive(Clone, Copy)]
struct Named {
    count: c_int,
    sets: [*mut fd_set; 3],
}

impl Named {
    /// Whether a descriptor is not the kernel's alone. A set of epoll is given up: the kernel does
    /// not know whether its members with rings are ready.
    ///
    /// # Safety
    /// The sets are null or have `count` bits; so for the other methods.
    unsafe fn has_hit(self) -> bool {
        let Some(last) = u32::try_from(self.count).unwrap_or(0).checked_sub(1) else {
            return false;
        };
        for set in sets::known_in(0, last) {
            // SAFETY: guaranteed by the caller.
            if unsafe { self.events(set.fd()) } != 0 {
                leave::give_up(set, Reason::Epoll);
            }
        }
        // SAFETY: guaranteed by the caller.
        table::hits(0, last).any(|fd| unsafe { self.events(fd) } != 0)
    }

    /// The events for which a descriptor is named.
    unsafe fn events(self, fd: c_int) -> i16 {
        let named = self.sets.iter().zip(ASKED);
        // SAFETY: guaranteed by the caller.
        let named = named.filter(|(set, _)| unsafe { has(**set, fd) });
        named.fold(0, |events, (_, asked)| events | asked)
    }

    unsafe fn fds(self) -> impl Iterator<Item = (c_int, i16)> {
        // SAFETY: guaranteed by the caller.
        let named = (0..self.count).map(move |fd| (fd, unsafe { self.events(fd) }));
        named.filter(|(_, events)| *events != 0)
    }

    /// Waits, and changes the sets.
    unsafe fn run(self, limit: Option<Duration>, mask: *const sigset_t) -> c_int {
        // SAFETY: guaranteed by the caller.
        let named = unsafe { self.fds() }.count();
        if named <= FEW {
            // SAFETY: guaranteed by the caller.
            return unsafe { self.poll::<FEW>(limit, mask) };
        }
        if named <= MANY {
            // SAFETY: guaranteed by the caller.
            return unsafe { self.poll::<MANY>(limit, mask) };
        }
        // SAFETY: guaranteed by the caller.
        unsafe { retire_sets(self.count, self.sets, Reason::Poll) };
        // SAFETY: guaranteed by the caller.
        unsafe { self.ask(limit, mask) }
    }

    unsafe fn ask(self, limit: Option<Duration>, mask: *const sigset_t) -> c_int {
        let time = limit.map(limits::timespec);
        let time = time.as_ref().map_or(null(), std::ptr::from_ref);
        let [read, write, except] = self.sets;
        // SAFETY: guaranteed by the caller.
        unsafe { real::pselect(self.count, read, write, except, time, mask) }
    }

    /// The same with a list on the stack. Its frame has no values to be dropped.
    #[inline(never)]
    unsafe fn poll<const ENTRIES: usize>(
        self,
        limit: Option<Duration>,
        mask: *const sigset_t,
    ) -> c_int {
        const NOTHING: pollfd = pollfd {
            fd: -1,
            events: 0,
            revents: 0,
        };
        let mut list = [NOTHING; ENTRIES];
        let mut len = 0;
        // SAFETY: guaranteed by the caller.
        for ((fd, events), entry) in unsafe { self.fds() }.zip(&mut list) {
            *entry = pollfd {
                fd,
                events,
                revents: 0,
            };
            len += 1;
        }
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            // SAFETY: a list of `len` entries, and the mask of the caller.
            let found = unsafe { poll_ours(list.as_mut_ptr(), len, left, mask) };
            if found < 0 {
                return found;
            }
            let is_invalid = |entry: &pollfd| entry.revents & libc::POLLNVAL != 0;
            if list[..len].iter().any(is_invalid) {
                real::set_errno(libc::EBADF);
                return -1;
            }
            let bits = list[..len].iter().map(|entry| reported(entry).count());
            let bits: usize = bits.sum();
            if found == 0 || bits != 0 {
                // SAFETY: the sets of the caller have these bits.
                unsafe { self.write(&list[..len]) };
                return c_int::try_from(bits).unwrap_or(c_int::MAX);
            }
            // The end of a descriptor that is not named for reading: poll would report it again.
            for entry in list[..len].iter_mut().filter(|entry| entry.revents != 0) {
                entry.fd = !entry.fd;
                entry.revents = 0;
            }
        }
    }

    /// Changes the sets to what is ready.
    unsafe fn write(self, list: &[pollfd]) {
        let words = usize::try_from(self.count).unwrap_or(0).div_ceil(64);
        for set in self.sets.into_iter().filter(|set| !set.is_null()) {
            for word in 0..words {
                // SAFETY: sets have whole words.
                unsafe { set.cast::<u64>().add(word).write(0) };
            }
        }
        for entry in list {
            for set in reported(entry) {
                let (word, bit) = place(entry.fd);
                // SAFETY: the set has the bit, and is not null since it has named the descriptor.
                unsafe { *self.sets[set].cast::<u64>().add(word) |= bit };
            }
        }
    }
}

/// The sets in which an entry is reported.
fn reported(entry: &pollfd) -> impl Iterator<Item = usize> {
    let (events, revents) = (entry.events, entry.revents);
    (0..3).filter(move |set| events & ASKED[*set] != 0 && revents & REPORTED[*set] != 0)
}

/// The word of a set, and the bit in it.
fn place(fd: c_int) -> (usize, u64) {
    let number = usize::try_from(fd).unwrap_or(0);
    (number / 64, 1 << (number % 64))
}

/// Whether a set has a descriptor.
///
/// # Safety
/// The set is null or has the bit.
unsafe fn has(set: *const fd_set, fd: c_int) -> bool {
    let (word, bit) = place(fd);
    // SAFETY: guaranteed by the caller; sets may be longer than `fd_set`.
    !set.is_null() && unsafe { set.cast::<u64>().add(word).read() } & bit != 0
}
