//! The receiving half of the packet window: what has arrived ahead of a missing packet, and its
//! effect when its turn comes.

use super::bits::BitRing;
use super::num::{low32, slot64};
use super::reorder::ReorderBuffer;
use crate::wire::{Flags, Sack, SACK_BITS_MAX, SACK_WORD_BITS, WINDOW_UNIT_PACKETS};
use urdma_types::Psn;

/// The effect of a segment when everything before it has arrived. By then all payload but that of
/// writes is in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Commit {
    /// None: part of a response, or a write that was the expected packet.
    Nothing,
    /// A write, whose payload is in this buffer of the reorder buffer.
    Write {
        stag: u32,
        to: u64,
        buffer: u32,
        len: u32,
        last: bool,
        /// Immediate data follows the write.
        announces: bool,
    },
    /// Part of a message of queue 0.
    Message {
        msn: u32,
        offset: u32,
        len: u32,
        last: bool,
        solicited: bool,
        imm: Option<u32>,
        invalidate: Option<u32>,
    },
    /// Immediate data after a write.
    Immediate {
        msn: u32,
        solicited: bool,
        imm: u32,
        write_len: u32,
    },
    /// A read or atomic request in this entry of the responder's table.
    Request { entry: u16 },
}

/// Where a sequence number lies in relation to the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// The first missing one.
    Expected,
    /// Ahead of a missing one.
    Ahead(u64),
    /// Received before.
    Duplicate,
    /// Beyond the window.
    Outside,
}

/// Sequence numbers that have room from the start; a packet further ahead makes the window grow.
const FIRST_CAPACITY: u32 = 64;
/// Sequence numbers that a SACK covers beside the one that it reports.
const SACK_CONTEXT: u64 = SACK_BITS_MAX as u64 / 2;

/// The receive window. Sequence numbers are 64-bit counters from 0, as in the sending half.
#[derive(Debug)]
pub(super) struct RxWindow {
    /// Which sequence numbers have arrived.
    arrived: BitRing,
    /// The effects of packets ahead; empty as long as all of them are none.
    commits: Box<[Commit]>,
    /// Payloads of the writes among them.
    pub(super) reorder: ReorderBuffer,
    /// The advertised window, in units of the TRP header.
    units: u8,
    initial: Psn,
    /// The first missing number (RCV.NXT of TCP).
    pub(super) expected: u64,
    /// The number up to which requests were accepted: `expected`, or the first refused one while
    /// the peer's requests are refused.
    taken: u64,
    /// One past the highest number that arrived ahead of a missing one.
    highest: u64,
    /// A number that arrived ahead, but too far below `highest` to be in the same SACK.
    aside: Option<u64>,
    /// `highest` has grown since the last SACK that covered it.
    fresh: bool,
    /// The epoch of the requests that are refused, or were last.
    refused_epoch: Flags,
}

impl RxWindow {
    /// A window of at most `packets`, a multiple of the TRP header's unit.
    pub(super) fn new(packets: u32) -> Self {
        Self {
            arrived: BitRing::new(FIRST_CAPACITY),
            commits: Box::default(),
            reorder: ReorderBuffer::default(),
            units: u8::try_from(packets / WINDOW_UNIT_PACKETS).unwrap_or(u8::MAX),
            initial: Psn::new(0),
            expected: 0,
            taken: 0,
            highest: 0,
            aside: None,
            fresh: false,
            refused_epoch: Flags::NONE,
        }
    }

    /// Starts a new stream with `initial`.
    pub(super) fn start(&mut self, initial: Psn) {
        self.initial = initial;
        (self.expected, self.taken) = (0, 0);
        self.abandon();
    }

    /// Drops what has arrived ahead of the missing packet.
    pub(super) fn abandon(&mut self) {
        self.arrived.clear();
        self.reorder.clear();
        self.highest = self.expected;
        self.aside = None;
    }

    /// The advertised window in units of the TRP header.
    #[inline]
    pub(super) fn advertised(&self) -> u8 {
        self.units
    }

    /// The PSN of the first packet whose request was not accepted: the cumulative acknowledgement
    /// of all packets but RNR.
    #[inline]
    pub(super) const fn ack(&self) -> Psn {
        self.initial.add(low32(self.taken))
    }

    /// The PSN of the first missing packet.
    #[inline]
    pub(super) const fn expected_psn(&self) -> Psn {
        self.initial.add(low32(self.expected))
    }

    /// The PSN after that of the first missing packet.
    #[inline]
    pub(super) const fn after_expected_psn(&self) -> Psn {
        self.initial.add(low32(self.expected + 1))
    }

