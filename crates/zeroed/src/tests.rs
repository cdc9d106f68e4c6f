use super::*;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    number: u64,
    limit: Option<u32>,
    is_set: bool,
}
zeroed!(Entry, Option<Arc<u64>>);

const EMPTY: Entry = Entry {
    number: 0,
    limit: None,
    is_set: false,
};

/// Which pages of a slice have memory.
fn resident<T: Zeroed>(slice: &ZeroedSlice<T>) -> usize {
    let octets = size_of_val::<[T]>(slice);
    let mut pages = vec![0u8; octets.div_ceil(MAPPED_OCTETS)];
    // SAFETY: the slice is mapped, and there is an octet for each of its pages.
    let outcome = unsafe { libc::mincore(slice.first.as_ptr().cast(), octets, pages.as_mut_ptr()) };
    assert_eq!(outcome, 0);
    pages.iter().filter(|page| **page & 1 == 1).count()
}

#[test]
fn elements_begin_as_zeroes_and_keep_what_is_written() {
    for len in [1, 7, 200, 5_000] {
        let mut slice = ZeroedSlice::<Entry>::new(len);
        assert_eq!(slice.len(), len);
        assert!(slice.iter().all(|entry| *entry == EMPTY));
        let written = Entry {
            number: 5,
            limit: Some(0),
            is_set: true,
        };
        slice[len - 1] = written;
        assert_eq!(slice[len - 1], written);
        assert!(slice[..len - 1].iter().all(|entry| *entry == EMPTY));
    }
}

#[test]
fn long_slice_has_memory_for_the_pages_that_were_written() {
    let mut slice = ZeroedSlice::<u64>::new(1 << 20);
    assert_eq!(resident(&slice), 0);
    slice[0] = 1;
    slice[1 << 19] = 1;
    assert_eq!(resident(&slice), 2);
}

#[test]
fn empty_slice_has_no_elements() {
    assert!(ZeroedSlice::<Entry>::default().is_empty());
    assert_eq!(ZeroedSlice::<u8>::new(0).len(), 0);
}

#[test]
fn elements_are_dropped_with_the_slice() {
    let shared = Arc::new(3);
    for len in [2, 2_000] {
        let mut slice = ZeroedSlice::<Option<Arc<u64>>>::new(len);
        slice[len - 1] = Some(Arc::clone(&shared));
        assert_eq!(Arc::strong_count(&shared), 2);
        drop(slice);
        assert_eq!(Arc::strong_count(&shared), 1);
    }
}

#[test]
fn memory_of_a_dropped_slice_returns_as_zeroes() {
    for _ in 0..100 {
        let mut slice = ZeroedSlice::<u64>::new(3_000);
        assert!(slice.iter().all(|word| *word == 0));
        slice.fill(u64::MAX);
    }
}

#[test]
fn address_of_a_dropped_slice_is_used_again_without_its_memory() {
    const LEN: usize = 77 * MAPPED_OCTETS;
    // A test beside this one may have the lock.
    let is_used_again = (0..1_000).any(|_| {
        let mut slice = ZeroedSlice::<u8>::new(LEN);
        slice.fill(1);
        let at = slice.first;
        drop(slice);
        let next = ZeroedSlice::<u8>::new(LEN);
        next.first == at && resident(&next) == 0 && next.iter().all(|octet| *octet == 0)
    });
    assert!(is_used_again);
}
