//! The owner's side: changes of the table, in the order in which clients may see them.
//!
//! The owner keeps a copy of all buckets and does not rely on what the memory contains: a peer that
//! writes into the memory misleads clients, not the owner.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::bucket::{version_of, Bucket, Entry, BUCKET_WORDS, HINT_BITS};
use crate::error::{ChangeError, CreateError};
use crate::fault::{Fault, Faults};
use crate::geometry::{epoch_of, Geometry, Places, HEADER_LEN, HEADER_WORDS, HINTS_PER_WORD};
use crate::node::{Found, NodeKey, Target};

/// Buckets that are looked at for one insertion.
const SEARCH_MAX: usize = 128;

/// The memory of a table, in words of 8 octets, which clients see in network order.
pub trait Memory {
    /// The number of words.
    fn len_words(&self) -> usize;
    /// The word at an index below `len_words`.
    fn load(&self, index: usize) -> u64;
    /// Writes a word in one piece. Clients see the words in the order of these calls.
    fn store(&mut self, index: usize, word: u64);
}

impl Memory for &[AtomicU64] {
    fn len_words(&self) -> usize {
        self.len()
    }

    fn load(&self, index: usize) -> u64 {
        u64::from_be(self[index].load(Ordering::Relaxed))
    }

    fn store(&mut self, index: usize, word: u64) {
        self[index].store(word.to_be(), Ordering::Release);
    }
}

/// What the owner knows of a bucket.
#[derive(Clone, Debug, Default)]
struct Owned {
    bucket: Bucket,
    /// For each hint, the keys that have this home and are in their other bucket.
    away: [u32; HINT_BITS as usize],
}

/// A bucket that was reached in the search for a free entry, and the entry that would come to it.
struct Visited {
    bucket: u32,
    from: Option<(usize, usize)>,
}

/// A table in registered memory.
#[derive(Debug)]
pub struct Table<M> {
    memory: M,
    geometry: Geometry,
    owned: Vec<Owned>,
    len: u32,
    generation: u16,
    faults: Faults,
}

/// The version after `version`. None is 0, so that no bucket has words in common with zeroes.
fn next_version(version: u16) -> u16 {
    version.wrapping_add(1).max(1)
}

/// Writes a header or a bucket, word after word.
fn store_words<const N: usize>(memory: &mut impl Memory, at: usize, words: [u64; N]) {
    for (index, word) in words.into_iter().enumerate() {
        memory.store(at + index, word);
    }
}

/// A version that no word of the bucket at `at` has, whatever is there.
fn unused_version(memory: &impl Memory, at: usize) -> u16 {
    let versions: [u16; BUCKET_WORDS] =
        std::array::from_fn(|word| version_of(memory.load(at + word)));
    let mut version = next_version(versions[0]);
    while versions.contains(&version) {
        version = next_version(version);
    }
    version
}

/// Overwrites what the memory has between the header and the buckets, and behind them. It may be
/// buckets of a table before, which its clients still read.
fn wipe(memory: &mut impl Memory, geometry: &Geometry) {
    let word = |octets: u64| usize::try_from(octets / 8).expect("within the memory");
    for index in HEADER_WORDS..word(geometry.bucket_offset(0)) {
        if memory.load(index) != 0 {
            memory.store(index, 0);
        }
    }
    let mut at = word(geometry.len_octets());
    while at + BUCKET_WORDS <= memory.len_words() {
        let bucket = Bucket {
            version: unused_version(memory, at),
            epoch: geometry.epoch,
            ..Bucket::default()
        };
        store_words(memory, at, bucket.encode());
        at += BUCKET_WORDS;
    }
}

impl<M: Memory> Table<M> {
    /// Creates an empty table. The memory is all overwritten; clients of a table that it had see
    /// that it has ended.
    ///
    /// # Errors
    /// If the geometry is not possible in this memory.
    pub fn create(memory: M, geometry: Geometry) -> Result<Self, CreateError> {
        Self::create_with(memory, geometry, Faults::default())
    }

    pub(crate) fn create_with(
        mut memory: M,
        geometry: Geometry,
        faults: Faults,
    ) -> Result<Self, CreateError> {
        geometry.validate()?;
        let (needed, available) = (geometry.len_octets() / 8, memory.len_words() as u64);
        if available < needed {
            return Err(CreateError::Memory { needed, available });
        }
        if epoch_of(memory.load(0)) == Some(geometry.epoch) {
            return Err(CreateError::SameEpoch(geometry.epoch));
        }
        memory.store(HEADER_WORDS - 1, 0);
        if !faults.has(Fault::RestKept) {
            wipe(&mut memory, &geometry);
        }
        let mut table = Self {
            memory,
            geometry,
            owned: vec![Owned::default(); geometry.buckets as usize],
            len: 0,
            generation: 0,
            faults,
        };
        for bucket in 0..geometry.buckets {
            table.clear(bucket);
        }
        store_words(&mut table.memory, 0, geometry.encode());
        Ok(table)
    }

