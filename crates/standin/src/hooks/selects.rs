//! select and pselect on completion channels and files of rdma_cm: see `lists.rs`. Calls with
//! descriptors that do not fit into an `fd_set` are passed on.

use std::ffi::c_int;
use std::ptr::{null, null_mut};

use libc::{fd_set, sigset_t, timespec, timeval};

use super::call::{self, Call, Sleep};
use super::lists::{self, List, Source};
use crate::{provider, real};
use urdma_abi::signals::SET_OCTETS;

/// Bits of a word of a set.
const BITS: usize = 64;
/// Words of a set.
const WORDS: usize = libc::FD_SETSIZE / BITS;

type Words = [u64; WORDS];

#[cfg_attr(not(test), no_mangle)]
unsafe extern "C-unwind" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: null or the caller's timeout.
    let limit_ns = limit_of(unsafe { timeout.as_ref() });
    // SAFETY: the arguments of the caller.
    match (limit_ns, unsafe { source_in(count, read) }) {
        (Some(limit_ns), Some(source)) if limit_ns != 0 => {
            let sets = [read, write, except].map(<*mut fd_set>::cast);
            // SAFETY: the arguments of the caller.
            let mut list = unsafe { Select::new(Call::new(limit_ns, null()), count, sets) };
            list.timeout = timeout;
            // SAFETY: the arguments of the caller.
            unsafe { lists::wait_for(list, source) }
        }
        (_, found) => {
            found.inspect(|_| provider::send_events());
            // SAFETY: the arguments of the caller.
            unsafe { real::select(count, read, write, except, timeout) }
        }
    }
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
    // SAFETY: null or the caller's timeout.
    let limit_ns = call::limit_of(unsafe { timeout.as_ref() });
    // SAFETY: the arguments of the caller.
    match (limit_ns, unsafe { source_in(count, read) }) {
        (Some(limit_ns), Some(source)) if limit_ns != 0 => {
            let sets = [read, write, except].map(<*mut fd_set>::cast);
            // SAFETY: the arguments of the caller.
            let list = unsafe { Select::new(Call::new(limit_ns, mask), count, sets) };
            // SAFETY: the arguments of the caller.
            unsafe { lists::wait_for(list, source) }
        }
        (_, found) => {
            found.inspect(|_| provider::send_events());
            // SAFETY: the arguments of the caller.
            unsafe { real::pselect(count, read, write, except, timeout, mask) }
        }
    }
}

/// The time of a call in nanoseconds, negative for ever; `None` if the timeout is not valid, or is
/// one that the kernel normalizes.
fn limit_of(timeout: Option<&timeval>) -> Option<i64> {
    let Some(timeout) = timeout else {
        return Some(-1);
    };
    call::limit_of(Some(&timespec {
        tv_sec: timeout.tv_sec,
        tv_nsec: timeout.tv_usec.saturating_mul(1000),
    }))
}

/// Words of a set of `count` descriptors, if it is not larger than an `fd_set`.
fn words_of(count: c_int) -> Option<usize> {
    let words = usize::try_from(count).ok()?.div_ceil(BITS);
    (words <= WORDS).then_some(words)
}

/// A file whose events the provider raises among those that are to be readable.
///
/// # Safety
/// As select(2).
unsafe fn source_in(count: c_int, read: *const fd_set) -> Option<Source> {
    let words = words_of(count).filter(|_| !read.is_null())?;
    // SAFETY: the caller guarantees it.
    let words = unsafe { std::slice::from_raw_parts(read.cast::<u64>(), words) };
    let members = words.iter().enumerate().flat_map(|(at, word)| {
        let bits = (0..BITS).filter(move |bit| word >> bit & 1 != 0);
        bits.filter_map(move |bit| c_int::try_from(at * BITS + bit).ok())
    });
    lists::source_among(members.take_while(|fd| *fd < count))
}

/// A call of select.
struct Select {
    call: Call,
    count: c_int,
    /// The sets of the caller: what is to be readable, to be writable, to have an exception.
    sets: [*mut u64; 3],
    /// What they were when the call began.
    wanted: [Words; 3],
    /// What the system call has left of them.
    found: [Words; 3],
    waker: c_int,
    /// Where to store the time that is left, or null.
    timeout: *mut timeval,
}

impl Select {
    /// # Safety
    /// As select(2); the sets are not larger than an `fd_set`.
    unsafe fn new(call: Call, count: c_int, sets: [*mut u64; 3]) -> Self {
        let words = words_of(count).unwrap_or(0);
        let wanted = sets.map(|set| {
            let mut copy = [0; WORDS];
            if !set.is_null() {
                // SAFETY: the caller guarantees it.
                let set = unsafe { std::slice::from_raw_parts(set, words) };
                copy[..words].copy_from_slice(set);
            }
            copy
        });
        Self {
            call,
            count,
            sets,
            wanted,
            found: wanted,
            waker: -1,
            timeout: null_mut(),
        }
    }

    /// Where the bit of the provider's descriptor is.
    fn place(&self) -> (usize, u64) {
        let waker = usize::try_from(self.waker).unwrap_or(0);
        (waker / BITS, 1 << (waker % BITS))
    }

    /// Stores the time that is left, as Linux does.
    ///
    /// # Safety
    /// The call has not returned.
    unsafe fn store_time(&self) {
        // SAFETY: null or the timeout of the caller.
        let timeout = unsafe { self.timeout.as_mut() };
        if let Some((timeout, left)) = timeout.zip(self.call.left()) {
            timeout.tv_sec = left.tv_sec;
            timeout.tv_usec = left.tv_nsec / 1000;
        }
    }
}

impl List for Select {
    fn call(&mut self) -> &mut Call {
        &mut self.call
    }

    fn add(&mut self, waker: c_int) -> bool {
        let fits = words_of(waker + 1).is_some();
        if fits {
            self.waker = waker;
            let (word, bit) = self.place();
            self.wanted[0][word] |= bit;
        }
        fits
    }

    unsafe fn look(&mut self, sleep: &Sleep) -> libc::c_long {
        self.found = self.wanted;
        let count = self.count.max(self.waker + 1);
        let mask = (sleep.mask, SET_OCTETS);
        let [read, write, except] = &mut self.found;
        // SAFETY: three sets of this size, a time, and a mask with its size.
        sleep.make(|time| unsafe {
            let number = libc::SYS_pselect6;
            libc::syscall(number, count, read, write, except, time, &raw const mask)
        })
    }

    fn take_waker(&mut self) -> bool {
        let (word, bit) = self.place();
        let is_woken = self.found[0][word] & bit != 0;
        self.found[0][word] &= !bit;
        is_woken
    }

    unsafe fn store(&mut self) {
        let words = words_of(self.count).unwrap_or(0);
        for (set, found) in self.sets.iter().zip(&self.found) {
            if !set.is_null() {
                // SAFETY: the caller guarantees it.
                let set = unsafe { std::slice::from_raw_parts_mut(*set, words) };
                set.copy_from_slice(&found[..words]);
            }
        }
        // SAFETY: the call goes on.
        unsafe { self.store_time() };
    }

    unsafe fn sleep(&mut self) -> c_int {
        let time = self.call.left();
        let time = time.as_ref().map_or(null(), std::ptr::from_ref);
        let [read, write, except] = self.sets.map(<*mut u64>::cast);
        // SAFETY: the caller guarantees it.
        let result =
            unsafe { real::pselect(self.count, read, write, except, time, self.call.mask) };
        // SAFETY: the call goes on.
        unsafe { self.store_time() };
        result
    }
}

const _: () = assert!(size_of::<Words>() == size_of::<fd_set>());
