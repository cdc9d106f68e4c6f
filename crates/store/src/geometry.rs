//! The geometry of a store: its header, and where everything is.
//!
//! All words are of 8 octets in the order of the host, as those on which atomics work. The header
//! has 8: magic; seed; buckets; blocks; octets of a block; blocks of an extent; zero; a digest of
//! these seven. The counter of extents follows in a cache line of its own, then buckets of 64
//! octets, then blocks.

use urdma_types::{absorb, mix, scale};

use crate::error::GeometryError;

const HEADER_WORDS: usize = 8;
/// The length of a header, which clients read first, at offset 0.
pub const HEADER_LEN: usize = HEADER_WORDS * 8;
/// The length of the shortest block.
pub const BLOCK_OCTETS_MIN: u32 = 32;
/// The length of the longest block.
pub const BLOCK_OCTETS_MAX: u32 = 1 << 16;
/// Octets of a bucket: a cache line.
pub(crate) const BUCKET_LEN: usize = 64;
/// Slots of a bucket.
pub(crate) const BUCKET_SLOTS: usize = BUCKET_LEN / 8;

const MAGIC: u64 = 0x7572_646d_6b76_7331; // "urdmkvs1"
const BUCKETS_MAX: u32 = 1 << 24;
const EXTENT_BLOCKS_MAX: u32 = 1 << 16;
const BUCKETS_AT: u64 = 2 * HEADER_LEN as u64;
const DIGEST: usize = HEADER_WORDS - 1;

/// Bits of a fingerprint.
pub(crate) const FINGERPRINT_BITS: u32 = 11;

/// What a client has to know of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The seed of the hash function. A random one keeps an attacker from choosing keys that share
    /// buckets.
    pub seed: u64,
    /// Buckets of 8 slots, 2 to 2^24. Each key has two of them.
    pub buckets: u32,
    /// Blocks, each for one key with its value, 1 or more.
    pub blocks: u32,
    /// Octets of a block, a multiple of 8. 24 of them are not for key and value.
    pub block_octets: u32,
    /// Blocks that a client takes at a time, 1 to 2^16.
    pub extent_blocks: u32,
}

/// Where a key may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    /// Its buckets, never the same.
    pub(crate) buckets: [u32; 2],
    pub(crate) fingerprint: u64,
}

/// The digest of octets, padded with zeroes to whole words.
pub(crate) fn absorb_octets(digest: u64, octets: &[u8]) -> u64 {
    let words = octets.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_ne_bytes(word)
    });
    words.fold(digest, absorb)
}

/// The word at an index.
pub(crate) fn word_at(octets: &[u8], index: usize) -> u64 {
    let word = octets[index * 8..].first_chunk().expect("8 octets");
    u64::from_ne_bytes(*word)
}

impl Geometry {
    fn validate(&self) -> Result<(), GeometryError> {
        let is_possible = (2..=BUCKETS_MAX).contains(&self.buckets)
            && (1..u32::MAX).contains(&self.blocks)
            && (BLOCK_OCTETS_MIN..=BLOCK_OCTETS_MAX).contains(&self.block_octets)
            && self.block_octets.is_multiple_of(8)
            && (1..=EXTENT_BLOCKS_MAX).contains(&self.extent_blocks);
        is_possible.then_some(()).ok_or(GeometryError::Range)
    }

    /// What the owner writes at offset 0 of memory that has zeroes beyond.
    ///
    /// # Errors
    /// If a number is out of its range.
    pub fn header(&self) -> Result<[u8; HEADER_LEN], GeometryError> {
        self.validate()?;
        let mut words = [
            MAGIC,
            self.seed,
            self.buckets.into(),
            self.blocks.into(),
            self.block_octets.into(),
            self.extent_blocks.into(),
            0,
            0,
        ];
        words[DIGEST] = words[..DIGEST].iter().copied().fold(0, absorb);
        let mut octets = [0; HEADER_LEN];
        for (to, word) in octets.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        Ok(octets)
    }

