//! Memory that can be registered, and its exclusive parts.

use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use nix::sys::mman::{mmap_anonymous, munmap, MapFlags, ProtFlags};

use crate::error::Error;

/// An allocation that is registered as a whole: pages of their own, zeroed, since registration pins
/// whole pages; or memory of the caller.
#[derive(Debug)]
pub(crate) struct Pages {
    start: NonNull<c_void>,
    len_octets: usize,
    /// Whether they are a mapping that ends with this.
    is_own: bool,
}

// SAFETY: the pages belong to no thread. They are read and written through `Buffer`s, each of which
// is the only one of its octets.
unsafe impl Send for Pages {}
// SAFETY: the pages belong to no thread. They are read and written through `Buffer`s, each of which
// is the only one of its octets; a shared reference gives the address only.
unsafe impl Sync for Pages {}

impl Pages {
    fn new(len_octets: NonZeroUsize) -> Result<Self, Error> {
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: the kernel chooses the address, so that no other mapping is replaced.
        let start = unsafe { mmap_anonymous(None, len_octets, protection, MapFlags::MAP_PRIVATE) };
        let start = start.map_err(|errno| Error::from_errno("mmap", errno as i32))?;
        Ok(Self {
            start,
            len_octets: len_octets.get(),
            is_own: true,
        })
    }

    pub(crate) fn start(&self) -> NonNull<c_void> {
        self.start
    }

    pub(crate) fn len_octets(&self) -> usize {
        self.len_octets
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if !self.is_own {
            return;
        }
        // SAFETY: the mapping is this one; regions and buffers that refer to it keep it alive. It
        // can fail only for arguments that are none of a mapping.
        let _ = unsafe { munmap(self.start, self.len_octets) };
    }
}

/// Memory of the caller that sends and receives can use (exs_mregister). Clones are the same
/// memory.
#[derive(Clone, Debug)]
pub struct Memory(Arc<Pages>);

impl Memory {
    /// Memory from `start` on.
    ///
    /// # Safety
    /// The memory remains allocated until this, its clones and its buffers are gone and each
    /// [`crate::Socket`] that has used one of the buffers is gone, has ended, or was told to
    /// [`crate::Socket::forget`] it. It can be written if a receive uses it.
    pub unsafe fn new(start: NonNull<u8>, len_octets: usize) -> Self {
        Self(Arc::new(Pages {
            start: start.cast(),
            len_octets,
            is_own: false,
        }))
    }

    /// The octets from `at` on as a buffer; `None` if they are not in the memory.
    ///
    /// # Safety
    /// Until the buffer is dropped, the octets of a receive are neither read nor written, and those
    /// of a send are not written. Sends may share octets if none of their buffers is read or
    /// written as a slice.
    pub unsafe fn buffer(&self, at: usize, len_octets: usize) -> Option<Buffer> {
        let end = at.checked_add(len_octets)?;
        (end <= self.0.len_octets).then(|| Buffer {
            pages: Arc::clone(&self.0),
            start: at,
            len_octets,
        })
    }

    pub(crate) fn pages(&self) -> &Arc<Pages> {
        &self.0
    }
}

/// Octets that can be sent or received into; the only owner of them. It is moved to a
/// [`crate::Socket`] by a send or receive and comes back with the event of that.
///
/// A peer that has had the advert of a receive can violate the protocol and write into the
/// allocation from which the buffer was split, until its connection has ended. Memory whose
/// content must not change after it was received is copied first, or its peer trusted.
#[derive(Debug)]
pub struct Buffer {
    pages: Arc<Pages>,
    start: usize,
    len_octets: usize,
}

