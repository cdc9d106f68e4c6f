//! Requests for slots, within the rate of their user: those beyond it wait, and none is lost. While
//! the request of a client waits, its further requests stay in its socket.

use std::time::Instant;

use super::attaches::PER_SECOND;
use super::Control;
use crate::client::AttachRequest;
use crate::slots::Token;

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
}

#[cfg(test)]
mod tests;
