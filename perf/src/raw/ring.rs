//! A minimal ring between two processes (one producer, one consumer, head, tail, entries of 64
//! octets), and a minimal stream that is copied in and out.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::fork::{poll, two_processes, typical_half_round_trip, Mark, SharedMemory};
use crate::samples::Sample;
use crate::workloads::STREAM_OCTETS;

const ENTRIES: usize = 1024;

const RATE_ENTRIES: usize = 10_000_000;

const BLOCK_OCTETS: usize = 65_536;
const BLOCKS: usize = 16;
/// Blocks of a message of 1 MB.
const MESSAGE_BLOCKS: usize = 16;
const STREAM_BLOCKS: usize = STREAM_OCTETS / BLOCK_OCTETS;

#[repr(C, align(128))]
struct Line(AtomicUsize);

/// 64 octets of payload.
type Entry = [usize; 8];

#[repr(C)]
struct Ring {
    head: Line,
    tail: Line,
    entries: [std::cell::UnsafeCell<Entry>; ENTRIES],
}

impl Ring {
    fn slot(&self, position: usize) -> *mut Entry {
        self.entries[position % ENTRIES].get()
    }

    #[inline]
    fn push(&self, entry: &Entry) -> Option<()> {
        let head = self.head.0.load(Ordering::Relaxed);
        if head - self.tail.0.load(Ordering::Acquire) >= ENTRIES {
            return None;
        }
        // SAFETY: the consumer does not read this entry before the store of the head below.
        unsafe { self.slot(head).write(*entry) };
        self.head.0.store(head + 1, Ordering::Release);
        Some(())
    }

    #[inline]
    fn pop(&self) -> Option<Entry> {
        let tail = self.tail.0.load(Ordering::Relaxed);
        if tail == self.head.0.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: the producer does not write this entry before the store of the tail below.
        let entry = unsafe { self.slot(tail).read() };
        self.tail.0.store(tail + 1, Ordering::Release);
        Some(entry)
    }
}

fn rings(memory: &SharedMemory) -> (&Ring, &Ring) {
    assert!(memory.octets() >= 2 * size_of::<Ring>());
    let first = memory.start().cast::<Ring>();
    // SAFETY: two rings fit, page-aligned; all zeroes is an empty ring.
    unsafe { (&*first, &*first.add(1)) }
}

/// Half the round trip of 64 octets, in microseconds.
///
/// # Errors
/// The second process failed.
pub fn half_round_trip() -> Sample {
    let memory = SharedMemory::new(2 * size_of::<Ring>())?;
    let (there, back) = rings(&memory);
    two_processes(
        || {
            let mut mark = usize::from(Mark::More.octet());
            while mark != usize::from(Mark::Last.octet()) {
                let entry = poll(|| there.pop());
                poll(|| back.push(&entry));
                mark = entry[0];
            }
        },
        || {
            typical_half_round_trip(|mark| {
                poll(|| there.push(&[mark.octet().into(); 8]));
                std::hint::black_box(poll(|| back.pop()));
            })
        },
    )
}

/// Entries of 64 octets a second, in millions, with the ring as full as the producer keeps it.
///
/// # Errors
/// The second process failed.
pub fn entries_a_second() -> Sample {
    let memory = SharedMemory::new(2 * size_of::<Ring>())?;
    let (there, back) = rings(&memory);
    two_processes(
        || {
            for _ in 0..RATE_ENTRIES {
                std::hint::black_box(poll(|| there.pop()));
            }
            poll(|| back.push(&[0; 8]));
        },
        || {
            let start = Instant::now();
            for i in 0..RATE_ENTRIES {
                poll(|| there.push(&[i; 8]));
            }
            poll(|| back.pop());
            RATE_ENTRIES as f64 / start.elapsed().as_secs_f64() / 1e6
        },
    )
}

/// Bandwidth in GB/s of 64 KB blocks that are copied from private memory into shared memory and
/// from there into the other process' private memory, 1 MB at either end.
///
/// # Errors
/// The second process failed.
pub fn two_copy_stream() -> Sample {
    two_copies([1, 1])
}

/// The same from 8 MB into 16 MB, of which each octet is used again after all others, as those of a
/// stream with 8 sends and 16 receives of 1 MB.
///
/// # Errors
/// The second process failed.
pub fn two_copies_in_turn() -> Sample {
    two_copies([8, 16])
}

/// Copies out of as many messages into as many others, each in turn.
fn two_copies(messages: [usize; 2]) -> Sample {
    let rings_octets = 2 * size_of::<Ring>();
    let memory = SharedMemory::new(rings_octets + BLOCKS * BLOCK_OCTETS)?;
    let (full, empty) = rings(&memory);
    let block = |index: usize| {
        let index = index % BLOCKS;
        // SAFETY: the index is within the blocks that follow the rings.
        unsafe { memory.start().add(rings_octets + index * BLOCK_OCTETS) }
    };
    let [source_blocks, sink_blocks] = messages.map(|count| count * MESSAGE_BLOCKS);
    let source = vec![2u8; source_blocks * BLOCK_OCTETS];
    let mut sink = vec![1u8; sink_blocks * BLOCK_OCTETS];
    for index in 0..BLOCKS {
        let _ = empty.push(&[index; 8]);
    }
    two_processes(
        || {
            for i in 0..STREAM_BLOCKS {
                let entry = poll(|| full.pop());
                let to = &mut sink[i % sink_blocks * BLOCK_OCTETS..][..BLOCK_OCTETS];
                // SAFETY: the entry gives us the block until it goes back.
                unsafe {
                    std::ptr::copy_nonoverlapping(block(entry[0]), to.as_mut_ptr(), BLOCK_OCTETS)
                };
                poll(|| empty.push(&entry));
            }
        },
        || {
            let start = Instant::now();
            for i in 0..STREAM_BLOCKS {
                let entry = poll(|| empty.pop());
                let from = &source[i % source_blocks * BLOCK_OCTETS..][..BLOCK_OCTETS];
                // SAFETY: the entry gives us the block until it is passed on.
                unsafe {
                    std::ptr::copy_nonoverlapping(from.as_ptr(), block(entry[0]), BLOCK_OCTETS)
                };
                poll(|| full.push(&entry));
            }
            // All blocks have returned: everything has arrived.
            for _ in 0..BLOCKS {
                poll(|| empty.pop());
            }
            STREAM_BLOCKS as f64 * BLOCK_OCTETS as f64 / start.elapsed().as_secs_f64() / 1e9
        },
    )
}
