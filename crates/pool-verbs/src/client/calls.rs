//! Virtual queue pairs: the calls of users.

use std::net::SocketAddr;

use urdma_node_table::Region;
use urdma_pool::{
    Access, Completion, Element, LocalRegionId, RemoteRegionId, Request, UserId, VirtualId,
};

use super::drive::Links;
use super::links::Shared;
use super::Client;
use crate::error::Error;

impl Client {
    /// Ends the registration of memory. Waits for the requests that use it.
    ///
    /// # Errors
    /// If it is not registered, or a call of verbs fails.
    pub fn deregister(&mut self, id: LocalRegionId) -> Result<(), Error> {
        self.pool.remove_local(id)?;
        let settled = self.settle();
        self.device.domain.explain(settled)?;
        while self.memory.contains_key(&id) {
            let turned = self.turn();
            self.device.domain.explain(turned)?;
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Opens a virtual queue pair to the node at an address. If the node is not known, it waits for
    /// the first connection to it, for a READ of a metadata service's table, or for the answer of
    /// the node; if it is, no message is sent. At most `nodes_max` nodes are known: the least
    /// recently used one that has no virtual queue pair is forgotten for another one.
    ///
    /// Returns the virtual queue pair, and the node's memory and its address there. The memory has
    /// this name until the last virtual queue pair to the node is closed.
    ///
    /// # Errors
    /// If the node cannot be reached, the device was removed, or a limit is reached. Nothing is
    /// left open then.
    pub fn open(
        &mut self,
        user: UserId,
        to: SocketAddr,
        depth: u32,
    ) -> Result<(VirtualId, RemoteRegionId, u64), Error> {
        let opened = self.try_open(user, to, depth);
        self.device.domain.explain(opened)
    }

    pub(super) fn try_open(
        &mut self,
        user: UserId,
        to: SocketAddr,
        depth: u32,
    ) -> Result<(VirtualId, RemoteRegionId, u64), Error> {
        let at = self.node_at(to)?;
        let node = &self.nodes[at];
        if self.calls.is_some() && (node.route.is_none() || node.is_doubtful) {
            self.learn(at)?;
        }
        let opened = self
            .pool
            .open(user, self.nodes[at].id, depth, Access::ALL)?;
        let described = self.wait_for_description(at);
        if described.is_err() {
            self.pool.close(opened)?;
        }
        let (described, region) = described?;
        Ok((opened, region, described.addr))
    }

    /// What a node has described, after the first connection to it.
    pub(super) fn wait_for_description(
        &mut self,
        at: usize,
    ) -> Result<(Region, RemoteRegionId), Error> {
        self.settle_for(at)?;
        loop {
            if let Some(described) = self.nodes[at].memory {
                return Ok(described);
            }
            let is_of = |shared: &Shared| shared.link.node() == Some(at);
            if !self.shared.iter().any(is_of) {
                return Err(Error::Unreachable(self.nodes[at].address));
            }
            self.turn()?;
            std::thread::yield_now();
        }
    }

    /// Closes a virtual queue pair.
    ///
    /// # Errors
    /// If it is closed.
    pub fn close(&mut self, id: VirtualId) -> Result<(), Error> {
        let node = self.pool.node(id);
        self.pool.close(id)?;
        node.map_or(Ok(()), |node| self.note_closed(node))
    }

    /// Makes a virtual queue pair ready again after an error.
    ///
    /// # Errors
    /// If it is closed.
    pub fn reset(&mut self, id: VirtualId) -> Result<(), Error> {
        Ok(self.pool.reset(id)?)
    }

    /// Posts a request with its scatter-gather list.
    ///
    /// # Errors
    /// If it is refused, or the device was removed.
    pub fn post(
        &mut self,
        id: VirtualId,
        request: &Request,
        elements: &[Element],
    ) -> Result<(), Error> {
        let links = Links {
            shared: &self.shared,
            nodes: &self.nodes,
            exchange: &self.exchange,
        };
        self.pool.post_at_once(id, request, elements, links)?;
        let settled = self.settle();
        self.device.domain.explain(settled)
    }

    /// The next completion, if there is one; does not sleep.
    ///
    /// # Errors
    /// If a call of verbs fails, or the device was removed.
    pub fn poll(&mut self, id: VirtualId) -> Result<Option<Completion>, Error> {
        if let Some(completion) = self.pool.poll(id) {
            return Ok(Some(completion));
        }
        let turned = self.turn();
        match self.device.domain.explain(turned)? {
            true => Ok(self.pool.poll(id)),
            false => Ok(None),
        }
    }
}
