//! The page by which a process is known to its peers, and sleeping (unsafe).
//!
//! | offset | octets | content |
//! |---|---|---|
//! | 0 | 16 | magic `urdmaPAG`, version (4), generation (4) |
//! | 64 | 4 | park word |
//! | 128 | 4 | process id of the witness |
//! | 136 | 16 | address of the witness, 0 for none (8), its value (8) |
//!
//! A sleeper stores PARKED in its park word, which its peers only read. It does not wait on that
//! word, but on one of each peer, its *bell*, in the peer's region: the peer changes its bell and
//! wakes those that wait on it. A wake-up is therefore not lost between the sleeper's last look and
//! its sleep, since the kernel compares the bells again. And a third process cannot intercept it:
//! whoever can read a word can take away those that wait on it (FUTEX_REQUEUE), and only the two
//! ends of a channel can read its bell.

use std::time::Duration;

use crate::futex::{self, Waiter, NAP, WAITERS_MAX};
use crate::sync::{fence, AtomicU32, AtomicU64, Ordering};

/// The process polls, or will look before it sleeps.
const RUNNING: u32 = 1;
/// It sleeps or is about to.
const PARKED: u32 = 2;

/// A word in the memory of a process: a process that reads the expected value there has found that
/// process and may read its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Witness {
    /// Id of the process in its own PID namespace; in another namespace it is another process' or
    /// unused.
    pub pid: u32,
    /// Address of the word.
    pub at: u64,
    /// The word.
    pub word: u64,
}

#[derive(Debug)]
#[repr(C, align(64))]
struct Head {
    magic: AtomicU64,
    version: AtomicU32,
    generation: AtomicU32,
}

#[derive(Debug)]
#[repr(C, align(64))]
struct Park(AtomicU32);

#[derive(Debug)]
#[repr(C, align(64))]
struct WitnessWords {
    pid: AtomicU32,
    at: AtomicU64,
    word: AtomicU64,
}

#[derive(Debug)]
#[repr(C)]
struct Words {
    head: Head,
    park: Park,
    witness: WitnessWords,
}

#[cfg(not(loom))]
mod mapped {
    //! Pages in memfds.

    use std::ops::Deref;
    use std::os::fd::OwnedFd;

    use super::{OwnPage, PeerPage, Words, RUNNING};
    use crate::layout::LayoutError;
    use crate::map::{Mapping, RegionError};
    use crate::sync::{AtomicU32, Ordering};

    const PAGE: usize = 4096;
    /// `urdmaPAG`, little-endian.
    const MAGIC: u64 = u64::from_le_bytes(*b"urdmaPAG");
    const VERSION: u64 = 1;
    const HEADER: usize = 12;
    /// The park word of a process that does not use its page any more.
    const VACANT: u32 = 0;

    const _: () = assert!(size_of::<Words>() <= PAGE);

    #[derive(Debug)]
    pub(super) struct Memory(Mapping);

    impl Deref for Memory {
        type Target = Words;

        #[inline]
        fn deref(&self) -> &Words {
            // SAFETY: a page is mapped, and the words are atomics, valid in any bit pattern.
            unsafe { self.0.at(0).cast().as_ref() }
        }
    }

    impl OwnPage {
        /// Creates the page of this process. The descriptor is for its peers; the page does not
        /// need it.
        ///
        /// # Errors
        /// What a system call says.
        pub fn create() -> Result<(Self, OwnedFd), RegionError> {
            let mut header = [0; HEADER];
            header[..8].copy_from_slice(&MAGIC.to_le_bytes());
            header[8..].copy_from_slice(&VERSION.to_le_bytes()[..4]);
            let (mapping, fd) = Mapping::create(c"urdma-page", PAGE, &header, PAGE)?;
            let memory = Memory(mapping);
            memory.park.0.store(RUNNING, Ordering::Relaxed);
            let bell = AtomicU32::new(0);
            Ok((Self { memory, bell }, fd))
        }
    }

    impl Drop for OwnPage {
        fn drop(&mut self) {
            self.memory.park.0.store(VACANT, Ordering::Relaxed);
        }
    }

    impl PeerPage {
        /// Maps another process' page read-only, if it is one. Closes the descriptor.
        ///
        /// # Errors
        /// Whatever makes it unusable: its kind, its seals, its header; or what a system call says.
        pub fn open(fd: OwnedFd) -> Result<Self, RegionError> {
            let (mapping, ()) = Mapping::open(fd, |header: &[u8; HEADER], octets| {
                if header[..8] != MAGIC.to_le_bytes() {
                    return Err(LayoutError::Magic);
                }
                if header[8..] != VERSION.to_le_bytes()[..4] {
                    return Err(LayoutError::Range("the page has another version"));
                }
                if octets != PAGE as u64 {
                    return Err(LayoutError::Length {
                        file: octets,
                        header: PAGE as u64,
                    });
                }
                Ok(((), PAGE))
            })?;
            Ok(Self {
                memory: Memory(mapping),
            })
        }
    }
}

