//! poll and ppoll on completion channels: the provider makes progress in the thread that waits. Its
//! descriptor by which other processes wake that thread is one more entry of the list, in a copy of
//! it. Longer lists than [`ENTRIES`] are passed on.

use std::ffi::{c_int, c_void};
use std::ptr::{from_mut, null_mut};

use libc::{nfds_t, pollfd, sigset_t, size_t, timespec};

use super::call::{self, Call};
use crate::fds::{self, Kind};
use crate::provider;
use crate::real;
use urdma_abi::cancel::Disabled;
use urdma_abi::front::{look as looked, FrontTable};

/// Entries of a list that is copied.
const ENTRIES: usize = 64;

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn poll(list: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
    // SAFETY: the arguments of the caller.
    match unsafe { channel_in(list, count) } {
        Some((channel, table)) if timeout_ms != 0 => {
            let limit_ns = i64::from(timeout_ms).saturating_mul(call::NS_PER_MS);
            let call = Call::new(limit_ns, std::ptr::null());
            // SAFETY: the arguments of the caller.
            unsafe { Poll::new(call, list, count).wait(channel, table) }
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
    match (limit_ns, unsafe { channel_in(list, count) }) {
        (Some(limit_ns), Some((channel, table))) if limit_ns != 0 => {
            let call = Call::new(limit_ns, mask);
            // SAFETY: the arguments of the caller.
            unsafe { Poll::new(call, list, count).wait(channel, table) }
        }
        (_, found) => {
            found.inspect(|_| provider::send_events());
            // SAFETY: the arguments of the caller.
            unsafe { real::ppoll(list, count, timeout, mask) }
        }
    }
}

/// poll where the compiler knows the size of the list.
#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn __poll_chk(
    list: *mut pollfd,
    count: nfds_t,
    timeout_ms: c_int,
    octets: size_t,
) -> c_int {
    if is_within(count, octets) {
        // SAFETY: the arguments of the caller.
        return unsafe { poll(list, count, timeout_ms) };
    }
    // SAFETY: the arguments of the caller, which end the process.
    unsafe { real::__poll_chk(list, count, timeout_ms, octets) }
}

/// ppoll where the compiler knows the size of the list.
#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn __ppoll_chk(
    list: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    octets: size_t,
) -> c_int {
    if is_within(count, octets) {
        // SAFETY: the arguments of the caller.
        return unsafe { ppoll(list, count, timeout, mask) };
    }
    // SAFETY: the arguments of the caller, which end the process.
    unsafe { real::__ppoll_chk(list, count, timeout, mask, octets) }
}

fn is_within(count: nfds_t, octets: size_t) -> bool {
    usize::try_from(count).is_ok_and(|count| count <= octets / size_of::<pollfd>())
}

/// A completion channel of this process in a list, and the provider's table.
///
/// # Safety
/// As poll(2).
unsafe fn channel_in(list: *const pollfd, count: nfds_t) -> Option<(c_int, &'static FrontTable)> {
    let count = usize::try_from(count)
        .ok()
        .filter(|count| *count < ENTRIES)?;
    if list.is_null() {
        return None;
    }
    // SAFETY: the caller guarantees it.
    let entries = unsafe { std::slice::from_raw_parts(list, count) };
    let is_awaited = |entry: &&pollfd| entry.events & libc::POLLIN != 0 && fds::is_hit(entry.fd);
    entries
        .iter()
        .filter(is_awaited)
        .find_map(|entry| known(entry.fd))
}

#[cold]
fn known(fd: c_int) -> Option<(c_int, &'static FrontTable)> {
    let _uncancelled = Disabled::new();
    let before = real::errno();
    let found = fds::find(fd).filter(|found| found.kind == Kind::Channel && found.is_mine);
    real::set_errno(before);
    Some((fd, found.and_then(|_| provider::own())?))
}

/// A call of poll. It has nothing to drop, since the thread may be cancelled in it.
struct Poll {
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

    /// # Safety
    /// As poll(2).
    #[cold]
    unsafe fn wait(&mut self, channel: c_int, table: &FrontTable) -> c_int {
        let before = real::errno();
        // SAFETY: no precondition.
        let waker = unsafe { (table.channel_waker)(channel) };
        if let Ok(waker @ 0..) = c_int::try_from(waker) {
            self.copy[self.count].fd = waker;
            self.copy[self.count].events = libc::POLLIN;
            let this = from_mut(self).cast::<c_void>();
            let drive = |interrupts| {
                // SAFETY: `look` gets this, which outlives the wait.
                unsafe { (table.channel_poll)(channel, interrupts, this, look) }
            };
            // SAFETY: no value here needs to be dropped.
            let waited = unsafe { call::drive(table, drive) };
            if waited != urdma_abi::front::wait::READY {
                // SAFETY: the arguments of the caller.
                unsafe { self.sleep() };
            }
            call::has_waited(table, waited);
        } else {
            // SAFETY: the arguments of the caller.
            unsafe { self.sleep() };
        }
        self.call.end(before)
    }

    /// Sleeps as poll does, without the provider's help.
    ///
    /// # Safety
    /// As poll(2).
    unsafe fn sleep(&mut self) {
        let time = self.call.left();
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let (list, count) = (self.list, self.count as nfds_t);
        // SAFETY: the caller guarantees it.
        let result = unsafe { real::ppoll(list, count, time, self.call.mask) };
        self.call.note(result);
    }
}

/// Looks for events, and sleeps until there are some. The C library's function would be a
/// cancellation point.
unsafe extern "C" fn look(this: *mut c_void, limit_ns: i64, mask: u64) -> c_int {
    // SAFETY: the provider passes what it got from `wait`.
    let this = unsafe { &mut *this.cast::<Poll>() };
    let sleep = this.call.sleep(limit_ns, &mask);
    let (list, count) = (this.copy.as_mut_ptr(), this.count + 1);
    // SAFETY: a list of this length, a time and a mask of this size.
    let result = unsafe {
        // The system call changes it.
        let mut time = sleep.time;
        let time = time.as_mut().map_or(null_mut(), from_mut);
        libc::syscall(
            libc::SYS_ppoll,
            list,
            count,
            time,
            sleep.mask,
            call::MASK_OCTETS,
        )
    };
    this.call.note(c_int::try_from(result).unwrap_or(-1));
    let is_woken = this.call.result > 0 && this.copy[this.count].revents != 0;
    if is_woken {
        this.call.result -= 1;
    }
    let is_done = this.call.result != 0 || (sleep.is_last && !is_woken);
    if is_done && this.call.result >= 0 {
        // SAFETY: the list of the caller.
        let list = unsafe { std::slice::from_raw_parts_mut(this.list, this.count) };
        for (entry, copy) in list.iter_mut().zip(&this.copy) {
            entry.revents = copy.revents;
        }
    }
    let woken = if is_woken { looked::WOKEN } else { 0 };
    woken | if is_done { looked::DONE } else { 0 }
}
