//! The sending half of the packet window: one record for each sequence number between the oldest unacknowledged and the next.

use super::num::{low32, slot64};
use crate::wire::WINDOW_UNIT_PACKETS;
use std::collections::VecDeque;
use urdma_types::Psn;
use urdma_types::Time;

/// What a sequence number carries; together with the record's numbers it never changes once sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentSource {
    /// Part of the send or write request with this index.
    Message(u32),
    /// The immediate data after a write request.
    Immediate(u32),
    /// A read or atomic request.
    Request(u32),
    /// A request that is done here; never sent.
    Local(u32),
    /// Part of the response in this entry of the responder's table.
    Response(u16),
    /// Part of a request that the peer has refused: it will be sent again under another number, and this one has nothing to carry.
    Void,
}

/// What is cut off a work request or response for one datagram.
#[derive(Clone, Copy, Debug)]
pub(super) struct SegmentSpec {
    pub(super) source: SegmentSource,
    /// Offset in the message.
    pub(super) offset: u32,
    /// Octets of payload.
    pub(super) len: u32,
    /// Last of its message.
    pub(super) last: bool,
}

/// Where a record stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Sent and not heard of.
    InFlight,
    /// Taken to be lost, and to be sent again.
    Lost,
    /// Acknowledged, cumulatively or selectively.
    Acked,
}

/// One sequence number in the window.
#[derive(Clone, Copy, Debug)]
pub(super) struct TxRecord {
    pub(super) sent_at: Time,
    pub(super) spec: SegmentSpec,
    /// Counts transmissions, so that the order of sending is known after retransmissions too.
    pub(super) transmission: u32,
    pub(super) fate: Fate,
    pub(super) retransmitted: bool,
    /// The latest transmission asked for an acknowledgement.
    pub(super) ack_requested: bool,
}

impl TxRecord {
    const EMPTY: Self = Self {
        sent_at: Time::ZERO,
        spec: SegmentSpec {
            source: SegmentSource::Message(0),
            offset: 0,
            len: 0,
            last: false,
        },
        transmission: 0,
        fate: Fate::Acked,
        retransmitted: false,
        ack_requested: false,
    };
}

/// The window. Sequence numbers are counted in 64 bits from 0; the wire shows their low 24 bits plus the initial number.
#[derive(Debug)]
pub(super) struct TxWindow {
    records: Box<[TxRecord]>,
    mask: u32,
    initial: Psn,
    /// The oldest number that is not acknowledged.
    pub(super) una: u64,
    /// The next number to be used.
    pub(super) next: u64,
    /// Records in flight.
    pub(super) in_flight: u32,
    /// Records lost and not yet sent again.
    pub(super) lost: u32,
    /// No record before this number is lost.
    lost_from: u64,
    /// Packets from `una` on that the peer has room for.
    pub(super) peer_window: u32,
    /// Transmissions so far.
    transmissions: u32,
    /// No record before this number is in flight for the first time and not judged by loss detection.
    pub(super) unjudged: u64,
    /// Records sent again, oldest first, with the count of that transmission.
    pub(super) resent: VecDeque<(u64, u32)>,
}

/// Records for which there is room from the start.
pub(super) const FIRST_CAPACITY: u32 = 64;

impl TxWindow {
    pub(super) fn new() -> Self {
        Self {
            records: vec![TxRecord::EMPTY; FIRST_CAPACITY as usize].into(),
            mask: FIRST_CAPACITY - 1,
            initial: Psn::new(0),
            una: 0,
            next: 0,
            in_flight: 0,
            lost: 0,
            lost_from: 0,
            peer_window: WINDOW_UNIT_PACKETS,
            transmissions: 0,
            unjudged: 0,
            resent: VecDeque::new(),
        }
    }

    /// Makes room for `packets` records, a power of two, unless there is as much already.
    #[cold]
    pub(super) fn grow(&mut self, packets: u32) {
        let mut records: Box<[TxRecord]> = vec![TxRecord::EMPTY; packets as usize].into();
        for seq in self.una..self.next {
            records[slot64(seq, packets - 1)] = *self.get(seq);
        }
        self.records = records;
        self.mask = packets - 1;
    }

    /// Records for which there is room.
    #[inline]
    pub(super) const fn capacity(&self) -> u32 {
        self.mask + 1
    }

    /// Forgets everything and begins with `initial`.
    pub(super) fn start(&mut self, initial: Psn) {
        self.initial = initial;
        (self.una, self.next, self.lost_from) = (0, 0, 0);
        (self.in_flight, self.lost, self.transmissions) = (0, 0, 0);
        self.peer_window = WINDOW_UNIT_PACKETS;
        self.unjudged = 0;
        self.resent.clear();
    }

