//! Events of connections.

use std::time::Instant;

use super::links::{Connection, Link, Shared, ASK_AGAIN};
use super::{Client, Device, EVENTS_EVERY};
use crate::asking::{decode_acceptance, Asking, Refused};
use crate::error::Error;
use crate::ffi::Event;

/// The same while a pool of initiators connects to a node: its requests go on meanwhile.
const EVENTS_EVERY_IN_BACKGROUND: u32 = 16;

impl Client {
    /// Takes what has come, and does what follows from it; whether there may be completions.
    #[inline(always)]
    pub(super) fn turn(&mut self) -> Result<bool, Error> {
        let has_come = self.poll_queue()? | self.poll_messages()?;
        self.turns = self.turns.wrapping_add(1);
        let is_time = self.turns & self.turns_mask == 0;
        let looks = is_time || (!has_come && self.awaits_events());
        match looks || (has_come && !self.pool.is_settled()) {
            true => self.follow(looks),
            // Each request was handed over when it was posted.
            false => Ok(has_come),
        }
    }

    /// Does what follows from what has come, after a look for events if it is time.
    #[inline(never)]
    fn follow(&mut self, looks: bool) -> Result<bool, Error> {
        if looks {
            if self.turns.is_multiple_of(EVENTS_EVERY) || self.may_connect {
                for at in (0..self.shared.len()).rev() {
                    self.advance(at)?;
                }
                self.advance_questions();
                self.may_connect = self.is_connecting();
                self.take_requests()?;
                self.take_questions()?;
                self.probe_silent();
            }
            self.end_windows();
        }
        self.settle().map(|()| true)
    }

    /// Tells the pool of the windows that have ended, by which it switches nodes.
    fn end_windows(&mut self) {
        let Some(switching) = self.config.switching else {
            return;
        };
        let passed = self.windows_ended.elapsed();
        if passed >= switching.window {
            let windows = passed.as_nanos() / switching.window.as_nanos();
            let windows = u32::try_from(windows).unwrap_or(u32::MAX);
            // The window that has begun counts later.
            self.windows_ended += switching.window.saturating_mul(windows);
            self.pool.end_windows(windows);
        }
    }

    /// Whether it is time to look for events of connections that are being made.
    fn awaits_events(&self) -> bool {
        let is_background = self.calls.is_some() && self.questions.is_empty();
        self.may_connect
            && (!is_background || self.turns.is_multiple_of(EVENTS_EVERY_IN_BACKGROUND))
    }

    fn is_connecting(&self) -> bool {
        let is_new = |shared: &Shared| match &shared.link {
            Link::Connection(connection) => connection.until.is_some(),
            Link::Initiator(..) => false,
        };
        !self.questions.is_empty() || self.shared.iter().any(is_new)
    }

    /// Takes the next events of a connection.
    fn advance(&mut self, at: usize) -> Result<(), Error> {
        loop {
            let Link::Connection(connection) = &self.shared[at].link else {
                return Ok(());
            };
            let (node, until) = (connection.node, connection.until);
            let unreachable = || Err(Error::Unreachable(self.nodes[node].address));
            let is_over = |when: Option<Instant>| when.is_some_and(|when| when <= Instant::now());
            let taken = match connection.cm.next_event()? {
                Some(Event::AddressResolved) => connection.cm.resolve_route(),
                Some(Event::RouteResolved) => self.begin(at),
                Some(Event::Established(private)) => self.established(at, node, &private),
                Some(Event::Rejected(private)) if Refused::is_later(&private) => {
                    self.ask_later(at);
                    Ok(())
                }
                Some(Event::Ended | Event::Rejected(_)) => unreachable(),
                Some(Event::Request(_) | Event::Answer(_) | Event::Other) => Ok(()),
                None if is_over(until) => unreachable(),
                None if is_over(connection.again) => self.connect_again(at),
                None => return Ok(()),
            };
            if taken.is_err() {
                return self.lost(at, until.is_some());
            }
        }
    }

    /// The way to a node is known.
    fn begin(&mut self, at: usize) -> Result<(), Error> {
        let Device { queue, domain } = &self.device;
        if let Link::Connection(Connection { cm, .. }) = &mut self.shared[at].link {
            domain.expect(cm)?;
            if self.exchange.is_none() {
                let (depth, elements) = (self.config.sq_depth, self.config.elements_max);
                cm.create_queue_pair(domain, queue, depth, elements)?;
                return cm.connect(&[]);
            }
        }
        self.create_queue_pair(at)?;
        let Shared { physical, link } = &self.shared[at];
        match (link, &self.exchange) {
            (Link::Connection(connection), Some(exchange)) => {
                let asking = Asking {
                    at: exchange.at,
                    terms: exchange.terms(self.pool.name_of(*physical)),
                    memory: exchange.offered_region(),
                };
                connection.cm.connect(&asking.encode())
            }
            _ => Ok(()),
        }
    }

    /// A connection is complete, for which this end has asked or the node.
    fn established(&mut self, at: usize, node: usize, private: &[u8]) -> Result<(), Error> {
        let Shared { physical, link } = &mut self.shared[at];
        let physical = *physical;
        let Link::Connection(connection) = link else {
            return Ok(());
        };
        if connection.told.is_some() || connection.until.is_none() {
            // The node has asked. A message may have come before the event.
            self.complete(at);
            return Ok(());
        }
        let address = self.nodes[node].address;
        let accepted = decode_acceptance(private).ok_or(Error::Unreachable(address))?;
        connection.until = None;
        let (described, terms) = accepted;
        self.describe(node, described)?;
        self.pool.handle_connected(physical);
        if let Some(exchange) = &self.exchange {
            // Of buffers of another length, none can be used.
            let is_same = terms.buffer_octets == exchange.config.buffer_octets;
            let share = if is_same { terms.share } else { 0 };
            self.pool.handle_granted(physical, share, terms.name);
        }
        Ok(())
    }

    /// The node has refused for now: it connects itself, or has no place.
    fn ask_later(&mut self, at: usize) {
        if let Link::Connection(connection) = &mut self.shared[at].link {
            connection.again = Some(Instant::now() + ASK_AGAIN);
        }
    }

    /// A connection is not made, or has ended.
    fn lost(&mut self, at: usize, is_new: bool) -> Result<(), Error> {
        let physical = self.shared[at].physical;
        let is_accepted = |shared: &Shared| match &shared.link {
            Link::Connection(connection) => connection.told.is_some(),
            Link::Initiator(..) => false,
        };
        if is_new && !is_accepted(&self.shared[at]) {
            self.remove(at);
            self.pool.handle_unreachable(physical);
            return Ok(());
        }
        // Messages that have arrived show that the connection was complete.
        self.take_arrived()?;
        if is_accepted(&self.shared[at]) {
            self.remove(at);
            self.pool.handle_abandoned(physical);
        } else {
            self.pool.handle_broken(physical);
        }
        Ok(())
    }
}
