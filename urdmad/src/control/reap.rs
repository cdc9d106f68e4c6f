//! Reclaiming the resources of a process.

use std::time::Instant;

use urdma_ipc::Event;
use urdma_types::SlotId;

use super::Control;
use crate::data::command::{NotTaken, Pending};
use crate::groups::SlotSet;
use crate::slots::Token;

/// A slot whose process has ended, while the data thread takes the last packets of the process.
pub(super) struct Detaching {
    token: Token,
    slot: SlotId,
    generation: u32,
    closing: Result<Pending<()>, NotTaken>,
}

impl Control {
    /// Reclaims the slot, lease, ports and channel of a client, if it has any, and notifies the
    /// others.
    pub(super) fn detach(&mut self, token: Token, is_death: bool) {
        if let Some(detaching) = self.begin_detach(token) {
            self.end_detach(detaching, is_death);
        }
    }

    /// Reclaims what the process of a client has, but for the slot itself, whose channel the data
    /// thread is to close.
    pub(super) fn begin_detach(&mut self, token: Token) -> Option<Detaching> {
        let client = self.clients.get_mut(&token)?;
        let slot = client.attached.take()?.slot;
        client.report = None;
        client.offered = SlotSet::default();
        // First, so that no process sends to the slot any more.
        let generation = self.directory.0.generation(slot.number());
        self.directory.0.release(slot.number());
        self.shared.release_listeners(slot);
        self.shared.groups().leave_all(slot);
        self.groups_changed();
        self.take_back_lease(slot);
        self.forget_offers_to(slot);
        Some(Detaching {
            token,
            slot,
            generation,
            closing: self.data.close(slot),
        })
    }

    /// Waits until the channel is closed, frees the slot and notifies the others.
    pub(super) fn end_detach(&mut self, detaching: Detaching, is_death: bool) {
        let Detaching { token, slot, .. } = detaching;
        if let Err(reason) = detaching.closing.and_then(Pending::wait) {
            tracing::warn!(
                "slot {}: its channel is not closed: {reason}",
                slot.number()
            );
        }
        self.keep_traffic(token);
        self.shared.recorder.detach(slot.number(), is_death);
        self.recordings.end(token, is_death, Instant::now());
        self.kernel.give_slot(slot, None);
        self.slots.release(slot);
        self.counters.reaped += u64::from(is_death);
        if let Some(client) = self.clients.get(&token) {
            let pid = client.peer.pid();
            tracing::info!("slot {}: process {pid} has ended", slot.number());
        }
        let gone = Event::SlotGone {
            slot: slot.number(),
            generation: detaching.generation,
        };
        self.tell_all(gone, Some(token));
    }

    fn take_back_lease(&mut self, slot: SlotId) {
        let Some(queue) = self.leases.queue_of(slot) else {
            return;
        };
        let outcome = self.data.reclaim(queue);
        if let Err(reason) = &outcome {
            tracing::warn!("queue {queue} cannot be leased again: {reason}");
        }
        self.shared.set_lessee(slot, false);
        self.leases.release(queue, outcome.is_ok());
        self.shared.recorder.lease(slot.number(), queue, false);
    }
}
