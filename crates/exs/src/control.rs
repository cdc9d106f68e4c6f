//! Registered slots of control messages: one per receive, and one per work request of the send
//! queue. A slot is used again when its receive or work request is complete.

use std::sync::Arc;

use urdma_stream::wire::{ControlOctets, CONTROL_MAX_LEN};

use crate::error::Error;
use crate::ffi::memory::Buffer;
use crate::ffi::queue_pair::Local;
use crate::ffi::verbs::{Access, Domain, Region};

/// The slots of one direction.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: Vec<Buffer>,
    region: Region,
}

impl Slots {
    pub(crate) fn new(domain: &Arc<Domain>, count: usize) -> Result<Self, Error> {
        let mut rest = Buffer::new(count.max(1) * CONTROL_MAX_LEN)?;
        let region = Region::new(domain, rest.pages(), Access::Receive)?;
        let slots = (0..count).map(|_| {
            let next = rest.split_off(CONTROL_MAX_LEN);
            std::mem::replace(&mut rest, next)
        });
        let slots = slots.collect();
        Ok(Self { slots, region })
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// A slot for a receive.
    pub(crate) fn whole(&self, slot: usize) -> Local {
        self.local(slot, CONTROL_MAX_LEN)
    }

    /// A copy of what was received.
    pub(crate) fn read(&self, slot: usize) -> [u8; CONTROL_MAX_LEN] {
        let mut copy = [0; CONTROL_MAX_LEN];
        copy.copy_from_slice(&self.slots[slot]);
        copy
    }

    /// Puts a message into the slot of a work request.
    pub(crate) fn write(&mut self, slot: usize, message: &ControlOctets) -> Local {
        let message = message.as_slice();
        self.slots[slot][..message.len()].copy_from_slice(message);
        self.local(slot, message.len())
    }

    fn local(&self, slot: usize, len: usize) -> Local {
        Local {
            addr: self.slots[slot].addr(),
            len_octets: u32::try_from(len).expect("a control message is short"),
            lkey: self.region.lkey(),
        }
    }
}
