//! The sending half of the packet window: one record for each sequence number from the oldest
//! unacknowledged to the next.

use super::super::bits::BitRing;
use super::super::num::{low32, slot64};
use super::super::queues::{SegmentSource, SegmentSpec};
use crate::wire::WINDOW_UNIT_PACKETS;
use std::collections::VecDeque;
use urdma_types::{Psn, Time};

/// The state of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Sent, neither acknowledged nor lost.
    InFlight,
    /// Declared lost, and to be retransmitted.
    Lost,
    /// Acknowledged, cumulatively or selectively.
    Acked,
}

/// One sequence number in the window.
#[derive(Clone, Copy, Debug)]
pub(super) struct TxRecord {
    pub(super) sent_at: Time,
    pub(super) spec: SegmentSpec,
    /// The count of the latest transmission: the order of transmission, which retransmissions make
    /// differ from the order of numbers.
    pub(super) transmission: u32,
    pub(super) fate: Fate,
    pub(super) retransmitted: bool,
    /// The latest transmission requested an acknowledgement.
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

/// The send window. Sequence numbers are 64-bit counters from 0; a PSN is their low 24 bits plus
/// the initial PSN.
#[derive(Debug)]
pub(super) struct TxWindow {
    /// Of the length of the capacity; empty before the first is used, so that a connection without
    /// traffic takes no memory for them.
    records: Box<[TxRecord]>,
    /// The capacity less one.
    mask: u32,
    initial: Psn,
    /// The oldest unacknowledged number (SND.UNA of TCP).
    pub(super) una: u64,
    /// The next number to be used (SND.NXT).
    pub(super) next: u64,
    /// Records in flight.
    pub(super) in_flight: u32,
    /// Records that are lost and not yet retransmitted.
    pub(super) lost: u32,
    /// Which records these are: a peer can arrange that those between two of them are many.
    lost_set: BitRing,
    /// Lower bound of the lost records.
    lost_from: u64,
    /// Window that the peer advertises, in packets from `una` on.
    pub(super) peer_window: u32,
    /// Transmissions so far.
    transmissions: u32,
    /// Lower bound of the records that are in flight for the first time and that loss detection has
    /// not judged.
    pub(super) unjudged: u64,
    /// Retransmitted records, in order of transmission, with the count of that transmission.
    pub(super) resent: VecDeque<(u64, u32)>,
}

/// Capacity at creation.
const FIRST_CAPACITY: u32 = 64;

impl TxWindow {
    pub(super) fn new() -> Self {
        Self {
            records: Box::default(),
            mask: FIRST_CAPACITY - 1,
            initial: Psn::new(0),
            una: 0,
            next: 0,
            in_flight: 0,
            lost: 0,
            lost_set: BitRing::new(FIRST_CAPACITY),
            lost_from: 0,
            peer_window: WINDOW_UNIT_PACKETS,
            transmissions: 0,
            unjudged: 0,
            resent: VecDeque::new(),
        }
    }

    /// Grows to `packets` records, a power of two above the present capacity.
    #[cold]
    pub(super) fn grow(&mut self, packets: u32) {
        if !self.records.is_empty() {
            let mut records: Box<[TxRecord]> = vec![TxRecord::EMPTY; packets as usize].into();
            for seq in self.una..self.next {
                records[slot64(seq, packets - 1)] = *self.get(seq);
            }
            self.records = records;
        }
        self.mask = packets - 1;
        self.lost_set.grow(packets, self.una, self.next);
    }

    /// The place of a record that begins to be used.
    #[inline]
    fn place(&mut self, seq: u64) -> &mut TxRecord {
        let slot = slot64(seq, self.mask);
        if slot >= self.records.len() {
            self.allocate();
        }
        &mut self.records[slot]
    }

    /// Allocates the records: none were used yet.
    #[cold]
    fn allocate(&mut self) {
        self.records = vec![TxRecord::EMPTY; self.capacity() as usize].into();
    }

