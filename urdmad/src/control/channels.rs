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
use crate::client::{reads_offers, Client};
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
        // It may have made the offer before it heard that its deposit was given.
        let channels = &mut client.channels;
        let repeats = !channels.offered.insert(slot) && !channels.given.remove(slot);
        if !is_offer || repeats {
            tracing::warn!("process {}: not a channel", client.peer.pid());
            return client.reject(fds);
        }
        let reads = to.is_some_and(|to| reads_offers(&mut self.clients, to));
        let to = to.filter(|_| reads);
        let is_passed = to.is_some_and(|to| self.pass_offer((from, to), &fds, false));
        let Some(client) = self.clients.get_mut(&token) else {
            return;
        };
        if !is_passed {
            client.channels.offered.remove(slot);
            client.tell(Event::ChannelRefused { slot, generation });
        } else if generation.is_none() {
            // A client that has named it knows it, and would wake for nothing.
            let generation = self.directory.0.generation(slot);
            client.tell(Event::ChannelPassed { slot, generation });
        }
    }

    /// Passes descriptors of the process in one slot on to that in another; false if it does not
    /// get them.
    fn pass_offer(
        &mut self,
        (from, to): (SlotId, SlotId),
        fds: &[OwnedFd],
        deposit_is_given: bool,
    ) -> bool {
        let mut uid_in = |slot| self.client_in(Some(slot)).map(|client| client.peer.uid());
        let (uid, of_peer) = (uid_in(from), uid_in(to));
        let offer = FromDaemon::Event(Event::ChannelOffered {
            slot: from.number(),
            generation: self.directory.0.generation(from.number()),
            stranger: uid.filter(|uid| *uid != 0 && Some(*uid) != of_peer),
            deposit_is_given,
        });
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let peer = self.client_in(Some(to));
        peer.is_some_and(|peer| peer.send(&offer, &fds))
    }

    /// Keeps a client's end of a channel for the first process that it is connected with. A client
    /// whose descriptors are others, or that repeats itself, is disconnected.
    pub(super) fn take_deposit(&mut self, token: Token, fds: Vec<OwnedFd>) {
        let Some(client) = self.clients.get_mut(&token) else {
            return;
        };
        // C9-1
        //# urdmad takes the descriptors only if they are memfds of at most 16 MiB with the seals
        //# SHRINK, GROW and FUTURE_WRITE, and a socket as in section 6.1.
        if client.slot().is_none() || client.channels.deposit.is_some() || !are_offer(&fds, 2) {
            tracing::warn!("process {}: not a channel", client.peer.pid());
            return client.reject(fds);
        }
        client.channels.deposit = Some(fds);
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
        if !is_offer || !client.channels.offered.insert(SlotId::DAEMON.number()) {
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
            client.channels.forget(slot);
        }
    }

    /// Gives the processes in two slots the ends of a channel that they have deposited, or has them
    /// offer channels to each other, each once.
    pub(super) fn introduce(&mut self, one: SlotId, other: SlotId) {
        if one == other || self.client_in(Some(other)).is_none() {
            return;
        }
        if self.give_deposits(one, other) {
            return;
        }
        for (from, to) in [(one, other), (other, one)] {
            let generation = self.directory.0.generation(to.number());
            let Some(client) = self.client_in(Some(from)) else {
                return;
            };
            if !client.channels.offered.contains(to) && client.channels.wanted.insert(to.number()) {
                let slot = to.number();
                client.tell(Event::ChannelWanted { slot, generation });
            }
        }
    }

    /// Gives the processes in two slots what the other one has deposited; false if they are to
    /// offer each other channels.
    fn give_deposits(&mut self, one: SlotId, other: SlotId) -> bool {
        let ways = [(one, other), (other, one)];
        let may_give = ways.iter().all(|&(from, to)| {
            let is_new = |Client { channels, .. }: &mut Client| {
                channels.deposit.is_some()
                    && !channels.offered.contains(to)
                    && !channels.wanted.contains(to)
            };
            self.client_in(Some(from)).is_some_and(is_new) && reads_offers(&mut self.clients, to)
        });
        if !may_give {
            return false;
        }
        for (from, to) in ways {
            let deposit = self.client_in(Some(from)).and_then(|client| {
                client.channels.offered.insert(to.number());
                client.channels.given.insert(to.number());
                client.channels.deposit.take()
            });
            if let Some(fds) = deposit {
                self.pass_offer((from, to), &fds, true);
            }
        }
        true
    }

    /// The client whose process has `slot`.
    fn client_in(&mut self, slot: Option<SlotId>) -> Option<&mut Client> {
        let slot = slot?;
        self.clients
            .values_mut()
            .find(|client| client.slot() == Some(slot))
    }
}
