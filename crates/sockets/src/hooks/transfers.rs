//! Functions that move octets of one descriptor.

use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};

use libc::{iovec, msghdr, off64_t, off_t, size_t, sockaddr, socklen_t, ssize_t};

use crate::buffers::{self, Function};
use crate::calls::{transfer, Way};
use crate::files::{send_file, File};
use crate::octets::Octets;
use crate::reasons::Reason;
use crate::{leave, real, table};

/// Types for functions of one buffer: the way of each, and the kernel's call.
macro_rules! functions {
    ($(
        $name:ident, $way:ident:
        |$fd:ident, $buf:ident, $len:ident, $flags:pat_param| $call:expr;
    )*) => {$(
        struct $name;

        impl Function for $name {
            #[inline(always)]
            fn way(flags: c_int) -> Way {
                Way::$way(flags)
            }

            #[inline(always)]
            unsafe fn kernel($fd: c_int, $buf: *mut c_void, $len: usize, $flags: c_int) -> ssize_t {
                // SAFETY: guaranteed by the caller.
                unsafe { $call }
            }
        }
    )*};
}

// sendto and recvfrom are those without an address.
functions! {
    Send, Send: |fd, buf, len, flags| real::send(fd, buf, len, flags);
    SendTo, Send: |fd, buf, len, flags| real::sendto(fd, buf, len, flags, null(), 0);
    Write, Send: |fd, buf, len, _| real::write(fd, buf, len);
    Recv, Recv: |fd, buf, len, flags| real::recv(fd, buf, len, flags);
    RecvFrom, Recv: |fd, buf, len, flags| {
        real::recvfrom(fd, buf, len, flags, null_mut(), null_mut())
    };
    Read, Recv: |fd, buf, len, _| real::read(fd, buf, len);
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn send(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the arguments of the caller.
    unsafe { buffers::transfer::<Send>(fd, buf.cast_mut(), len, flags) }
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    if to.is_null() {
        // SAFETY: the arguments of the caller.
        return unsafe { buffers::transfer::<SendTo>(fd, buf.cast_mut(), len, flags) };
    }
    // SAFETY: the arguments of the caller.
    let kernel = || unsafe { real::sendto(fd, buf, len, flags, to, to_len) };
    // SAFETY: the arguments of the caller.
    unsafe { transfer(fd, None, Way::Send(flags), kernel) }
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: the arguments of the caller.
    unsafe { buffers::transfer::<Write>(fd, buf.cast_mut(), len, 0) }
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the caller's array.
    let octets = unsafe { Octets::new(parts, usize::try_from(count).unwrap_or(0)) };
    // SAFETY: the arguments of the caller.
    let kernel = || unsafe { real::writev(fd, parts, count) };
    // SAFETY: the arguments of the caller.
    unsafe { transfer(fd, octets, Way::Send(0), kernel) }
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: null or the message of the caller.
    let plain = unsafe { message.as_ref() }.and_then(|message| {
        if !message.msg_control.is_null() {
            // SAFETY: a message of the caller.
            unsafe { retire_passed(message) };
        }
        // SAFETY: the caller's array.
        let octets = unsafe { Octets::new(message.msg_iov, message.msg_iovlen) };
        let is_plain = message.msg_controllen == 0 && message.msg_namelen == 0;
        octets.filter(|_| is_plain)
    });
    // SAFETY: the arguments of the caller.
    let kernel = || unsafe { real::sendmsg(fd, message, flags) };
    // SAFETY: the arguments of the caller.
    unsafe { transfer(fd, plain, Way::Send(flags), kernel) }
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn sendfile(
    fd: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: the arguments of the caller.
    let kernel = |count| unsafe { real::sendfile(fd, from, offset, count) };
    // SAFETY: the arguments of the caller.
    unsafe { send_file(fd, &File::new(from, offset), count, kernel) }
}

/// The same, since an offset has 64 bits.
#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn sendfile64(
    fd: c_int,
    from: c_int,
    offset: *mut off64_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: the arguments of the caller.
    let kernel = |count| unsafe { real::sendfile64(fd, from, offset, count) };
    // SAFETY: the arguments of the caller.
    unsafe { send_file(fd, &File::new(from, offset), count, kernel) }
}

/// Descriptors that are passed to another process are the kernel's before.
///
/// # Safety
/// A message with a control buffer.
unsafe fn retire_passed(message: &msghdr) {
    // SAFETY: guaranteed by the caller.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: null, or a header in the control buffer.
    while let Some(control) = unsafe { header.as_ref() } {
        if (control.cmsg_level, control.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: the function only computes a length.
            let before = unsafe { libc::CMSG_LEN(0) } as usize;
            let count = control.cmsg_len.saturating_sub(before) / size_of::<c_int>();
            // SAFETY: the header is in the control buffer.
            let fds: *const c_int = unsafe { libc::CMSG_DATA(header) }.cast();
            for index in 0..count {
                // SAFETY: the header says how many follow it.
                leave::retire(unsafe { fds.add(index).read_unaligned() }, Reason::Passed);
            }
        }
        // SAFETY: a message with a control buffer, and a header in it.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn sendmmsg(
    fd: c_int,
    messages: *mut libc::mmsghdr,
    count: libc::c_uint,
    flags: c_int,
) -> c_int {
    for index in 0..count as usize {
        if messages.is_null() {
            break;
        }
        // SAFETY: the caller's array.
        let message = unsafe { &(*messages.add(index)).msg_hdr };
        if !message.msg_control.is_null() {
            // SAFETY: a message of the caller.
            unsafe { retire_passed(message) };
        }
    }
    leave::retire(fd, Reason::OtherCall);
    // SAFETY: the arguments of the caller.
    unsafe { real::sendmmsg(fd, messages, count, flags) }
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn recv(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the arguments of the caller.
    unsafe { buffers::transfer::<Recv>(fd, buf, len, flags) }
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    if from.is_null() {
        // SAFETY: the arguments of the caller.
        return unsafe { buffers::transfer::<RecvFrom>(fd, buf, len, flags) };
    }
    let part = iovec {
        iov_base: buf,
        iov_len: len,
    };
    // SAFETY: the arguments of the caller.
    let kernel = || unsafe { real::recvfrom(fd, buf, len, flags, from, from_len) };
    // SAFETY: an array of one part.
    let octets = unsafe { Octets::new(&raw const part, 1) };
    // SAFETY: the arguments of the caller.
    let taken = unsafe { transfer(fd, octets, Way::Recv(flags), kernel) };
    if taken >= 0 && table::hit(fd).is_some() {
        // TCP names no address.
        // SAFETY: null or the caller's word.
        if let Some(from_len) = unsafe { from_len.as_mut() } {
            *from_len = 0;
        }
    }
    taken
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: the arguments of the caller.
    unsafe { buffers::transfer::<Read>(fd, buf, len, 0) }
}

/// read where the compiler knows the size of the buffer.
#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn __read_chk(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    size: size_t,
) -> ssize_t {
    if len <= size {
        // SAFETY: the arguments of the caller.
        return unsafe { read(fd, buf, len) };
    }
    // SAFETY: the arguments of the caller, which end the process.
    unsafe { real::__read_chk(fd, buf, len, size) }
}

/// recv in the same way.
#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    size: size_t,
    flags: c_int,
) -> ssize_t {
    if len <= size {
        // SAFETY: the arguments of the caller.
        return unsafe { recv(fd, buf, len, flags) };
    }
    // SAFETY: the arguments of the caller, which end the process.
    unsafe { real::__recv_chk(fd, buf, len, size, flags) }
}

/// recvfrom in the same way.
#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    size: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    if len <= size {
        // SAFETY: the arguments of the caller.
        return unsafe { recvfrom(fd, buf, len, flags, from, from_len) };
    }
    // SAFETY: the arguments of the caller, which end the process.
    unsafe { real::__recvfrom_chk(fd, buf, len, size, flags, from, from_len) }
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the caller's array.
    let octets = unsafe { Octets::new(parts, usize::try_from(count).unwrap_or(0)) };
    // SAFETY: the arguments of the caller.
    let kernel = || unsafe { real::readv(fd, parts, count) };
    // SAFETY: the arguments of the caller.
    unsafe { transfer(fd, octets, Way::Recv(0), kernel) }
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: null or the message of the caller.
    let parts = unsafe { message.as_ref() }.map(|message| (message.msg_iov, message.msg_iovlen));
    let (parts, count) = parts.unwrap_or((null_mut(), 0));
    // SAFETY: the caller's array.
    let octets = unsafe { Octets::new(parts, count) };
    // SAFETY: the arguments of the caller.
    let kernel = || unsafe { real::recvmsg(fd, message, flags) };
    if table::hit(fd).is_none() {
        return kernel();
    }
    // SAFETY: null or the message of the caller.
    let before = unsafe { message.as_ref() }.copied();
    // SAFETY: the arguments of the caller.
    let taken = unsafe { transfer(fd, octets, Way::Recv(flags), kernel) };
    // SAFETY: null or the message of the caller.
    if let (0.., Some(message), Some(before)) = (taken, unsafe { message.as_mut() }, before) {
        // A message that the kernel has filled has other lengths, or had none.
        let is_filled = message.msg_controllen != before.msg_controllen
            || message.msg_namelen != before.msg_namelen
            || message.msg_flags != before.msg_flags;
        if !is_filled {
            message.msg_controllen = 0;
            message.msg_namelen = 0;
            message.msg_flags = 0;
        }
    }
    taken
}
