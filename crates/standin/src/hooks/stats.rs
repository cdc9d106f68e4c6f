//! The stat family: device files and their descriptors are reported as character devices.

use std::ffi::{c_char, c_int, c_uint};

use crate::device::Device;
use crate::fds::{self, Kind};
use crate::paths::{is_candidate, look, Target};
use crate::real::{self, set_errno, Stat};

/// Permissions and type of a device file.
const MODE: libc::mode_t = libc::S_IFCHR | 0o666;

/// Defines stat functions that take a path.
macro_rules! by_path {
    ($(fn $name:ident($($before:ident: $bty:ty,)* @path, buf $(, $after:ident: $aty:ty)*);)*) => {
        $(
            #[cfg_attr(not(test), no_mangle)]
            unsafe extern "C-unwind" fn $name(
                $($before: $bty,)* path: *const c_char, buf: *mut Stat $(, $after: $aty)*
            ) -> c_int {
                let call = |path: *const c_char| {
                    // SAFETY: the arguments of the caller, possibly with another path.
                    unsafe { real::$name($($before,)* path, buf $(, $after)*) }
                };
                // SAFETY: the caller passes a C string, as the C library's function asks.
                if unsafe { is_candidate(path) } {
                    // SAFETY: the caller passes a C string, as the C library's function asks; the
                    // caller passes room for the answer.
                    return unsafe { look_closer(path, buf, fill, call) };
                }
                call(path)
            }
        )*
    };
}

/// Defines stat functions that take a descriptor.
macro_rules! by_fd {
    ($(fn $name:ident($($before:ident: $bty:ty,)* @fd, buf);)*) => {
        $(
            #[cfg_attr(not(test), no_mangle)]
            unsafe extern "C-unwind" fn $name(
                $($before: $bty,)* fd: c_int, buf: *mut Stat
            ) -> c_int {
                #[cold]
                #[inline(never)]
                unsafe fn look_closer($($before: $bty,)* fd: c_int, buf: *mut Stat) -> c_int {
                    if let Some(device) = device_of(fd) {
                        // SAFETY: the caller passes room for the answer.
                        return unsafe { fill(device, buf) };
                    }
                    // SAFETY: the arguments of the caller.
                    unsafe { real::$name($($before,)* fd, buf) }
                }
                if fds::is_hit(fd) {
                    // SAFETY: the arguments of the caller.
                    return unsafe { look_closer($($before,)* fd, buf) };
                }
                // SAFETY: the arguments of the caller.
                unsafe { real::$name($($before,)* fd, buf) }
            }
        )*
    };
}

by_path! {
    fn stat(@path, buf);
    fn stat64(@path, buf);
    fn lstat(@path, buf);
    fn lstat64(@path, buf);
    fn __xstat(version: c_int, @path, buf);
    fn __xstat64(version: c_int, @path, buf);
    fn __lxstat(version: c_int, @path, buf);
    fn __lxstat64(version: c_int, @path, buf);
}

by_fd! {
    fn fstat(@fd, buf);
    fn fstat64(@fd, buf);
    fn __fxstat(version: c_int, @fd, buf);
    fn __fxstat64(version: c_int, @fd, buf);
}

/// Defines the functions that take a directory and a path, or a descriptor and an empty path.
macro_rules! by_either {
    ($(fn $name:ident;)*) => {
        $(
            #[cfg_attr(not(test), no_mangle)]
            unsafe extern "C-unwind" fn $name(
                dir: c_int, path: *const c_char, buf: *mut Stat, flags: c_int,
            ) -> c_int {
                if flags & libc::AT_EMPTY_PATH != 0 {
                    // SAFETY: the caller passes null or a C string.
                    if let Some(device) = unsafe { device_of_empty(dir, path) } {
                        // SAFETY: the caller passes room for the answer.
                        return unsafe { fill(device, buf) };
                    }
                }
                let call = |path: *const c_char| {
                    // SAFETY: the arguments of the caller, possibly with another path.
                    unsafe { real::$name(dir, path, buf, flags) }
                };
                // SAFETY: the caller passes a C string, as the C library's function asks.
                if unsafe { is_candidate(path) } {
                    // SAFETY: the caller passes a C string, as the C library's function asks; the
                    // caller passes room for the answer.
                    return unsafe { look_closer(path, buf, fill, call) };
                }
                call(path)
            }
        )*
    };
}

