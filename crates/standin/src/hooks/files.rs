//! Functions that take a path: device files are emulated, paths in sysfs are redirected.

use std::ffi::{c_char, c_int, CStr};

use libc::{mode_t, size_t, ssize_t, DIR, FILE};

use crate::device::Device;
use crate::fds::{self, Kind};
use crate::paths::{is_candidate, is_verbs_class, look, Target};
use crate::real::{self, set_errno, Compare, Filter};
use crate::{active, owner, provider};
use urdma_abi::cancel::Disabled;

/// Defines hooks that redirect the path, evaluate `other` for a device file, and call `first` with
/// the original path.
macro_rules! moved {
    ($(fn $name:ident($($before:ident: $bty:ty,)* @path $(, $after:ident: $aty:ty)*) -> $ret:ty,
        $(first $first:path,)? failed $failed:expr, device |$device:ident| $other:expr;)*) => {
        $(
            #[cfg_attr(not(test), no_mangle)]
            unsafe extern "C-unwind" fn $name(
                $($before: $bty,)* path: *const c_char $(, $after: $aty)*
            ) -> $ret {
                #[cold]
                #[inline(never)]
                unsafe fn look_closer(
                    $($before: $bty,)* path: *const c_char $(, $after: $aty)*
                ) -> $ret {
                    // SAFETY: the caller passes a C string, as the C library's function asks.
                    match unsafe { look(path) } {
                        // SAFETY: the arguments of the caller.
                        Target::Other => unsafe { real::$name($($before,)* path $(, $after)*) },
                        Target::Device($device) => $other,
                        Target::Redirected(new) => {
                            // SAFETY: the arguments of the caller, with another path.
                            unsafe { real::$name($($before,)* new.as_ptr() $(, $after)*) }
                        }
                        Target::TooLong => {
                            set_errno(libc::ENAMETOOLONG);
                            $failed
                        }
                    }
                }
                $(
                    // SAFETY: the caller passes a C string, as the C library's function asks.
                    unsafe { $first(path) };
                )?
                // SAFETY: the caller passes a C string, as the C library's function asks.
                if unsafe { is_candidate(path) } {
                    // SAFETY: the arguments of the caller.
                    return unsafe { look_closer($($before,)* path $(, $after)*) };
                }
                // SAFETY: the arguments of the caller.
                unsafe { real::$name($($before,)* path $(, $after)*) }
            }
        )*
    };
}

moved! {
    fn open(@path, flags: c_int, mode: mode_t) -> c_int,
        failed -1, device |device| open_device(device, flags);
    fn open64(@path, flags: c_int, mode: mode_t) -> c_int,
        failed -1, device |device| open_device(device, flags);
    fn openat(dir: c_int, @path, flags: c_int, mode: mode_t) -> c_int,
        failed -1, device |device| open_device(device, flags);
    fn openat64(dir: c_int, @path, flags: c_int, mode: mode_t) -> c_int,
        failed -1, device |device| open_device(device, flags);
    fn __open_2(@path, flags: c_int) -> c_int,
        failed -1, device |device| open_device(device, flags);
    fn __open64_2(@path, flags: c_int) -> c_int,
        failed -1, device |device| open_device(device, flags);
    fn __openat_2(dir: c_int, @path, flags: c_int) -> c_int,
        failed -1, device |device| open_device(device, flags);
    fn __openat64_2(dir: c_int, @path, flags: c_int) -> c_int,
        failed -1, device |device| open_device(device, flags);
    fn fopen(@path, mode: *const c_char) -> *mut FILE,
        failed std::ptr::null_mut(), device |_device| refuse(std::ptr::null_mut(), libc::EACCES);
    fn fopen64(@path, mode: *const c_char) -> *mut FILE,
        failed std::ptr::null_mut(), device |_device| refuse(std::ptr::null_mut(), libc::EACCES);
    fn opendir(@path) -> *mut DIR,
        first before_devices_are_listed, failed std::ptr::null_mut(),
        device |_device| refuse(std::ptr::null_mut(), libc::ENOTDIR);
    fn chdir(@path) -> c_int,
        failed -1, device |_device| refuse(-1, libc::ENOTDIR);
    fn scandir(@path, list: *mut *mut *mut libc::dirent, filter: Filter, compare: Compare) -> c_int,
        failed -1, device |_device| refuse(-1, libc::ENOTDIR);
    fn scandir64(@path, list: *mut *mut *mut libc::dirent, filter: Filter, compare: Compare)
        -> c_int,
        failed -1, device |_device| refuse(-1, libc::ENOTDIR);
    fn access(@path, mode: c_int) -> c_int,
        failed -1, device |_device| access_device(mode);
    fn faccessat(dir: c_int, @path, mode: c_int, flags: c_int) -> c_int,
        failed -1, device |_device| access_device(mode);
    fn readlink(@path, buf: *mut c_char, len: size_t) -> ssize_t,
        failed -1, device |_device| refuse(-1, libc::EINVAL);
    fn readlinkat(dir: c_int, @path, buf: *mut c_char, len: size_t) -> ssize_t,
        failed -1, device |_device| refuse(-1, libc::EINVAL);
    fn __readlink_chk(@path, buf: *mut c_char, len: size_t, size: size_t) -> ssize_t,
        failed -1, device |_device| refuse(-1, libc::EINVAL);
    fn realpath(@path, resolved: *mut c_char) -> *mut c_char,
        failed std::ptr::null_mut(), device |device| {
            // SAFETY: the caller passes null or room for PATH_MAX octets.
            unsafe { real_device_path(device, resolved) }
        };
    fn __realpath_chk(@path, resolved: *mut c_char, size: size_t) -> *mut c_char,
        failed std::ptr::null_mut(), device |device| {
            // SAFETY: the caller passes null or room for PATH_MAX octets.
            unsafe { real_device_path(device, resolved) }
        };
}

