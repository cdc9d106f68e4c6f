//! The directory of an instance: which slots have a process, and how often each was
//! assigned.
//!
//! urdmad writes it, every process reads it.
//!
//! | offset | octets | content |
//! |---|---|---|
//! | 0 | 12 | magic `urdmaDIR`, version (4) |
//! | 64 | 4 × 254 | of each slot: generation (31 bits), whether it has a process (low bit) |

#![allow(unsafe_code)]

use std::os::fd::OwnedFd;

use urdma_memfd::{magic, Mapping, MemoryError, PAGE};

use crate::sync::{AtomicU32, Ordering};

/// Slots of an instance.
pub const SLOTS: usize = 254;

const MAGIC: &[u8; 8] = b"urdmaDIR";
const VERSION: u32 = 1;
const WORDS_AT: usize = 64;
const HAS_PROCESS: u32 = 1;

const _: () = assert!(WORDS_AT + 4 * SLOTS <= PAGE);

/// The word of a slot.
fn word(mapping: &Mapping, slot: u8) -> Option<&AtomicU32> {
    let slot = usize::from(slot);
    // SAFETY: an aligned word within the page, valid in any bit pattern.
    (slot < SLOTS).then(|| unsafe { mapping.at(WORDS_AT + 4 * slot).cast().as_ref() })
}

/// The directory, for urdmad.
#[derive(Debug)]
pub struct OwnDirectory(Mapping);

impl OwnDirectory {
    /// Creates a directory in which no slot has a process. The descriptor is for its readers; the
    /// directory does not need it.
    ///
    /// # Errors
    /// What a system call says.
    pub fn create() -> Result<(Self, OwnedFd), MemoryError> {
        let header = magic(MAGIC, VERSION);
        let (mapping, fd) = Mapping::create(c"urdma-directory", PAGE, &header, PAGE)?;
        Ok((Self(mapping), fd))
    }

    /// Assigns a slot to a process; gives the slot's generation.
    pub fn assign(&self, slot: u8) -> u32 {
        let before = self.load(slot);
        let generation = (before >> 1).wrapping_add(1) << 1;
        self.store(slot, generation | HAS_PROCESS);
        generation >> 1
    }

    /// The process of a slot has ended.
    pub fn release(&self, slot: u8) {
        self.store(slot, self.load(slot) & !HAS_PROCESS);
    }

    /// How often a slot was assigned.
    pub fn generation(&self, slot: u8) -> u32 {
        self.load(slot) >> 1
    }

    /// Whether a slot has a process.
    pub fn has_process(&self, slot: u8) -> bool {
        self.load(slot) & HAS_PROCESS != 0
    }

    fn load(&self, slot: u8) -> u32 {
        word(&self.0, slot).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    fn store(&self, slot: u8, value: u32) {
        if let Some(word) = word(&self.0, slot) {
            word.store(value, Ordering::Release);
        }
    }
}

/// The directory, for a process.
#[derive(Debug)]
pub struct Directory(Mapping);

impl Directory {
    /// Maps a directory read-only, if it is one. Closes the descriptor.
    ///
    /// # Errors
    /// Whatever makes it unusable: its kind, its seals, its header; or what a system call says.
    pub fn open(fd: OwnedFd) -> Result<Self, MemoryError> {
        Mapping::open_table(fd, &magic(MAGIC, VERSION), PAGE).map(Self)
    }

    /// How often a slot was assigned, 0 for one that does not exist.
    #[inline]
    pub fn generation(&self, slot: u8) -> u32 {
        self.load(slot) >> 1
    }

    /// Whether a slot has a process.
    #[inline]
    pub fn has_process(&self, slot: u8) -> bool {
        self.load(slot) & HAS_PROCESS != 0
    }

    #[inline]
    fn load(&self, slot: u8) -> u32 {
        word(&self.0, slot).map_or(0, |word| word.load(Ordering::Acquire))
    }
}
