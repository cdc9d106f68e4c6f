//! Requests for slots, within the rate of their user: those beyond it wait, and none is lost. While
//! the request of a client waits, its further requests stay in its socket.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use urdma_ipc::message::FromDaemon;
use urdma_ipc::{Answer, Attached, LeaseAnswer, Refusal, RefusalKind};
use urdma_types::SlotId;

use super::attaches::PER_SECOND;
use super::state::{refuse, Control};
use crate::client::{AttachRequest, Client};
use crate::slots::{NoSlot, Owner, Token};
use crate::users;

impl Control {
    /// Answers a request for a slot, now or when the rate of its user allows it.
    pub(super) fn attach_in_time(&mut self, token: Token, request: AttachRequest) {
        let Some(client) = self.clients.get_mut(&token) else {
            return;
        };
        let uid = client.peer.uid();
        // One that has a slot is refused at once, and so is never attached and delayed.
        let has_slot = client.attached.is_some();
        if has_slot || self.attaches.admits(Instant::now(), uid, token) {
            return self.attach(token, request);
        }
        client.delayed = Some(request);
        self.counters.attach_delayed += 1;
        tracing::warn!(
            "process {}: user {uid} attaches more than {PER_SECOND} times a second: it waits",
            client.peer.pid()
        );
    }

    /// Answers the requests that have waited and are due.
    pub(super) fn attach_due(&mut self, now: Instant) {
        while let Some(token) = self.attaches.next(now) {
            let client = self.clients.get_mut(&token);
            if let Some(request) = client.and_then(|client| client.delayed.take()) {
                self.attach(token, request);
            }
        }
    }

    /// Has a request that finds no slot wait while slots of processes that have ended are about to
    /// be free; false if there are none, or if it has waited for all that there were.
    pub(super) fn waits_for_slot(&mut self, token: Token, request: AttachRequest) -> bool {
        let Some(client) = self.clients.get_mut(&token) else {
            return false;
        };
        let waits = !request.has_waited && self.reaping.holds(token);
        if waits {
            client.delayed = Some(AttachRequest {
                has_waited: true,
                ..request
            });
        }
        waits
    }

    /// Forgets the request of a client that has gone.
    pub(super) fn forget_attach(&mut self, token: Token) {
        let Some(client) = self.clients.get_mut(&token) else {
            return;
        };
        if client.delayed.take().is_some() {
            self.attaches.forget(client.peer.uid(), token);
        }
    }

    /// Answers a request for a slot.
    pub(super) fn attach(&mut self, token: Token, request: AttachRequest) {
        let AttachRequest { id, want_lease, .. } = request;
        let outcome = self.assign_slot(token);
        let (uid, slot, region) = match outcome {
            Ok(assigned) => assigned,
            Err(refusal) => {
                if refusal.kind != RefusalKind::AlreadyAttached
                    && self.waits_for_slot(token, request)
                {
                    return;
                }
                self.counters.attach_refused += 1;
                return self.answer(token, id, Err(refusal));
            }
        };
        let lease = self.lease_for(uid, slot, want_lease);
        let attached = Attached {
            slot: slot.number(),
            node_guid: self.identity.node_guid,
            personality: self.config.personality,
            gids: self.identity.gids.clone(),
            addresses: self.identity.addresses.clone(),
            mtu: self.config.port.as_ref().map_or(0, |port| port.mtu),
            lease,
        };
        let message = FromDaemon::Answer {
            id,
            result: Ok(Answer::Attached(Box::new(attached))),
        };
        let fds = [self.directory.1.as_fd(), region.as_fd(), self.page.as_fd()];
        if let Some(client) = self.clients.get_mut(&token) {
            client.attach(slot);
            self.shared
                .recorder
                .attach(slot.number(), client.peer.pid());
            client.send(&message, &fds);
            tracing::info!(
                "slot {}: process {} ({}) of user {}",
                slot.number(),
                client.peer.pid(),
                client.program.as_deref().unwrap_or_default(),
                client.peer.uid()
            );
        }
        self.counters.attached += 1;
        if let Some(pid) = self.clients.get(&token).and_then(Client::pid) {
            self.introduce_askers(pid);
        }
    }

    /// Assigns a slot, and gives the data thread a region for its process: user, slot, and the
    /// region's descriptor.
    fn assign_slot(&mut self, token: Token) -> Result<(u32, SlotId, OwnedFd), Refusal> {
        let client = self.client(token)?;
        if client.attached.is_some() {
            return refuse(
                RefusalKind::AlreadyAttached,
                "this connection has a slot already",
            );
        }
        let owner = Owner {
            token,
            uid: client.peer.uid(),
        };
        let pid = client.pid();
        let slot = self.slots.assign(owner).map_err(|error| {
            let kind = match error {
                NoSlot::AllTaken(_) | NoSlot::Kept(_) => RefusalKind::NoFreeSlot,
                NoSlot::Quota { .. } | NoSlot::Share { .. } => RefusalKind::QuotaExceeded,
            };
            Refusal::new(kind, error.to_string())
        })?;
        match self.open_channel(slot) {
            Ok(region) => {
                self.shared.set_user(slot, owner.uid);
                self.directory.0.assign(slot.number());
                self.kernel.give_slot(slot, pid);
                Ok((owner.uid, slot, region))
            }
            Err(reason) => {
                self.slots.release(slot);
                let message = format!("no channel to the process: {reason}");
                refuse(RefusalKind::Internal, message)
            }
        }
    }

    fn lease_for(&mut self, uid: u32, slot: SlotId, want_lease: bool) -> LeaseAnswer {
        if !want_lease {
            return LeaseAnswer::NotAsked;
        }
        let port = self.config.port.as_ref();
        if let Some(group) = port.and_then(|port| port.lease_group.as_ref()) {
            if let Err(reason) = users::may_lease(uid, group) {
                return LeaseAnswer::Refused(reason.to_string());
            }
        }
        if !self.faults.are_none() {
            return LeaseAnswer::Refused(
                "faults apply to the port, which packets of a leased queue pair bypass: \
                 `urdma fault --off` first"
                    .to_owned(),
            );
        }
        let params = match self.leases.grant(slot) {
            Ok(params) => params,
            Err(reason) => return LeaseAnswer::Refused(reason.to_string()),
        };
        let udp_port = urdma_types::PORT_BASE + u16::from(slot.number());
        match self.data.lend(params.queue, udp_port) {
            Ok(()) => {
                self.shared.set_lessee(slot, true);
                self.shared
                    .recorder
                    .lease(slot.number(), params.queue, true);
                LeaseAnswer::Granted(Box::new(params))
            }
            Err(reason) => {
                self.leases.release(params.queue, true);
                LeaseAnswer::Refused(reason.to_string())
            }
        }
    }
}

#[cfg(test)]
mod tests;
