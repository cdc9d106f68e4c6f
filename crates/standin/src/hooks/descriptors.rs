//! Functions that take a descriptor: writes are commands; closing and copying are tracked.

use std::ffi::{c_int, c_uint, c_void};

use libc::{c_ulong, size_t, ssize_t};

use crate::device::Device;
use crate::fds::{self, Closed, Found, Kind};
use crate::real::{self, set_errno};
use crate::{active, provider, uverbs};
use urdma_abi::cancel::Disabled;
use urdma_abi::front::mark;

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t {
    if fds::is_hit(fd) {
        // SAFETY: the arguments of the caller.
        return unsafe { write_command(fd, buf, len) };
    }
    // SAFETY: the arguments of the caller.
    unsafe { real::write(fd, buf, len) }
}

/// The C library's function is variadic; no request uses more than one argument.
#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if fds::is_hit(fd) {
        // SAFETY: the arguments of the caller.
        return unsafe { request_ours(fd, request, argument) };
    }
    // SAFETY: the arguments of the caller.
    unsafe { real::ioctl(fd, request, argument) }
}

/// A request to a stand-in file.
///
/// # Safety
/// As ioctl(2).
#[cold]
unsafe fn request_ours(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if request == uverbs::METHOD_REQUEST {
        if let Some((Device::Uverbs, found)) = device_behind(fd) {
            let _uncancelled = Disabled::new();
            let before = real::errno();
            // SAFETY: the argument of this request is a uverbs method with its attributes.
            return match unsafe { uverbs::method(fd, found.is_mine, argument.cast()) } {
                Ok(()) => {
                    set_errno(before);
                    0
                }
                Err(errno) => {
                    set_errno(errno);
                    -1
                }
            };
        }
    }
    // SAFETY: the arguments of the caller.
    let result = unsafe { real::ioctl(fd, request, argument) };
    if request == libc::FIONBIO {
        fds::forget_mode(fd);
    }
    result
}

/// A command must be written in one piece, so vectored writes are refused.
#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn writev(fd: c_int, parts: *const libc::iovec, count: c_int) -> ssize_t {
    if fds::is_hit(fd) {
        // SAFETY: the arguments of the caller.
        return unsafe { writev_ours(fd, parts, count) };
    }
    // SAFETY: the arguments of the caller.
    unsafe { real::writev(fd, parts, count) }
}

/// # Safety
/// As writev(2).
#[cold]
unsafe fn writev_ours(fd: c_int, parts: *const libc::iovec, count: c_int) -> ssize_t {
    if device_behind(fd).is_some() {
        set_errno(libc::EOPNOTSUPP);
        return -1;
    }
    // SAFETY: the arguments of the caller.
    unsafe { real::writev(fd, parts, count) }
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if fds::is_hit(fd) {
        // SAFETY: the arguments of the caller.
        return unsafe { close_ours(fd) };
    }
    // SAFETY: the arguments of the caller.
    unsafe { real::close(fd) }
}

/// Closes a stand-in file. Not a cancellation point: libibverbs closes some files while it holds a
/// lock, and a close must not be left incomplete.
///
/// # Safety
/// As close(2).
#[cold]
unsafe fn close_ours(fd: c_int) -> c_int {
    let _uncancelled = Disabled::new();
    if fds::is_spared(fd) {
        set_errno(libc::EBADF);
        return -1;
    }
    let channel = begin_close(fd);
    // SAFETY: the arguments of the caller.
    let failed = unsafe { real::close(fd) };
    end_close(fd, channel);
    failed
}

