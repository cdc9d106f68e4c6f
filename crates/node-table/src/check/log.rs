//! Memory that keeps each store.

use super::Rng;
use crate::{Memory, Read};

/// A moment: the number of stores that were made.
pub(super) type Moment = u64;

/// The memory, and the stores to each word in order, each with the moment from which it holds.
pub(super) struct Log {
    words: Vec<Vec<(Moment, u64)>>,
    pub(super) now: Moment,
}

impl Log {
    /// Memory with whatever was in it.
    pub(super) fn new(words: impl Iterator<Item = u64>) -> Self {
        Self {
            words: words.map(|word| vec![(0, word)]).collect(),
            now: 0,
        }
    }

    fn at(&self, index: usize, moment: Moment) -> u64 {
        let stores = &self.words[index];
        let until = stores.partition_point(|(from, _)| *from <= moment);
        stores[until - 1].1
    }

    /// A READ in which each word is of a random moment from `begin` to `end`.
    pub(super) fn read(&self, read: Read, begin: Moment, end: Moment, rng: &mut Rng) -> Vec<u8> {
        let first = read.offset_octets as usize / 8;
        let count = read.len_octets.div_ceil(8) as usize;
        let mut octets: Vec<u8> = (first..first + count)
            .flat_map(|index| self.at(index, rng.between(begin, end)).to_be_bytes())
            .collect();
        octets.truncate(read.len_octets as usize);
        octets
    }
}

impl Memory for Log {
    fn len_words(&self) -> usize {
        self.words.len()
    }

    fn load(&self, index: usize) -> u64 {
        self.at(index, self.now)
    }

    fn store(&mut self, index: usize, word: u64) {
        self.now += 1;
        self.words[index].push((self.now, word));
    }
}
