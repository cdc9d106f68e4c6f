//! Channels between processes: urdmad passes descriptors on, and keeps which process has offered a
//! channel to which (doc/spec/channel.md, section 9).

use std::os::fd::{AsFd, OwnedFd};

use urdma_ipc::message::FromDaemon;
use urdma_ipc::Event;
use urdma_types::SlotId;

use super::Control;
use crate::descriptors::{close_apart, is_region};
use crate::slots::Token;

impl Control {
    /// Passes the region and the page of a client on to the process in `slot`. A client whose
    /// descriptors are others, or that repeats itself, is disconnected.
    pub(super) fn offer_channel(&mut self, token: Token, slot: u8, fds: Vec<OwnedFd>) {
        let to = SlotId::new(slot);
        let Some(client) = self.clients.get_mut(&token) else {
            return close_apart(fds);
        };
        let Some(from) = client
            .slot()
            .filter(|from| to.is_some_and(|to| to != *from))
        else {
            client.is_broken = true;
            return close_apart(fds);
        };
        // C9-1
        let are_regions = fds.len() == 2 && fds.iter().all(is_region);
        // C9-2
        if !are_regions || !client.offered.insert(slot) {
            tracing::warn!("process {}: not a channel", client.peer.pid());
            client.is_broken = true;
            return close_apart(fds);
        }
        let offer = Event::ChannelOffered {
            slot: from.number(),
            generation: self.reaper.generation(from),
        };
        let outcome = match self.client_in(to) {
            Some(peer) => {
                let fds = [fds[0].as_fd(), fds[1].as_fd()];
                peer.send(&FromDaemon::Event(offer), &fds);
                Event::ChannelPassed {
                    slot,
                    generation: to.map_or(0, |to| self.reaper.generation(to)),
                }
            }
            None => Event::ChannelRefused { slot },
        };
        if let Some(client) = self.clients.get_mut(&token) {
            if matches!(outcome, Event::ChannelRefused { .. }) {
                client.offered.remove(slot);
            }
            client.tell(outcome);
        }
    }

    /// The process in `slot` has ended: what was offered to it does not count for the next one.
    pub(super) fn forget_offers_to(&mut self, slot: SlotId) {
        for client in self.clients.values_mut() {
            client.offered.remove(slot.number());
        }
    }

    /// The client whose process has `slot`.
    fn client_in(&mut self, slot: Option<SlotId>) -> Option<&mut crate::client::Client> {
        let slot = slot?;
        self.clients
            .values_mut()
            .find(|client| client.slot() == Some(slot))
    }
}
