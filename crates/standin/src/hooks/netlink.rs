//! Sockets of RDMA netlink. A program gets a socket of NETLINK_USERSOCK, a family between processes
//! that every kernel with netlink has, so that binding it, its name, its options, receiving and
//! waiting are the kernel's. What the program sends is answered at once: the stand-in sends the
//! answer from this socket to itself.
//!
//! - **No other process can answer.** Before the first answer the socket is connected to itself,
//!   after which the kernel refuses (ECONNREFUSED) messages of other sockets, and what came before
//!   is discarded.
//! - **What is not interposed fails.** A request that is sent by a system call of the program's
//!   own, by sendmmsg, or in a child process goes to port 0, where nobody is: ECONNREFUSED. A
//!   socket that is made by a system call of the program's own is the kernel's.
//! - **Groups have no messages** of the stand-in. Only a process with CAP_NET_ADMIN can join one
//!   (`rdma monitor`), and any process can send to it.
//! - **A process with libibverbs gets none**, since libibverbs would prefer netlink to sysfs.

use std::ffi::{c_int, c_void, CStr, OsStr};
use std::mem::zeroed;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{from_ref, null_mut};

use libc::{iovec, size_t, sockaddr, sockaddr_nl, socklen_t, ssize_t};

use crate::fds::{self, Found, Kind};
use crate::real::{self, set_errno};
use crate::{active, netlink, owner};
use urdma_abi::cancel::Disabled;

/// `NETLINK_RDMA`.
const NETLINK_RDMA: c_int = 20;
/// The handle of a socket that is connected to itself.
const CONNECTED: i64 = 1;
/// Longest datagram of a program, more than a socket's default buffer lets pass.
const MAX_OCTETS: usize = 1 << 18;
const ADDRESS_OCTETS: socklen_t = 12;

