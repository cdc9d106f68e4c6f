//! Events of connections.

use std::time::Instant;

use super::links::{Link, Shared};
use super::{Client, Device};
use crate::described;
use crate::error::Error;
use crate::ffi::Event;

/// Turns without a completion between two looks for events of connections, each of which is a
/// system call. Requests on a connection that has ended fail without them.
const EVENTS_EVERY: u32 = 1024;

impl Client {
    /// Takes what has come, and does what follows from it; whether there may be completions.
    pub(super) fn turn(&mut self) -> Result<bool, Error> {
        if !self.poll_queue()? {
            self.idle_turns = self.idle_turns.wrapping_add(1);
            if !self.idle_turns.is_multiple_of(EVENTS_EVERY) && !self.is_connecting() {
                // Nothing has come, and each request was handed over when it was posted.
                return Ok(false);
            }
            for at in (0..self.shared.len()).rev() {
                self.advance(at)?;
            }
        }
        self.settle().map(|()| true)
    }

    pub(super) fn is_connecting(&self) -> bool {
        let is_new = |shared: &Shared| match shared.link {
            Link::Connection { until, .. } => until.is_some(),
            Link::Initiator(_) => false,
        };
        self.shared.iter().any(is_new)
    }

    /// Takes the next events of a connection.
    pub(super) fn advance(&mut self, at: usize) -> Result<(), Error> {
        loop {
            let Link::Connection { node, cm, until } = &self.shared[at].link else {
                return Ok(());
            };
            let (node, until) = (*node, *until);
            let taken = match cm.next_event()? {
                Some(Event::AddressResolved) => cm.resolve_route(),
                Some(Event::RouteResolved) => self.begin(at),
                Some(Event::Established(private)) => self.established(at, node, &private),
                Some(Event::Ended | Event::Rejected(_)) => {
                    Err(Error::Unreachable(self.nodes[node].address))
                }
                Some(Event::Request(_) | Event::Answer(_) | Event::Other) => Ok(()),
                None if until.is_some_and(|until| until <= Instant::now()) => {
                    Err(Error::Unreachable(self.nodes[node].address))
                }
                None => return Ok(()),
            };
            if taken.is_err() {
                self.lost(at, until.is_some());
                return Ok(());
            }
        }
    }

    pub(super) fn begin(&mut self, at: usize) -> Result<(), Error> {
        if let Link::Connection { cm, .. } = &mut self.shared[at].link {
            self.device.domain.expect(cm)?;
            let Device { queue, domain } = &self.device;
            cm.create_queue_pair(
                domain,
                queue,
                self.config.sq_depth,
                self.config.elements_max,
            )?;
            cm.connect(&[])?;
        }
        Ok(())
    }

    pub(super) fn established(
        &mut self,
        at: usize,
        node: usize,
        private: &[u8],
    ) -> Result<(), Error> {
        let address = self.nodes[node].address;
        let described = described::decode(private).ok_or(Error::Unreachable(address))?;
        self.describe(node, described)?;
        if let Link::Connection { until, .. } = &mut self.shared[at].link {
            *until = None;
        }
        self.pool.handle_connected(self.shared[at].physical);
        Ok(())
    }

    /// A connection is not made, or has ended.
    pub(super) fn lost(&mut self, at: usize, is_new: bool) {
        let physical = self.shared[at].physical;
        if is_new {
            self.shared.swap_remove(at);
            self.pool.handle_unreachable(physical);
        } else {
            self.pool.handle_broken(physical);
        }
    }
}