impl Buffer {
    /// Allocates octets, all 0.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(len_octets: usize) -> Result<Self, Error> {
        let pages = Pages::new(NonZeroUsize::new(len_octets).unwrap_or(NonZeroUsize::MIN))?;
        Ok(Self {
            pages: Arc::new(pages),
            start: 0,
            len_octets,
        })
    }

    /// Splits the buffer in two, the second of which begins at `at`. A registration is shared by
    /// all parts of an allocation.
    ///
    /// # Panics
    /// If `at` is beyond the end.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        assert!(at <= self.len_octets, "the place is in the buffer");
        let rest = Self {
            pages: Arc::clone(&self.pages),
            start: self.start + at,
            len_octets: self.len_octets - at,
        };
        self.len_octets = at;
        rest
    }

    /// The address of the first octet.
    pub(crate) fn addr(&self) -> u64 {
        self.first().as_ptr() as u64
    }

    pub(crate) fn pages(&self) -> &Arc<Pages> {
        &self.pages
    }

    fn first(&self) -> NonNull<u8> {
        // SAFETY: the start of a buffer is in its allocation or at its end.
        unsafe { self.pages.start.cast().add(self.start) }
    }

    /// Copies octets of `from`, into which a peer may be writing, without a reference to them.
    ///
    /// # Panics
    /// If either range is not in its buffer.
    pub(crate) fn copy_from(&mut self, at: usize, from: &Self, from_at: usize, len_octets: usize) {
        let fits = |buffer: &Self, at: usize| {
            at.checked_add(len_octets)
                .is_some_and(|end| end <= buffer.len_octets)
        };
        assert!(
            fits(self, at) && fits(from, from_at),
            "the copy is in both buffers"
        );
        // SAFETY: the range was checked.
        let source = unsafe { from.first().add(from_at) };
        // SAFETY: the range was checked.
        let target = unsafe { self.first().add(at) };
        // SAFETY: both ranges were checked; buffers of a copy have no octet in common, since one
        // of them is the ring.
        unsafe { source.copy_to_nonoverlapping(target, len_octets) };
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range is in the allocation, initialised, and no other buffer's; a buffer of
        // which work requests are in progress is the driver's.
        unsafe { std::slice::from_raw_parts(self.first().as_ptr(), self.len_octets) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the range is in the allocation, initialised, and no other buffer's; a buffer of
        // which work requests are in progress is the driver's.
        unsafe { std::slice::from_raw_parts_mut(self.first().as_ptr(), self.len_octets) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_buffer_are_separate_and_outlive_it() {
        let mut first = Buffer::new(10_000).unwrap();
        let mut second = first.split_off(4_000);
        assert_eq!((first.len(), second.len()), (4_000, 6_000));
        assert_eq!(second.addr(), first.addr() + 4_000);
        first.fill(1);
        second.fill(2);
        second.copy_from(5_999, &first, 3_999, 1);
        drop(first);
        assert!(second[..5_999].iter().all(|&octet| octet == 2));
        assert_eq!(second[5_999], 1);
    }

    #[test]
    fn memory_of_the_caller_has_buffers_within_it_and_is_not_freed() {
        let mut octets = vec![7_u8; 100];
        let start = NonNull::new(octets.as_mut_ptr()).unwrap();
        // SAFETY: the vector outlives the memory and is not accessed before that is gone.
        let memory = unsafe { Memory::new(start, octets.len()) };
        let mut ring = Buffer::new(10).unwrap();
        ring.fill(9);
        // SAFETY: the octets are not accessed in another way.
        let mut buffer = unsafe { memory.buffer(95, 5) }.unwrap();
        assert_eq!(buffer.addr(), start.as_ptr() as u64 + 95);
        buffer.copy_from(0, &ring, 0, 5);
        for (at, len) in [(0, 101), (100, 1), (usize::MAX, 2)] {
            // SAFETY: the octets are not accessed in another way.
            assert!(unsafe { memory.buffer(at, len) }.is_none());
        }
        drop((buffer, memory));
        assert_eq!(octets[..95], [7; 95]);
        assert_eq!(octets[95..], [9; 5]);
    }

    #[test]
    #[should_panic(expected = "the copy is in both buffers")]
    fn copy_beyond_a_buffer_panics() {
        let (mut to, from) = (Buffer::new(10).unwrap(), Buffer::new(20).unwrap());
        to.copy_from(1, &from, 0, 10);
    }
}
