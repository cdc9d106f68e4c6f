//! The delivery record of a queue pair: the packets of a stream that it has delivered.
//!
//! Each slot has one record for each index of a queue pair, written only by the slot's process. The
//! records outlive the process: its peers, and urdmad on behalf of peers on other hosts, read what
//! the process had delivered before it ended, whether or not it could still acknowledge it.
//!
//! A record identifies its stream by the connection id, so that a reader never takes the record of
//! a later queue pair for that of an earlier one.

use crate::sync::{AtomicU32, Ordering};

/// One record; all zeroes is no record.
#[derive(Debug)]
#[repr(C, align(8))]
pub struct DeliveryRecord {
    /// Connection id of the stream, never 0; 0 without a stream.
    stream: AtomicU32,
    /// The sequence number expected next: every packet before it was delivered.
    next: AtomicU32,
}

const _: () = assert!(size_of::<DeliveryRecord>() == crate::layout::DELIVERY_RECORD);

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
        let next = of_stream().then(|| self.next.load(Ordering::Acquire))?;
        of_stream().then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_answers_for_its_stream_only() {
        let record = DeliveryRecord {
            stream: AtomicU32::new(0),
            next: AtomicU32::new(0),
        };
        assert_eq!(record.next_of(0), None);
        record.begin(7, 100);
        record.advance(101);
        assert_eq!((record.next_of(7), record.next_of(8)), (Some(101), None));
        record.begin(8, 5);
        assert_eq!((record.next_of(7), record.next_of(8)), (None, Some(5)));
    }
}