    /// Numbers that there is room for.
    #[inline]
    pub(super) const fn capacity(&self) -> u32 {
        self.mask + 1
    }

    /// Starts a new stream with `initial`.
    pub(super) fn start(&mut self, initial: Psn) {
        self.initial = initial;
        (self.una, self.next, self.lost_from) = (0, 0, 0);
        (self.in_flight, self.lost, self.transmissions) = (0, 0, 0);
        self.peer_window = WINDOW_UNIT_PACKETS;
        self.unjudged = 0;
        self.lost_set.clear();
        self.resent.clear();
    }

    /// The first PSN of the stream.
    pub(super) const fn initial(&self) -> Psn {
        self.initial
    }

    /// Sets the count of transmissions.
    pub(super) fn count_transmissions_from(&mut self, count: u32) {
        self.transmissions = count;
    }

    /// The PSN of a sequence number.
    #[inline]
    pub(super) const fn psn(&self, seq: u64) -> Psn {
        self.initial.add(low32(seq))
    }

    /// The sequence number of a cumulative acknowledgement; `None` if it was never sent. Old ones
    /// give `una`.
    #[inline]
    pub(super) fn acked_seq(&self, ack: Psn) -> Option<u64> {
        let ahead = ack.distance(self.psn(self.una));
        let seq = self.una + u64::from(ahead.max(0).unsigned_abs());
        (seq <= self.next).then_some(seq)
    }

    /// The sequence number in the window with this PSN.
    pub(super) fn seq_of(&self, psn: Psn) -> Option<u64> {
        let ahead = u32::try_from(psn.distance(self.psn(self.una))).ok()?;
        let seq = self.una + u64::from(ahead);
        (seq < self.next).then_some(seq)
    }

    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.una == self.next
    }