    /// Whether something has arrived that the cumulative acknowledgement does not cover.
    #[inline]
    pub(super) const fn has_gap(&self) -> bool {
        self.highest > self.taken
    }

    /// Whether something has arrived after the missing packet, so that there is a SACK to send.
    #[inline]
    pub(super) const fn has_ahead(&self) -> bool {
        self.highest > self.expected
    }

    #[inline]
    pub(super) fn classify(&self, psn: Psn) -> Arrival {
        // RFC5041-3-4
        //# TRP says where in the sender's order a segment belongs that arrives out of order.
        let ahead = psn.distance(self.expected_psn());
        if ahead == 0 {
            return Arrival::Expected;
        }
        let Ok(ahead) = u32::try_from(ahead) else {
            return Arrival::Duplicate;
        };
        if ahead >= u32::from(self.units) * WINDOW_UNIT_PACKETS {
            return Arrival::Outside;
        }
        let seq = self.expected + u64::from(ahead);
        if ahead < self.arrived.capacity() && self.arrived.get(seq) {
            Arrival::Duplicate
        } else {
            Arrival::Ahead(seq)
        }
    }

    /// Whether `psn` can be the next PSN of the peer. Checked in packets that use no sequence
    /// number, so that a forged one has to guess it.
    pub(super) fn may_be_next(&self, psn: Psn) -> bool {
        let ahead = u32::try_from(psn.distance(self.expected_psn()));
        ahead.is_ok_and(|ahead| ahead <= u32::from(self.units) * WINDOW_UNIT_PACKETS)
    }

    /// Stores the effect of a packet ahead.
    pub(super) fn store(&mut self, seq: u64, commit: Commit) {
        let ahead = low32(seq - self.expected);
        if ahead >= self.arrived.capacity() {
            self.grow((ahead + 1).next_power_of_two());
        }
        self.arrived.set(seq);
        if commit != Commit::Nothing || !self.commits.is_empty() {
            self.keep(seq, commit);
        }
        if seq >= self.highest {
            self.highest = seq + 1;
            self.fresh = true;
        } else {
            self.report(seq);
        }
    }

    fn keep(&mut self, seq: u64, commit: Commit) {
        if self.commits.is_empty() {
            self.commits = vec![Commit::Nothing; self.arrived.capacity() as usize].into();
        }
        self.commits[slot64(seq, self.arrived.capacity() - 1)] = commit;
    }

    #[cold]
    fn grow(&mut self, capacity: u32) {
        if !self.commits.is_empty() {
            let mask = self.arrived.capacity() - 1;
            let mut commits: Box<[Commit]> = vec![Commit::Nothing; capacity as usize].into();
            for seq in self.expected..self.highest {
                commits[slot64(seq, capacity - 1)] = self.commits[slot64(seq, mask)];
            }
            self.commits = commits;
        }
        self.arrived.grow(capacity, self.expected, self.highest);
    }

    /// The next SACK is to report this number, which arrived ahead.
    pub(super) fn report(&mut self, seq: u64) {
        if seq + SACK_CONTEXT >= self.highest {
            self.fresh = true;
        } else {
            self.aside = Some(seq);
        }
    }

    /// As [`RxWindow::report`], for a duplicate.
    pub(super) fn report_again(&mut self, psn: Psn) {
        if let Ok(ahead) = u32::try_from(psn.distance(self.expected_psn())) {
            self.report(self.expected + u64::from(ahead));
        }
    }

    /// The effect of the expected packet was applied.
    #[inline]
    pub(super) fn advance(&mut self) {
        self.expected += 1;
        self.taken = self.expected;
    }

    /// The expected packet is a request of this epoch that is refused, with those after it.
    pub(super) fn refuse_from_here(&mut self, epoch: Flags) {
        self.taken = self.expected;
        self.refused_epoch = epoch;
    }

    /// The epoch of the requests that are refused.
    pub(super) const fn refused_epoch(&self) -> Flags {
        self.refused_epoch
    }

    /// The expected packet has arrived while requests are refused.
    pub(super) fn pass(&mut self) {
        self.expected += 1;
        self.highest = self.highest.max(self.expected);
    }

    /// Takes the effect of the expected packet, if it has arrived before.
    #[inline]
    pub(super) fn take_expected(&mut self) -> Option<Commit> {
        if self.highest <= self.expected || !self.arrived.get(self.expected) {
            return None;
        }
        self.arrived.unset(self.expected);
        let slot = slot64(self.expected, self.arrived.capacity() - 1);
        Some(self.commits.get(slot).copied().unwrap_or(Commit::Nothing))
    }

