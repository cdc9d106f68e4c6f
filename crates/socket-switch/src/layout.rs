//! The memory that both ends of a connection map: the block, and a ring for each direction.

use crate::block::{Block, End};

/// Length of a page, octets.
const PAGE_OCTETS: usize = 4096;
/// Octets of the ring of a direction, a power of two.
pub const RING_OCTETS: usize = 64 * 1024;
/// Length of the memory, octets.
pub const MEMORY_OCTETS: usize = PAGE_OCTETS + 2 * RING_OCTETS;

const _: () = assert!(size_of::<Block>() <= PAGE_OCTETS && RING_OCTETS.is_power_of_two());

/// Where the ring is in which `sender` puts its octets; the block is at 0.
pub fn ring_at(sender: End) -> usize {
    PAGE_OCTETS + sender.index() * RING_OCTETS
}

/// What the memory begins with, all else being zero: the refusals of [`Block::new`].
pub fn first_octets() -> [u8; 16] {
    let mut octets = [0; 16];
    octets[..8].copy_from_slice(&1_u64.to_ne_bytes());
    octets[8..].copy_from_slice(&1_u64.to_ne_bytes());
    octets
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::Word;

    #[test]
    fn first_octets_are_the_refusals_of_a_new_block() {
        let block = Block::new();
        let octets = first_octets();
        for (end, place) in [(End::First, 0), (End::Second, 8)] {
            let word = block.word(Word::Refusals(end));
            let at = std::ptr::from_ref(word) as usize - &raw const block as usize;
            assert_eq!(at, place);
            let value = u64::from_ne_bytes(octets[place..place + 8].try_into().unwrap());
            assert_eq!(word.load(Relaxed), value);
        }
    }

    #[test]
    fn heads_are_where_the_block_has_them() {
        let block = Block::new();
        for end in [End::First, End::Second] {
            let word = std::ptr::from_ref(block.word(Word::Head(end))) as usize;
            assert_eq!(Block::head_at(end), word - &raw const block as usize);
        }
    }
}
