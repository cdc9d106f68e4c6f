//! What two pools that reach each other by initiators have agreed on, in place of a connection.

use crate::types::NodeId;

/// What a pool tells another one of an exchange over initiators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolTerms {
    /// The random number of the pool (`MessageConfig::epoch`).
    pub epoch: u32,
    /// The number of the exchange among those of the pool, modulo 2^32.
    pub number: u32,
    /// What messages to the pool begin with: a random number that only the other one is told.
    pub token: u64,
    /// Buffers that the pool has for messages of the other one.
    pub share: u16,
}

impl PoolTerms {
    /// Whether the pool has told these before others of it.
    pub(crate) fn is_older_than(&self, other: &Self) -> bool {
        let behind = other.number.wrapping_sub(self.number);
        self.epoch == other.epoch && behind != 0 && behind <= u32::MAX / 2
    }
}

/// How far the two are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The node is asked.
    Asking,
    /// Both know the terms of the other one.
    Ready,
    /// The node has not taken a message. It is told that there are no exchanges any more if
    /// something comes from it.
    Silent,
    /// The node is told that there are no exchanges any more.
    Leaving,
    /// No message is sent any more, and messages are in flight.
    Ended,
}

#[cfg(test)]
impl Stage {
    /// Whether it stays so if nothing happens.
    pub(crate) fn is_settled(self) -> bool {
        matches!(self, Self::Ready | Self::Silent)
    }
}

/// An exchange over initiators, from the question until no message is in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meeting {
    pub(crate) node: NodeId,
    pub(crate) stage: Stage,
    /// What the node is told.
    pub(crate) own: Option<PoolTerms>,
    /// What the node has told.
    pub(crate) told: Option<PoolTerms>,
    /// Messages in flight.
    pub(crate) in_flight: u32,
    /// Since when it has had no virtual queue pair, by the pool's count.
    pub(crate) idle_since: u64,
    /// How often it was looked whether something has come, since something has.
    pub(crate) unheard: u8,
}

impl Meeting {
    pub(crate) fn new(node: NodeId, now: u64) -> Self {
        Self {
            node,
            stage: Stage::Asking,
            own: None,
            told: None,
            in_flight: 0,
            idle_since: now,
            unheard: 0,
        }
    }
}