    /// The store whose header was read, in memory of `len_octets`.
    ///
    /// # Errors
    /// If it is none, or is not possible there.
    pub fn new(header: &[u8; HEADER_LEN], len_octets: u64) -> Result<Self, GeometryError> {
        let words: [u64; HEADER_WORDS] = std::array::from_fn(|n| word_at(header, n));
        let number = |n: usize| u32::try_from(words[n]).map_err(|_| GeometryError::Range);
        if words[0] != MAGIC || words[DIGEST] != words[..DIGEST].iter().copied().fold(0, absorb) {
            return Err(GeometryError::NoStore);
        }
        let geometry = Self {
            seed: words[1],
            buckets: number(2)?,
            blocks: number(3)?,
            block_octets: number(4)?,
            extent_blocks: number(5)?,
        };
        geometry.validate()?;
        match geometry.len_octets() {
            needed if needed > len_octets => Err(GeometryError::TooLong {
                needed,
                has: len_octets,
            }),
            _ => Ok(geometry),
        }
    }

    /// The length of the store.
    pub fn len_octets(&self) -> u64 {
        self.block_offset(self.blocks)
    }

    /// Where the number of extents is that were taken.
    pub(crate) const fn extents_offset() -> u64 {
        HEADER_LEN as u64
    }

    pub(crate) fn bucket_offset(bucket: u32) -> u64 {
        BUCKETS_AT + u64::from(bucket) * BUCKET_LEN as u64
    }

    pub(crate) fn block_offset(&self, block: u32) -> u64 {
        Self::bucket_offset(self.buckets) + u64::from(block) * u64::from(self.block_octets)
    }

    pub(crate) fn places(&self, key: &[u8]) -> Places {
        let len = key.len() as u64;
        let first = absorb(absorb_octets(self.seed, key), len);
        let second = mix(first ^ 0x9e37_79b9_7f4a_7c15);
        let home = scale(first, self.buckets);
        let distance = 1 + scale(second, self.buckets - 1);
        Places {
            buckets: [home, (home + distance) % self.buckets],
            fingerprint: second & ((1 << FINGERPRINT_BITS) - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: Geometry = Geometry {
        seed: 1,
        buckets: 4,
        blocks: 10,
        block_octets: 64,
        extent_blocks: 2,
    };

    #[test]
    fn header_survives_memory_and_others_are_refused() {
        let header = STORE.header().unwrap();
        let len = STORE.len_octets();
        assert_eq!(Geometry::new(&header, len), Ok(STORE));
        let too_long = GeometryError::TooLong {
            needed: len,
            has: len - 1,
        };
        assert_eq!(Geometry::new(&header, len - 1), Err(too_long));
        for bit in 0..HEADER_LEN * 8 {
            let mut other = header;
            other[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Geometry::new(&other, len), Err(GeometryError::NoStore));
        }
    }

    #[test]
    fn impossible_stores_are_refused() {
        let impossible = [
            Geometry {
                buckets: 1,
                ..STORE
            },
            Geometry {
                buckets: BUCKETS_MAX + 1,
                ..STORE
            },
            Geometry { blocks: 0, ..STORE },
            Geometry {
                block_octets: 24,
                ..STORE
            },
            Geometry {
                block_octets: 36,
                ..STORE
            },
            Geometry {
                block_octets: BLOCK_OCTETS_MAX + 8,
                ..STORE
            },
            Geometry {
                extent_blocks: 0,
                ..STORE
            },
        ];
        for geometry in impossible {
            assert_eq!(geometry.header(), Err(GeometryError::Range), "{geometry:?}");
        }
    }

    #[test]
    fn buckets_of_a_key_differ() {
        for buckets in 2..20 {
            let geometry = Geometry { buckets, ..STORE };
            for key in 0..1000_u32 {
                let [home, other] = geometry.places(&key.to_ne_bytes()).buckets;
                assert!(home != other && home < buckets && other < buckets);
            }
        }
    }
}
