//! select and pselect. Connections with rings move to TCP; what may get rings gets none while the
//! call is in progress.

use std::ffi::c_int;
use std::mem::zeroed;

use libc::{fd_set, sigset_t, timespec, timeval};

use crate::begin::{begin, Begun};
use crate::table::Cell;
use crate::{leave, real, sets, table};

/// Descriptors of a set of the C library.
const DESCRIPTORS: u32 = 1024;
const _: () = assert!(libc::FD_SETSIZE == DESCRIPTORS as usize);

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the sets of the caller.
    let named = unsafe { Named::new(count, [read, write, except]) };
    named.enter();
    // SAFETY: the arguments of the caller; a cancellation point.
    let found = unsafe { real::select(count, read, write, except, timeout) };
    named.leave();
    found
}

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the sets of the caller.
    let named = unsafe { Named::new(count, [read, write, except]) };
    named.enter();
    // SAFETY: the arguments of the caller; a cancellation point.
    let found = unsafe { real::pselect(count, read, write, except, timeout, mask) };
    named.leave();
    found
}

/// The descriptors that a call names, as far as they are not the kernel's alone.
struct Named {
    set: fd_set,
    end: u32,
}

impl Named {
    /// Those of the caller's sets; what does not fit a set moves to TCP.
    ///
    /// # Safety
    /// The sets are null or have `count` bits.
    unsafe fn new(count: c_int, sets: [*mut fd_set; 3]) -> Self {
        let end = u32::try_from(count).unwrap_or(0);
        // SAFETY: all zeroes is an empty set.
        let mut set: fd_set = unsafe { zeroed() };
        if end > 0 {
            for set in sets::known_in(0, end - 1) {
                // SAFETY: guaranteed by the caller.
                if sets.iter().any(|named| unsafe { has(*named, set.fd()) }) {
                    leave::give_up(set);
                }
            }
            for fd in table::hits(0, end - 1) {
                // SAFETY: guaranteed by the caller.
                if !sets.iter().any(|set| unsafe { has(*set, fd) }) {
                    continue;
                }
                if fd.cast_unsigned() < DESCRIPTORS {
                    // SAFETY: the set has the bit.
                    unsafe { libc::FD_SET(fd, &raw mut set) };
                } else {
                    leave::retire(fd);
                }
            }
        }
        Self {
            set,
            end: end.min(DESCRIPTORS),
        }
    }

    fn cells(&self) -> impl Iterator<Item = (c_int, &'static Cell)> + '_ {
        (0..self.end.cast_signed())
            // SAFETY: the set has the bit.
            .filter(|fd| unsafe { libc::FD_ISSET(*fd, &raw const self.set) })
            .filter_map(|fd| Some((fd, table::cell(fd)?)))
    }

    fn enter(&self) {
        for (fd, cell) in self.cells() {
            while let Begun::Rings(_) = begin(cell) {
                cell.leave();
                leave::retire(fd);
            }
        }
    }

    fn leave(&self) {
        self.cells().for_each(|(_, cell)| cell.leave());
    }
}

/// Whether a set has a descriptor.
///
/// # Safety
/// The set is null or has the bit.
unsafe fn has(set: *const fd_set, fd: c_int) -> bool {
    let (number, bits) = (fd.cast_unsigned() as usize, u64::BITS as usize);
    // SAFETY: guaranteed by the caller; sets may be longer than `fd_set`.
    !set.is_null()
        && unsafe { set.cast::<u64>().add(number / bits).read() } >> (number % bits) & 1 != 0
}
