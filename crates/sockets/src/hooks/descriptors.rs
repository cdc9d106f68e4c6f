//! Functions that make, copy, close and change descriptors.

use std::ffi::{c_int, c_uint, c_ulong, c_void};

use libc::{sockaddr, socklen_t};

use crate::begin::{begin, begin_as_is, Begun};
use crate::connection::Connection;
use crate::reasons::Reason;
use crate::signals::Masked;
use crate::table::{self, Cell, State};
use crate::{bell, connection, early, leave, lent, limits, process, real};

/// A new descriptor is a TCP socket. It is of this process alone unless a child was forked since
/// `forks` were counted, before the call that has made it.
fn note_new(fd: c_int, is_accepted: bool, forks: u64) {
    if process::run_dir().is_none() {
        return;
    }
    if let Some(cell) = table::cell(fd) {
        cell.begin(fd, is_accepted, forks);
    }
}

/// What a call's kind of socket has beside flags, of the kernel's `linux/net.h`.
const SOCK_TYPE_MASK: c_int = 0xf;

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let is_stream = kind & SOCK_TYPE_MASK == libc::SOCK_STREAM;
    let is_tcp = is_stream
        && matches!(protocol, 0 | libc::IPPROTO_TCP)
        && matches!(domain, libc::AF_INET | libc::AF_INET6);
    let forks = is_tcp.then(lent::forks);
    // SAFETY: the arguments of the caller.
    let fd = unsafe { real::socket(domain, kind, protocol) };
    if let (0.., Some(forks)) = (fd, forks) {
        note_new(fd, false, forks);
    }
    fd
}

