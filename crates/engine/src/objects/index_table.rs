//! Tables by the index of a queue pair, and the allocation of indices.
//!
//! An attacker must not be able to predict numbers of queue pairs (doc/spec/trp.md, section 15).
//! The indices of a process therefore begin at a random one and are allocated from small batches in
//! random order. The tables are as dense as if the indices began with 1.

use std::collections::VecDeque;

use super::spares::Spares;

/// Number of freed indices above which one is used again, so that late packets find no queue pair.
const REUSE_DELAY: usize = 256;
/// Indices that are put in order at once.
const BATCH: u32 = 64;
/// Places: one for each 16-bit index.
const PLACES: u32 = 1 << 16;

/// The place of an index: its distance from the process' first one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FirstIndex(u16);

impl FirstIndex {
    /// The place of an index.
    #[inline]
    pub(super) fn place(self, index: u16) -> u16 {
        index.wrapping_sub(self.0)
    }

    /// The index in a place.
    #[inline]
    pub(super) fn index(self, place: u16) -> u16 {
        place.wrapping_add(self.0)
    }
}

/// The free indices.
#[derive(Debug)]
pub(crate) struct IndexAllocator {
    first: FirstIndex,
    /// Never given out.
    fresh: Vec<u16>,
    /// Given back, the one that was given back longest ago first.
    returned: VecDeque<u16>,
    /// Places of indices that are or were in [`IndexAllocator::fresh`], at most [`PLACES`].
    known: u32,
    random: fn(&mut [u32]),
}

impl IndexAllocator {
    /// All of them; `random` fills words, one of which the first is drawn from.
    pub(crate) fn new(random: fn(&mut [u32])) -> Self {
        let mut first = [0];
        random(&mut first);
        Self {
            first: FirstIndex(low16(first[0])),
            fresh: Vec::new(),
            returned: VecDeque::new(),
            known: 0,
            random,
        }
    }

    /// Where they begin.
    pub(crate) fn first(&self) -> FirstIndex {
        self.first
    }

    /// How many places the tables need.
    pub(crate) fn places(&self) -> usize {
        self.known as usize
    }

    /// One that is free.
    pub(crate) fn take(&mut self) -> Option<u16> {
        if self.returned.len() >= REUSE_DELAY {
            return self.returned.pop_front();
        }
        if self.fresh.is_empty() {
            self.add_batch();
        }
        self.fresh.pop().or_else(|| self.returned.pop_front())
    }

    /// Takes one back.
    pub(crate) fn give_back(&mut self, index: u16) {
        self.returned.push_back(index);
    }

    fn add_batch(&mut self) {
        let end = (self.known + BATCH).min(PLACES);
        let places = self.known..end;
        let indices = places.map(|place| self.first.index(low16(place)));
        // R3-1
        //# Index 0 MUST NOT be assigned to a queue pair; slots 254 and 255 do not exist.
        // No queue pair has index 0.
        self.fresh.extend(indices.filter(|index| *index != 0));
        self.known = end;
        let mut words = [0; BATCH as usize];
        (self.random)(&mut words);
        for (at, word) in (1..self.fresh.len()).zip(words) {
            self.fresh.swap(at, word as usize % (at + 1));
        }
    }
}

/// The low half of a word.
fn low16(word: u32) -> u16 {
    let [low, high, ..] = word.to_le_bytes();
    u16::from_le_bytes([low, high])
}

/// A table by index.
#[derive(Debug)]
pub(crate) struct IndexTable<T> {
    first: FirstIndex,
    entries: Vec<Option<Box<T>>>,
    spares: Spares<T>,
}

impl<T> IndexTable<T> {
    /// An empty one for indices that begin with `first`.
    pub(crate) fn new(first: FirstIndex) -> Self {
        Self {
            first,
            entries: Vec::new(),
            spares: Spares::default(),
        }
    }

    /// What has an index.
    #[inline]
    pub(crate) fn get(&self, index: u16) -> Option<&T> {
        let place = usize::from(self.first.place(index));
        self.entries.get(place)?.as_deref()
    }

    /// What has an index.
    #[inline]
    pub(crate) fn get_mut(&mut self, index: u16) -> Option<&mut T> {
        let place = usize::from(self.first.place(index));
        self.entries.get_mut(place)?.as_deref_mut()
    }

    /// Gives an index something.
    pub(crate) fn put(&mut self, index: u16, entry: T) {
        let place = usize::from(self.first.place(index));
        if place >= self.entries.len() {
            self.entries.resize_with(place + 1, || None);
        }
        self.entries[place] = Some(self.spares.place(entry));
    }

    /// Takes what has an index out.
    pub(crate) fn take(&mut self, index: u16) -> Option<Box<T>> {
        let place = usize::from(self.first.place(index));
        self.entries.get_mut(place)?.take()
    }

    /// Drops what was taken out, and keeps its memory for what is put in next.
    pub(crate) fn discard(&mut self, entry: Box<T>) {
        self.spares.drop(entry);
    }

    /// All that is in it.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().filter_map(Option::as_deref)
    }

    /// All that is in it.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().filter_map(Option::as_deref_mut)
    }

    /// The indices that have or had something.
    pub(crate) fn indices(&self) -> impl Iterator<Item = u16> + use<T> {
        let first = self.first;
        let places = 0..=u16::MAX;
        places
            .take(self.entries.len())
            .map(move |place| first.index(place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn counting(words: &mut [u32]) {
        static NEXT: AtomicU32 = AtomicU32::new(60_000);
        words.fill_with(|| NEXT.fetch_add(0x9E37_79B9, Ordering::Relaxed));
    }

    #[test]
    fn indices_are_all_but_0_each_once_and_come_in_dense_batches() {
        let mut indices = IndexAllocator::new(counting);
        let mut seen = HashSet::new();
        for _ in 0..1000 {
            let index = indices.take().unwrap();
            assert!(index != 0 && seen.insert(index));
            assert!(usize::from(indices.first().place(index)) < indices.places());
            assert!(indices.places() < seen.len() + 2 * BATCH as usize);
        }
        while let Some(index) = indices.take() {
            assert!(index != 0 && seen.insert(index));
        }
        assert_eq!(seen.len(), usize::from(u16::MAX));
    }

    #[test]
    fn index_is_used_again_late() {
        let mut indices = IndexAllocator::new(counting);
        let first = indices.take().unwrap();
        indices.give_back(first);
        for _ in 1..REUSE_DELAY {
            let index = indices.take().unwrap();
            assert_ne!(index, first);
            indices.give_back(index);
        }
        assert_eq!(indices.take(), Some(first));
    }

    #[test]
    fn table_finds_what_was_put_wherever_the_indices_begin() {
        let mut indices = IndexAllocator::new(counting);
        let mut places = IndexTable::new(indices.first());
        let taken: Vec<u16> = (0..300).filter_map(|_| indices.take()).collect();
        for index in &taken {
            places.put(*index, *index);
        }
        for index in &taken {
            assert_eq!(places.get(*index), Some(index));
        }
        assert_eq!(places.iter().count(), 300);
        assert_eq!(places.take(taken[7]).as_deref(), Some(&taken[7]));
        assert_eq!(places.get(taken[7]), None);
        assert!(places.indices().any(|index| index == taken[8]));
    }
}
