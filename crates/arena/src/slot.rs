//! One entry of the slot table, four cache lines.

use crate::layout::{MAX_SLOTS, SHORT_RINGS};
use crate::park::{PARKED, RUNNING};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use urdma_types::SlotId;

/// Words of a set of slots, a bit each.
const SET_WORDS: usize = 8;

/// Line 0: read by every sender, written when the owner parks, attaches or dies, or meets a peer.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct PublicLine {
    /// See [`crate::park`].
    pub(crate) park: AtomicU32,
    /// Process id of the attached process, 0 when the slot may be attached.
    pub(crate) pid: AtomicU32,
    /// How often the slot has been assigned anew.
    pub(crate) epoch: AtomicU32,
    /// Address of the witness in the owner's memory, 0 for none, and its value.
    witness_at: AtomicU64,
    witness: AtomicU64,
    /// Slots whose processes' memory the owner can read.
    reads: [AtomicU32; SET_WORDS],
}

/// A word in the memory of a slot's process: a process that reads the expected value there has
/// found that process and may read its memory.
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

impl PublicLine {
    /// No process reads memory of others, and none reads its: the initial state.
    pub(crate) fn forget_readers(&self) {
        self.witness_at.store(0, Ordering::Relaxed);
        for word in &self.reads {
            word.store(0, Ordering::Relaxed);
        }
    }

    pub(crate) fn show_witness(&self, at: u64, word: u64) {
        self.witness.store(word, Ordering::Relaxed);
        self.witness_at.store(at, Ordering::Release);
    }

    pub(crate) fn witness(&self) -> Option<Witness> {
        let at = self.witness_at.load(Ordering::Acquire);
        (at != 0).then(|| Witness {
            pid: self.pid.load(Ordering::Relaxed),
            at,
            word: self.witness.load(Ordering::Relaxed),
        })
    }

    pub(crate) fn set_reads(&self, slot: SlotId, reads: bool) {
        let (word, bit) = place(&self.reads, slot);
        if reads {
            word.fetch_or(bit, Ordering::Relaxed);
        } else {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn reads(&self, slot: SlotId) -> bool {
        let (word, bit) = place(&self.reads, slot);
        word.load(Ordering::Relaxed) & bit != 0
    }
}

/// Word and bit of a slot in a set.
#[inline]
fn place(set: &[AtomicU32; SET_WORDS], slot: SlotId) -> (&AtomicU32, u32) {
    let index = slot.number();
    (&set[usize::from(index / 32) % SET_WORDS], 1 << (index % 32))
}

/// Line 1: written by every sender.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct TailLine {
    pub(crate) tail: AtomicU64,
}

/// Lines 2 and 3: written by the owner only, but for `shorts`; others read them for information.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct OwnerLines {
    /// The consumer's position, for the thread that parks.
    pub(crate) head: AtomicU64,
    /// Frames of each class that were ever used; those above are FREE and have no memory.
    pub(crate) small_used: AtomicU32,
    pub(crate) large_used: AtomicU32,
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) exhausted: AtomicU64,
    pub(crate) full: AtomicU64,
    pub(crate) stale: AtomicU64,
    pub(crate) corrupt: AtomicU64,
    pub(crate) wakes: AtomicU64,
    pub(crate) shorts: Producers,
}

/// The producer of each short ring of the slot, an octet for each: 0 for none, else the slot's
/// number plus 1, or [`ORPHAN`].
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct Producers(AtomicU64);

/// The producer is dead; the ring is free once its entries have been received.
pub(crate) const ORPHAN: u8 = u8::MAX;

const _: () = assert!(SHORT_RINGS == size_of::<Producers>());
const _: () = assert!(MAX_SLOTS < ORPHAN as u16);

impl Producers {
    /// The octets; 0 if no ring is in use.
    #[inline]
    pub(crate) fn load(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Changes the first ring whose octet is `from`; gives its index.
    fn change(&self, from: u8, to: u8) -> Option<usize> {
        let changed = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
                let mut octets = word.to_le_bytes();
                *octets.iter_mut().find(|octet| **octet == from)? = to;
                Some(u64::from_le_bytes(octets))
            });
        let before = changed.ok()?.to_le_bytes();
        before.iter().position(|octet| *octet == from)
    }

    /// Takes a free ring for `producer`.
    pub(crate) fn claim(&self, producer: SlotId) -> Option<usize> {
        self.change(0, producer.number() + 1)
    }

    /// `producer` is dead.
    pub(crate) fn orphan(&self, producer: SlotId) {
        for _ in 0..SHORT_RINGS {
            let _ = self.change(producer.number() + 1, ORPHAN);
        }
    }

    /// Frees the ring `index`, whose entries were all received, if its producer is dead.
    pub(crate) fn free_orphan(&self, index: usize) {
        let _ = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
                let mut octets = word.to_le_bytes();
                let octet = octets.get_mut(index).filter(|octet| **octet == ORPHAN)?;
                *octet = 0;
                Some(u64::from_le_bytes(octets))
            });
    }
}

/// One entry.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SlotEntry {
    pub(crate) public: PublicLine,
    pub(crate) ring: TailLine,
    pub(crate) owner: OwnerLines,
}

const _: () = assert!(size_of::<SlotEntry>() == crate::layout::SLOT_ENTRY);

/// The state of a slot in the slot table; for information, unvalidated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotStatus {
    /// Process id of the attached process, 0 for none.
    pub pid: u32,
    /// How often the slot has been assigned anew.
    pub epoch: u32,
    /// A process uses it and is not known to be dead.
    pub alive: bool,
    /// Its consumer sleeps.
    pub parked: bool,
    /// The consumer's position in its ring, a running count.
    pub head: u64,
    /// Entries that wait in its ring.
    pub backlog: u64,
    /// Frames and short datagrams it published.
    pub sent: u64,
    /// Frames and short datagrams it received.
    pub received: u64,
    /// Allocations that found no free frame.
    pub exhausted: u64,
    /// Sends that found the receiver's ring full.
    pub full: u64,
    /// Ring entries it skipped because their frame had been reaped.
    pub stale: u64,
    /// Values it refused because no urdma process writes them.
    pub corrupt: u64,
    /// Times it had to wake a sleeping receiver.
    pub wakes: u64,
}

/// Increments a word that only the caller writes.
#[inline]
pub(crate) fn count(word: &AtomicU64, by: u64) {
    word.store(
        word.load(Ordering::Relaxed).wrapping_add(by),
        Ordering::Relaxed,
    );
}

impl SlotEntry {
    /// Copies it out.
    pub(crate) fn status(&self, backlog: u64) -> SlotStatus {
        let park = self.public.park.load(Ordering::Relaxed);
        let read = |word: &AtomicU64| word.load(Ordering::Relaxed);
        SlotStatus {
            pid: self.public.pid.load(Ordering::Relaxed),
            epoch: self.public.epoch.load(Ordering::Relaxed),
            alive: park == RUNNING || park == PARKED,
            parked: park == PARKED,
            head: read(&self.owner.head),
            backlog,
            sent: read(&self.owner.sent),
            received: read(&self.owner.received),
            exhausted: read(&self.owner.exhausted),
            full: read(&self.owner.full),
            stale: read(&self.owner.stale),
            corrupt: read(&self.owner.corrupt),
            wakes: read(&self.owner.wakes),
        }
    }
}
