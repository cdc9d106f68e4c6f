//! When the receiving half sends an acknowledgement.

use urdma_types::Time;

/// Segments accepted after which a receiver acknowledges without a request.
const ACK_EVERY: u32 = 8;
/// Maximum delay of an acknowledgement (max_ack_delay of RFC 9002), in nanoseconds.
pub(super) const MAX_ACK_DELAY_NS: u64 = 200_000;

/// The acknowledgement state of the receiving half.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckState {
    /// An acknowledgement is to be sent now.
    pub(super) due: bool,
    /// Segments accepted since the last acknowledgement.
    unacked: u32,
    /// The latest time of the next one (delayed acknowledgement).
    pub(super) deadline: Time,
    /// A CE mark has arrived that was not echoed.
    pub(super) marked: bool,
}

impl AckState {
    /// Nothing was accepted yet.
    pub(super) const NONE: Self = Self {
        due: false,
        unacked: 0,
        deadline: Time::NEVER,
        marked: false,
    };

    /// A segment was accepted in order.
    #[inline]
    pub(super) fn on_segment(&mut self, now: Time, requested: bool) {
        self.unacked += 1;
        // R7.3-1
        //# It MUST send one at once in each of the following cases:
        if requested || self.unacked >= ACK_EVERY {
            self.due = true;
        } else if !self.due && self.deadline == Time::NEVER {
            self.deadline = now.plus_ns(MAX_ACK_DELAY_NS);
        }
    }

    /// What was accepted is acknowledged as soon as something can be sent.
    pub(super) fn hasten(&mut self) {
        self.due |= self.unacked > 0;
    }

    /// A complete acknowledgement was sent.
    #[inline]
    pub(super) fn on_sent(&mut self) {
        self.due = false;
        self.unacked = 0;
        self.deadline = Time::NEVER;
        self.marked = false;
    }
}
