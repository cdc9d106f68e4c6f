//! Reclaiming the resources of a process.

use urdma_ipc::Event;
use urdma_types::SlotId;

use super::Control;
use crate::groups::SlotSet;
use crate::slots::Token;

impl Control {
    /// Reclaims the slot, lease, ports and frames of a client, if it has any, and notifies the
    /// others.
    pub(super) fn detach(&mut self, token: Token, is_death: bool) {
        let Some(client) = self.clients.get_mut(&token) else {
            return;
        };
        let Some(attached) = client.attached.take() else {
            return;
        };
        let pid = client.peer.pid();
        client.report = None;
        client.offered = SlotSet::default();
        let slot = attached.slot;
        // First, so that no process sends to the slot any more.
        self.reaper.mark_dead(slot);
        self.shared.listeners().release_all(slot);
        self.shared.groups().leave_all(slot);
        self.take_back_lease(slot);
        self.forget_offers_to(slot);
        let report = self.reaper.reap(slot);
        let frames = report.to_dead + report.held + report.unfinished + report.corrupt;
        let generation = self.reaper.generation(slot);
        let still_held = self.reaper.reset(slot);
        self.slots.release(slot);
        self.reaper
            .give_back_unused(|slot| self.slots.is_free(slot));
        if is_death {
            self.counters.reaped += 1;
            self.counters.reaped_frames += u64::from(frames);
        }
        tracing::info!(
            "slot {}: process {pid} has ended; {frames} frames reclaimed, {still_held} of its \
             frames still held by others",
            slot.number()
        );
        let gone = Event::SlotGone {
            slot: slot.number(),
            generation,
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
        self.leases.release(queue, outcome.is_ok());
    }
}