/// A listener has given a socket, or an error. What is known of the listener is so of the socket:
/// that spares a call for each connection.
fn accepted(listener: c_int, fd: c_int, forks: u64) {
    if fd < 0 {
        return;
    }
    let is_known = table::cell(listener).is_some_and(Cell::is_of_tcp);
    if is_known || connection::is_tcp(fd) {
        note_new(fd, true, forks);
        early::connected(fd);
    }
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn accept(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    let forks = lent::forks();
    // SAFETY: the arguments of the caller.
    let new = unsafe { real::accept(fd, address, len) };
    accepted(fd, new, forks);
    new
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn accept4(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    let forks = lent::forks();
    // SAFETY: the arguments of the caller.
    let new = unsafe { real::accept4(fd, address, len, flags) };
    accepted(fd, new, forks);
    new
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    // A socket that was connected before may get another peer.
    if table::hit(fd).is_some_and(|cell| cell.seen().state() != State::Alone) {
        leave::retire(fd, Reason::OtherCall);
    }
    // SAFETY: the arguments of the caller.
    let result = unsafe { real::connect(fd, address, len) };
    early::connected(fd);
    result
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if bell::spared() == Some(fd) {
        real::set_errno(libc::EBADF);
        return -1;
    }
    leave::before_close(fd);
    // SAFETY: the arguments of the caller.
    unsafe { real::close(fd) }
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let keeps = libc::CLOSE_RANGE_CLOEXEC.cast_signed();
    if flags & keeps == 0 {
        leave::before_close_range(first, last);
        let spared = bell::spared().map(c_int::cast_unsigned);
        if let Some(spared) = spared.filter(|spared| (first..=last).contains(spared)) {
            for (first, last) in [(first, spared.wrapping_sub(1)), (spared + 1, last)] {
                if first <= last {
                    // SAFETY: parts of the range of the caller.
                    unsafe { real::close_range(first, last, flags) };
                }
            }
            return 0;
        }
    }
    // SAFETY: the arguments of the caller.
    unsafe { real::close_range(first, last, flags) }
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn closefrom(first: c_int) {
    let from = u32::try_from(first).unwrap_or(0);
    leave::before_close_range(from, u32::MAX);
    if bell::spared().is_some() {
        // SAFETY: the range of the caller.
        unsafe { close_range(from, u32::MAX, 0) };
        return;
    }
    // SAFETY: the arguments of the caller.
    unsafe { real::closefrom(first) }
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn dup2(fd: c_int, new_fd: c_int) -> c_int {
    before_copy(fd, new_fd);
    // SAFETY: the arguments of the caller.
    unsafe { real::dup2(fd, new_fd) }
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn dup3(fd: c_int, new_fd: c_int, flags: c_int) -> c_int {
    before_copy(fd, new_fd);
    // SAFETY: the arguments of the caller.
    unsafe { real::dup3(fd, new_fd, flags) }
}

/// A descriptor gets another number, which is closed if it is open.
fn before_copy(fd: c_int, new_fd: c_int) {
    leave::retire(fd, Reason::Dup);
    if fd != new_fd && table::cell(new_fd).is_some_and(Cell::is_of_tcp) {
        // SAFETY: the command takes no argument.
        let is_open = unsafe { real::fcntl(fd, libc::F_GETFD, std::ptr::null_mut()) } >= 0;
        if is_open {
            leave::before_close(new_fd);
        }
    }
}

/// The C library's function is variadic; no command uses more than one argument.
#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    before_fcntl(fd, command, argument);
    // SAFETY: the arguments of the caller.
    let result = unsafe { real::fcntl(fd, command, argument) };
    if command == libc::F_SETFL {
        forget_mode(fd);
    }
    result
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    before_fcntl(fd, command, argument);
    // SAFETY: the arguments of the caller.
    let result = unsafe { real::fcntl64(fd, command, argument) };
    if command == libc::F_SETFL {
        forget_mode(fd);
    }
    result
}

/// The program has changed whether calls wait.
fn forget_mode(fd: c_int) {
    with_rings(fd, Connection::forget_mode);
}

fn before_fcntl(fd: c_int, command: c_int, argument: *mut c_void) {
    /// `F_SETSIG` of fcntl(2).
    const F_SETSIG: c_int = 10;
    /// `F_SETOWN_EX` of fcntl(2).
    const F_SETOWN_EX: c_int = 15;
    let is_async = argument as usize & libc::O_ASYNC.unsigned_abs() as usize != 0;
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => leave::retire(fd, Reason::Dup),
        libc::F_SETOWN | F_SETSIG | F_SETOWN_EX => leave::retire(fd, Reason::Option),
        libc::F_SETFL if is_async => leave::retire(fd, Reason::Option),
        libc::F_SETFD if argument as usize & libc::FD_CLOEXEC.unsigned_abs() as usize == 0 => {
            keep_open(fd);
        }
        _ => {}
    }
}

/// A program that is executed gets the descriptor. What a vforked child gives it is the kernel's
/// before: its parent looks before the vfork.
fn keep_open(fd: c_int) {
    if !process::is_home() {
        leave::retire(fd, Reason::Inherited);
    }
}

/// `SIOCOUTQNSD` of `linux/sockios.h`.
const SIOCOUTQNSD: c_ulong = 0x894b;

/// The C library's function is variadic; no request uses more than one argument.
#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let is_count = matches!(request, libc::FIONREAD | libc::TIOCOUTQ | SIOCOUTQNSD);
    if let Some(cell) = table::hit(fd).filter(|_| is_count) {
        // SAFETY: the arguments of the caller.
        let kernel = || unsafe { real::ioctl(fd, request, argument) };
        // SAFETY: null, or the int of the caller.
        let count = unsafe { argument.cast::<c_int>().as_mut() };
        return count_octets(cell, request, count, kernel);
    }
    let is_mode = matches!(request, libc::FIONBIO | libc::FIOCLEX | libc::FIONCLEX);
    if !is_mode {
        leave::retire(fd, Reason::Ioctl);
    }
    if request == libc::FIONCLEX {
        keep_open(fd);
    }
    // SAFETY: the arguments of the caller.
    let result = unsafe { real::ioctl(fd, request, argument) };
    if is_mode {
        forget_mode(fd);
    }
    result
}

/// FIONREAD, SIOCOUTQ (the same as TIOCOUTQ), and SIOCOUTQNSD.
fn count_octets(
    cell: &'static Cell,
    request: c_ulong,
    count: Option<&mut c_int>,
    kernel: impl Fn() -> c_int,
) -> c_int {
    let masked = Masked::new();
    let begun = begin(cell);
    let result = match (begun, count) {
        (Begun::Rings(connection), Some(count)) => {
            let octets = if request == libc::FIONREAD {
                connection.readable()
            } else {
                connection.unsent(request)
            };
            *count = c_int::try_from(octets).unwrap_or(c_int::MAX);
            0
        }
        _ => kernel(),
    };
    begun.leave(cell);
    drop(masked);
    result
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    if is_cork(level, name) && usize::try_from(len).is_ok_and(|len| len >= size_of::<c_int>()) {
        // SAFETY: null or the value of the caller.
        if unsafe { value.cast::<c_int>().as_ref() }.is_some_and(|cork| set_cork(fd, *cork != 0)) {
            return 0;
        }
    }
    limits::note(level, name);
    // What a socket has is looked at when it is offered.
    let is_least = (level, name) == (libc::SOL_SOCKET, libc::SO_RCVLOWAT);
    let is_offered = || table::hit(fd).is_some_and(|cell| cell.seen().state() != State::Alone);
    let is_hit = table::hit(fd).is_some();
    if is_hit && is_of_kernel(level, name) || is_least && is_offered() {
        leave::retire(fd, Reason::Option);
    }
    // SAFETY: the arguments of the caller.
    let result = unsafe { real::setsockopt(fd, level, name, value, len) };
    // SAFETY: the kernel has read the value.
    let never_waits = || result == 0 && unsafe { limits::is_negative(level, name, value) };
    if is_least && is_offered() || is_hit && never_waits() {
        leave::retire(fd, Reason::Option);
    }
    result
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    settle_cork(fd, level, name);
    // SAFETY: the arguments of the caller.
    unsafe { real::getsockopt(fd, level, name, value, len) }
}

/// TCP_CORK of a socket with rings; false for others.
fn set_cork(fd: c_int, is_on: bool) -> bool {
    with_rings(fd, |connection| connection.set_cork(is_on))
}

/// The kernel is about to be asked for an option, or to set it by a system call.
pub(super) fn settle_cork(fd: c_int, level: c_int, name: c_int) {
    if is_cork(level, name) {
        with_rings(fd, Connection::settle_cork);
    }
}

fn is_cork(level: c_int, name: c_int) -> bool {
    (level, name) == (libc::IPPROTO_TCP, libc::TCP_CORK)
}

/// Uses the connection of a socket with rings; false for others. On most no call begins: one that
/// gets its rings now has had none when the program's call was made.
fn with_rings(fd: c_int, use_it: impl FnOnce(&Connection)) -> bool {
    let cell = table::hit_as_seen(fd).filter(|(_, seen)| seen.state() == State::Rings);
    let Some((cell, _)) = cell else {
        return false;
    };
    let masked = Masked::new();
    let begun = begin_as_is(cell);
    let has_rings = matches!(begun, Begun::Rings(_));
    if let Begun::Rings(connection) = begun {
        use_it(connection);
    }
    begun.leave(cell);
    drop(masked);
    has_rings
}

/// Other options that change what sending and receiving do, in a way that the switch does not know.
fn is_of_kernel(level: c_int, name: c_int) -> bool {
    const SO_ZEROCOPY: c_int = 60;
    match level {
        libc::SOL_SOCKET => matches!(
            name,
            libc::SO_OOBINLINE
                | libc::SO_PEEK_OFF
                | libc::SO_TIMESTAMP
                | libc::SO_TIMESTAMPNS
                | libc::SO_TIMESTAMPING
                | SO_ZEROCOPY
        ),
        libc::IPPROTO_TCP => matches!(
            name,
            libc::TCP_ULP
                | libc::TCP_REPAIR
                | libc::TCP_MD5SIG
                | libc::TCP_INQ
                | libc::TCP_FASTOPEN_CONNECT
        ),
        _ => false,
    }
}
