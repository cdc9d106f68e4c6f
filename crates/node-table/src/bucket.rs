//! One bucket: 16 words of 8 octets, each of which has the version of the bucket and 6 octets of
//! its content.
//!
//! A READ gets each aligned word at one moment, but the words of a bucket in any order. Each
//! version of a bucket writes each word once, so words of the same version are of the same content,
//! in whatever order they were read, until 65,535 updates have passed during the READ.

use crate::error::BadTable;
use crate::fault::{Fault, Faults};
use crate::node::{Found, NodeKey, Region, Target};
use crate::number::{number, number_16, number_32};

/// Words of a bucket.
pub(crate) const BUCKET_WORDS: usize = 16;
/// Entries of one bucket.
pub const ENTRIES_PER_BUCKET: usize = 2;
/// Length of a bucket.
pub const BUCKET_LEN: usize = BUCKET_WORDS * 8;
/// The same as the length of a READ.
pub(crate) const BUCKET_READ: u32 = 128;
/// Bits of the hints of a bucket, each for the keys of which it is the home that have the bit.
pub(crate) const HINT_BITS: u32 = 16;

const CONTENT_LEN: usize = 6;
const ENTRY_LEN: usize = 42;
const ENTRIES_AT: usize = 4;
const REST_AT: usize = ENTRIES_AT + ENTRIES_PER_BUCKET * ENTRY_LEN;
const VERSION_SHIFT: u32 = 48;

/// A node in a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key: NodeKey,
    pub(crate) found: Found,
}

/// What a bucket says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub(crate) version: u16,
    pub(crate) epoch: u16,
    /// Which bits the keys have whose home this is, and which are in their other bucket.
    pub(crate) hints: u16,
    pub(crate) entries: [Option<Entry>; ENTRIES_PER_BUCKET],
}

/// The version that a word has.
pub(crate) fn version_of(word: u64) -> u16 {
    u16::try_from(word >> VERSION_SHIFT).expect("16 bits")
}

impl Entry {
    fn encode(&self) -> [u8; ENTRY_LEN] {
        let mut octets = [0; ENTRY_LEN];
        octets[0..8].copy_from_slice(&self.key.word().to_be_bytes());
        octets[8..10].copy_from_slice(&self.found.generation.to_be_bytes());
        octets[10..14].copy_from_slice(&self.found.target.number().to_be_bytes());
        octets[14..22].copy_from_slice(&self.found.target.access_key().to_be_bytes());
        let region = self.found.target.region();
        octets[22..26].copy_from_slice(&region.rkey.to_be_bytes());
        octets[26..34].copy_from_slice(&region.addr.to_be_bytes());
        octets[34..42].copy_from_slice(&region.len_octets.to_be_bytes());
        octets
    }

    /// The entry in as many octets as one has; none if they are zeroes.
    fn decode(octets: &[u8]) -> Result<Option<Self>, BadTable> {
        let Some(key) = NodeKey::decode(number(&octets[0..8])) else {
            return match octets.iter().all(|octet| *octet == 0) {
                true => Ok(None),
                false => Err(BadTable::Entry),
            };
        };
        let region = Region {
            rkey: number_32(&octets[22..26]),
            addr: number(&octets[26..34]),
            len_octets: number(&octets[34..42]),
        };
        let target = Target::new(number_32(&octets[10..14]), number(&octets[14..22]), region);
        Ok(Some(Self {
            key,
            found: Found {
                target: target.ok_or(BadTable::Entry)?,
                generation: number_16(&octets[8..10]),
            },
        }))
    }
}

impl Bucket {
    pub(crate) fn free_entry(&self) -> Option<usize> {
        self.entries.iter().position(Option::is_none)
    }

    pub(crate) fn position(&self, key: NodeKey) -> Option<usize> {
        let is_key = |entry: &Option<Entry>| entry.is_some_and(|entry| entry.key == key);
        self.entries.iter().position(is_key)
    }

    pub(crate) fn encode(&self) -> [u64; BUCKET_WORDS] {
        let mut content = [0; CONTENT_LEN * BUCKET_WORDS];
        content[0..2].copy_from_slice(&self.epoch.to_be_bytes());
        content[2..4].copy_from_slice(&self.hints.to_be_bytes());
        for (octets, entry) in content[ENTRIES_AT..REST_AT]
            .chunks_exact_mut(ENTRY_LEN)
            .zip(self.entries)
        {
            if let Some(entry) = entry {
                octets.copy_from_slice(&entry.encode());
            }
        }
        let mut words = [u64::from(self.version) << VERSION_SHIFT; BUCKET_WORDS];
        for (word, octets) in words.iter_mut().zip(content.chunks_exact(CONTENT_LEN)) {
            *word |= number(octets);
        }
        words
    }

    /// The bucket in words that were read; none if they are of several versions.
    pub(crate) fn decode(
        words: &[u64; BUCKET_WORDS],
        faults: Faults,
    ) -> Result<Option<Self>, BadTable> {
        let version = version_of(words[0]);
        let compared = match faults.has(Fault::EndsCompared) {
            true => &words[BUCKET_WORDS - 1..],
            false => &words[1..],
        };
        if compared.iter().any(|word| version_of(*word) != version) {
            return Ok(None);
        }
        let mut content = [0; CONTENT_LEN * BUCKET_WORDS];
        for (octets, word) in content.chunks_exact_mut(CONTENT_LEN).zip(words) {
            octets.copy_from_slice(&word.to_be_bytes()[2..]);
        }
        if content[REST_AT..].iter().any(|octet| *octet != 0) {
            return Err(BadTable::Entry);
        }
        let mut entries = [None; ENTRIES_PER_BUCKET];
        for (entry, octets) in entries
            .iter_mut()
            .zip(content[ENTRIES_AT..REST_AT].chunks_exact(ENTRY_LEN))
        {
            *entry = Entry::decode(octets)?;
        }
        Ok(Some(Self {
            version,
            epoch: number_16(&content[0..2]),
            hints: number_16(&content[2..4]),
            entries,
        }))
    }
}
