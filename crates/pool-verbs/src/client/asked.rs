//! Requests of other pools to connect to this one.

use urdma_node_table::Region;
use urdma_pool::{ConnectionName, PhysicalId, SHARE_MIN};

use super::links::{Connection, Link, Shared};
use super::{Client, Device, Exchange, CONNECT_LIMIT};
use crate::asking::{encode_acceptance, Asking, Refused, Terms};
use crate::error::Error;
use crate::ffi::{Event, Id, Memory, Request};

impl Exchange {
    /// What this end tells of a connection.
    pub(super) fn terms(&self, name: ConnectionName) -> Terms {
        Terms {
            share: self.config.share,
            buffer_octets: self.config.buffer_octets,
            name,
        }
    }

    /// The memory that others may access, of no octets if there is none.
    pub(super) fn offered_region(&self) -> Region {
        let nothing = Region {
            rkey: 0,
            addr: 0,
            len_octets: 0,
        };
        self.offered.as_ref().map_or(nothing, Memory::region)
    }
}

impl Client {
    /// Creates the queue pair of a connection that has messages, with the Receives of a share.
    pub(super) fn create_queue_pair(&mut self, at: usize) -> Result<(), Error> {
        let Link::Connection(Connection { cm, block, .. }) = &mut self.shared[at].link else {
            return Ok(());
        };
        let Some(Exchange { buffers, .. }) = &mut self.exchange else {
            return Ok(());
        };
        let Device { queue, domain } = &self.device;
        let (receives, share) = buffers.receives();
        let depths = [self.config.sq_depth, share];
        // The header is an element, too.
        let elements = self.config.elements_max + 1;
        cm.create_with_receives(domain, [queue, receives], depths, elements)?;
        let taken = *block.insert(buffers.take()?);
        match buffers.post_all(taken, cm) {
            true => Ok(()),
            false => Err(Error::from_errno("ibv_post_recv", libc::ENOMEM)),
        }
    }

    /// Takes the requests that there are.
    pub(super) fn take_requests(&mut self) -> Result<(), Error> {
        while let Some(exchange) = self.exchange.as_ref().filter(|own| own.target.is_none()) {
            match exchange.listener.next_event()? {
                Some(Event::Request(request)) => self.take_request(request),
                Some(_) => {}
                None => break,
            }
        }
        Ok(())
    }

    fn take_request(&mut self, request: Request) {
        match self.admit(&request) {
            Ok((physical, node, asking)) => {
                // What this end has for the queue pair is void.
                if let Some(before) = self.shared.find(physical) {
                    self.remove(before);
                }
                // A request that is dropped is refused.
                if self
                    .accept_request(request.id, physical, node, &asking)
                    .is_err()
                {
                    self.pool.handle_abandoned(physical);
                }
            }
            // One that asks no more does not need the answer.
            Err(refused) => drop(request.id.reject(&refused.encode())),
        }
    }

    /// The queue pair for a request, the index of its node, and what it says.
    fn admit(&mut self, request: &Request) -> Result<(PhysicalId, usize, Asking), Refused> {
        let exchange = self.exchange.as_ref().ok_or(Refused::Never)?;
        let asking = Asking::decode(&request.private).ok_or(Refused::Never)?;
        let from = request.from.map(|from| from.to_canonical());
        // If the connection fails, this end asks for it at that address.
        let is_possible = from == Some(asking.at.ip())
            && asking.at.port() != 0
            && asking.at != exchange.at
            && asking.terms.share >= SHARE_MIN
            && asking.terms.buffer_octets == exchange.config.buffer_octets;
        if !is_possible {
            return Err(Refused::Never);
        }
        let goes_before = exchange.at < asking.at;
        let later = |_: Error| Refused::Later;
        self.take_arrived().map_err(later)?;
        let at = self.node_at(asking.at).map_err(later)?;
        for _ in 0..2 {
            let (node, name) = (self.nodes[at].id, asking.terms.name);
            let taken = self.pool.handle_request(node, name, goes_before);
            if let Some(physical) = taken.map_err(|_| Refused::Later)? {
                return Ok((physical, at, asking));
            }
            self.settle().map_err(later)?;
        }
        Err(Refused::Later)
    }

    fn accept_request(
        &mut self,
        cm: Id,
        physical: PhysicalId,
        node: usize,
        asking: &Asking,
    ) -> Result<(), Error> {
        self.describe(node, asking.memory)?;
        let link = Link::Connection(Connection {
            told: Some(asking.terms),
            ..Connection::new(node, cm, CONNECT_LIMIT)
        });
        self.may_connect = true;
        self.shared.push(Shared { physical, link });
        let at = self.shared.len() - 1;
        let accepted = self.try_accept(at);
        if accepted.is_err() {
            self.remove(at);
        }
        accepted
    }

    fn try_accept(&mut self, at: usize) -> Result<(), Error> {
        self.create_queue_pair(at)?;
        let Shared { physical, link } = &self.shared[at];
        match (link, &self.exchange) {
            (Link::Connection(connection), Some(exchange)) => {
                let terms = exchange.terms(self.pool.name_of(*physical));
                let private = encode_acceptance(&exchange.offered_region(), &terms);
                connection.cm.accept(&private)
            }
            _ => Ok(()),
        }
    }
}