    /// Writes an empty bucket over whatever is there, with a version that no word of it has.
    fn clear(&mut self, bucket: u32) {
        let version = unused_version(&self.memory, self.word_of(bucket));
        let new = &mut self.owned[bucket as usize].bucket;
        new.epoch = self.geometry.epoch;
        new.version = match self.faults.has(Fault::VersionsRestart) {
            true => 1,
            false => version,
        };
        self.publish(bucket);
    }

    fn word_of(&self, bucket: u32) -> usize {
        let first = self.geometry.bucket_offset(0) / 8;
        usize::try_from(first).expect("within the memory") + bucket as usize * BUCKET_WORDS
    }

    /// Writes the next version of a bucket.
    fn write(&mut self, bucket: u32) {
        let new = &mut self.owned[bucket as usize].bucket;
        if !self.faults.has(Fault::VersionKept) {
            new.version = next_version(new.version);
        }
        self.publish(bucket);
    }

    /// Writes a bucket, and its hints for clients that read those of all.
    fn publish(&mut self, bucket: u32) {
        let at = self.word_of(bucket);
        let new = self.owned[bucket as usize].bucket.encode();
        store_words(&mut self.memory, at, new);
        let at = HEADER_LEN / 8 + (bucket / HINTS_PER_WORD) as usize;
        let first = (bucket - bucket % HINTS_PER_WORD) as usize;
        let word = (first..first + HINTS_PER_WORD as usize).fold(0, |word, bucket| {
            let hints = self.owned.get(bucket).map_or(0, |owned| owned.bucket.hints);
            word << HINT_BITS | u64::from(hints)
        });
        if self.memory.load(at) != word {
            self.memory.store(at, word);
        }
    }

    /// Counts a key that comes to its other bucket. Returns whether the hints of its home change.
    fn count_away(&mut self, places: Places) -> bool {
        let owned = &mut self.owned[places.home as usize];
        owned.away[places.bit as usize] += 1;
        let before = owned.bucket.hints;
        owned.bucket.hints |= 1 << places.bit;
        owned.bucket.hints != before
    }

    /// Counts a key that leaves its other bucket. Returns whether the hints of its home change.
    fn count_back(&mut self, places: Places) -> bool {
        let owned = &mut self.owned[places.home as usize];
        owned.away[places.bit as usize] -= 1;
        let is_last = owned.away[places.bit as usize] == 0;
        let clears = is_last || self.faults.has(Fault::HintUncounted);
        if clears && !self.faults.has(Fault::HintKept) {
            owned.bucket.hints &= !(1 << places.bit);
        }
        clears
    }

    fn position(&self, key: NodeKey) -> Option<(u32, usize)> {
        let places = self.geometry.places(key);
        [places.home, places.other].into_iter().find_map(|bucket| {
            let entry = self.owned[bucket as usize].bucket.position(key)?;
            Some((bucket, entry))
        })
    }

    fn next_generation(&mut self) -> u16 {
        self.generation = self.generation.wrapping_add(1);
        self.generation
    }

    /// The geometry, as clients read it.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The number of nodes.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether the table has no node.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What the table has of a node.
    pub fn find(&self, key: NodeKey) -> Option<Found> {
        let (bucket, entry) = self.position(key)?;
        self.owned[bucket as usize].bucket.entries[entry].map(|entry| entry.found)
    }

    /// Registers a node. Returns the generation of its entry.
    ///
    /// # Errors
    /// If the node is in the table, or no place is found for it.
    pub fn insert(&mut self, key: NodeKey, target: Target) -> Result<u16, ChangeError> {
        if self.position(key).is_some() {
            return Err(ChangeError::Known);
        }
        let places = self.geometry.places(key);
        let bucket = self.make_room(places).ok_or(ChangeError::Full)?;
        let generation = self.next_generation();
        let found = Found { target, generation };
        self.place(Entry { key, found }, places, bucket);
        self.len += 1;
        Ok(generation)
    }

