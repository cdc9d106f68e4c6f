//! Reclaiming the resources of a process. The data thread takes its last packets and closes its
//! channel, which the control thread does not wait for: it goes on, and frees the slot then.

use std::time::Instant;

use urdma_ipc::{Answer, Event};
use urdma_types::SlotId;

use super::reaping::Detaching;
use super::state::Control;
use crate::client::Introductions;
use crate::slots::Token;

impl Control {
    /// Reclaims what the process of a client has, if it has a slot, but for the slot itself, whose
    /// channel the data thread is to close. Answers `request` then.
    pub(super) fn detach(&mut self, token: Token, is_death: bool, request: Option<u64>) {
        let Some(client) = self.clients.get_mut(&token) else {
            return;
        };
        let Some(slot) = client.attached.take().map(|attached| attached.slot) else {
            return;
        };
        let pid = client.peer.pid();
        client.report = None;
        client.channels = Introductions::default();
        // First, so that no process sends to the slot any more.
        let generation = self.directory.0.generation(slot.number());
        self.directory.0.release(slot.number());
        self.shared.release_listeners(slot);
        self.shared.groups().leave_all(slot);
        self.groups_changed();
        self.take_back_lease(slot);
        self.forget_offers_to(slot);
        self.keep_traffic(token);
        self.shared.recorder.detach(slot.number(), is_death);
        self.recordings.end(token, is_death, Instant::now());
        self.kernel.give_slot(slot, None);
        self.counters.reaped += u64::from(is_death);
        self.reaping.push(Detaching {
            token,
            pid,
            slot,
            generation,
            closing: self.data.close(slot),
            request,
        });
    }

    /// Frees the slots whose channels are closed, notifies the others, and assigns the slots to the
    /// clients that wait for them.
    pub(super) fn free_slots(&mut self) {
        while let Some((detached, outcome)) = self.reaping.next() {
            let Detaching { token, slot, .. } = detached;
            if let Err(reason) = outcome {
                tracing::warn!(
                    "slot {}: its channel is not closed: {reason}",
                    slot.number()
                );
            }
            self.slots.release(slot);
            tracing::info!("slot {}: process {} has ended", slot.number(), detached.pid);
            let gone = Event::SlotGone {
                slot: slot.number(),
                generation: detached.generation,
            };
            self.tell_all(&gone);
            if let Some(id) = detached.request {
                self.answer(token, id, Ok(Answer::Done));
            }
        }
        for token in self.reaping.take_served() {
            let client = self.clients.get_mut(&token);
            if let Some(request) = client.and_then(|client| client.delayed.take()) {
                self.attach(token, request);
            }
        }
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