/// Registers the provider with the copy of libibverbs that is about to list devices.
///
/// # Safety
/// `path` is null or a C string.
unsafe fn before_devices_are_listed(path: *const c_char) {
    // SAFETY: the caller guarantees it.
    if unsafe { is_verbs_class(path) } && active::is_active() && owner::owns_tables() {
        let _uncancelled = Disabled::new();
        let before = real::errno();
        provider::register();
        set_errno(before);
    }
}

fn refuse<T>(failed: T, errno: c_int) -> T {
    set_errno(errno);
    failed
}

/// The canonical path of a device file, which contains no links.
///
/// # Safety
/// `resolved` is null or has room for PATH_MAX octets.
unsafe fn real_device_path(device: Device, resolved: *mut c_char) -> *mut c_char {
    let path: &CStr = match device {
        Device::Uverbs => c"/dev/infiniband/uverbs0",
        Device::RdmaCm => c"/dev/infiniband/rdma_cm",
    };
    if resolved.is_null() {
        // SAFETY: a C string; the caller frees the copy, as realpath(3) says.
        return unsafe { libc::strdup(path.as_ptr()) };
    }
    // SAFETY: the caller guarantees it; the path is shorter than PATH_MAX.
    unsafe { libc::strcpy(resolved, path.as_ptr()) }
}

/// Device files are readable and writable for all users of the instance, and not executable.
fn access_device(mode: c_int) -> c_int {
    if mode & libc::X_OK != 0 {
        return refuse(-1, libc::EACCES);
    }
    0
}

#[cold]
fn open_device(device: Device, flags: c_int) -> c_int {
    let _uncancelled = Disabled::new();
    let before = real::errno();
    let outcome = match device {
        Device::Uverbs => open_uverbs(flags),
        Device::RdmaCm => open_rdma_cm(flags),
    };
    match outcome {
        Ok(fd) => {
            set_errno(before);
            fd
        }
        Err(errno) => refuse(-1, errno),
    }
}

/// `/dev/null`, read-only: a write that bypasses the hooks fails.
fn open_uverbs(flags: c_int) -> Result<c_int, c_int> {
    let kept = flags & (libc::O_CLOEXEC | libc::O_NONBLOCK);
    // SAFETY: a C string.
    let fd = unsafe { real::open(c"/dev/null".as_ptr(), libc::O_RDONLY | kept, 0) };
    if fd < 0 {
        let errno = real::errno();
        if errno == libc::ENOENT {
            provider::report(
                b"there is no /dev/null, which the device needs: give the container a /dev",
            );
        }
        return Err(errno);
    }
    enter(fd, Kind::Device(Device::Uverbs), 0)
}

/// An epoll set, in which the provider has a descriptor of its own: readable while an event is
/// pending, and never writable.
fn open_rdma_cm(flags: c_int) -> Result<c_int, c_int> {
    let table = provider::table().ok_or(libc::ENODEV)?;
    // SAFETY: epoll_create1 has no preconditions.
    let fd = unsafe { libc::epoll_create1(flags & libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(real::errno());
    }
    // SAFETY: fcntl with F_SETFL touches no memory.
    unsafe { libc::fcntl(fd, libc::F_SETFL, flags & libc::O_NONBLOCK) };
    // SAFETY: `fd` is an open epoll set.
    let handle = unsafe { (table.cm_open)(fd) };
    if handle < 0 {
        // SAFETY: the descriptor is owned here and not known elsewhere.
        unsafe { real::close(fd) };
        return Err(c_int::try_from(-handle).unwrap_or(libc::EIO));
    }
    let entered = enter(fd, Kind::Device(Device::RdmaCm), handle);
    if entered.is_err() {
        // SAFETY: the handle from above, which is not in use.
        unsafe { (table.cm_close)(handle) };
    }
    entered
}

fn enter(fd: c_int, kind: Kind, handle: i64) -> Result<c_int, c_int> {
    if fds::add(fd, kind, handle) {
        return Ok(fd);
    }
    // SAFETY: the descriptor is owned here and not known elsewhere.
    unsafe { real::close(fd) };
    Err(libc::EMFILE)
}
