//! What the pool has posted and done: its work requests, its actions, and completions for it.

use std::net::SocketAddr;

use urdma_pool::{
    Action, BufferAction, NodeId, PhysicalId, Pool, PostWork, Posted, Sge, Status, Transmit,
};

use super::links::{Connection, Link, Node, Shared, SharedPairs, BACKGROUND_LIMIT, CONNECT_LIMIT};
use super::{Client, Device, Exchange};
use crate::error::Error;
use crate::ffi::{Calls, Id, Initiator, Service};

impl Client {
    /// Posts what the pool has, and carries its actions out.
    ///
    /// # Errors
    /// If the device was removed, or its completions cannot be polled. A queue pair that cannot be
    /// created is no error of the call that finds it, which another user may have made: the
    /// requests that wait for it fail.
    #[inline(always)]
    pub(super) fn settle(&mut self) -> Result<(), Error> {
        match self.pool.is_settled() {
            true => Ok(()),
            false => self.carry_out(),
        }
    }

    fn carry_out(&mut self) -> Result<(), Error> {
        loop {
            let mut links = Links {
                shared: &self.shared,
                nodes: &self.nodes,
                exchange: &self.exchange,
            };
            self.pool
                .transmit(|work, elements| links.post_work(work, elements));
            let Some(action) = self.pool.poll_action() else {
                return Ok(());
            };
            match action {
                Action::Connect(physical, node) => self.connect(physical, node)?,
                Action::Create(physical) => self.create(physical)?,
                Action::Destroy(physical) => self.destroy(physical)?,
                Action::Ask(node) => self.question(node)?,
                Action::Deregister(id) => {
                    if let Some(memory) = self.memory.remove(&id) {
                        self.keys.remove(&memory.keys().0);
                    }
                }
            }
        }
    }

    /// The same for a virtual queue pair that is being opened to a node.
    ///
    /// # Errors
    /// Those of [`Self::settle`]; if no connection to the node or no initiator can be created.
    pub(super) fn settle_for(&mut self, node: usize) -> Result<(), Error> {
        self.failure = None;
        self.settle()?;
        let node = self.nodes[node].id;
        match self.failure.take() {
            Some((of, error)) if of.is_none_or(|of| of == node) => Err(error),
            _ => Ok(()),
        }
    }

    /// Hands completions to the pool; whether there were any.
    #[inline(always)]
    pub(super) fn poll_queue(&mut self) -> Result<bool, Error> {
        let (pool, nodes) = (&mut self.pool, &mut self.nodes);
        self.device.queue.poll(|wr_id, status| {
            if status != Status::Success {
                doubt_node(pool, nodes, wr_id, status);
            }
            pool.handle_completion(wr_id, status);
        })
    }

    /// Hands messages to the pool, and their octets to the Receives of users; whether there were
    /// any.
    #[inline]
    pub(super) fn poll_messages(&mut self) -> Result<bool, Error> {
        match self.exchange.is_some() {
            true => self.poll_exchange(),
            false => Ok(false),
        }
    }

    fn poll_exchange(&mut self) -> Result<bool, Error> {
        let Some(exchange) = &self.exchange else {
            return Ok(false);
        };
        let Some(arrived) = exchange.buffers.poll()? else {
            return Ok(false);
        };
        if let Some(offered) = &exchange.target {
            for message in arrived {
                let (buffers, buffer) = (&exchange.buffers, message.buffer);
                match message.len_octets {
                    Some(len_octets) => {
                        let first = buffers.first(buffer, len_octets);
                        self.pool.handle_target_message(buffer, &first, len_octets);
                    }
                    // Too long a message, which fails its initiator.
                    None => buffers.post_to(buffer, &offered.target)?,
                }
            }
            self.empty_buffers()?;
            return Ok(true);
        }
        for message in arrived {
            let is_over = |one: &Shared| one.link.block() == Some(message.block);
            let Some(at) = self.shared.iter().position(is_over) else {
                continue;
            };
            let (physical, buffer) = (self.shared[at].physical, message.buffer);
            let Some(len_octets) = message.len_octets else {
                // Too long a message, for which there is no event.
                self.pool.handle_broken(physical);
                continue;
            };
            // It may come before the event that the connection is complete.
            self.complete(at);
            let exchange = self.exchange.as_ref();
            let first = exchange.map(|exchange| exchange.buffers.first(buffer, len_octets));
            let first = first.unwrap_or_default();
            self.pool
                .handle_message(physical, buffer, &first, len_octets);
        }
        self.empty_buffers()?;
        Ok(true)
    }