/// The provider marks a descriptor, or is about to close one that it has marked.
#[cfg_attr(not(test), no_mangle)]
unsafe extern "C" fn urdma_mark_descriptor(fd: c_int, mark: c_int) -> c_int {
    // There is no room for it if the table is full or the number too high.
    c_int::from(match mark {
        _ if !active::is_active() => false,
        mark::SPARED => fds::add(fd, Kind::Spared, 0),
        mark::ASYNC_EVENTS => fds::add(fd, Kind::AsyncEvents, 0),
        _ => {
            fds::remove(fd);
            false
        }
    })
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if flags & close_range_cloexec() == 0 {
        let mut from = first;
        for fd in fds::hits(first, last) {
            let number = fd.cast_unsigned();
            if !fds::is_spared(fd) {
                before_close(fd);
                continue;
            }
            if number > from {
                // SAFETY: a part of the range of the caller.
                let closed = unsafe { real::close_range(from, number - 1, flags) };
                if closed < 0 {
                    return closed;
                }
            }
            from = number + 1;
        }
        if from > first && from > last {
            return 0;
        }
        // SAFETY: the rest of the range of the caller.
        return unsafe { real::close_range(from, last, flags) };
    }
    // SAFETY: the arguments of the caller.
    unsafe { real::close_range(first, last, flags) }
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn closefrom(first: c_int) {
    let mut from = first.max(0);
    for fd in fds::hits(from.cast_unsigned(), u32::MAX) {
        if fds::is_spared(fd) {
            for between in from..fd {
                // SAFETY: a part of the range of the caller.
                unsafe { real::close(between) };
            }
            from = fd + 1;
        } else {
            before_close(fd);
        }
    }
    // SAFETY: the rest of the range of the caller.
    unsafe { real::closefrom(from) }
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    // SAFETY: the arguments of the caller.
    let copy = unsafe { real::dup(fd) };
    after_copy(fd, copy)
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn dup2(fd: c_int, new_fd: c_int) -> c_int {
    if fd != new_fd && fds::is_hit(new_fd) && is_open(fd) && !make_room(new_fd) {
        return -1;
    }
    // SAFETY: the arguments of the caller.
    let copy = unsafe { real::dup2(fd, new_fd) };
    after_copy(fd, copy)
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn dup3(fd: c_int, new_fd: c_int, flags: c_int) -> c_int {
    if fd != new_fd && fds::is_hit(new_fd) && is_open(fd) && !make_room(new_fd) {
        return -1;
    }
    // SAFETY: the arguments of the caller.
    let copy = unsafe { real::dup3(fd, new_fd, flags) };
    after_copy(fd, copy)
}

/// The C library's function is variadic; no command uses more than one argument.
#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    if fds::is_hit(fd) {
        // SAFETY: the arguments of the caller.
        return unsafe { fcntl_ours(fd, command, argument, real::fcntl) };
    }
    // SAFETY: the arguments of the caller.
    unsafe { real::fcntl(fd, command, argument) }
}

/// The C library's function is variadic; no command uses more than one argument.
#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    if fds::is_hit(fd) {
        // SAFETY: the arguments of the caller.
        return unsafe { fcntl_ours(fd, command, argument, real::fcntl64) };
    }
    // SAFETY: the arguments of the caller.
    unsafe { real::fcntl64(fd, command, argument) }
}

/// Makes the call on a stand-in file, and tracks the copies that it makes and changes of the mode.
///
/// # Safety
/// As fcntl(2), which `next` is.
#[cold]
#[inline(never)] // a hook with this in it saves registers for every call
unsafe fn fcntl_ours(
    fd: c_int,
    command: c_int,
    argument: *mut c_void,
    next: unsafe fn(c_int, c_int, *mut c_void) -> c_int,
) -> c_int {
    // SAFETY: the caller guarantees it.
    let result = unsafe { next(fd, command, argument) };
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => after_copy(fd, result),
        libc::F_SETFL => {
            fds::forget_mode(fd);
            result
        }
        _ => result,
    }
}

const fn close_range_cloexec() -> c_int {
    4 // CLOSE_RANGE_CLOEXEC, unsigned in the libc crate
}

fn device_behind(fd: c_int) -> Option<(Device, Found)> {
    let before = real::errno();
    let found = fds::find(fd);
    set_errno(before);
    match found?.kind {
        Kind::Device(device) => Some((device, found?)),
        Kind::Channel | Kind::AsyncEvents | Kind::Set | Kind::Netlink | Kind::Spared => None,
    }
}

/// A stand-in file that a write is for. The write keeps to it when another thread closes the
/// descriptor, as in the kernel, where it has its own reference to the file.
#[derive(Clone, Copy)]
struct Addressed {
    device: Device,
    found: Found,
    is_blocking: bool,
}

