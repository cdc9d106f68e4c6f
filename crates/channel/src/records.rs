//! Delivery records: what the queue pairs of a process have received from other hosts; and the
//! totals of its traffic.
//!
//! The process writes the records of its queue pairs, and urdmad reads them when the process has
//! ended: its RESET then tells the peer which of its packets were delivered. A process may
//! therefore end after it has delivered a completion and before it has acknowledged anything. The
//! process stores its totals now and then, and when urdmad asks for them.
//!
//! | offset | octets | content |
//! |---|---|---|
//! | 0 | 12 | magic `urdmaREC`, version (4) |
//! | 64 | 8 × 11 | totals of the traffic, in the order of [`Traffic`] |
//! | 4096 | 8 × 65,536 | of each queue pair: the stream's connection id (4), the next packet (4) |

#![allow(unsafe_code)]

use std::os::fd::OwnedFd;

use urdma_memfd::{magic, Mapping, MemoryError, PAGE};

use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::traffic::Traffic;

const MAGIC: &[u8; 8] = b"urdmaREC";
const VERSION: u32 = 2;
const TRAFFIC_AT: usize = 64;
const RECORDS_AT: usize = PAGE;
const TOTAL: usize = RECORDS_AT + size_of::<DeliveryRecord>() * (1 << 16);

const _: () = assert!(TRAFFIC_AT + size_of::<Totals>() <= RECORDS_AT);

/// The totals of the traffic; see [`Traffic::to_array`].
type Totals = [AtomicU64; Traffic::COUNT];

/// The record of one queue pair; all zeroes is no record.
#[derive(Debug)]
#[repr(C, align(8))]
pub struct DeliveryRecord {
    /// Connection id of the stream, never 0; 0 without a stream.
    stream: AtomicU32,
    /// The sequence number expected next: every packet before it was delivered.
    next: AtomicU32,
}

impl DeliveryRecord {
    /// Begins a stream whose first packet has the number `next`.
    pub fn begin(&self, stream: u32, next: u32) {
        self.stream.store(0, Ordering::Release);
        self.next.store(next, Ordering::Release);
        self.stream.store(stream, Ordering::Release);
    }

    /// Records that every packet before `next` was delivered.
    #[inline(always)]
    pub fn advance(&self, next: u32) {
        self.next.store(next, Ordering::Release);
    }

    /// The number that `stream` expects next; `None` when the record belongs to another stream.
    pub fn next_of(&self, stream: u32) -> Option<u32> {
        let of_stream = || stream != 0 && self.stream.load(Ordering::Acquire) == stream;
        if !of_stream() {
            return None;
        }
        let next = self.next.load(Ordering::Acquire);
        of_stream().then_some(next)
    }
}

/// The record of a queue pair's index.
fn record(mapping: &Mapping, index: u16) -> &DeliveryRecord {
    let at = RECORDS_AT + size_of::<DeliveryRecord>() * usize::from(index);
    // SAFETY: there is a record for each index, at a multiple of 8 within the mapping; it consists
    // of atomics, valid in any bit pattern.
    unsafe { mapping.at(at).cast().as_ref() }
}

fn totals(mapping: &Mapping) -> &Totals {
    // SAFETY: they are within the first page of the mapping, at a multiple of 8, and consist of
    // atomics, valid in any bit pattern.
    unsafe { mapping.at(TRAFFIC_AT).cast().as_ref() }
}

/// The records of this process.
#[derive(Debug)]
pub struct OwnRecords(Mapping);

impl OwnRecords {
    /// Creates empty records, which take memory as they are used. The descriptor is for urdmad; the
    /// records do not need it.
    ///
    /// # Errors
    /// What a system call says.
    pub fn create() -> Result<(Self, OwnedFd), MemoryError> {
        let header = magic(MAGIC, VERSION);
        let (mapping, fd) = Mapping::create(c"urdma-records", TOTAL, &header, 0)?;
        Ok((Self(mapping), fd))
    }

    /// The record of the queue pair with this index.
    #[inline]
    pub fn of(&self, index: u16) -> &DeliveryRecord {
        record(&self.0, index)
    }

    /// Stores the totals of this process; one thread at a time.
    pub fn publish(&self, traffic: Traffic) {
        for (total, value) in totals(&self.0).iter().zip(traffic.to_array()) {
            total.store(value, Ordering::Release);
        }
    }
}

/// The records of another process.
#[derive(Debug)]
pub struct PeerRecords(Mapping);

impl PeerRecords {
    /// Maps records read-only, if they are some. Closes the descriptor.
    ///
    /// # Errors
    /// Whatever makes them unusable: their kind, their seals, their header; or what a system call
    /// says.
    pub fn open(fd: OwnedFd) -> Result<Self, MemoryError> {
        Mapping::open_table(fd, &magic(MAGIC, VERSION), TOTAL).map(Self)
    }

    /// The packet that a queue pair expects next of `stream`, of which it has taken all before;
    /// `None` when it has no record of that stream.
    pub fn delivered(&self, index: u16, stream: u32) -> Option<u32> {
        record(&self.0, index).next_of(stream)
    }

    /// The totals that the process has stored last. The process chooses them.
    pub fn traffic(&self) -> Traffic {
        let totals = totals(&self.0).each_ref();
        Traffic::from_array(totals.map(|total| total.load(Ordering::Acquire)))
    }
}