    /// Hands over the messages that have arrived before; others may go on sending.
    pub(super) fn take_arrived(&mut self) -> Result<(), Error> {
        let exchange = self.exchange.as_ref();
        for _ in 0..exchange.map_or(0, |exchange| exchange.buffers.polls_max()) {
            if !self.poll_messages()? {
                break;
            }
        }
        Ok(())
    }

    /// Copies messages out of their buffers, and posts these again.
    fn empty_buffers(&mut self) -> Result<(), Error> {
        let Some(Exchange {
            buffers, target, ..
        }) = &self.exchange
        else {
            return Ok(());
        };
        let find = |lkey: u32| self.memory.get(self.keys.get(&lkey)?);
        while let Some(action) = self.pool.poll_buffer_action() {
            match action {
                BufferAction::Copy { buffer, elements } => buffers.copy(buffer, &elements, find)?,
                BufferAction::Post { physical, buffer } => {
                    let found = self.shared.find(physical).map(|at| &self.shared[at]);
                    let is_posted = found.is_none_or(|found| match &found.link {
                        // Another one may have the block of one that was destroyed.
                        Link::Connection(connection)
                            if connection.block == buffers.block_of(buffer) =>
                        {
                            buffers.post(buffer, &connection.cm)
                        }
                        _ => true,
                    });
                    if !is_posted {
                        self.pool.handle_broken(physical);
                    }
                }
                BufferAction::PostToTarget { buffer } => {
                    if let Some(target) = target {
                        buffers.post_to(buffer, &target.target)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// A connection for which the node has asked is complete, if that was not known before.
    pub(super) fn complete(&mut self, at: usize) {
        let Shared { physical, link } = &mut self.shared[at];
        let Link::Connection(connection) = link else {
            return;
        };
        if let Some(terms) = connection.told.take() {
            connection.until = None;
            self.pool.handle_connected(*physical);
            self.pool.handle_granted(*physical, terms.share, terms.name);
        }
    }

    /// Begins to connect to a node.
    fn begin_connecting(&self, node: usize) -> Result<Id, Error> {
        let cm = Id::new(Service::Connection)?;
        if let Some(exchange) = &self.exchange {
            // The node compares the address with that at which this end listens.
            cm.bind(SocketAddr::new(exchange.at.ip(), 0))?;
        }
        cm.resolve_address(self.nodes[node].address)?;
        Ok(cm)
    }

    fn connect(&mut self, physical: PhysicalId, node: NodeId) -> Result<(), Error> {
        let node = node.index();
        match self.begin_connecting(node) {
            Ok(cm) => {
                let limit = match self.calls {
                    None => CONNECT_LIMIT,
                    Some(_) => BACKGROUND_LIMIT,
                };
                let link = Link::Connection(Connection::new(node, cm, limit));
                self.may_connect = true;
                self.shared.push(Shared { physical, link });
                Ok(())
            }
            Err(error) => self.note_failure(physical, Some(self.nodes[node].id), error),
        }
    }

    /// A shared queue pair cannot be created.
    fn note_failure(
        &mut self,
        physical: PhysicalId,
        node: Option<NodeId>,
        error: Error,
    ) -> Result<(), Error> {
        self.pool.handle_unreachable(physical);
        if self.device.domain.is_removed() {
            return Err(Error::Removed);
        }
        if node.is_none() || self.config.switching.is_none() {
            // Else requests go on over initiators.
            self.failure = Some((node, error));
        }
        Ok(())
    }

    /// Asks a node again that has refused for now.
    pub(super) fn connect_again(&mut self, at: usize) -> Result<(), Error> {
        let Link::Connection(Connection { node, .. }) = self.shared[at].link else {
            return Ok(());
        };
        let begun = self.begin_connecting(node)?;
        if let Link::Connection(connection) = &mut self.shared[at].link {
            // The queue pair is destroyed before its memory is used again.
            connection.cm = begun;
            connection.again = None;
            if let (Some(block), Some(exchange)) = (connection.block.take(), &mut self.exchange) {
                exchange.buffers.give_back(block);
            }
        }
        Ok(())
    }

    fn create(&mut self, physical: PhysicalId) -> Result<(), Error> {
        let Device { queue, domain } = &self.device;
        // The header is an element, too.
        let elements = self.config.elements_max + u32::from(self.exchange.is_some());
        let depth = self.config.sq_depth;
        let headers = self.exchange.as_ref().map(|own| own.buffers.headers());
        let calls = self.calls.map_or_else(Calls::load, Ok);
        let created = headers.transpose().and_then(|headers| {
            let initiator = Initiator::new(calls?, domain, queue, depth, elements)?;
            Ok((initiator, headers))
        });
        match created {
            Ok((initiator, headers)) => {
                let link = Link::Initiator(initiator, headers);
                self.shared.push(Shared { physical, link });
                self.pool.handle_connected(physical);
                Ok(())
            }
            Err(error) => self.note_failure(physical, None, error),
        }
    }

    fn destroy(&mut self, physical: PhysicalId) -> Result<(), Error> {
        let found = self.shared.find(physical);
        let mut node = None;
        if let Some(at) = found {
            node = self.shared[at].link.node();
            self.shared[at].link.break_connection();
            self.take_arrived()?;
            while self.poll_queue()? {}
            self.remove(at);
        }
        let failed = self.pool.stats().switches_failed;
        self.pool.handle_destroyed(physical);
        if let Some(node) = node.filter(|_| self.pool.stats().switches_failed > failed) {
            // It may have ended, and its target with it.
            self.nodes[node].is_doubtful = true;
        }
        Ok(())
    }

    /// Destroys a queue pair, and takes its memory for messages back.
    pub(super) fn remove(&mut self, at: usize) {
        let Shared { link, .. } = self.shared.swap_remove(at);
        let block = link.block();
        drop(link);
        if let (Some(block), Some(exchange)) = (block, &mut self.exchange) {
            exchange.buffers.give_back(block);
        }
    }
}

/// What posts the work requests of the pool, by references to what the client has, of which most
/// posts use none but the first.
pub(super) struct Links<'a> {
    pub(super) shared: &'a SharedPairs,
    pub(super) nodes: &'a Vec<Node>,
    pub(super) exchange: &'a Option<Exchange>,
}

impl PostWork for Links<'_> {
    #[inline(always)]
    fn post_work(&mut self, work: &Transmit, elements: &[Sge]) -> Posted {
        // No closure, which would be a call.
        let Some(found) = self.shared.of(work.physical) else {
            return Posted::Refused;
        };
        let is_posted = match (&work.header, self.exchange) {
            (Some(header), Some(exchange)) => {
                let with = (&exchange.buffers, &self.nodes[..]);
                found.link.post_message(work, elements, header, with)
            }
            _ => found.link.post(work, elements, self.nodes),
        };
        match is_posted {
            true => Posted::Accepted,
            false => Posted::Refused,
        }
    }
}

/// Notes that what is known of the node of a request may be wrong, if its status says so.
#[cold]
fn doubt_node(pool: &Pool, nodes: &mut [Node], wr_id: u64, status: Status) {
    let Some(id) = pool.node_of(wr_id) else {
        return;
    };
    let node = &mut nodes[id.index()];
    let is_doubtful = match status {
        Status::RetryExceeded => true,
        // A table may have described other memory than the node's.
        Status::RemoteAccess | Status::RemoteInvalidRequest | Status::RemoteOperation => {
            node.tables_believed > 0
        }
        _ => false,
    };
    // Another one may have the place of one that was forgotten.
    node.is_doubtful |= is_doubtful && node.id == id;
}
