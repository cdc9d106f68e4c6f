//! A slot of a bucket: one word, which is all of the store's state that clients change in place.

use crate::geometry::FINGERPRINT_BITS;

/// Bits of an incarnation.
const INCARNATION_BITS: u32 = 20;
const INDEX_BITS: u32 = 32;
const TENTATIVE: u64 = 1 << 63;

/// A use of a block. Its content does not change while a slot names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BlockId {
    pub(crate) index: u32,
    /// Not 0. Another one for each use, until 2^20 uses have passed.
    pub(crate) incarnation: u32,
}

impl BlockId {
    /// The first use of a block.
    pub(crate) const fn first(index: u32) -> Self {
        Self {
            index,
            incarnation: 1,
        }
    }

    /// The next use of the same block.
    pub(crate) fn next(self) -> Self {
        let next = (self.incarnation + 1) % (1 << INCARNATION_BITS);
        Self {
            incarnation: next.max(1),
            ..self
        }
    }

    pub(crate) fn word(self) -> u64 {
        u64::from(self.incarnation) << INDEX_BITS | u64::from(self.index)
    }
}

/// A word that is not 0: whether it is tentative, the fingerprint of its key, and its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(u64);

impl Slot {
    /// A slot that only those see who insert the same key.
    pub(crate) fn tentative(fingerprint: u64, id: BlockId) -> Self {
        Self(TENTATIVE | fingerprint << (INCARNATION_BITS + INDEX_BITS) | id.word())
    }

    /// The same, which all see.
    pub(crate) fn committed(self) -> Self {
        Self(self.0 & !TENTATIVE)
    }

    pub(crate) fn is_tentative(self) -> bool {
        self.0 & TENTATIVE != 0
    }

    /// What a word has; none if it is empty.
    pub(crate) fn decode(word: u64) -> Option<Self> {
        (word != 0).then_some(Self(word))
    }

    pub(crate) fn word(self) -> u64 {
        self.0
    }

    pub(crate) fn fingerprint(self) -> u64 {
        self.0 >> (INCARNATION_BITS + INDEX_BITS) & ((1 << FINGERPRINT_BITS) - 1)
    }

    pub(crate) fn id(self) -> BlockId {
        let bits = |from: u32, count: u32| {
            let bits = self.0 >> from & ((1 << count) - 1);
            u32::try_from(bits).expect("at most 32 bits")
        };
        BlockId {
            index: bits(0, INDEX_BITS),
            incarnation: bits(INDEX_BITS, INCARNATION_BITS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_has_what_it_was_made_of() {
        let id = BlockId {
            index: u32::MAX - 1,
            incarnation: (1 << INCARNATION_BITS) - 1,
        };
        let slot = Slot::tentative(0x5a5, id);
        assert!(slot.is_tentative() && !slot.committed().is_tentative());
        for slot in [slot, slot.committed()] {
            assert_eq!((slot.id(), slot.fingerprint()), (id, 0x5a5));
            assert_eq!(Slot::decode(slot.word()), Some(slot));
        }
        assert_eq!(id.next().incarnation, 1);
        assert_eq!(BlockId::first(3).next().incarnation, 2);
    }
}
