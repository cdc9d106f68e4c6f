//! The C library's functions behind the hooks ([`urdma_abi::next`]).

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{mode_t, size_t, ssize_t, DIR, FILE};

pub(crate) use urdma_abi::next::{errno, set_errno};

/// `struct stat`, which is the same as the 64-bit one on the supported targets.
pub(crate) type Stat = libc::stat;
/// The filter function of scandir.
pub(crate) type Filter = Option<unsafe extern "C" fn(*const libc::dirent) -> c_int>;
/// The comparison function of scandir.
pub(crate) type Compare =
    Option<unsafe extern "C" fn(*mut *const libc::dirent, *mut *const libc::dirent) -> c_int>;

/// Result of a function that returns nothing.
type NoAnswer = ();
/// Result of a failed call of such a function.
const NO_ANSWER: NoAnswer = ();
/// `FILE *` of a failed call.
const NO_FILE: *mut FILE = std::ptr::null_mut();
/// `DIR *` of a failed call.
const NO_DIR: *mut DIR = std::ptr::null_mut();
/// `char *` of a failed call.
const NO_STR: *mut c_char = std::ptr::null_mut();

urdma_abi::next! {
    fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int, -1;
    fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int, -1;
    ioctl(fd: c_int, request: libc::c_ulong, argument: *mut c_void) -> c_int, -1;
    open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int, -1;
    open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int, -1;
    openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int, -1;
    openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int, -1;
    __open_2(path: *const c_char, flags: c_int) -> c_int, -1;
    __open64_2(path: *const c_char, flags: c_int) -> c_int, -1;
    __openat_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int, -1;
    __openat64_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int, -1;
    fopen(path: *const c_char, mode: *const c_char) -> *mut FILE, NO_FILE;
    fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE, NO_FILE;
    opendir(path: *const c_char) -> *mut DIR, NO_DIR;
    chdir(path: *const c_char) -> c_int, -1;
    scandir(
        path: *const c_char, list: *mut *mut *mut libc::dirent, filter: Filter, compare: Compare
    ) -> c_int, -1;
    scandir64(
        path: *const c_char, list: *mut *mut *mut libc::dirent, filter: Filter, compare: Compare
    ) -> c_int, -1;
    access(path: *const c_char, mode: c_int) -> c_int, -1;
    faccessat(dir: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int, -1;
    readlink(path: *const c_char, buf: *mut c_char, len: size_t) -> ssize_t, -1;
    readlinkat(dir: c_int, path: *const c_char, buf: *mut c_char, len: size_t) -> ssize_t, -1;
    __readlink_chk(path: *const c_char, buf: *mut c_char, len: size_t, size: size_t) -> ssize_t, -1;
    realpath(path: *const c_char, resolved: *mut c_char) -> *mut c_char, NO_STR;
    __realpath_chk(path: *const c_char, resolved: *mut c_char, size: size_t) -> *mut c_char, NO_STR;
    stat(path: *const c_char, buf: *mut Stat) -> c_int, -1;
    stat64(path: *const c_char, buf: *mut Stat) -> c_int, -1;
    lstat(path: *const c_char, buf: *mut Stat) -> c_int, -1;
    lstat64(path: *const c_char, buf: *mut Stat) -> c_int, -1;
    fstat(fd: c_int, buf: *mut Stat) -> c_int, -1;
    fstat64(fd: c_int, buf: *mut Stat) -> c_int, -1;
    fstatat(dir: c_int, path: *const c_char, buf: *mut Stat, flags: c_int) -> c_int, -1;
    fstatat64(dir: c_int, path: *const c_char, buf: *mut Stat, flags: c_int) -> c_int, -1;
    __xstat(version: c_int, path: *const c_char, buf: *mut Stat) -> c_int, -1;
    __xstat64(version: c_int, path: *const c_char, buf: *mut Stat) -> c_int, -1;
    __lxstat(version: c_int, path: *const c_char, buf: *mut Stat) -> c_int, -1;
    __lxstat64(version: c_int, path: *const c_char, buf: *mut Stat) -> c_int, -1;
    __fxstat(version: c_int, fd: c_int, buf: *mut Stat) -> c_int, -1;
    __fxstat64(version: c_int, fd: c_int, buf: *mut Stat) -> c_int, -1;
    statx(dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, buf: *mut libc::statx)
        -> c_int, -1;
    poll(waiting: *mut libc::pollfd, count: libc::nfds_t, timeout_ms: c_int) -> c_int, -1;
    ppoll(
        waiting: *mut libc::pollfd, count: libc::nfds_t, timeout: *const libc::timespec,
        mask: *const libc::sigset_t
    ) -> c_int, -1;
    __poll_chk(
        waiting: *mut libc::pollfd, count: libc::nfds_t, timeout_ms: c_int, size: size_t
    ) -> c_int, -1;
    __ppoll_chk(
        waiting: *mut libc::pollfd, count: libc::nfds_t, timeout: *const libc::timespec,
        mask: *const libc::sigset_t, size: size_t
    ) -> c_int, -1;
    select(
        count: c_int, read: *mut libc::fd_set, write: *mut libc::fd_set,
        except: *mut libc::fd_set, timeout: *mut libc::timeval
    ) -> c_int, -1;
    pselect(
        count: c_int, read: *mut libc::fd_set, write: *mut libc::fd_set,
        except: *mut libc::fd_set, timeout: *const libc::timespec, mask: *const libc::sigset_t
    ) -> c_int, -1;
    read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t, -1;
    write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t, -1;
    writev(fd: c_int, parts: *const libc::iovec, count: c_int) -> ssize_t, -1;
    close(fd: c_int) -> c_int, -1;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int, -1;
    closefrom(first: c_int) -> NoAnswer, NO_ANSWER;
    dup(fd: c_int) -> c_int, -1;
    dup2(fd: c_int, new_fd: c_int) -> c_int, -1;
    dup3(fd: c_int, new_fd: c_int, flags: c_int) -> c_int, -1;
    epoll_ctl(set: c_int, op: c_int, fd: c_int, event: *mut libc::epoll_event) -> c_int, -1;
    epoll_pwait(
        set: c_int, events: *mut libc::epoll_event, max: c_int, timeout_ms: c_int,
        mask: *const libc::sigset_t
    ) -> c_int, -1;
    epoll_pwait2(
        set: c_int, events: *mut libc::epoll_event, max: c_int, timeout: *const libc::timespec,
        mask: *const libc::sigset_t
    ) -> c_int, -1;
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int, -1;
    sendmsg(fd: c_int, message: *const libc::msghdr, flags: c_int) -> ssize_t, -1;
    sendto(
        fd: c_int, buf: *const c_void, len: size_t, flags: c_int, address: *const libc::sockaddr,
        address_octets: libc::socklen_t
    ) -> ssize_t, -1;
    send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t, -1;
    pthread_cancel(thread: libc::pthread_t) -> c_int, libc::ESRCH;
    sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int, -1;
    signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t, libc::SIG_ERR;
    bsd_signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t, libc::SIG_ERR;
    sysv_signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t, libc::SIG_ERR;
    __sysv_signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t, libc::SIG_ERR;
    ssignal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t, libc::SIG_ERR;
    sigset(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t, libc::SIG_ERR;
}

#[cfg(not(test))]
/// Looks up the functions that a signal handler may call, so that no lookup happens in a handler.
pub(crate) fn look_up_early() {
    // SAFETY: descriptor -1 is invalid; each call fails with EBADF and does nothing else.
    unsafe { read(-1, std::ptr::null_mut(), 0) };
    // SAFETY: descriptor -1 is invalid; each call fails with EBADF and does nothing else.
    unsafe { write(-1, std::ptr::null(), 0) };
    // SAFETY: descriptor -1 is invalid; each call fails with EBADF and does nothing else.
    unsafe { close(-1) };
    // SAFETY: descriptor -1 is invalid; each call fails with EBADF and does nothing else.
    unsafe { dup(-1) };
    // SAFETY: descriptor -1 is invalid; each call fails with EBADF and does nothing else.
    unsafe { dup2(-1, -1) };
    // SAFETY: an empty path fails with ENOENT, without a fault as at address 0.
    unsafe { open(c"".as_ptr(), 0, 0) };
    // SAFETY: an empty path fails with ENOENT, without a fault as at address 0.
    unsafe { access(c"".as_ptr(), 0) };
    // SAFETY: descriptor -1 is invalid; each call fails with EBADF and does nothing else.
    unsafe { sendmsg(-1, std::ptr::null(), 0) };
    // SAFETY: descriptor -1 is invalid; each call fails with EBADF and does nothing else.
    unsafe { sendto(-1, std::ptr::null(), 0, 0, std::ptr::null(), 0) };
    // SAFETY: descriptor -1 is invalid; each call fails with EBADF and does nothing else.
    unsafe { send(-1, std::ptr::null(), 0, 0) };
    // SAFETY: signal 0 does not exist; both fail with EINVAL.
    unsafe { sigaction(0, std::ptr::null(), std::ptr::null_mut()) };
    // SAFETY: signal 0 does not exist; both fail with EINVAL.
    unsafe { signal(0, libc::SIG_DFL) };
}
