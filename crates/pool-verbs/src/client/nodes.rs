//! The nodes that a client knows.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use super::links::Node;
use super::Client;
use crate::error::Error;

/// The address of a node by which it is known: IPv4, if it is that, mapped or not.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
        IpAddr::V6(_) => address,
    }
}

impl Client {
    /// The node at an address, which may be new.
    pub(super) fn node_at(&mut self, address: SocketAddr) -> Result<usize, Error> {
        let address = canonical(address);
        if let Some(at) = self.known.get(&address) {
            return Ok(*at);
        }
        if self.pool.nodes() >= self.config.nodes_max as usize {
            self.forget_idle_node()?;
        }
        // The place of one that was forgotten is used again once its connections are destroyed.
        self.settle()?;
        let id = self.pool.add_node()?;
        let (at, node) = (id.index(), Node::new(id, address));
        match self.nodes.get_mut(at) {
            Some(place) => *place = node,
            None => self.nodes.push(node),
        }
        self.known.insert(address, at);
        Ok(at)
    }

    /// Forgets the least recently used node, if there is one without virtual queue pairs.
    pub(super) fn forget_idle_node(&mut self) -> Result<(), Error> {
        let Some(id) = self.pool.remove_idle_node() else {
            return Ok(());
        };
        let node = &mut self.nodes[id.index()];
        let address = node.address;
        self.known.remove(&address);
        node.route = None;
        if let Some((_, region)) = node.memory.take() {
            self.pool.remove_remote(region)?;
        }
        let host = address.ip();
        if self
            .hosts
            .get(&host)
            .is_some_and(|handle| Rc::strong_count(handle) == 1)
        {
            self.hosts.remove(&host);
        }
        Ok(())
    }
}
