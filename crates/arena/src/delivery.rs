//! The delivery record of a queue pair: up to which packet it has taken a stream.
//!
//! Each slot has one record for each index of a queue pair, which only the process of the slot
//! writes. The records outlive the process: its peers, and urdmad on behalf of peers on other
//! hosts, find there what the process had taken before it ended, whether or not it could still
//! acknowledge it.
//!
//! A record names its stream by the connection id, so that a reader never takes the record of a
//! later queue pair for that of an earlier one.

use crate::sync::{AtomicU32, Ordering};

/// One record; all zeroes is none.
#[derive(Debug)]
#[repr(C, align(8))]
pub struct DeliveryRecord {
    /// Connection id of the stream, which is never 0; 0 while there is none.
    stream: AtomicU32,
    /// The sequence number expected next: every packet before it was taken.
    next: AtomicU32,
}

const _: () = assert!(size_of::<DeliveryRecord>() == crate::layout::DELIVERY_RECORD);

impl DeliveryRecord {
    /// A stream begins whose first packet has the number `next`.
    pub fn begin(&self, stream: u32, next: u32) {
        self.stream.store(0, Ordering::Release);
        self.next.store(next, Ordering::Release);
        self.stream.store(stream, Ordering::Release);
    }

    /// Every packet before `next` counts as taken from now on.
    #[inline(always)]
    pub fn advance(&self, next: u32) {
        self.next.store(next, Ordering::Release);
    }

    /// The number that `stream` expects next; None when the record is not of that stream.
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