#[cfg(not(loom))]
use mapped::Memory;
#[cfg(loom)]
type Memory = loom::sync::Arc<Words>;

/// The page of this process.
#[derive(Debug)]
pub struct OwnPage {
    memory: Memory,
    /// The bell for this process' own threads.
    bell: AtomicU32,
}

/// The page of another process.
#[derive(Debug)]
pub struct PeerPage {
    memory: Memory,
}

/// The bells that a sleeper waits on. To be collected before [`OwnPage::park`], for each time.
#[derive(Debug)]
pub struct Bells {
    /// The first is for the sleeper's own.
    waiters: [Waiter; WAITERS_MAX],
    count: usize,
    is_complete: bool,
}

impl Default for Bells {
    fn default() -> Self {
        Self {
            waiters: [Waiter::default(); WAITERS_MAX],
            count: 1,
            is_complete: true,
        }
    }
}

impl Bells {
    /// Forgets all.
    #[inline]
    pub fn clear(&mut self) {
        self.count = 1;
        self.is_complete = true;
    }

    /// Adds a bell with its present value. The kernel takes a limited number; a sleeper with more
    /// sleeps only shortly.
    #[inline]
    pub(crate) fn add(&mut self, bell: &AtomicU32) {
        match self.waiters.get_mut(self.count) {
            Some(waiter) => {
                *waiter = Waiter::new(bell, bell.load(Ordering::Acquire));
                self.count += 1;
            }
            None => self.is_complete = false,
        }
    }
}

/// How a call to park ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parked {
    /// A bell rang, or it woke for no reason.
    Woken,
    /// The time was up.
    Timeout,
    /// There was something to do, so it did not sleep.
    HadWork,
}

impl OwnPage {
    /// Says how often the slot of this process has been assigned anew.
    pub fn set_generation(&self, generation: u32) {
        self.memory
            .head
            .generation
            .store(generation, Ordering::Relaxed);
    }

    /// Shows how peers find out whether they can read the memory of this process.
    pub fn show_witness(&self, witness: Witness) {
        let words = &self.memory.witness;
        words.pid.store(witness.pid, Ordering::Relaxed);
        words.word.store(witness.word, Ordering::Relaxed);
        words.at.store(witness.at, Ordering::Release);
    }

    /// Sleeps until a bell rings, unless `has_work`, which looks at every channel of `bells` once
    /// more. One thread at a time.
    pub fn park(
        &self,
        bells: &mut Bells,
        timeout: Option<Duration>,
        has_work: impl FnOnce() -> bool,
    ) -> Parked {
        bells.waiters[0] = Waiter::new(&self.bell, self.bell.load(Ordering::Acquire));
        let word = &self.memory.park.0;
        // C6-1: the bells were read before, so the kernel sees whether they rang since.
        word.store(PARKED, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let limit = Some(NAP).filter(|_| !bells.is_complete);
        let timeout = timeout.into_iter().chain(limit).min();
        let parked = if has_work() {
            Parked::HadWork
        } else if futex::wait(&bells.waiters[..bells.count], timeout) {
            Parked::Woken
        } else {
            Parked::Timeout
        };
        word.store(RUNNING, Ordering::Relaxed);
        parked
    }

    /// Wakes the thread of this process that sleeps, or has it look once more.
    pub fn unpark(&self) {
        self.bell.fetch_add(1, Ordering::Release);
        futex::wake(&self.bell);
    }
}

impl PeerPage {
    /// Whether the process sleeps and may have missed what this one stored before.
    #[inline]
    pub(crate) fn must_be_woken(&self) -> bool {
        // C6-2
        fence(Ordering::SeqCst);
        self.memory.park.0.load(Ordering::Relaxed) == PARKED
    }

    /// How often the slot of the process had been assigned anew, as it says itself.
    pub fn generation(&self) -> u32 {
        self.memory.head.generation.load(Ordering::Relaxed)
    }

    /// How to find out whether the memory of the process can be read; None if it does not want
    /// that.
    pub fn witness(&self) -> Option<Witness> {
        let words = &self.memory.witness;
        let at = words.at.load(Ordering::Acquire);
        (at != 0).then(|| Witness {
            pid: words.pid.load(Ordering::Relaxed),
            at,
            word: words.word.load(Ordering::Relaxed),
        })
    }
}

#[cfg(loom)]
impl OwnPage {
    /// A page in the model's memory.
    pub fn model() -> (Self, PeerPage) {
        let memory = Memory::new(Words {
            head: Head {
                magic: AtomicU64::new(0),
                version: AtomicU32::new(0),
                generation: AtomicU32::new(0),
            },
            park: Park(AtomicU32::new(RUNNING)),
            witness: WitnessWords {
                pid: AtomicU32::new(0),
                at: AtomicU64::new(0),
                word: AtomicU64::new(0),
            },
        });
        let page = Self {
            memory: memory.clone(),
            bell: AtomicU32::new(0),
        };
        (page, PeerPage { memory })
    }
}