    /// The first PSN of the stream.
    pub(super) const fn initial(&self) -> Psn {
        self.initial
    }

    /// Begins to count transmissions with `count`.
    pub(super) fn count_transmissions_from(&mut self, count: u32) {
        self.transmissions = count;
    }

    /// The wire's number.
    #[inline]
    pub(super) const fn psn(&self, seq: u64) -> Psn {
        self.initial.add(low32(seq))
    }

    /// The sequence number that an acknowledgement names; `None` when it was never sent. Old ones give `una`.
    #[inline]
    pub(super) fn acked_seq(&self, ack: Psn) -> Option<u64> {
        let ahead = ack.distance(self.psn(self.una));
        let seq = self.una + u64::from(ahead.max(0).unsigned_abs());
        (seq <= self.next).then_some(seq)
    }

    /// The sequence number in the window that the wire names so.
    pub(super) fn seq_of(&self, psn: Psn) -> Option<u64> {
        let ahead = u32::try_from(psn.distance(self.psn(self.una))).ok()?;
        let seq = self.una + u64::from(ahead);
        (seq < self.next).then_some(seq)
    }

    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.una == self.next
    }

    /// Whether a new sequence number may be used.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        // R7.4-1
        self.next - self.una < u64::from(self.peer_window.min(self.mask + 1))
    }

    #[inline]
    pub(super) fn get(&self, seq: u64) -> &TxRecord {
        &self.records[slot64(seq, self.mask)]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, seq: u64) -> &mut TxRecord {
        &mut self.records[slot64(seq, self.mask)]
    }

    /// Uses the next sequence number.
    #[inline]
    pub(super) fn push(&mut self, now: Time, spec: SegmentSpec, ack_requested: bool) {
        let transmission = self.count_transmission();
        let seq = self.next;
        *self.get_mut(seq) = TxRecord {
            sent_at: now,
            spec,
            transmission,
            fate: Fate::InFlight,
            retransmitted: false,
            ack_requested,
        };
        self.next += 1;
        self.in_flight += 1;
    }

    /// Leaves out a number, which the receiver will take for lost. Nothing is in flight.
    pub(super) fn skip(&mut self) {
        debug_assert!(self.is_empty());
        self.next += 1;
        self.una = self.next;
    }

    /// A lost record has been sent again.
    pub(super) fn resent(&mut self, now: Time, seq: u64, ack_requested: bool) {
        let transmission = self.count_transmission();
        let record = self.get_mut(seq);
        record.sent_at = now;
        record.transmission = transmission;
        record.retransmitted = true;
        record.ack_requested = ack_requested;
        debug_assert_eq!(record.fate, Fate::Lost);
        record.fate = Fate::InFlight;
        self.lost -= 1;
        self.in_flight += 1;
        self.resent.push_back((seq, transmission));
    }

    #[inline]
    fn count_transmission(&mut self) -> u32 {
        self.transmissions = self.transmissions.wrapping_add(1);
        self.transmissions
    }

    /// Marks a record acknowledged; false when it already was.
    #[inline]
    pub(super) fn mark_acked(&mut self, seq: u64) -> bool {
        let record = self.get_mut(seq);
        match std::mem::replace(&mut record.fate, Fate::Acked) {
            Fate::InFlight => self.in_flight -= 1,
            Fate::Lost => self.lost -= 1,
            Fate::Acked => return false,
        }
        true
    }

    /// Marks a record in flight as lost.
    pub(super) fn mark_lost(&mut self, seq: u64) {
        let record = self.get_mut(seq);
        if record.fate == Fate::InFlight {
            record.fate = Fate::Lost;
            self.in_flight -= 1;
            self.lost += 1;
            self.lost_from = self.lost_from.min(seq);
        }
    }

    /// A lost record will never be sent again, nor acknowledged.
    pub(super) fn give_up(&mut self, seq: u64) {
        if seq >= self.una {
            self.mark_acked(seq);
        }
    }

    /// Forgets what is in flight.
    pub(super) fn abandon(&mut self) {
        self.una = self.next;
        (self.in_flight, self.lost) = (0, 0);
        self.resent.clear();
    }

    /// The oldest lost record.
    pub(super) fn first_lost(&self) -> Option<u64> {
        if self.lost == 0 {
            return None;
        }
        (self.lost_from.max(self.una)..self.next).find(|&seq| self.get(seq).fate == Fate::Lost)
    }

    /// No record before `seq` is lost.
    pub(super) fn note_lost_from(&mut self, seq: u64) {
        self.lost_from = seq;
    }

    /// The oldest record in flight.
    pub(super) fn first_in_flight(&self) -> Option<u64> {
        if self.in_flight == 0 {
            return None;
        }
        (self.una..self.next).find(|&seq| self.get(seq).fate == Fate::InFlight)
    }
}
