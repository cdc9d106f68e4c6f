//! Slices that begin as zeroes and take memory as they are written.
//!
//! The rings of a queue pair have room for all requests that the application may post, and most
//! queue pairs never have that many. [`ZeroedSlice`] maps a long slice, so that the kernel gives it
//! a page when the page is first written, and gives all pages back when the slice is dropped; the
//! addresses are kept for the next slice of that length. The C library's `calloc` does so only for
//! allocations above a threshold that rises with use, and writes zeroes into the others.
//!
//! [`zeroed!`](crate::zeroed!) states that zeroes are a value of a type, and has the compiler check
//! it.

#![allow(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

use std::alloc::{alloc, alloc_zeroed, dealloc, handle_alloc_error, Layout};
use std::collections::BTreeMap;
use std::fmt;
use std::hint::black_box;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Mutex;

/// Octets from which on a slice is mapped: a page of the smallest size.
const MAPPED_OCTETS: usize = 4096;
/// Octets up to which a slice is a block of `malloc` that is written: `calloc` of glibc before 2.41
/// takes none of the thread's cache.
const WRITTEN_MAX: usize = 1024;

/// A type of which zeroes are a value; [`zeroed!`](crate::zeroed!) implements it.
///
/// # Safety
/// Octets that are all zero are a value of the type.
pub unsafe trait Zeroed {}

/// States that zeroes are a value of each of these types.
///
/// The compiler evaluates that value, and refuses a type that has none: a reference, or an
/// enumeration without a variant of number 0.
///
/// ```
/// #[derive(Clone, Copy, Debug, PartialEq)]
/// struct Entry {
///     at: u64,
///     limit: Option<u32>,
/// }
/// urdma_zeroed::zeroed!(Entry);
/// let entries = urdma_zeroed::ZeroedSlice::<Entry>::new(1000);
/// assert_eq!(entries[999], Entry { at: 0, limit: None });
/// ```
///
/// ```compile_fail
/// #[repr(u8)]
/// enum Kind {
///     Send = 1,
///     Read = 2,
/// }
/// urdma_zeroed::zeroed!(Kind);
/// ```
#[macro_export]
macro_rules! zeroed {
    ($($type:ty),+ $(,)?) => {$(
        // SAFETY: the compiler checks that the constant is a value of the type.
        unsafe impl $crate::Zeroed for $type {}
        // SAFETY: it is evaluated by the compiler, which refuses what is no value.
        const _: $type = unsafe { ::std::mem::zeroed() };
    )+};
}

zeroed!(u8, u16, u32, u64);

/// A slice of fixed length on the heap, whose elements are zeroes until they are written.
pub struct ZeroedSlice<T: Zeroed> {
    first: NonNull<T>,
    len: usize,
    /// Whether it has a mapping of its own.
    is_mapped: bool,
}

// SAFETY: it owns its elements, as a box does.
unsafe impl<T: Zeroed + Send> Send for ZeroedSlice<T> {}
// SAFETY: it owns its elements, as a box does.
unsafe impl<T: Zeroed + Sync> Sync for ZeroedSlice<T> {}

impl<T: Zeroed> ZeroedSlice<T> {
    /// `len` elements, each of which is zeroes. As with [`Vec`], a length that no memory has room
    /// for ends the program.
    pub fn new(len: usize) -> Self {
        let Ok(layout) = Layout::array::<T>(len) else {
            panic!("{len} elements exceed the address space");
        };
        if layout.size() == 0 {
            return Self {
                first: NonNull::dangling(),
                len,
                is_mapped: false,
            };
        }
        let mapped = if layout.size() >= MAPPED_OCTETS && layout.align() <= MAPPED_OCTETS {
            map(layout.size())
        } else {
            None
        };
        let first = mapped.or_else(|| allocate(layout));
        Self {
            first: first.unwrap_or_else(|| handle_alloc_error(layout)).cast(),
            len,
            is_mapped: mapped.is_some(),
        }
    }
}

/// Zeroed memory of the allocator; the layout has a size.
fn allocate(layout: Layout) -> Option<NonNull<u8>> {
    if layout.size() > WRITTEN_MAX {
        // SAFETY: the layout has a size.
        return NonNull::new(unsafe { alloc_zeroed(layout) });
    }
    // The compiler makes `calloc` of a block that it sees zeroed.
    // SAFETY: the layout has a size.
    let first = black_box(NonNull::new(unsafe { alloc(layout) })?);
    // SAFETY: the block has as many octets.
    unsafe { first.write_bytes(0, layout.size()) };
    Some(first)
}

impl<T: Zeroed> Default for ZeroedSlice<T> {
    fn default() -> Self {
        Self::new(0)
    }
}

impl<T: Zeroed> Deref for ZeroedSlice<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: it has `len` elements, and zeroes are a value of each.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

impl<T: Zeroed> DerefMut for ZeroedSlice<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: it has `len` elements, and zeroes are a value of each.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.len) }
    }
}

impl<T: Zeroed> Drop for ZeroedSlice<T> {
    fn drop(&mut self) {
        if std::mem::needs_drop::<T>() {
            // SAFETY: the elements are not used any more.
            unsafe { std::ptr::drop_in_place(&raw mut **self) };
        }
        let layout = Layout::for_value::<[T]>(self);
        if self.is_mapped {
            unmap(self.first.cast(), layout.size());
        } else if layout.size() > 0 {
            // SAFETY: allocated with this layout.
            unsafe { dealloc(self.first.as_ptr().cast(), layout) };
        }
    }
}

impl<T: Zeroed + fmt::Debug> fmt::Debug for ZeroedSlice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// A mapping that no slice has, without memory.
struct Spare(NonNull<u8>);

// SAFETY: nothing else has the address.
unsafe impl Send for Spare {}

/// Spare mappings by their length. A dropped slice leaves one, since a hole would make two mappings
/// of the one that the kernel has for many slices, and a process may have 65,530.
static SPARE: Mutex<BTreeMap<usize, Vec<Spare>>> = Mutex::new(BTreeMap::new());

/// Zeroed memory; none if the process may not have another mapping.
fn map(octets: usize) -> Option<NonNull<u8>> {
    let octets = octets.next_multiple_of(MAPPED_OCTETS);
    // A forked child may find the lock taken for ever.
    if let Ok(mut spare) = SPARE.try_lock() {
        if let Some(Spare(at)) = spare.get_mut(&octets).and_then(Vec::pop) {
            return Some(at);
        }
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: no memory is replaced.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), octets, access, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return None;
    }
    // With a huge page the first write would take 2 MB, which many queue pairs have together. A
    // kernel without huge pages refuses.
    // SAFETY: it was mapped above.
    unsafe { libc::madvise(at, octets, libc::MADV_NOHUGEPAGE) };
    NonNull::new(at.cast())
}

/// Gives back what [`map`] has returned.
fn unmap(at: NonNull<u8>, octets: usize) {
    let octets = octets.next_multiple_of(MAPPED_OCTETS);
    // Locked memory cannot be given back so.
    // SAFETY: it is used no more; the next reader gets zeroes.
    let is_zeroed = unsafe { libc::madvise(at.as_ptr().cast(), octets, libc::MADV_DONTNEED) } == 0;
    match SPARE.try_lock() {
        Ok(mut spare) if is_zeroed => spare.entry(octets).or_default().push(Spare(at)),
        // SAFETY: it is used no more. Where this fails the addresses are lost.
        _ => unsafe {
            libc::munmap(at.as_ptr().cast(), octets);
        },
    }
}

#[cfg(test)]
mod tests;
