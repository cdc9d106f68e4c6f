//! A received datagram, as the engine reads it: in shared or DMA memory, which others may write to.

#![allow(unsafe_code)]

use std::marker::PhantomData;

use proto_trp::conn::{HEAD_OCTETS, PREDICTED_OCTETS};
use proto_trp::wire::SEGMENT_HEAD_LEN;

/// Distance in octets between the segment of a train that is read and the octets that are
/// prefetched.
pub(crate) const AHEAD: usize = 384;
pub(crate) const CACHE_LINE: usize = 64;

/// Prefetches a cache line for reading.
#[inline(always)]
fn prefetch_read(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address has no effect that a program can see.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Prefetches a cache line for writing.
#[inline(always)]
pub(crate) fn prefetch_write(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address has no effect that a program can see.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_ET0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// A received datagram in shared or DMA memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketBody<'a> {
    data: *const u8,
    len: usize,
    readable: usize,
    memory: PhantomData<&'a u8>,
}

impl<'a> PacketBody<'a> {
    /// The `len` octets at `data`, where `readable` octets or more can be read.
    ///
    /// # Safety
    /// They are readable as long as the value is used.
    #[inline]
    pub(crate) unsafe fn new(data: *const u8, len: usize, readable: usize) -> Self {
        Self {
            data,
            len,
            readable: readable.max(len),
            memory: PhantomData,
        }
    }

    /// The `len` octets at `data`, behind `skipped` others that are not here: offsets count from
    /// the first of those.
    ///
    /// # Safety
    /// They are readable as long as the value is used.
    #[inline]
    pub(crate) unsafe fn behind(skipped: usize, data: *const u8, len: usize) -> Self {
        Self {
            data: data.wrapping_sub(skipped),
            len: skipped + len,
            readable: skipped + len,
            memory: PhantomData,
        }
    }

    /// The `len` octets from `at` on as a datagram.
    ///
    /// # Panics
    /// They are not all within this one.
    #[inline]
    pub(crate) fn part(&self, at: usize, len: usize) -> Self {
        Self {
            data: self.piece(at, len),
            len,
            readable: self.readable - at,
            memory: PhantomData,
        }
    }

    /// Octets of the datagram.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Copies the first octets out, as many as there are and fit; what follows them in `head` is
    /// arbitrary then.
    #[inline]
    pub(crate) fn copy_head(&self, head: &mut [u8; HEAD_OCTETS]) -> usize {
        // Copies of a fixed length are a few vector moves. Most datagrams are short, and their
        // third cache line is not worth a miss.
        const SHORT: usize = 128;
        let len = self.len.min(HEAD_OCTETS);
        let (from, to) = (self.data, head.as_mut_ptr());
        if len <= SHORT && self.readable >= SHORT {
            // SAFETY: SHORT octets are readable and fit in `head`; a datagram and a local array do
            // not overlap.
            unsafe { std::ptr::copy_nonoverlapping(from, to, SHORT) };
        } else if self.readable >= HEAD_OCTETS {
            // SAFETY: HEAD_OCTETS octets are readable, and `head` has as many; a datagram and a
            // local array do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(from, to, HEAD_OCTETS) };
        } else {
            // SAFETY: `len` octets are readable and fit in `head`; a datagram and a local array do
            // not overlap.
            unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
        }
        len
    }

    /// Copies the first octets out, which are enough for a packet that is as predicted.
    #[inline]
    pub(crate) fn copy_start(&self, start: &mut [u8; PREDICTED_OCTETS]) -> usize {
        let len = self.len.min(PREDICTED_OCTETS);
        if self.readable >= PREDICTED_OCTETS {
            // SAFETY: `PREDICTED_OCTETS` are readable; a datagram and a local array do not overlap.
            // A fixed length is a few vector moves.
            unsafe {
                std::ptr::copy_nonoverlapping(self.data, start.as_mut_ptr(), PREDICTED_OCTETS);
            }
            len
        } else {
            0
        }
    }

    /// Starts loading the cache lines from octet `from` to octet `to`, as far as there are such.
    #[inline]
    pub(crate) fn prefetch(&self, from: usize, to: usize) {
        for at in (from..to.min(self.len)).step_by(CACHE_LINE) {
            prefetch_read(self.data.wrapping_add(at));
        }
    }

    /// Copies the octets from `at` on out, as many as there are and fit; what follows them in `out`
    /// is arbitrary then.
    #[inline]
    pub(crate) fn peek(&self, at: usize, out: &mut [u8; SEGMENT_HEAD_LEN]) {
        self.prefetch(at + AHEAD, at + AHEAD + 2 * CACHE_LINE);
        let readable = self.readable.saturating_sub(at);
        let (from, to) = (self.data.wrapping_add(at), out.as_mut_ptr());
        if readable >= SEGMENT_HEAD_LEN {
            // SAFETY: `SEGMENT_HEAD_LEN` octets are readable from there; a datagram and a local
            // array do not overlap. A fixed length is a few vector moves.
            unsafe { std::ptr::copy_nonoverlapping(from, to, SEGMENT_HEAD_LEN) };
        } else {
            // SAFETY: `readable` octets are readable from there, fewer than the array has; a
            // datagram and a local array do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(from, to, readable) };
        }
    }

    /// A copy of the whole datagram.
    pub(crate) fn to_boxed(self) -> Box<[u8]> {
        let mut octets = Vec::with_capacity(self.len);
        // SAFETY: there is room for `len` octets, all of which are written.
        unsafe {
            self.copy_to(0, octets.as_mut_ptr(), self.len);
            octets.set_len(self.len);
        }
        octets.into_boxed_slice()
    }

    /// Where the `len` octets from `at` are.
    #[inline]
    pub(crate) fn piece(&self, at: usize, len: usize) -> *const u8 {
        assert!(
            at <= self.len && len <= self.len - at,
            "a segment beyond its datagram"
        );
        // Wrapping, since the octets before `at` may not be there.
        self.data.wrapping_add(at)
    }

    /// Copies `len` octets from `at` to `to`.
    ///
    /// # Safety
    /// `to` is writable for `len` octets.
    #[inline]
    pub(crate) unsafe fn copy_to(&self, at: usize, to: *mut u8, len: usize) {
        let from = self.piece(at, len);
        // SAFETY: readable as said above, writable by the caller's promise; packet memory and
        // registered memory do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
    }
}