impl Addressed {
    /// Finds it before the command is carried out, without a system call for what has the form of a
    /// command for rdma_cm.
    ///
    /// # Safety
    /// As [`write_command`].
    unsafe fn find(fd: c_int, buf: *const c_void, len: size_t) -> Option<Self> {
        let before = real::errno();
        // SAFETY: the caller guarantees it.
        let is_command = unsafe { cm_command(buf, len) }.is_some();
        let unchecked = fds::find_unchecked(fd)
            .filter(|found| is_command && found.kind == Kind::Device(Device::RdmaCm))
            .map(|found| (Device::RdmaCm, found));
        let addressed = unchecked.or_else(|| device_behind(fd));
        let addressed = addressed.map(|(device, found)| Self {
            device,
            found,
            is_blocking: is_blocking(fd),
        });
        set_errno(before);
        addressed
    }

    /// Whether `fd`, which named it, does so no longer.
    fn is_closed(&self, fd: c_int) -> bool {
        fds::find_unchecked(fd) != Some(self.found)
    }
}

/// Result of a write to a stand-in file.
enum Outcome {
    /// The result of write(2); errno is set.
    Done(ssize_t),
    /// No event is pending, and the file is blocking.
    MustWait,
}

/// # Safety
/// As write(2); the octets are a command whose addresses are valid.
#[cold]
unsafe fn write_command(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: the caller guarantees it.
    let Some(file) = (unsafe { Addressed::find(fd, buf, len) }) else {
        // SAFETY: the caller guarantees it.
        let command = unsafe { cm_command(buf, len) }.filter(|_| fds::is_closing(fd));
        if command == Some(CM_GET_EVENT) && is_blocking(fd) {
            // It came before the end of the close, and the file has no event any more.
            // SAFETY: no value here needs to be dropped.
            return unsafe { super::call::sleep_on() };
        }
        if command.is_some() {
            set_errno(libc::EBADF);
            return -1;
        }
        // SAFETY: the arguments of the caller.
        return unsafe { real::write(fd, buf, len) };
    };
    loop {
        // SAFETY: the caller guarantees it.
        if let Outcome::Done(result) = unsafe { carry_out(&file, fd, buf, len) } {
            return result;
        }
        if file.is_closed(fd) {
            // SAFETY: no value here needs to be dropped.
            return unsafe { super::call::sleep_on() };
        }
        // A cancellation point, like the write to the kernel's rdma_cm that it replaces. A signal
        // ends it with EINTR; unlike the kernel's, it is not restarted after a handler with
        // SA_RESTART.
        // SAFETY: no value here needs to be dropped.
        if unsafe { super::polls::wait_until_readable(fd) } < 0 {
            return -1;
        }
    }
}

/// # Safety
/// As [`write_command`].
unsafe fn carry_out(file: &Addressed, fd: c_int, buf: *const c_void, len: size_t) -> Outcome {
    let _uncancelled = Disabled::new();
    let before = real::errno();
    let outcome = if !file.found.is_mine {
        -i64::from(libc::EIO)
    } else if buf.is_null() {
        -i64::from(libc::EFAULT)
    } else {
        // SAFETY: the caller guarantees it.
        unsafe { forward(file.device, file.found.handle, buf, len) }
    };
    let has_no_event = outcome == -i64::from(libc::EAGAIN)
        // SAFETY: the caller guarantees it.
        || (file.is_closed(fd) && unsafe { cm_command(buf, len) } == Some(CM_GET_EVENT));
    if outcome < 0 && has_no_event && file.is_blocking {
        set_errno(before);
        return Outcome::MustWait;
    }
    if outcome < 0 {
        set_errno(c_int::try_from(-outcome).unwrap_or(libc::EIO));
        return Outcome::Done(-1);
    }
    set_errno(before);
    Outcome::Done(ssize_t::try_from(outcome).unwrap_or(ssize_t::MAX))
}

/// RDMA_USER_CM_CMD_GET_EVENT.
const CM_GET_EVENT: u32 = 12;

