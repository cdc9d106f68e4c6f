//! A block: a key with its value. It has a digest of the rest, the use of the block, the lengths of
//! both, a word each, and then both, padded with zeroes.

use crate::fault::{Fault, Faults};
use urdma_types::absorb;

use crate::geometry::{absorb_octets, word_at};
use crate::slot::BlockId;

/// Octets before the key.
pub(crate) const BLOCK_HEADER_LEN: usize = 24;

/// Octets of a block with a key and a value, without what is behind them.
pub(crate) fn block_len(key: &[u8], value: &[u8]) -> usize {
    BLOCK_HEADER_LEN + (key.len() + value.len()).next_multiple_of(8)
}

/// Writes a block.
///
/// # Panics
/// If there is no room.
pub(crate) fn encode(id: BlockId, key: &[u8], value: &[u8], to: &mut [u8]) {
    let to = &mut to[..block_len(key, value)];
    let (header, content) = to.split_at_mut(BLOCK_HEADER_LEN);
    content.fill(0);
    content[..key.len()].copy_from_slice(key);
    content[key.len()..key.len() + value.len()].copy_from_slice(value);
    let lens = (key.len() as u64) << 32 | value.len() as u64;
    let words = [digest(id.word(), lens, content), id.word(), lens];
    for (to, word) in header.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
}

fn digest(id: u64, lens: u64, content: &[u8]) -> u64 {
    absorb_octets(absorb(id, lens), content)
}

/// Key and value in a block; none if it is being written, or has been for another use.
pub(crate) fn decode(octets: &[u8], id: BlockId, faults: Faults) -> Option<(&[u8], &[u8])> {
    let (header, content) = octets.split_at_checked(BLOCK_HEADER_LEN)?;
    let (found, lens) = (word_at(header, 1), word_at(header, 2));
    let value_len = usize::try_from(lens & u64::from(u32::MAX)).ok()?;
    let key_len = usize::try_from(lens >> 32).ok()?;
    let content = content.get(..(key_len.checked_add(value_len)?).next_multiple_of(8))?;
    let is_whole = word_at(header, 0) == digest(found, lens, content);
    if !is_whole && !faults.has(Fault::DigestIgnored) {
        return None;
    }
    if found != id.word() && !faults.has(Fault::IncarnationIgnored) {
        return None;
    }
    Some(content[..key_len + value_len].split_at(key_len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_survives_memory_and_others_are_refused() {
        let id = BlockId::first(7);
        let mut octets = [0xff; 64];
        encode(id, b"key", b"some value", &mut octets);
        let decoded = |octets: &[u8], id| decode(octets, id, Faults::default()).is_some();
        let both = decode(&octets, id, Faults::default());
        assert_eq!(both, Some((&b"key"[..], &b"some value"[..])));
        assert!(!decoded(&octets, id.next()));
        assert!(!decoded(
            &octets[..block_len(b"key", b"some value") - 1],
            id
        ));
        assert!(!decoded(&octets[..8], id));
        for bit in 0..block_len(b"key", b"some value") * 8 {
            octets[bit / 8] ^= 1 << (bit % 8);
            assert!(!decoded(&octets, id), "bit {bit}");
            octets[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
