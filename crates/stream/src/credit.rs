//! Credits of messages: every SEND and every immediate takes one receive slot of the peer.

use crate::error::PeerError;

/// Credits that an abort alone may use.
const FOR_ABORT: u64 = 1;
/// Credits that only a message which returns credits, or an abort, may use. Without them two ends
/// that have used up each other's slots could not tell one another that the slots are free again.
const FOR_UPDATE: u64 = FOR_ABORT + 1;
/// The least number of slots with which messages flow.
pub(crate) const MIN_SLOTS: u16 = 8;

/// What a message is sent for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Ordinary,
    Update,
    Abort,
}

/// The slots of both ends.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Credits {
    peer_slots: u64,
    sent: u64,
    returned: u64,
    own_slots: u64,
    received: u64,
    announced: u64,
}

impl Credits {
    pub(crate) fn new(own_slots: u16, peer_slots: u16) -> Self {
        Self {
            peer_slots: u64::from(peer_slots),
            sent: 0,
            returned: 0,
            own_slots: u64::from(own_slots),
            received: 0,
            announced: 0,
        }
    }

    /// Whether a message may be sent for this purpose.
    pub(crate) fn permits(&self, purpose: Purpose) -> bool {
        let kept = match purpose {
            Purpose::Ordinary => FOR_UPDATE,
            Purpose::Update => FOR_ABORT,
            Purpose::Abort => 0,
        };
        self.sent - self.returned + kept < self.peer_slots
    }

    /// A message is sent. Returns what it says about the messages received, if it says that.
    pub(crate) fn take(&mut self) {
        self.sent += 1;
    }

    /// How many messages were sent.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// How many of them the peer has said to have received.
    pub(crate) fn returned(&self) -> u64 {
        self.returned
    }

    /// The number of messages received, for a control message that is now sent.
    pub(crate) fn announce(&mut self) -> u32 {
        self.announced = self.received;
        low_word(self.received)
    }

    /// Whether enough slots are free again for the peer to be told.
    pub(crate) fn owes_update(&self) -> bool {
        self.owes_update_after(0)
    }

    /// The same, once so many more messages have arrived.
    pub(crate) fn owes_update_after(&self, more: u64) -> bool {
        self.received + more - self.announced >= self.own_slots / 2
    }

    /// A message of which the peer need not be told has arrived.
    pub(crate) fn pass(&mut self) {
        self.received += 1;
    }

    /// A message has arrived.
    pub(crate) fn receive(&mut self) -> Result<(), PeerError> {
        if self.received - self.announced >= self.own_slots {
            return Err(PeerError::SlotOverrun);
        }
        self.received += 1;
        Ok(())
    }

    /// The peer has received `received` messages, modulo 2^32.
    pub(crate) fn give_back(&mut self, received: u32) -> Result<(), PeerError> {
        let more = u64::from(received.wrapping_sub(low_word(self.returned)));
        if more > self.sent - self.returned {
            return Err(PeerError::CreditBeyondSlots);
        }
        self.returned += more;
        Ok(())
    }
}

/// A count modulo 2^32.
fn low_word(count: u64) -> u32 {
    let [_, _, _, _, a, b, c, d] = count.to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}