const _: () = assert!(size_of::<sockaddr_nl>() == ADDRESS_OCTETS as usize);

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if domain == libc::AF_NETLINK && protocol == NETLINK_RDMA && active::is_active() {
        return open(kind);
    }
    // SAFETY: the arguments of the caller.
    unsafe { real::socket(domain, kind, protocol) }
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn sendmsg(
    fd: c_int,
    message: *const libc::msghdr,
    flags: c_int,
) -> ssize_t {
    if !fds::is_hit(fd) || message.is_null() {
        // SAFETY: the arguments of the caller.
        return unsafe { real::sendmsg(fd, message, flags) };
    }
    // SAFETY: not null, so a message of the caller.
    let parts = unsafe { ((*message).msg_iov.cast_const(), (*message).msg_iovlen) };
    // SAFETY: the arguments of the caller.
    let kernel = move || unsafe { real::sendmsg(fd, message, flags) };
    // SAFETY: the caller's array of parts.
    unsafe { take_if_ours(fd, parts, kernel) }
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    address: *const sockaddr,
    address_octets: socklen_t,
) -> ssize_t {
    if !fds::is_hit(fd) {
        // SAFETY: the arguments of the caller.
        return unsafe { real::sendto(fd, buf, len, flags, address, address_octets) };
    }
    // SAFETY: the arguments of the caller.
    let kernel = move || unsafe { real::sendto(fd, buf, len, flags, address, address_octets) };
    let part = part(buf, len);
    // SAFETY: the caller's octets.
    unsafe { take_if_ours(fd, (&raw const part, 1), kernel) }
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn send(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    if !fds::is_hit(fd) {
        // SAFETY: the arguments of the caller.
        return unsafe { real::send(fd, buf, len, flags) };
    }
    // SAFETY: the arguments of the caller.
    let kernel = move || unsafe { real::send(fd, buf, len, flags) };
    let part = part(buf, len);
    // SAFETY: the caller's octets.
    unsafe { take_if_ours(fd, (&raw const part, 1), kernel) }
}

fn part(buf: *const c_void, len: size_t) -> iovec {
    iovec {
        iov_base: buf.cast_mut(),
        iov_len: len,
    }
}

/// Makes a socket of RDMA netlink.
#[cold]
fn open(kind: c_int) -> c_int {
    let _uncancelled = Disabled::new();
    if !owner::is_first() || has_libibverbs() {
        set_errno(libc::EPROTONOSUPPORT);
        return -1;
    }
    // SAFETY: socket touches no memory.
    let fd = unsafe { real::socket(libc::AF_NETLINK, kind, libc::NETLINK_USERSOCK) };
    if fd >= 0 && !fds::add(fd, Kind::Netlink, 0) {
        // SAFETY: the descriptor was opened here.
        unsafe { real::close(fd) };
        set_errno(libc::EMFILE);
        return -1;
    }
    fd
}

/// Whether a copy of libibverbs is loaded, also under another name, as Python wheels bring it.
fn has_libibverbs() -> bool {
    // SAFETY: the function has the type that dl_iterate_phdr asks for, and needs no data.
    unsafe { libc::dl_iterate_phdr(Some(is_libibverbs), null_mut()) != 0 }
}

unsafe extern "C" fn is_libibverbs(
    object: *mut libc::dl_phdr_info,
    _octets: size_t,
    _data: *mut c_void,
) -> c_int {
    // SAFETY: dl_iterate_phdr passes an object of the process.
    let path = unsafe { (*object).dlpi_name };
    if path.is_null() {
        return 0;
    }
    // SAFETY: the name of an object is a C string.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let name = path.rsplit(|octet| *octet == b'/').next();
    c_int::from(name.is_some_and(|name| name.starts_with(b"libibverbs")))
}

#[cold]
fn is_ours(fd: c_int) -> bool {
    let is_netlink = |found: Found| found.kind == Kind::Netlink && found.is_mine;
    if !fds::find_unchecked(fd).is_some_and(is_netlink) {
        return false;
    }
    let before = real::errno();
    let found = fds::find(fd);
    set_errno(before);
    found.is_some_and(is_netlink)
}

/// [`take`], if the socket is one of RDMA netlink; else `kernel` makes the call of the program.
/// Calls on other descriptors save nothing for this one.
///
/// # Safety
/// As [`take`].
#[cold]
#[inline(never)]
unsafe fn take_if_ours(
    fd: c_int,
    (parts, count): (*const iovec, usize),
    kernel: impl Fn() -> ssize_t,
) -> ssize_t {
    if !is_ours(fd) {
        return kernel();
    }
    // SAFETY: guaranteed by the caller.
    unsafe { take(fd, parts, count) }
}

/// Takes a datagram of the program and answers it; what sendmsg(2) returns.
///
/// # Safety
/// `parts` are `count` parts of readable octets.
#[cold]
unsafe fn take(fd: c_int, parts: *const iovec, count: usize) -> ssize_t {
    let _uncancelled = Disabled::new();
    let before = real::errno();
    let mut octets = Vec::new();
    for index in 0..if parts.is_null() { 0 } else { count } {
        // SAFETY: the caller guarantees it.
        let part = unsafe { *parts.add(index) };
        if part.iov_base.is_null() || part.iov_len == 0 {
            continue;
        }
        if octets.len().saturating_add(part.iov_len) > MAX_OCTETS {
            set_errno(libc::EMSGSIZE);
            return -1;
        }
        // SAFETY: the caller guarantees it.
        octets.extend(unsafe { std::slice::from_raw_parts(part.iov_base.cast(), part.iov_len) });
    }
    match answer(fd, &octets) {
        Ok(()) => {
            set_errno(before);
            ssize_t::try_from(octets.len()).unwrap_or(ssize_t::MAX)
        }
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

fn answer(fd: c_int, octets: &[u8]) -> Result<(), c_int> {
    let port = connect_to_itself(fd)?;
    let sysfs = Path::new(OsStr::from_bytes(active::sysfs().unwrap_or_default()));
    let to = address(port);
    for datagram in netlink::answers(octets, port, sysfs) {
        // SAFETY: octets and an address of this function; the system call, since the functions of
        // the C library would lead back to here.
        let sent = unsafe {
            libc::syscall(
                libc::SYS_sendto,
                fd,
                datagram.as_ptr(),
                datagram.len(),
                libc::MSG_DONTWAIT,
                from_ref(&to),
                ADDRESS_OCTETS,
            )
        };
        if sent < 0 {
            // As the kernel says when the receive buffer has no room for an answer.
            return Err(libc::ENOBUFS);
        }
    }
    Ok(())
}

fn address(port: u32) -> sockaddr_nl {
    // SAFETY: all zeros is a valid address.
    let mut address: sockaddr_nl = unsafe { zeroed() };
    address.nl_family = libc::sa_family_t::try_from(libc::AF_NETLINK).unwrap_or_default();
    address.nl_pid = port;
    address
}

/// Connects the socket to itself, once, so that it receives from nobody else; its port.
fn connect_to_itself(fd: c_int) -> Result<u32, c_int> {
    let port = match port_of(fd)? {
        0 => {
            let any = address(0);
            // SAFETY: an address of this function.
            check(unsafe { libc::bind(fd, from_ref(&any).cast(), ADDRESS_OCTETS) })?;
            port_of(fd)?
        }
        port => port,
    };
    if fds::find(fd).is_none_or(|found| found.handle == CONNECTED) {
        return Ok(port);
    }
    let itself = address(port);
    // SAFETY: an address of this function.
    check(unsafe { libc::connect(fd, from_ref(&itself).cast(), ADDRESS_OCTETS) })?;
    discard_received(fd);
    fds::set_handle(fd, CONNECTED);
    Ok(port)
}

/// Discards what the socket has received, and errors of its own, until it is empty or gone.
fn discard_received(fd: c_int) {
    loop {
        // SAFETY: no octet is received into the buffer of length 0; the datagram is dropped.
        let received = unsafe { libc::recv(fd, null_mut(), 0, libc::MSG_DONTWAIT) };
        let is_of_socket = [libc::ENOBUFS, libc::ECONNREFUSED, libc::EINTR];
        if received < 0 && !is_of_socket.contains(&real::errno()) {
            return;
        }
    }
}

fn port_of(fd: c_int) -> Result<u32, c_int> {
    let (mut name, mut octets) = (address(0), ADDRESS_OCTETS);
    // SAFETY: room for an address, and its length.
    check(unsafe { libc::getsockname(fd, (&raw mut name).cast(), &raw mut octets) })?;
    Ok(name.nl_pid)
}

fn check(result: c_int) -> Result<(), c_int> {
    if result < 0 {
        return Err(real::errno());
    }
    Ok(())
}