    /// Whether the peer's window and the allocated records allow a new sequence number.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.room() > 0
    }

    /// New sequence numbers that the peer's window and the allocated records allow.
    #[inline]
    pub(super) fn room(&self) -> u32 {
        // R7.4-1
        //# **Sender.** A sender MUST NOT have a PSN at or beyond `ACK + 256 * Window` in flight.
        let used = low32(self.next - self.una);
        self.peer_window.min(self.mask + 1).saturating_sub(used)
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
        *self.place(seq) = TxRecord {
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

    /// Skips a number, which the receiver counts as lost. Nothing is in flight.
    pub(super) fn skip(&mut self) {
        debug_assert!(self.is_empty());
        self.next += 1;
        self.una = self.next;
    }

    /// Records the retransmission of a lost record.
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
        self.lost_set.unset(seq);
        self.in_flight += 1;
        // A peer that acknowledges nothing of the oldest entry keeps all after it.
        if self.resent.len() >= 2 * self.capacity() as usize {
            self.drop_repeated();
        }
        self.resent.push_back((seq, transmission));
    }

    /// Drops the entries of `resent` that are no more than history.
    #[cold]
    fn drop_repeated(&mut self) {
        let mut resent = std::mem::take(&mut self.resent);
        resent.retain(|&(seq, transmission)| self.is_in_flight(seq, transmission));
        self.resent = resent;
    }

    /// Whether this transmission of a record is its latest, and has not been acknowledged or lost.
    pub(super) fn is_in_flight(&self, seq: u64, transmission: u32) -> bool {
        let record = self.get(seq);
        seq >= self.una && record.fate == Fate::InFlight && record.transmission == transmission
    }

    #[inline]
    fn count_transmission(&mut self) -> u32 {
        self.transmissions = self.transmissions.wrapping_add(1);
        self.transmissions
    }

    /// Marks a record acknowledged and returns it; `None` if it already was.
    #[inline(always)]
    pub(super) fn mark_acked(&mut self, seq: u64) -> Option<&TxRecord> {
        let record = &mut self.records[slot64(seq, self.mask)];
        match record.fate {
            Fate::InFlight => self.in_flight -= 1,
            Fate::Lost => {
                self.lost -= 1;
                self.lost_set.unset(seq);
            }
            Fate::Acked => return None,
        }
        record.fate = Fate::Acked;
        Some(record)
    }

    /// Marks a record in flight as lost.
    pub(super) fn mark_lost(&mut self, seq: u64) {
        let record = self.get_mut(seq);
        if record.fate == Fate::InFlight {
            record.fate = Fate::Lost;
            self.in_flight -= 1;
            self.lost += 1;
            self.lost_set.set(seq);
            self.lost_from = self.lost_from.min(seq);
        }
    }

    /// Drops a lost record, which is neither retransmitted nor acknowledged.
    pub(super) fn give_up(&mut self, seq: u64) {
        if seq >= self.una {
            self.mark_acked(seq);
        }
    }

    /// Drops everything in flight.
    pub(super) fn abandon(&mut self) {
        self.una = self.next;
        (self.in_flight, self.lost) = (0, 0);
        self.lost_set.clear();
        self.resent.clear();
    }

    /// The oldest lost record.
    pub(super) fn first_lost(&self) -> Option<u64> {
        if self.lost == 0 {
            return None;
        }
        self.lost_set.first(self.lost_from.max(self.una), self.next)
    }

    /// Raises the lower bound of lost records.
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

/// Whether transmission `a` was after `b`.
#[inline]
pub(super) const fn is_later(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(window: &mut TxWindow) {
        let spec = SegmentSpec {
            source: SegmentSource::Void,
            offset: 0,
            len: 0,
            last: true,
        };
        window.push(Time::ZERO, spec, false);
    }

    #[test]
    fn records_take_no_memory_before_the_first_packet() {
        let mut window = TxWindow::new();
        window.skip();
        window.grow(256);
        assert!(window.records.is_empty());
        (0..256).for_each(|_| sent(&mut window));
        assert_eq!((window.records.len(), window.room()), (256, 0));
        assert!(window.mark_acked(1).is_some());
    }

    /// A peer that lets one retransmission wait for ever, and others be repeated, costs no more
    /// than the window.
    #[test]
    fn retransmissions_without_an_answer_are_remembered_once_each() {
        let mut window = TxWindow::new();
        (0..3).for_each(|_| sent(&mut window));
        for seq in [2, 0, 1] {
            window.mark_lost(seq);
            window.resent(Time::ZERO, seq, true);
        }
        for _ in 0..10_000 {
            for seq in [0, 1] {
                window.mark_lost(seq);
                window.resent(Time::ZERO, seq, true);
            }
        }
        assert!(window.resent.len() <= 2 * FIRST_CAPACITY as usize);
        assert_eq!(window.resent.front().map(|&(seq, _)| seq), Some(2));
        let transmission = |seq| window.get(seq).transmission;
        let latest = window.resent.iter().rev().take(2).copied();
        let wanted = [1, 0].map(|seq| (seq, transmission(seq)));
        assert!(latest.eq(wanted));
    }

    #[test]
    fn first_lost_is_the_oldest_whatever_was_acknowledged_between() {
        let mut window = TxWindow::new();
        window.grow(1024);
        (0..1000).for_each(|_| sent(&mut window));
        for seq in [999, 500, 3] {
            window.mark_lost(seq);
        }
        let mut found = Vec::new();
        while let Some(seq) = window.first_lost() {
            found.push(seq);
            window.resent(Time::ZERO, seq, true);
            window.note_lost_from(seq + 1);
        }
        assert_eq!(found, [3, 500, 999]);
        window.mark_lost(500);
        window.mark_lost(3);
        window.mark_acked(3);
        assert_eq!(window.first_lost(), Some(500));
        window.give_up(500);
        assert_eq!((window.lost, window.first_lost()), (0, None));
    }
}
