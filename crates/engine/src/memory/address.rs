//! Addresses of application memory as pointers, and the accesses to it that are atomic.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, AtomicU8, Ordering};

use proto_trp::conn::AtomicOp;

/// Stores the last octet of a write, which must appear after all others: programs wait for it by
/// reading memory.
#[inline]
pub(super) fn store_last(address: u64, octet: u8) {
    // SAFETY: it is within the range that the write was granted; an octet is always aligned.
    unsafe { AtomicU8::from_ptr(pointer(address)) }.store(octet, Ordering::Release);
}

/// The pointer to an address of this process.
#[inline]
pub(crate) fn pointer(address: u64) -> *mut u8 {
    // An address that does not fit is not one of this process; registration has refused it.
    std::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(usize::MAX))
}

/// Executes `op` on the aligned word at `address` and gives the old value.
///
/// # Safety
/// Eight octets of the application's memory are there, and may be changed.
pub(super) unsafe fn atomic_at(address: u64, op: AtomicOp) -> u64 {
    // SAFETY: the caller's promise.
    let word = unsafe { AtomicU64::from_ptr(pointer(address).cast()) };
    let mut old = word.load(Ordering::Acquire);
    loop {
        // RFC7306-5-1
        //# Atomics of different streams to the same memory exclude one another (also sections 5.3
        //# and 5.4).
        match word.compare_exchange_weak(old, op.apply(old), Ordering::AcqRel, Ordering::Acquire) {
            Ok(old) => return old,
            Err(current) => old = current,
        }
    }
}
