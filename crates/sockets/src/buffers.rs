//! Calls on one buffer, which programs make most. Their hooks jump to what does the transfer, and
//! save nothing themselves.

use std::ffi::{c_int, c_void};

use libc::{iovec, ssize_t};

use crate::at_once;
use crate::begin::begin_unless_rings;
use crate::calls::{transfer_by, transfer_by_kernel, Way};
use crate::octets::Octets;
use crate::table::{self, Cell, State};

/// A function of the C library that moves octets of one buffer, with the arguments of send(2) and
/// recv(2).
pub(crate) trait Function {
    fn way(flags: c_int) -> Way;

    /// The kernel's call.
    ///
    /// # Safety
    /// As the function.
    unsafe fn kernel(fd: c_int, buf: *mut c_void, len: usize, flags: c_int) -> ssize_t;
}

/// Moves octets: by rings, or by the kernel.
///
/// # Safety
/// As [`crate::calls::transfer`].
#[inline(always)]
pub(crate) unsafe fn transfer<F: Function>(
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
) -> ssize_t {
    let Some((cell, seen)) = table::hit_as_seen(fd) else {
        // SAFETY: as for the caller.
        return unsafe { F::kernel(fd, buf, len, flags) };
    };
    let way = F::way(flags);
    if seen.has_no_rings() && way.is_known() {
        // SAFETY: as for the caller.
        return unsafe { by_kernel::<F>(fd, buf, len, flags, cell) };
    }
    let otherwise: at_once::Otherwise = by_other_ways::<F>;
    match way {
        // SAFETY: as for the caller.
        _ if seen.state() != State::Rings || !way.may_be_at_once() => unsafe {
            otherwise(fd, buf, len, flags, cell)
        },
        // SAFETY: as for the caller.
        Way::Recv(_) => unsafe { at_once::recv(fd, buf, len, flags, cell, otherwise) },
        // SAFETY: as for the caller.
        _ => unsafe { at_once::send(fd, buf, len, flags, cell, otherwise) },
    }
}

/// The transfer of a socket that has just had no rings.
///
/// # Safety
/// As [`transfer`].
#[inline(never)]
unsafe fn by_kernel<F: Function>(
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
    cell: &'static Cell,
) -> ssize_t {
    let Some(entered) = begin_unless_rings(cell) else {
        // SAFETY: as for the caller.
        return unsafe { by_other_ways::<F>(fd, buf, len, flags, cell) };
    };
    // SAFETY: as for the caller.
    let kernel = || unsafe { F::kernel(fd, buf, len, flags) };
    transfer_by_kernel(fd, (cell, entered), F::way(flags), kernel)
}

/// The transfer that needs more than either.
///
/// # Safety
/// As [`transfer`].
#[inline(never)]
unsafe fn by_other_ways<F: Function>(
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
    cell: &'static Cell,
) -> ssize_t {
    let part = iovec {
        iov_base: buf,
        iov_len: len,
    };
    // SAFETY: as for the caller.
    let kernel = || unsafe { F::kernel(fd, buf, len, flags) };
    // SAFETY: as for the caller; an array of one part.
    unsafe {
        let octets = Octets::new(&raw const part, 1);
        transfer_by(fd, cell, octets, (F::way(flags), false), kernel)
    }
}