/// The number of the command if these octets have the form of one for rdma_cm other than the first
/// for an id: its number, the length of the rest, and the length of the answer.
///
/// # Safety
/// As [`write_command`].
unsafe fn cm_command(buf: *const c_void, len: size_t) -> Option<u32> {
    const HEADER: usize = 8;
    const COMMANDS: std::ops::Range<u32> = 1..64;
    if buf.is_null() || len < HEADER {
        return None;
    }
    // SAFETY: the caller guarantees the octets of a header.
    let header = unsafe { buf.cast::<[u8; HEADER]>().read() };
    let [a, b, c, d, low, high, ..] = header;
    let command = u32::from_ne_bytes([a, b, c, d]);
    let has_form =
        COMMANDS.contains(&command) && usize::from(u16::from_ne_bytes([low, high])) == len - HEADER;
    has_form.then_some(command)
}

/// Whether a stand-in file is in blocking mode.
pub(super) fn is_blocking(fd: c_int) -> bool {
    fds::is_blocking(fd, || {
        // SAFETY: fcntl with F_GETFL touches no memory.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        flags >= 0 && flags & libc::O_NONBLOCK == 0
    })
}

/// # Safety
/// As [`write_command`], and `buf` is not null.
unsafe fn forward(device: Device, handle: i64, buf: *const c_void, len: size_t) -> i64 {
    match device {
        Device::Uverbs => {
            // SAFETY: the caller guarantees it.
            let octets = unsafe { std::slice::from_raw_parts(buf.cast::<u8>(), len) };
            // SAFETY: the caller guarantees it.
            unsafe { uverbs::command(octets) }
        }
        Device::RdmaCm => match provider::table() {
            // SAFETY: the caller guarantees it.
            Some(table) => unsafe { (table.cm_write)(handle, buf, len) },
            None => -i64::from(libc::ENODEV),
        },
    }
}

/// The descriptor is about to be closed together with others.
#[cold]
fn before_close(fd: c_int) {
    end_close(fd, begin_close(fd));
}

/// The descriptor is about to be closed. What is returned is passed to [`end_close`] afterwards.
fn begin_close(fd: c_int) -> i64 {
    let _uncancelled = Disabled::new();
    let before = real::errno();
    let closed = fds::begin_close(fd);
    let mut channel = 0;
    if let Some(table) = provider_if(closed != Closed::Nothing) {
        match closed {
            // SAFETY: cm_open returned the handle, and this is its last use.
            Closed::RdmaCm(handle) => unsafe { (table.cm_close)(handle) },
            // SAFETY: the descriptor was passed to channel_open.
            Closed::Channel => channel = unsafe { (table.channel_close)(fd) },
            // SAFETY: the descriptor was passed to set_join.
            Closed::Set => unsafe { (table.set_close)(fd) },
            Closed::Nothing => {}
        }
    }
    set_errno(before);
    channel
}

fn end_close(fd: c_int, channel: i64) {
    fds::end_close(fd);
    if let Some(table) = provider_if(channel > 0) {
        let _uncancelled = Disabled::new();
        let before = real::errno();
        // SAFETY: `channel_close` has returned it, and this is its last use.
        unsafe { (table.channel_release)(channel) };
        set_errno(before);
    }
}

fn provider_if(needed: bool) -> Option<&'static urdma_abi::front::FrontTable> {
    if needed {
        provider::table()
    } else {
        None
    }
}

#[inline]
fn after_copy(fd: c_int, copy: c_int) -> c_int {
    if copy >= 0 && copy != fd && fds::is_hit(fd) {
        let before = real::errno();
        fds::copy(fd, copy);
        set_errno(before);
    }
    copy
}

/// Prepares a descriptor to be replaced by a copy of another. Returns false, with EBUSY, for a
/// descriptor of the provider: the program does not know it, and the device would be lost.
#[cold]
fn make_room(fd: c_int) -> bool {
    if fds::is_spared(fd) {
        set_errno(libc::EBUSY);
        return false;
    }
    before_close(fd);
    true
}

/// Whether a descriptor is open, so that copying it will succeed.
fn is_open(fd: c_int) -> bool {
    let before = real::errno();
    // SAFETY: fcntl with F_GETFD touches no memory.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    set_errno(before);
    flags >= 0
}
