//! The geometry of a table: its header, and where hints and buckets are.
//!
//! All words are of 8 octets in network order. The header has 8: magic, epoch and zeroes; the seed;
//! the number of buckets; four of zeroes; a digest of these seven.

use urdma_types::{absorb, mix, scale};

use crate::bucket::{BUCKET_LEN, HINT_BITS};
use crate::error::{BadTable, CreateError};
use crate::fault::{Fault, Faults};
use crate::node::NodeKey;

/// Words of a header.
pub(crate) const HEADER_WORDS: usize = 8;
/// The length of a header, which clients read first, at offset 0.
pub const HEADER_LEN: usize = HEADER_WORDS * 8;
/// The most buckets that a table has.
pub const BUCKETS_MAX: u32 = 1 << 24;

/// Hints in one word.
pub(crate) const HINTS_PER_WORD: u32 = 64 / HINT_BITS;
const MAGIC: u64 = 0x756e_6432; // "und2"
const DIGEST: usize = HEADER_WORDS - 1;

/// What a client has to know of a table before it can look up a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Names the table among all that are created in the same memory. Not 0; random in new memory,
    /// another one for each next table.
    pub epoch: u16,
    /// The seed of the hash function. A random one keeps an attacker from choosing keys that share
    /// buckets.
    pub seed: u64,
    /// Buckets of 128 octets with two entries each, 2 to 2^24.
    pub buckets: u32,
}

/// The two buckets of a key, never the same, and its bit in the hints of the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    pub(crate) home: u32,
    pub(crate) other: u32,
    pub(crate) bit: u32,
}

impl Geometry {
    pub(crate) fn validate(&self) -> Result<(), CreateError> {
        if !(2..=BUCKETS_MAX).contains(&self.buckets) {
            return Err(CreateError::Buckets(self.buckets));
        }
        match self.epoch {
            0 => Err(CreateError::Epoch),
            _ => Ok(()),
        }
    }

    /// The length of the table, a multiple of 128.
    pub fn len_octets(&self) -> u64 {
        self.bucket_offset(self.buckets)
    }

    /// The length of all hints, without what follows them up to the first bucket.
    pub(crate) fn hints_len(&self) -> u32 {
        self.buckets * (HINT_BITS / 8)
    }

    pub(crate) fn bucket_offset(&self, bucket: u32) -> u64 {
        let bucket_len = BUCKET_LEN as u64;
        let hints_end = HEADER_LEN as u64 + u64::from(self.hints_len());
        hints_end.next_multiple_of(bucket_len) + u64::from(bucket) * bucket_len
    }

    pub(crate) fn places(&self, key: NodeKey) -> Places {
        let first = mix(key.word() ^ self.seed);
        let second = mix(first ^ 0x9e37_79b9_7f4a_7c15);
        let home = scale(first, self.buckets);
        let distance = 1 + scale(second, self.buckets - 1);
        Places {
            home,
            other: (home + distance) % self.buckets,
            bit: scale(second << 32, HINT_BITS),
        }
    }

    pub(crate) fn encode(&self) -> [u64; HEADER_WORDS] {
        let mut words = [0; HEADER_WORDS];
        words[0] = MAGIC << 32 | u64::from(self.epoch) << 16;
        words[1] = self.seed;
        words[2] = u64::from(self.buckets);
        words[DIGEST] = digest(&words);
        words
    }

    pub(crate) fn decode(words: &[u64; HEADER_WORDS], faults: Faults) -> Result<Self, BadTable> {
        let epoch = epoch_of(words[0]).ok_or(BadTable::NoTable)?;
        if words[DIGEST] != digest(words) && !faults.has(Fault::HeaderUndigested) {
            return Err(BadTable::NoTable);
        }
        let geometry = Self {
            epoch,
            seed: words[1],
            buckets: u32::try_from(words[2]).map_err(|_| BadTable::Geometry)?,
        };
        geometry.validate().map_err(|_| BadTable::Geometry)?;
        match words[3..DIGEST] == [0; DIGEST - 3] {
            true => Ok(geometry),
            false => Err(BadTable::Geometry),
        }
    }
}

/// The epoch in the first word of a header, if it is one.
pub(crate) fn epoch_of(word: u64) -> Option<u16> {
    let epoch = u16::try_from((word >> 16) & 0xffff).expect("16 bits");
    (word == MAGIC << 32 | u64::from(epoch) << 16).then_some(epoch)
}

/// The digest of all words but the last. It recognises a header that is being written.
fn digest(words: &[u64; HEADER_WORDS]) -> u64 {
    let words = words[..DIGEST].iter();
    words.fold(MAGIC, |digest, word| absorb(digest, *word))
}
