//! The receiving half of the packet window: what has arrived ahead of a missing packet, and what is to happen when its turn comes.

use super::num::{low32, slot64};
use crate::addr::Psn;
use crate::wire::Sack;

/// What a segment does when everything before it has arrived; its payload is in place by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Commit {
    /// Nothing: a write, or part of a response.
    Nothing,
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
    /// A read or atomic request, kept in this entry of the responder's table.
    Request { entry: u16 },
}

/// Where a sequence number stands in relation to the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// The one that is missing.
    Expected,
    /// Ahead of a missing one.
    Ahead(u64),
    /// Seen before.
    Duplicate,
    /// Further ahead than the window.
    Outside,
}

/// The window. Sequence numbers are counted in 64 bits from 0, as in the sending half.
#[derive(Debug)]
pub(super) struct RxWindow {
    /// One bit for each number in the window, set when it has arrived.
    arrived: Box<[u64]>,
    commits: Box<[Commit]>,
    mask: u32,
    initial: Psn,
    /// The first number that is missing.
    pub(super) expected: u64,
    /// One past the highest number that has arrived.
    highest: u64,
}

impl RxWindow {
    pub(super) fn new(packets: u32) -> Self {
        Self {
            arrived: vec![0; packets as usize / 64].into(),
            commits: vec![Commit::Nothing; packets as usize].into(),
            mask: packets - 1,
            initial: Psn::new(0),
            expected: 0,
            highest: 0,
        }
    }

    /// Forgets everything and begins with `initial`.
    pub(super) fn start(&mut self, initial: Psn) {
        self.arrived.fill(0);
        self.initial = initial;
        (self.expected, self.highest) = (0, 0);
    }

    /// Forgets what has arrived ahead of the missing packet.
    pub(super) fn abandon(&mut self) {
        self.arrived.fill(0);
        self.highest = self.expected;
    }

    /// The size in the unit of the TRP header.
    #[inline]
    pub(super) fn advertised(&self) -> u8 {
        u8::try_from((self.mask + 1) / 64).unwrap_or(u8::MAX)
    }

    /// The wire's number of the first missing packet.
    #[inline]
    pub(super) const fn ack(&self) -> Psn {
        self.initial.add(low32(self.expected))
    }

    /// Whether something has arrived ahead of a missing packet.
    #[inline]
    pub(super) const fn has_gap(&self) -> bool {
        self.highest > self.expected
    }

    #[inline]
    pub(super) fn classify(&self, psn: Psn) -> Arrival {
        let ahead = psn.distance(self.ack());
        if ahead == 0 {
            return Arrival::Expected;
        }
        let Ok(ahead) = u32::try_from(ahead) else {
            return Arrival::Duplicate;
        };
        if ahead > self.mask {
            return Arrival::Outside;
        }
        let seq = self.expected + u64::from(ahead);
        if self.has(seq) {
            Arrival::Duplicate
        } else {
            Arrival::Ahead(seq)
        }
    }

    #[inline]
    fn has(&self, seq: u64) -> bool {
        let slot = slot64(seq, self.mask);
        self.arrived[slot / 64] & (1 << (slot % 64)) != 0
    }

    /// Keeps what a packet that came ahead will do.
    pub(super) fn store(&mut self, seq: u64, commit: Commit) {
        let slot = slot64(seq, self.mask);
        self.arrived[slot / 64] |= 1 << (slot % 64);
        self.commits[slot] = commit;
        self.highest = self.highest.max(seq + 1);
    }

    /// The expected packet has been committed.
    #[inline]
    pub(super) fn advance(&mut self) {
        self.expected += 1;
        self.highest = self.highest.max(self.expected);
    }

    /// Takes what the expected packet does, if it has arrived before.
    #[inline]
    pub(super) fn take_expected(&mut self) -> Option<Commit> {
        if !self.has_gap() || !self.has(self.expected) {
            return None;
        }
        let slot = slot64(self.expected, self.mask);
        self.arrived[slot / 64] &= !(1 << (slot % 64));
        Some(self.commits[slot])
    }

    /// What has arrived after the first missing packet.
    pub(super) fn sack(&self) -> Sack {
        let mut sack = Sack::new();
        for seq in self.expected + 1..self.highest {
            if self.has(seq) {
                sack.insert(low32(seq - self.expected - 1));
            }
        }
        sack
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rx_window_across_the_wrap_orders_and_forgets() {
        let mut window = RxWindow::new(64);
        window.start(Psn::new(0x00ff_fffe));
        assert_eq!(window.classify(Psn::new(0x00ff_fffe)), Arrival::Expected);
        assert_eq!(window.classify(Psn::new(0x00ff_fffd)), Arrival::Duplicate);
        assert_eq!(window.classify(Psn::new(1)), Arrival::Ahead(3));
        window.store(3, Commit::Nothing);
        assert_eq!(window.classify(Psn::new(1)), Arrival::Duplicate);
        assert_eq!(window.classify(Psn::new(0x3e)), Arrival::Outside);
        assert_eq!(window.sack().iter().collect::<Vec<_>>(), [2]);
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
}
