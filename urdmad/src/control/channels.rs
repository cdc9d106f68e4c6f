//! Channels between processes: urdmad passes descriptors on, and keeps which process has offered a
//! channel to which (doc/spec/channel.md, section 9).

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use thiserror::Error;
use urdma_ipc::message::FromDaemon;
use urdma_ipc::Event;
use urdma_memfd::MemoryError;
use urdma_types::SlotId;

use super::state::Control;
use crate::client::reads_offers;
use crate::data::channels::PeerMemory;
use crate::data::command::{Command, NotTaken};
use crate::descriptors::are_offer;
use crate::slots::Token;
use crate::tally::Tally;

/// Why there is no channel to a process.
#[derive(Debug, Error)]
pub(super) enum NoChannel {
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error(transparent)]
    DataThread(#[from] NotTaken),
}

impl Control {
    /// Passes what a client offers on to the process in a slot, if it has it in the generation that
    /// is named. A client whose descriptors are others, or that repeats itself, is disconnected.
    pub(super) fn offer_channel(
        &mut self,
        token: Token,
        (slot, generation): (u8, Option<u32>),
        fds: Vec<OwnedFd>,
    ) {
        let to = SlotId::new(slot);
        let Some(client) = self.clients.get_mut(&token) else {
            return;
        };
        if let (Some(from), Some(SlotId::DAEMON)) = (client.slot(), to) {
            return self.take_own_offer(token, from, fds);
        }
        let Some(from) = client
            .slot()
            .filter(|from| to.is_some_and(|to| to != *from))
        else {
            return client.reject(fds);
        };
        // C9-1
        //# urdmad takes the descriptors only if they are memfds of at most 16 MiB with the seals
        //# SHRINK, GROW and FUTURE_WRITE, and a socket as in section 6.1.
        let is_offer = are_offer(&fds, 2);
        let is_late = generation.is_some_and(|meant| meant != self.directory.0.generation(slot));
        if is_offer && is_late {
            // It does not count as one to the next process, which is offered another.
            return client.tell(Event::ChannelRefused { slot, generation });
        }
        // C9-2
        //# A process MUST offer at most one channel to each process; urdmad disconnects one that
        //# repeats itself.
        if !is_offer || !client.offered.insert(slot) {
            tracing::warn!("process {}: not a channel", client.peer.pid());
            return client.reject(fds);
        }
        let uid = client.peer.uid();
        let of_peer = self.client_in(to).map(|peer| peer.peer.uid());
        let offer = Event::ChannelOffered {
            slot: from.number(),
            generation: self.directory.0.generation(from.number()),
            stranger: Some(uid).filter(|uid| *uid != 0 && Some(*uid) != of_peer),
        };
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let offer = FromDaemon::Event(offer);
        let reads = to.is_some_and(|to| reads_offers(&mut self.clients, to));
        let to_peer = self.client_in(to.filter(|_| reads));
        let is_passed = to_peer.is_some_and(|peer| peer.send(&offer, &fds));
        let Some(client) = self.clients.get_mut(&token) else {
            return;
        };
        if !is_passed {
            client.offered.remove(slot);
            client.tell(Event::ChannelRefused { slot, generation });
        } else if generation.is_none() {
            // A client that has named it knows it, and would wake for nothing.
            let generation = self.directory.0.generation(slot);
            client.tell(Event::ChannelPassed { slot, generation });
        }
    }

    /// A region for the next process of a slot, which the data thread writes; gives its descriptor.
    pub(super) fn open_channel(&mut self, slot: SlotId) -> Result<OwnedFd, NoChannel> {
        let (region, fd) = self.spare.take()?;
        self.data.send(Command::Open { slot, region })?;
        Ok(fd)
    }

    /// A client offers slot 0 its region, its page, its delivery records and the socket that wakes
    /// it, once.
    fn take_own_offer(&mut self, token: Token, slot: SlotId, fds: Vec<OwnedFd>) {
        let Some(client) = self.clients.get_mut(&token) else {
            return;
        };
        // C9-1, C9-2
        //# urdmad takes the descriptors only if they are memfds of at most 16 MiB with the seals
        //# SHRINK, GROW and FUTURE_WRITE, and a socket as in section 6.1.
        //# A process MUST offer at most one channel to each process; urdmad disconnects one that
        //# repeats itself.
        let is_offer = are_offer(&fds, 3);
        if !is_offer || !client.offered.insert(SlotId::DAEMON.number()) {
            tracing::warn!("process {}: not a channel", client.peer.pid());
            return client.reject(fds);
        }
        let peer = PeerMemory::open(fds).map_err(|error| error.to_string());
        let outcome = peer.and_then(|peer| {
            client.tally = Some(Tally::new(Arc::clone(&peer.records), Instant::now()));
            let peer = Box::new(peer);
            let sent = self.data.send(Command::Attach { slot, peer });
            sent.map_err(|reason| reason.to_string())
        });
        if let Err(reason) = outcome {
            tracing::warn!("process {}: not a channel: {reason}", client.peer.pid());
            client.is_broken = true;
        }
    }

    /// The process in `slot` has ended: what was offered to it does not count for the next one.
    pub(super) fn forget_offers_to(&mut self, slot: SlotId) {
        for client in self.clients.values_mut() {
            client.offered.remove(slot.number());
            client.introduced.remove(slot.number());
        }
    }

    /// Has the processes in two slots offer channels to each other, each once.
    pub(super) fn introduce(&mut self, one: SlotId, other: SlotId) {
        if one == other || self.client_in(Some(other)).is_none() {
            return;
        }
        for (from, to) in [(one, other), (other, one)] {
            let generation = self.directory.0.generation(to.number());
            let Some(client) = self.client_in(Some(from)) else {
                return;
            };
            if !client.offered.contains(to) && client.introduced.insert(to.number()) {
                let slot = to.number();
                client.tell(Event::ChannelWanted { slot, generation });
            }
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
