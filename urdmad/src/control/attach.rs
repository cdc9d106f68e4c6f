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
