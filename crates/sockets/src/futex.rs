//! Sleeping on a word that both ends share.

use std::ffi::{c_int, c_long};
use std::ptr::null;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::limits;

/// `PTHREAD_CANCEL_ASYNCHRONOUS`.
const ASYNCHRONOUS: c_int = 1;

extern "C-unwind" {
    fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int;
}

/// The half of a word that the kernel looks at: the lower one.
fn address(word: &AtomicU64) -> *const u32 {
    std::ptr::from_ref(word).cast()
}

/// Sleeps while the word is `value`, for at most `limit`, until it is woken or a handler of a
/// signal has run: without a limit, one that does not restart calls. Returns 0 or the negative
/// errno.
///
/// # Safety
/// The thread may be cancelled here: its frames have no values to be dropped.
#[inline(never)]
pub(crate) unsafe fn sleep(word: &AtomicU64, value: u64, limit: Option<Duration>) -> c_long {
    let limit = limit.map(limits::timespec);
    let limit = limit.as_ref().map_or(null(), std::ptr::from_ref);
    let mut before = 0;
    // SAFETY: the type is valid, and the word writable. From here to the second call the thread may
    // end at any instruction, as in the C library's own sleeps.
    unsafe { pthread_setcanceltype(ASYNCHRONOUS, &raw mut before) };
    // SAFETY: word and limit outlive the call.
    let result = unsafe { wait(address(word), value, limit) };
    // SAFETY: the type is the one that the first call has stored.
    unsafe { pthread_setcanceltype(before, &raw mut before) };
    result
}

/// FUTEX_WAIT for at most `limit`, or without one if it is null: 0, or the negative errno. Not by
/// the function of the C library, since a thread may be cancelled at any instruction.
#[inline(always)]
unsafe fn wait(address: *const u32, value: u64, limit: *const libc::timespec) -> c_long {
    let result: c_long;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a system call, which changes no memory of ours.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") libc::SYS_futex => result,
            in("rdi") address,
            in("rsi") c_long::from(libc::FUTEX_WAIT),
            in("rdx") value,
            in("r10") limit,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a system call, which changes no memory of ours.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") libc::SYS_futex,
            inlateout("x0") address => result,
            in("x1") c_long::from(libc::FUTEX_WAIT),
            in("x2") value,
            in("x3") limit,
            options(nostack),
        );
    }
    result
}

/// Wakes all that sleep on the word.
pub(crate) fn wake(word: &AtomicU64) {
    // SAFETY: the word is only compared by its address.
    unsafe { libc::syscall(libc::SYS_futex, address(word), libc::FUTEX_WAKE, c_int::MAX) };
}