by_either! {
    fn fstatat;
    fn fstatat64;
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn statx(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    buf: *mut libc::statx,
) -> c_int {
    if flags & libc::AT_EMPTY_PATH != 0 {
        // SAFETY: the caller passes null or a C string.
        if let Some(device) = unsafe { device_of_empty(dir, path) } {
            // SAFETY: the caller passes room for the answer.
            return unsafe { fill_statx(device, buf) };
        }
    }
    let call = |path: *const c_char| {
        // SAFETY: the arguments of the caller, possibly with another path.
        unsafe { real::statx(dir, path, flags, mask, buf) }
    };
    // SAFETY: the caller passes a C string, as the C library's function asks.
    if unsafe { is_candidate(path) } {
        // SAFETY: the caller passes a C string, as the C library's function asks; the caller passes
        // room for the answer.
        return unsafe { look_closer(path, buf, fill_statx, call) };
    }
    call(path)
}

/// The rare case: the path may be one that the stand-in handles.
///
/// # Safety
/// `path` is a C string, `buf` has room for what `describe` writes.
#[cold]
#[inline(never)]
unsafe fn look_closer<T>(
    path: *const c_char,
    buf: *mut T,
    describe: unsafe fn(Device, *mut T) -> c_int,
    call: impl Fn(*const c_char) -> c_int,
) -> c_int {
    // SAFETY: the caller guarantees it.
    match unsafe { look(path) } {
        Target::Other => call(path),
        // SAFETY: the caller guarantees it.
        Target::Device(device) => unsafe { describe(device, buf) },
        Target::Redirected(new) => call(new.as_ptr()),
        Target::TooLong => too_long(),
    }
}

fn too_long() -> c_int {
    set_errno(libc::ENAMETOOLONG);
    -1
}

/// The device of a descriptor.
#[inline]
fn device_of(fd: c_int) -> Option<Device> {
    if !fds::is_hit(fd) {
        return None;
    }
    let before = real::errno();
    let found = fds::find(fd);
    set_errno(before);
    match found?.kind {
        Kind::Device(device) => Some(device),
        Kind::Channel | Kind::AsyncEvents | Kind::Set | Kind::Netlink | Kind::Spared => None,
    }
}

/// The device of a descriptor if the path is empty, for calls with `AT_EMPTY_PATH`.
///
/// # Safety
/// `path` is null or a C string.
unsafe fn device_of_empty(fd: c_int, path: *const c_char) -> Option<Device> {
    // SAFETY: not null, so a C string, which has a first octet.
    let is_empty = path.is_null() || unsafe { *path } == 0;
    is_empty.then(|| device_of(fd)).flatten()
}

/// Describes a device file.
///
/// # Safety
/// `buf` has room for a `struct stat`.
#[cold]
unsafe fn fill(device: Device, buf: *mut Stat) -> c_int {
    // SAFETY: all zeros is a valid `struct stat`.
    let mut stat: Stat = unsafe { std::mem::zeroed() };
    stat.st_mode = MODE;
    stat.st_nlink = 1;
    stat.st_rdev = device.number();
    stat.st_blksize = 4096;
    // SAFETY: the caller guarantees it.
    unsafe { buf.write(stat) };
    0
}

/// Describes a device file.
///
/// # Safety
/// `buf` has room for a `struct statx`.
#[cold]
unsafe fn fill_statx(device: Device, buf: *mut libc::statx) -> c_int {
    // SAFETY: all zeros is a valid `struct statx`.
    let mut statx: libc::statx = unsafe { std::mem::zeroed() };
    statx.stx_mask = libc::STATX_BASIC_STATS;
    statx.stx_mode = u16::try_from(MODE).unwrap_or(0);
    statx.stx_nlink = 1;
    statx.stx_rdev_major = libc::major(device.number());
    statx.stx_rdev_minor = libc::minor(device.number());
    statx.stx_blksize = 4096;
    // SAFETY: the caller guarantees it.
    unsafe { buf.write(statx) };
    0
}
