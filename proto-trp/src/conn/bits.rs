//! One bit for each sequence number of a window, in a ring that grows.

use super::num::{low32, slot64};

const WORD_BITS: u32 = u64::BITS;

/// The bits. Those of numbers that are not in the window are 0.
#[derive(Debug)]
pub(super) struct BitRing {
    words: Box<[u64]>,
    /// Capacity less one.
    mask: u32,
}

impl BitRing {
    /// Room for `capacity` numbers, a power of two and at least 64.
    pub(super) fn new(capacity: u32) -> Self {
        Self {
            words: vec![0; (capacity / WORD_BITS) as usize].into(),
            mask: capacity - 1,
        }
    }

    pub(super) fn clear(&mut self) {
        self.words.fill(0);
    }

    pub(super) const fn capacity(&self) -> u32 {
        self.mask + 1
    }

    #[inline]
    pub(super) fn get(&self, seq: u64) -> bool {
        let slot = slot64(seq, self.mask);
        self.words[slot / 64] & (1 << (slot % 64)) != 0
    }

    #[inline]
    pub(super) fn set(&mut self, seq: u64) {
        let slot = slot64(seq, self.mask);
        self.words[slot / 64] |= 1 << (slot % 64);
    }

    #[inline]
    pub(super) fn unset(&mut self, seq: u64) {
        let slot = slot64(seq, self.mask);
        self.words[slot / 64] &= !(1 << (slot % 64));
    }

    /// The first set bit of `from..to`, which are in the window.
    pub(super) fn first(&self, from: u64, to: u64) -> Option<u64> {
        let mut seq = from;
        while seq < to {
            let slot = slot64(seq, self.mask);
            let rest = self.words[slot / 64] >> (slot % 64);
            if rest != 0 {
                let found = seq + u64::from(rest.trailing_zeros());
                return (found < to).then_some(found);
            }
            seq += (64 - slot % 64) as u64;
        }
        None
    }

    /// The bits of `seq` and the 31 numbers after it, the first in the most significant place.
    pub(super) fn run(&self, seq: u64) -> u32 {
        let slot = slot64(seq, self.mask);
        let (word, shift) = (slot / 64, slot % 64);
        let low = self.words[word] >> shift;
        let next = self.words[(word + 1) % self.words.len()];
        // Shifted in two steps, since a shift by 64 is none.
        low32(low | next << 1 << (63 - shift)).reverse_bits()
    }

    /// Makes room for `capacity` numbers; `from..to` are those in the window.
    pub(super) fn grow(&mut self, capacity: u32, from: u64, to: u64) {
        let mut grown = Self::new(capacity);
        for seq in from..to {
            if self.get(seq) {
                grown.set(seq);
            }
        }
        *self = grown;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_across_words_and_the_end_of_the_ring_gives_each_bit() {
        for capacity in [64, 128] {
            for first in 0..u64::from(2 * capacity) {
                let mut bits = BitRing::new(capacity);
                for ahead in [0, 1, 7, 30, 31] {
                    bits.set(first + ahead);
                }
                assert_eq!(bits.run(first), 0b1100_0001_0000_0000_0000_0000_0000_0011);
            }
        }
    }

    #[test]
    fn first_finds_the_first_bit_of_a_range_across_words_and_the_end_of_the_ring() {
        for from in 0..256_u64 {
            let mut bits = BitRing::new(128);
            assert_eq!(bits.first(from, from + 128), None);
            for ahead in [127, 64, 63, 1, 0] {
                bits.set(from + ahead);
                assert_eq!(bits.first(from, from + 128), Some(from + ahead));
                assert_eq!(bits.first(from, from + ahead), None);
            }
            assert_eq!(bits.first(from + 2, from + 128), Some(from + 63));
        }
    }

    #[test]
    fn grow_keeps_the_window() {
        let mut bits = BitRing::new(64);
        bits.set(100);
        bits.set(120);
        bits.grow(1024, 90, 150);
        let kept: Vec<u64> = (90..150).filter(|&seq| bits.get(seq)).collect();
        assert_eq!(kept, [100, 120]);
    }
}
