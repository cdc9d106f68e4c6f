//! poll and ppoll on completion channels and files of rdma_cm: see `lists.rs`. Longer lists than
//! [`ENTRIES`] are passed on.

use std::ffi::c_int;
use std::ptr::from_mut;

use libc::{nfds_t, pollfd, sigset_t, timespec};

use super::call::{self, Call, Sleep};
use super::lists::{self, List, Source};
use crate::{provider, real};
use urdma_abi::signals::SET_OCTETS;

/// Entries of a list that is copied.
const ENTRIES: usize = 64;

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn poll(list: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
    // SAFETY: the arguments of the caller.
    match unsafe { source_in(list, count) } {
        Some(source) if timeout_ms != 0 => {
            let limit_ns = i64::from(timeout_ms).saturating_mul(call::NS_PER_MS);
            let call = Call::new(limit_ns, std::ptr::null());
            // SAFETY: the arguments of the caller.
            unsafe { lists::wait_for(Poll::new(call, list, count), source) }
        }
        found => {
            found.inspect(|_| provider::send_events());
            // SAFETY: the arguments of the caller.
            unsafe { real::poll(list, count, timeout_ms) }
        }
    }
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn ppoll(
    list: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: null or the caller's timeout.
    let limit_ns = call::limit_of(unsafe { timeout.as_ref() });
    // SAFETY: the arguments of the caller.
    match (limit_ns, unsafe { source_in(list, count) }) {
        (Some(limit_ns), Some(source)) if limit_ns != 0 => {
            let call = Call::new(limit_ns, mask);
            // SAFETY: the arguments of the caller.
            unsafe { lists::wait_for(Poll::new(call, list, count), source) }
        }
        (_, found) => {
            found.inspect(|_| provider::send_events());
            // SAFETY: the arguments of the caller.
            unsafe { real::ppoll(list, count, timeout, mask) }
        }
    }
}

/// Sleeps until the file is readable, as poll(2) does without a limit.
///
/// # Safety
/// A cancellation point: the caller's frames have no values that need to be dropped.
pub(super) unsafe fn wait_until_readable(fd: c_int) -> c_int {
    let mut list = pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: a list of one entry.
    unsafe { poll(from_mut(&mut list), 1, -1) }
}

urdma_abi::sized_polls!(real);

/// A file whose events the provider raises in a list.
///
/// # Safety
/// As poll(2).
unsafe fn source_in(list: *const pollfd, count: nfds_t) -> Option<Source> {
    let count = usize::try_from(count)
        .ok()
        .filter(|count| *count < ENTRIES)?;
    if list.is_null() {
        return None;
    }
    // SAFETY: the caller guarantees it.
    let entries = unsafe { std::slice::from_raw_parts(list, count) };
    let is_awaited = |entry: &&pollfd| entry.events & libc::POLLIN != 0;
    lists::source_among(entries.iter().filter(is_awaited).map(|entry| entry.fd))
}

/// A call of poll.
pub(super) struct Poll {
    call: Call,
    list: *mut pollfd,
    count: usize,
    copy: [pollfd; ENTRIES],
}

impl Poll {
    /// # Safety
    /// As poll(2); there is room for one more entry.
    unsafe fn new(call: Call, list: *mut pollfd, count: nfds_t) -> Self {
        let count = usize::try_from(count).unwrap_or(0);
        let empty = pollfd {
            fd: -1,
            events: 0,
            revents: 0,
        };
        let mut copy = [empty; ENTRIES];
        // SAFETY: the caller guarantees it.
        copy[..count].copy_from_slice(unsafe { std::slice::from_raw_parts(list, count) });
        Self {
            call,
            list,
            count,
            copy,
        }
    }
}

impl List for Poll {
    fn call(&mut self) -> &mut Call {
        &mut self.call
    }

    fn add(&mut self, waker: c_int) -> bool {
        self.copy[self.count].fd = waker;
        self.copy[self.count].events = libc::POLLIN;
        true
    }

    unsafe fn look(&mut self, sleep: &Sleep) -> libc::c_long {
        let (list, count) = (self.copy.as_mut_ptr(), self.count + 1);
        let (mask, octets) = (sleep.mask, SET_OCTETS);
        // SAFETY: a list of this length, a time and a mask of this size.
        sleep
            .make(|time| unsafe { libc::syscall(libc::SYS_ppoll, list, count, time, mask, octets) })
    }

    fn take_waker(&mut self) -> bool {
        self.copy[self.count].revents != 0
    }

    unsafe fn store(&mut self) {
        // SAFETY: the list of the caller.
        let list = unsafe { std::slice::from_raw_parts_mut(self.list, self.count) };
        for (entry, copy) in list.iter_mut().zip(&self.copy) {
            entry.revents = copy.revents;
        }
    }

    unsafe fn sleep(&mut self) -> c_int {
        let time = self.call.left();
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let (list, count) = (self.list, self.count as nfds_t);
        // SAFETY: the caller guarantees it.
        unsafe { real::ppoll(list, count, time, self.call.mask) }
    }
}
