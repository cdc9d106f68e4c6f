//! The functions that a preloaded library stands before: those of the same name in the libraries
//! after it, looked up once.
//!
//! Many are cancellation points, from which glibc unwinds the stack of a cancelled thread: hence
//! the ABI `C-unwind`, here and of the hooks. A hook that passes a call on has no values to drop;
//! one that does more holds [`crate::cancel::Disabled`].

use std::ffi::{c_int, c_void, CStr};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The address of the function `name` in the libraries after the one that this is linked into,
/// looked up once; null if there is none.
#[must_use]
pub fn lookup(cell: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = cell.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    // SAFETY: `name` is a C string; RTLD_NEXT is meant for exactly this.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    cell.store(found, Ordering::Release);
    found
}

/// `errno`, set.
pub fn set_errno(errno: c_int) {
    // SAFETY: the C library gives a valid address of this thread's errno.
    unsafe { *libc::__errno_location() = errno };
}

/// `errno`, read.
pub fn errno() -> c_int {
    // SAFETY: the C library gives a valid address of this thread's errno.
    unsafe { *libc::__errno_location() }
}

/// Declares functions of the libraries after this one: `name` calls it, or fails with ENOSYS and
/// the given value if there is none.
#[macro_export]
macro_rules! next {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $ret:ty, $failed:expr;)*) => {
        $(
            /// The next function of this name.
            ///
            /// # Safety
            /// As the C library's.
            #[inline]
            pub(crate) unsafe fn $name($($arg: $ty),*) -> $ret {
                static CELL: std::sync::atomic::AtomicPtr<std::ffi::c_void> =
                    std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());
                const NAME: &std::ffi::CStr = match std::ffi::CStr::from_bytes_with_nul(
                    concat!(stringify!($name), "\0").as_bytes(),
                ) {
                    Ok(name) => name,
                    Err(_) => panic!("not a C string"),
                };
                type Function = unsafe extern "C-unwind" fn($($ty),*) -> $ret;
                /// # Safety
                /// The address of the function of this name.
                unsafe fn at(address: *mut std::ffi::c_void) -> Function {
                    // SAFETY: the C library declares the function with this signature.
                    unsafe { std::mem::transmute::<*mut std::ffi::c_void, Function>(address) }
                }
                /// The first call, in a function of its own: later ones save nothing for it.
                #[cold]
                #[inline(never)]
                unsafe extern "C-unwind" fn call_first($($arg: $ty),*) -> $ret {
                    let found = $crate::next::lookup(&CELL, NAME);
                    if found.is_null() {
                        $crate::next::set_errno(libc::ENOSYS);
                        return $failed;
                    }
                    // SAFETY: what the lookup has found, and the caller guarantees the rest.
                    unsafe { at(found)($($arg),*) }
                }
                let found = CELL.load(std::sync::atomic::Ordering::Acquire);
                if found.is_null() {
                    // SAFETY: the caller guarantees it.
                    return unsafe { call_first($($arg),*) };
                }
                // SAFETY: what a lookup has found, and the caller guarantees the rest.
                unsafe { at(found)($($arg),*) }
            }
        )*
    };
}

/// Declares the hooks of `__poll_chk` and `__ppoll_chk`: poll and ppoll where the compiler knows
/// the size of the list. They call the hooks `poll` and `ppoll` of the module, or, if the list is
/// shorter than the call says, the next functions, in the module `$real`, which end the process.
#[macro_export]
macro_rules! sized_polls {
    ($real:ident) => {
        /// poll where the compiler knows the size of the list.
        #[cfg_attr(not(test), no_mangle)]
        unsafe extern "C-unwind" fn __poll_chk(
            list: *mut libc::pollfd,
            count: libc::nfds_t,
            timeout_ms: std::ffi::c_int,
            octets: libc::size_t,
        ) -> std::ffi::c_int {
            if $crate::next::is_within(count, octets) {
                // SAFETY: the arguments of the caller.
                return unsafe { poll(list, count, timeout_ms) };
            }
            // SAFETY: the arguments of the caller, which end the process.
            unsafe { $real::__poll_chk(list, count, timeout_ms, octets) }
        }

        /// ppoll where the compiler knows the size of the list.
        #[cfg_attr(not(test), no_mangle)]
        unsafe extern "C-unwind" fn __ppoll_chk(
            list: *mut libc::pollfd,
            count: libc::nfds_t,
            timeout: *const libc::timespec,
            mask: *const libc::sigset_t,
            octets: libc::size_t,
        ) -> std::ffi::c_int {
            if $crate::next::is_within(count, octets) {
                // SAFETY: the arguments of the caller.
                return unsafe { ppoll(list, count, timeout, mask) };
            }
            // SAFETY: the arguments of the caller, which end the process.
            unsafe { $real::__ppoll_chk(list, count, timeout, mask, octets) }
        }
    };
}

/// Whether a list of poll(2) with `count` entries has at most `octets` octets.
#[must_use]
pub fn is_within(count: libc::nfds_t, octets: usize) -> bool {
    usize::try_from(count).is_ok_and(|count| count <= octets / size_of::<libc::pollfd>())
}
