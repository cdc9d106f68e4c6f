//! The functions behind the hooks ([`urdma_abi::next`]): those of the stand-in, if it is there, or
//! of the C library.

use std::ffi::{c_int, c_uint, c_ulong, c_void};

use libc::{
    epoll_event, fd_set, iovec, msghdr, nfds_t, off64_t, off_t, pollfd, pthread_attr_t, pthread_t,
    sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
};

pub(crate) use urdma_abi::next::{errno, set_errno};

/// The function of a thread.
pub(crate) type Main = unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void;
/// Result of a function that returns nothing.
type NoAnswer = ();
/// Result of a failed call of such a function.
const NO_ANSWER: NoAnswer = ();

urdma_abi::next! {
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int, -1;
    accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int, -1;
    accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int, -1;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t)
        -> c_int, -1;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t)
        -> c_int, -1;
    send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t, -1;
    sendto(
        fd: c_int, buf: *const c_void, len: size_t, flags: c_int, to: *const sockaddr,
        to_len: socklen_t
    ) -> ssize_t, -1;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t, -1;
    recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t, -1;
    recvfrom(
        fd: c_int, buf: *mut c_void, len: size_t, flags: c_int, from: *mut sockaddr,
        from_len: *mut socklen_t
    ) -> ssize_t, -1;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t, -1;
    read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t, -1;
    write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t, -1;
    readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t, -1;
    writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t, -1;
    sendfile(fd: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t, -1;
    sendfile64(fd: c_int, from: c_int, offset: *mut off64_t, count: size_t) -> ssize_t, -1;
    poll(list: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int, -1;
    ppoll(
        list: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t
    ) -> c_int, -1;
    __poll_chk(list: *mut pollfd, count: nfds_t, timeout_ms: c_int, octets: size_t) -> c_int, -1;
    __ppoll_chk(
        list: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t,
        octets: size_t
    ) -> c_int, -1;
    __read_chk(fd: c_int, buf: *mut c_void, len: size_t, size: size_t) -> ssize_t, -1;
    __recv_chk(fd: c_int, buf: *mut c_void, len: size_t, size: size_t, flags: c_int)
        -> ssize_t, -1;
    __recvfrom_chk(
        fd: c_int, buf: *mut c_void, len: size_t, size: size_t, flags: c_int,
        from: *mut sockaddr, from_len: *mut socklen_t
    ) -> ssize_t, -1;
    select(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *mut timeval
    ) -> c_int, -1;
    pselect(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *const timespec, mask: *const sigset_t
    ) -> c_int, -1;
    epoll_create(size: c_int) -> c_int, -1;
    epoll_create1(flags: c_int) -> c_int, -1;
    epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int, -1;
    epoll_wait(epfd: c_int, events: *mut epoll_event, room: c_int, timeout_ms: c_int)
        -> c_int, -1;
    epoll_pwait(
        epfd: c_int, events: *mut epoll_event, room: c_int, timeout_ms: c_int,
        mask: *const sigset_t
    ) -> c_int, -1;
    epoll_pwait2(
        epfd: c_int, events: *mut epoll_event, room: c_int, timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int, -1;
    connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int, -1;
    shutdown(fd: c_int, how: c_int) -> c_int, -1;
    close(fd: c_int) -> c_int, -1;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int, -1;
    closefrom(first: c_int) -> NoAnswer, NO_ANSWER;
    dup2(fd: c_int, new_fd: c_int) -> c_int, -1;
    dup3(fd: c_int, new_fd: c_int, flags: c_int) -> c_int, -1;
    fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int, -1;
    fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int, -1;
    ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int, -1;
    sendmmsg(fd: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int) -> c_int, -1;
    signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t, libc::SIG_ERR;
    bsd_signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t, libc::SIG_ERR;
    sysv_signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t, libc::SIG_ERR;
    __sysv_signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t, libc::SIG_ERR;
    ssignal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t, libc::SIG_ERR;
    sigset(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t, libc::SIG_ERR;
    sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int, -1;
    pthread_create(
        thread: *mut pthread_t, attributes: *const pthread_attr_t, main: Main, argument: *mut c_void
    ) -> c_int, libc::ENOSYS;
    pthread_cancel(thread: pthread_t) -> c_int, libc::ENOSYS;
    pthread_sigmask(how: c_int, new: *const sigset_t, old: *mut sigset_t) -> c_int, libc::ENOSYS;
    sigprocmask(how: c_int, new: *const sigset_t, old: *mut sigset_t) -> c_int, -1;
}

/// Looks up the functions that a handler of a signal or a forked child may call first.
#[cfg_attr(test, allow(dead_code))]
pub(crate) fn look_up_early() {
    use std::ptr::{null, null_mut};
    // SAFETY: descriptor -1 is invalid; each call fails with EBADF and does nothing else.
    unsafe { read(-1, null_mut(), 0) };
    // SAFETY: descriptor -1 is invalid; each call fails with EBADF and does nothing else.
    unsafe { write(-1, null(), 0) };
    // SAFETY: descriptor -1 is invalid; each call fails with EBADF and does nothing else.
    unsafe { send(-1, null(), 0, 0) };
    // SAFETY: descriptor -1 is invalid; each call fails with EBADF and does nothing else.
    unsafe { recv(-1, null_mut(), 0, 0) };
    // SAFETY: descriptor -1 is invalid; each call fails with EBADF and does nothing else.
    unsafe { sendmsg(-1, null(), 0) };
    // SAFETY: descriptor -1 is invalid; each call fails with EBADF and does nothing else.
    unsafe { recvmsg(-1, null_mut(), 0) };
    // SAFETY: descriptor -1 is invalid; each call fails with EBADF and does nothing else.
    unsafe { close(-1) };
    // SAFETY: descriptor -1 is invalid; each call fails with EBADF and does nothing else.
    unsafe { dup2(-1, -1) };
    // SAFETY: descriptor -1 is invalid; each call fails with EBADF and does nothing else.
    unsafe { fcntl(-1, libc::F_GETFD, null_mut()) };
    // SAFETY: signal 0 does not exist.
    unsafe { sigaction(0, null(), null_mut()) };
    // SAFETY: without sets, nothing changes.
    unsafe { sigprocmask(libc::SIG_BLOCK, null(), null_mut()) };
    // SAFETY: without sets, nothing changes.
    unsafe { pthread_sigmask(libc::SIG_BLOCK, null(), null_mut()) };
}
