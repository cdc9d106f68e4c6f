//! The next datagram to be sent: its kind, the plan for it, and what was written.

use super::queues::SegmentSpec;
use crate::wire;

/// Room for every datagram without payload: all headers and extensions.
pub(super) const CONTROL_LEN: usize = wire::HEAD_LEN_MAX;
/// Headers of a segment with payload, which may name a shared receive queue.
pub(super) const SEGMENT_HEADERS: usize = wire::UNTAGGED_OVERHEAD + wire::ext::SHARED_QUEUE_LEN;
/// The longest message that may be in a train, in octets.
pub(super) const TRAIN_MESSAGE_OCTETS_MAX: u32 = 256;

/// The kind of the next datagram.
#[derive(Clone, Copy, Debug)]
pub(super) enum Next {
    /// A pure acknowledgement.
    Ack,
    /// RNR: refuses the expected packet because no receive request is posted.
    Rnr,
    /// A Terminate for an error found here.
    Terminate,
    /// The orderly end of the connection.
    Fin,
    /// The answer to a FIN.
    FinAck,
    /// A keep-alive probe.
    Probe,
    /// A lost segment.
    Again,
    /// The next segment of a request.
    Request,
    /// A train of short requests.
    Train,
    /// The next segment of a response.
    Answer,
    /// The segment that was refused (RNR), under a new number.
    Retry,
}

/// A segment or a train to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planned {
    pub(super) next: Next,
    /// Octets of payload.
    pub(super) len: u32,
    /// The next segment of the same message is likely to follow.
    pub(super) is_followed: bool,
}

impl Planned {
    /// A segment of a message of which this is the rest, or a train.
    #[inline]
    pub(super) const fn alone(next: Next, len: u32) -> Self {
        Self {
            next,
            len,
            is_followed: false,
        }
    }

    /// A segment of a message.
    #[inline]
    pub(super) const fn part(next: Next, spec: &SegmentSpec) -> Self {
        Self {
            next,
            len: spec.len,
            is_followed: !spec.last,
        }
    }
}

/// Datagrams without payload that are due to be sent. A set in one octet, since every plan begins
/// with the question whether there are any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Controls(u8);

impl Controls {
    pub(super) const TERMINATE: Self = Self(0x01);
    pub(super) const RNR: Self = Self(0x02);
    pub(super) const FIN_ACK: Self = Self(0x04);
    pub(super) const PROBE: Self = Self(0x08);
    pub(super) const FIN: Self = Self(0x10);

    /// These are due.
    #[inline]
    pub(super) fn add(&mut self, controls: Self) {
        self.0 |= controls.0;
    }

    /// These are not due any more; whether one of them was.
    #[inline]
    pub(super) fn take(&mut self, controls: Self) -> bool {
        let was_due = self.0 & controls.0 != 0;
        self.0 &= !controls.0;
        was_due
    }

    #[inline]
    pub(super) const fn any(self) -> bool {
        self.0 != 0
    }

    #[inline]
    pub(super) fn next(self) -> Option<Next> {
        const ORDER: [(Controls, Next); 5] = [
            (Controls::TERMINATE, Next::Terminate),
            (Controls::RNR, Next::Rnr),
            (Controls::FIN_ACK, Next::FinAck),
            (Controls::PROBE, Next::Probe),
            (Controls::FIN, Next::Fin),
        ];
        if !self.any() {
            return None;
        }
        let first = ORDER.iter().find(|(control, _)| self.0 & control.0 != 0);
        first.map(|&(_, next)| next)
    }
}

/// What the next datagram is; see [`super::Connection::plan_transmit`].
#[derive(Clone, Copy, Debug)]
pub struct TransmitPlan {
    pub(super) next: Next,
    pub(super) is_followed: bool,
    /// Datagrams that [`super::Connection::write_run`] may write; 0 if it may not be called.
    pub(super) run: u16,
    pub(super) len: usize,
}

impl TransmitPlan {
    /// Octets that the buffer must hold: an upper bound of what is written, and at most
    /// `max_datagram_octets`.
    #[inline]
    pub const fn room(self) -> usize {
        self.len
    }

    /// How many datagrams [`super::Connection::write_run`] would write at once, if it has as many
    /// buffers; 0 if it would write none.
    #[inline]
    pub const fn run(self) -> u16 {
        self.run
    }

    /// Whether another datagram of the same length, or a shorter one, is likely to follow at once.
    #[inline]
    pub const fn is_followed(self) -> bool {
        self.is_followed
    }

    /// Whether it is a train, which is likely to need all of that room.
    #[inline]
    pub const fn is_train(self) -> bool {
        matches!(self.next, Next::Train)
    }
}

/// Datagrams that were written at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Their number.
    pub count: u16,
    /// Octets of each but the last.
    pub each: usize,
    /// Octets of the last; not more.
    pub last: usize,
}

impl Run {
    /// Another one was written.
    #[inline]
    pub(super) fn add(&mut self, octets: usize) {
        if self.count == 0 {
            self.each = octets;
        }
        self.last = octets;
        self.count += 1;
    }

    /// Octets of all of them.
    #[inline]
    pub const fn octets(&self) -> usize {
        match self.count {
            0 => 0,
            count => self.each * (count as usize - 1) + self.last,
        }
    }
}

/// A datagram that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Octets of the buffer to send.
    pub len: usize,
    /// It carries application data, and is sent with ECN-Capable Transport (ECT).
    pub ecn_capable: bool,
}
