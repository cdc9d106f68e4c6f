//! What a pool has for messages beside its queue pairs: services, and virtual queue pairs by their
//! other ends.

use std::collections::{HashMap, VecDeque};

use crate::config::MessageConfig;
use crate::exchange::ExchangeId;
use crate::header::EndId;
use crate::slots::Id;
use crate::types::{BufferAction, NodeId, VirtualId};

/// One that waits for a service to accept it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming {
    /// That over which it came.
    pub(crate) exchange: ExchangeId,
    pub(crate) node: NodeId,
    pub(crate) source: EndId,
    /// Its Receives.
    pub(crate) receives: u32,
}

/// What a pool has for messages beside its queue pairs.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    pub(crate) config: Option<MessageConfig>,
    /// Those that wait, by the number of their service.
    pub(crate) services: HashMap<u32, VecDeque<Incoming>>,
    /// Virtual queue pairs by their other end.
    pub(crate) by_remote: HashMap<(NodeId, EndId), VirtualId>,
    pub(crate) actions: VecDeque<BufferAction>,
    /// The most octets of a Send that a message has.
    pub(crate) segment_octets: u32,
    /// The number of the next exchange over initiators.
    pub(crate) next_number: u32,
}

impl Messages {
    fn epoch(&self) -> u32 {
        self.config.map_or(0, |config| config.epoch)
    }

    /// The most octets of a Send that a message has.
    pub(crate) fn segment_octets_max(&self) -> u32 {
        match self.config {
            Some(_) => self.segment_octets,
            None => u32::MAX,
        }
    }

    /// How a virtual queue pair is named in messages.
    pub(crate) fn end_id(&self, id: VirtualId) -> EndId {
        let Id { slot, generation } = id.0;
        let generation = generation.wrapping_add(self.epoch());
        EndId(VirtualId(Id { slot, generation }).to_bits())
    }

    /// Which one is named so.
    pub(crate) fn virtual_id(&self, id: EndId) -> VirtualId {
        let Id { slot, generation } = VirtualId::from_bits(id.0).0;
        let generation = generation.wrapping_sub(self.epoch());
        VirtualId(Id { slot, generation })
    }
}
