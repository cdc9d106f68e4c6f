//! The memory that both ends of a connection map: the block, and two rings for each direction, of
//! which one is used after the other.

use crate::block::{Block, End};

/// Length of a page, octets.
const PAGE_OCTETS: usize = 4096;
/// Octets of the short ring of a direction, a power of two.
pub const RING_OCTETS: usize = 64 * 1024;
/// Octets of the long one, a power of two.
pub const LONG_RING_OCTETS: usize = 256 * 1024;
/// Octets that are written to the short ring of a direction before it may go on in its long one:
/// short streams need no more memory.
pub const LONG_AFTER_OCTETS: u64 = 4 << 20;
/// Where the long rings are.
const LONG_AT: usize = PAGE_OCTETS + 2 * RING_OCTETS;
/// Length of the memory, octets.
pub const MEMORY_OCTETS: usize = LONG_AT + 2 * LONG_RING_OCTETS;

const _: () = assert!(size_of::<Block>() <= PAGE_OCTETS);
const _: () = assert!(RING_OCTETS.is_power_of_two() && LONG_RING_OCTETS.is_power_of_two());

/// Where the octet is that `sender` has put at position `at` of its ring, and how many octets
/// follow there. `long_from`: [`Word::LongFrom`](crate::Word::LongFrom), which may be any number.
#[inline]
pub fn octet_at(sender: End, long_from: u64, at: u64) -> (usize, usize) {
    let within = |at: u64, len: usize| {
        let place = usize::try_from(at & (len as u64 - 1)).unwrap_or(0);
        (place, len - place)
    };
    // The last position of the short ring; without a long one, that of all positions.
    let last = long_from.wrapping_sub(1);
    if at > last {
        let (place, to_end) = within(at, LONG_RING_OCTETS);
        return (LONG_AT + sender.index() * LONG_RING_OCTETS + place, to_end);
    }
    let (place, to_end) = within(at, RING_OCTETS);
    let further = usize::try_from(last - at).unwrap_or(usize::MAX);
    let ring_at = PAGE_OCTETS + sender.index() * RING_OCTETS;
    (ring_at + place, (to_end - 1).min(further) + 1)
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
    fn positions_have_places_of_their_own_in_the_rings_of_their_direction() {
        let (short, long) = (RING_OCTETS as u64, LONG_RING_OCTETS as u64);
        let from = 5 * short + 100;
        let first = |at| octet_at(End::First, from, at);
        // What follows ends where the short ring does, or where the long one begins.
        assert_eq!(first(0), (PAGE_OCTETS, RING_OCTETS));
        assert_eq!(first(5 * short), (PAGE_OCTETS, 100));
        assert_eq!(first(from - 1), (PAGE_OCTETS + 99, 1));
        let place = (from % long) as usize;
        assert_eq!(first(from), (LONG_AT + place, LONG_RING_OCTETS - place));
        let second = octet_at(End::Second, from, from + long - 1);
        let place = (place + LONG_RING_OCTETS - 1) % LONG_RING_OCTETS;
        let ring_at = MEMORY_OCTETS - LONG_RING_OCTETS;
        assert_eq!(second, (ring_at + place, LONG_RING_OCTETS - place));
        let without = octet_at(End::Second, 0, short - 1);
        assert_eq!(without, (LONG_AT - 1, 1));
    }

    #[test]
    fn no_position_is_beyond_the_memory_or_without_an_octet() {
        let numbers = [0, 1, 100, 1 << 16, 1 << 18, 1 << 63, u64::MAX - 1, u64::MAX];
        for (from, at) in numbers
            .into_iter()
            .flat_map(|from| numbers.map(|at| (from, at)))
        {
            for end in [End::First, End::Second] {
                let (place, following) = octet_at(end, from, at);
                assert!(place >= PAGE_OCTETS && place + following <= MEMORY_OCTETS);
                assert!(following > 0);
            }
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
