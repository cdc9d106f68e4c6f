//! Calls in which a thread sleeps until a completion channel or the asynchronous events of a
//! context have an event: the provider makes progress in this thread meanwhile. And pthread_cancel,
//! which ends such a sleep.

use std::ffi::{c_int, c_void};

use libc::{pthread_t, size_t, ssize_t};

use crate::fds::{self, Found, Kind};
use crate::provider;
use crate::real::{self, set_errno};
use urdma_abi::front::{take, wait};

extern "C-unwind" {
    fn pthread_testcancel();
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
    if fds::is_hit(fd) && len > 0 {
        // SAFETY: the arguments of the caller.
        return unsafe { read_event(fd, buf, len) };
    }
    // SAFETY: the arguments of the caller.
    unsafe { real::read(fd, buf, len) }
}

/// # Safety
/// As read(2).
#[cold]
unsafe fn read_event(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
    let channel = awaited_channel(fd);
    // SAFETY: the arguments of the caller, and no value here needs to be dropped.
    let taken = unsafe { read_open(fd, channel.is_some(), buf, len) };
    let is_end = taken == 0 || (taken < 0 && real::errno() != libc::EINTR);
    if is_end && channel.is_some() && fds::find_unchecked(fd) != channel {
        // SAFETY: no value here needs to be dropped.
        return unsafe { super::call::sleep_on() };
    }
    taken
}

/// `is_awaited`: see [`awaited_channel`].
///
/// # Safety
/// As read(2).
unsafe fn read_open(fd: c_int, is_awaited: bool, buf: *mut c_void, len: size_t) -> ssize_t {
    let before = real::errno();
    // What is no socket, or has no event, is left to the rest. Without a request to cancel the
    // thread, this is what read(2) does to any socket.
    // SAFETY: the arguments of the caller, and no value here needs to be dropped.
    unsafe { pthread_testcancel() };
    // SAFETY: the arguments of the caller.
    match unsafe { take_event(fd, buf, len) } {
        Taken::Read(taken) if taken >= 0 => return taken,
        Taken::Nothing if !is_awaited && !super::descriptors::is_blocking(fd) => {
            set_errno(libc::EAGAIN);
            return -1;
        }
        Taken::Nothing | Taken::Read(_) => {}
    }
    set_errno(before);
    let Some(table) = is_awaited.then(provider::own).flatten() else {
        // SAFETY: the arguments of the caller.
        return unsafe { read_socket(fd, buf, len) };
    };
    loop {
        // SAFETY: no precondition.
        let interrupts = unsafe { (table.interrupts)() };
        // A request to cancel that comes later changes the number.
        // SAFETY: no value here needs to be dropped.
        unsafe { pthread_testcancel() };
        let before = real::errno();
        // SAFETY: no precondition.
        let waited = unsafe { (table.channel_wait)(fd, interrupts) };
        set_errno(before);
        match waited {
            wait::READY => {
                // SAFETY: the arguments of the caller.
                let mut taken = unsafe { take_event(fd, buf, len) };
                if matches!(taken, Taken::Nothing) {
                    // Another thread has taken it, or the socket has what the provider did not
                    // send, such as its end.
                    // SAFETY: the arguments of the caller.
                    taken = unsafe { take_from_socket(fd, buf, len) };
                }
                if let Taken::Read(taken) = taken {
                    return taken;
                }
                set_errno(before);
            }
            wait::INTERRUPTED => {
                set_errno(libc::EINTR);
                return -1;
            }
            // SAFETY: no value here needs to be dropped.
            wait::CLOSED => return unsafe { super::call::sleep_on() },
            waited => {
                // SAFETY: the arguments of the caller.
                let taken = unsafe { read_socket(fd, buf, len) };
                if waited == wait::BYSTANDER {
                    let after = real::errno();
                    // SAFETY: no precondition.
                    unsafe { (table.channel_has_read)(fd) };
                    set_errno(after);
                }
                return taken;
            }
        }
    }
}

/// The file with events in which a thread of this process that reads the descriptor may sleep.
fn awaited_channel(fd: c_int) -> Option<Found> {
    let before = real::errno();
    let has_events = |kind| matches!(kind, Kind::Channel | Kind::AsyncEvents);
    let is_ours = |found: &Found| has_events(found.kind) && found.is_mine;
    let found = fds::find_unchecked(fd).filter(is_ours);
    let found = found.filter(|_| super::descriptors::is_blocking(fd));
    set_errno(before);
    found
}

/// What a read without sleeping has found.
enum Taken {
    /// The result of read(2); errno is set.
    Read(ssize_t),
    /// No event.
    Nothing,
}

/// Reads an event without sleeping. The C library's function would be a cancellation point.
///
/// # Safety
/// As read(2).
unsafe fn take_event(fd: c_int, buf: *mut c_void, len: size_t) -> Taken {
    // SAFETY: the caller guarantees it.
    if let Some(taken) = unsafe { take_from_memory(fd, buf, len) } {
        return taken;
    }
    // SAFETY: the caller guarantees it.
    unsafe { take_from_socket(fd, buf, len) }
}

/// # Safety
/// As read(2).
unsafe fn take_from_socket(fd: c_int, buf: *mut c_void, len: size_t) -> Taken {
    let no_address = std::ptr::null_mut::<c_void>();
    // SAFETY: the buffer of the caller; the sender's address is not asked for.
    let taken = unsafe {
        libc::syscall(
            libc::SYS_recvfrom,
            fd,
            buf,
            len,
            libc::MSG_DONTWAIT,
            no_address,
            no_address,
        )
    };
    if taken < 0 && real::errno() == libc::EAGAIN {
        return Taken::Nothing;
    }
    note_received(fd, taken > 0);
    Taken::Read(ssize_t::try_from(taken).unwrap_or(-1))
}

/// Takes an event that is in the provider's memory. `None`: the socket may have one.
///
/// # Safety
/// As read(2).
unsafe fn take_from_memory(fd: c_int, buf: *mut c_void, len: size_t) -> Option<Taken> {
    let table = provider::own()?;
    let mut event = 0;
    // SAFETY: a word of this function.
    match unsafe { (table.channel_take)(fd, &raw mut event) } {
        take::TAKEN => {}
        take::NOTHING => return Some(Taken::Nothing),
        _ => return None,
    }
    let octets = event.to_ne_bytes();
    let len = len.min(octets.len());
    // SAFETY: the caller's buffer has room for `len` octets.
    unsafe { std::ptr::copy_nonoverlapping(octets.as_ptr(), buf.cast(), len) };
    Some(Taken::Read(ssize_t::try_from(len).unwrap_or(0)))
}

/// Sleeps in read(2).
///
/// # Safety
/// As read(2).
unsafe fn read_socket(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: the caller guarantees it.
    let taken = unsafe { real::read(fd, buf, len) };
    note_received(fd, taken > 0);
    taken
}

/// Tells the provider that an event was read from the socket, if one was.
fn note_received(fd: c_int, was_read: bool) {
    if !was_read {
        return;
    }
    let before = real::errno();
    if let Some(table) = provider::own() {
        // SAFETY: no precondition.
        unsafe { (table.channel_has_received)(fd) };
    }
    set_errno(before);
}

/// A thread that sleeps in a completion channel does not notice a request to cancel it.
#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn pthread_cancel(thread: pthread_t) -> c_int {
    // SAFETY: the argument of the caller.
    let failed = unsafe { real::pthread_cancel(thread) };
    if let Some(table) = provider::own() {
        // SAFETY: no precondition.
        unsafe { (table.interrupt)() };
    }
    failed
}