    /// The SACK of what has arrived after the first missing packet: all of it if it fits, else the
    /// surroundings of the latest arrival.
    pub(super) fn sack(&mut self) -> Option<Sack> {
        if !self.has_ahead() {
            return None;
        }
        let base = self.expected + 1;
        // R6-3
        //# A receiver that has more to report than one bitmap covers MUST send the part with the
        //# packet that arrived last, and MUST send a second ACK if one does not cover all that
        //# arrived since the last: each arrival is then reported at least once, and by all ACKs for
        //# arrivals near to it.
        let last = match self.aside.take() {
            Some(seq) if seq >= base => seq + SACK_CONTEXT,
            _ => {
                self.fresh = false;
                self.highest
            }
        };
        let words = low32(last.saturating_sub(base)).div_ceil(SACK_WORD_BITS);
        let first = words.saturating_sub(SACK_BITS_MAX / SACK_WORD_BITS);
        let mut sack = Sack::starting_at(first);
        for word in first..words {
            let seq = base + u64::from(word * SACK_WORD_BITS);
            let Some(beyond) = self.highest.checked_sub(seq).filter(|&left| left > 0) else {
                break;
            };
            let known = u32::MAX.unbounded_shl(32u32.saturating_sub(low32(beyond.min(32))));
            sack.push(self.arrived.run(seq) & known);
        }
        Some(sack)
    }

    /// Whether the last SACK did not cover everything.
    pub(super) const fn owes_sack(&self) -> bool {
        (self.aside.is_some() || self.fresh) && self.has_ahead()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(window: &mut RxWindow) -> Vec<u32> {
        window.sack().unwrap().iter().collect()
    }

    #[test]
    fn rx_window_across_the_wrap_orders_and_forgets() {
        let mut window = RxWindow::new(WINDOW_UNIT_PACKETS);
        window.start(Psn::new(0x00ff_fffe));
        assert_eq!(window.classify(Psn::new(0x00ff_fffe)), Arrival::Expected);
        assert_eq!(window.classify(Psn::new(0x00ff_fffd)), Arrival::Duplicate);
        assert_eq!(window.classify(Psn::new(1)), Arrival::Ahead(3));
        window.store(3, Commit::Nothing);
        assert_eq!(window.classify(Psn::new(1)), Arrival::Duplicate);
        assert_eq!(window.classify(Psn::new(0xfd)), Arrival::Ahead(255));
        assert_eq!(window.classify(Psn::new(0xfe)), Arrival::Outside);
        assert_eq!(bits(&mut window), [2]);
        for _ in 0..3 {
            assert_eq!(window.take_expected(), None);
            window.advance();
        }
        assert_eq!(window.take_expected(), Some(Commit::Nothing));
        window.advance();
        assert!(!window.has_gap());
        assert_eq!(window.ack(), Psn::new(2));
        assert_eq!(window.classify(Psn::new(0x41)), Arrival::Ahead(67));
    }

    #[test]
    fn rx_window_far_ahead_grows_and_reports_every_arrival() {
        let request = Commit::Request { entry: 7 };
        let mut window = RxWindow::new(65_280);
        window.start(Psn::new(0x00ff_ff00));
        window.store(1, request);
        window.store(40_000, Commit::Nothing);
        assert_eq!(bits(&mut window), [39_999]);
        window.store(20_000, request);
        assert!(window.owes_sack());
        assert_eq!(bits(&mut window), [19_999]);
        assert!(!window.owes_sack());
        window.store(39_990, Commit::Nothing);
        assert_eq!(bits(&mut window), [39_989, 39_999]);
        window.report_again(Psn::new(0x00ff_ff00).add(20_000));
        assert_eq!(bits(&mut window), [19_999]);
        let kept: Vec<(u64, Commit)> = (0..=40_000)
            .filter_map(|seq| {
                let commit = window.take_expected().map(|commit| (seq, commit));
                window.advance();
                commit
            })
            .collect();
        let nothing = Commit::Nothing;
        let wanted = [
            (1, request),
            (20_000, request),
            (39_990, nothing),
            (40_000, nothing),
        ];
        assert_eq!(kept, wanted);
    }

    #[test]
    fn rx_window_of_refused_requests_acknowledges_the_first_of_them() {
        let mut window = RxWindow::new(WINDOW_UNIT_PACKETS);
        window.start(Psn::new(10));
        window.advance();
        window.refuse_from_here(Flags::NONE);
        window.pass();
        window.pass();
        assert_eq!(
            (window.ack(), window.expected_psn()),
            (Psn::new(11), Psn::new(13))
        );
        assert!(window.has_gap() && window.sack().is_none());
        window.advance();
        assert_eq!(
            (window.ack(), window.expected_psn()),
            (Psn::new(14), Psn::new(14))
        );
        assert!(!window.has_gap());
    }
}