    /// Replaces the target of a node, which has moved. Returns the generation of its entry.
    ///
    /// # Errors
    /// If the node is not in the table.
    pub fn update(&mut self, key: NodeKey, target: Target) -> Result<u16, ChangeError> {
        let (bucket, position) = self.position(key).ok_or(ChangeError::Unknown)?;
        let mut generation = self.next_generation();
        let entry = &mut self.owned[bucket as usize].bucket.entries[position];
        if let (Some(entry), true) = (*entry, self.faults.has(Fault::GenerationKept)) {
            generation = entry.found.generation;
        }
        let found = Found { target, generation };
        *entry = Some(Entry { key, found });
        self.write(bucket);
        Ok(generation)
    }

    /// Removes a node.
    ///
    /// # Errors
    /// If the node is not in the table.
    pub fn remove(&mut self, key: NodeKey) -> Result<(), ChangeError> {
        let (bucket, position) = self.position(key).ok_or(ChangeError::Unknown)?;
        let places = self.geometry.places(key);
        self.owned[bucket as usize].bucket.entries[position] = None;
        self.write(bucket);
        if bucket != places.home && self.count_back(places) {
            self.write(places.home);
        }
        self.len -= 1;
        Ok(())
    }

    /// Writes a new entry into a bucket that has room. A client that finds it there at once must
    /// not miss it later, so the hint is written before.
    fn place(&mut self, entry: Entry, places: Places, bucket: u32) {
        let hints = bucket != places.home && self.count_away(places);
        let late = self.faults.has(Fault::HintLate);
        if hints && !late {
            self.write(places.home);
        }
        self.enter(entry, bucket);
        if hints && late {
            self.write(places.home);
        }
    }

    fn enter(&mut self, entry: Entry, bucket: u32) {
        let into = &mut self.owned[bucket as usize].bucket;
        let free = into.free_entry().expect("the search found room");
        into.entries[free] = Some(entry);
        self.write(bucket);
    }

    /// Makes room in one of the buckets of a key, its home if that has some, by moving other
    /// entries along the shortest path to a free one. Returns the bucket.
    fn make_room(&mut self, places: Places) -> Option<u32> {
        let start = |bucket| Visited { bucket, from: None };
        let mut visited = vec![start(places.home), start(places.other)];
        let mut at = 0;
        while self.bucket_of(visited.get(at)?).free_entry().is_none() {
            for (position, entry) in self.bucket_of(&visited[at]).entries.iter().enumerate() {
                let Some(entry) = entry else { continue };
                let of_entry = self.geometry.places(entry.key);
                let bucket = match of_entry.home == visited[at].bucket {
                    true => of_entry.other,
                    false => of_entry.home,
                };
                let is_new = visited.iter().all(|visited| visited.bucket != bucket);
                if is_new && visited.len() < SEARCH_MAX {
                    let from = Some((at, position));
                    visited.push(Visited { bucket, from });
                }
            }
            at += 1;
        }
        while let Some((from, position)) = visited[at].from {
            self.displace(visited[from].bucket, position, visited[at].bucket);
            at = from;
        }
        Some(visited[at].bucket)
    }

    fn bucket_of(&self, visited: &Visited) -> &Bucket {
        &self.owned[visited.bucket as usize].bucket
    }

    /// Moves an entry to its other bucket. It is in both for a moment, and its hint is written with
    /// the version of its home that does not have it, so each client finds it.
    fn displace(&mut self, from: u32, position: usize, to: u32) {
        let Some(entry) = self.owned[from as usize].bucket.entries[position] else {
            return;
        };
        let places = self.geometry.places(entry.key);
        let source_first = self.faults.has(Fault::SourceFirst);
        if source_first {
            self.owned[from as usize].bucket.entries[position] = None;
            self.write(from);
        }
        if to == places.home {
            self.count_back(places);
        }
        self.enter(entry, to);
        if from == places.home && !self.faults.has(Fault::HintMissing) {
            self.count_away(places);
        }
        if !self.faults.has(Fault::SourceKept) && !source_first {
            self.owned[from as usize].bucket.entries[position] = None;
            self.write(from);
        }
    }

    #[cfg(test)]
    pub(crate) fn into_memory(self) -> M {
        self.memory
    }

    #[cfg(test)]
    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }

    /// Whether each hint is set exactly where an entry needs it, for the checker.
    #[cfg(test)]
    pub(crate) fn hints_are_exact(&self) -> bool {
        let mut hints = vec![0u16; self.owned.len()];
        for (bucket, owned) in (0..).zip(&self.owned) {
            for entry in owned.bucket.entries.iter().flatten() {
                let places = self.geometry.places(entry.key);
                if bucket != places.home {
                    hints[places.home as usize] |= 1 << places.bit;
                }
            }
        }
        let owned = self.owned.iter().map(|owned| owned.bucket.hints);
        owned.eq(hints)
    }
}
