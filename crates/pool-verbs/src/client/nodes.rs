//! The nodes that a client knows.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use urdma_node_table::Target;
use urdma_pool::NodeId;

use super::links::Node;
use super::Client;
use crate::away::Away;
use crate::error::Error;
use crate::ffi::{path_to, Answer, Handle, Route};

/// Hosts without nodes that are used, the ways to which are kept.
const HOSTS_KEPT: usize = 64;

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
            match self.pool.remove_idle_node() {
                Some(id) => self.put_away(id)?,
                // There is room when that has ended.
                None => drop(self.pool.end_idle_exchange()),
            }
        }
        // The place of one that was removed is used again once its connections are destroyed.
        self.settle()?;
        let id = self.pool.add_node()?;
        self.away.limit(self.records_max());
        let (at, node) = (id.index(), Node::new(id, address));
        match self.nodes.get_mut(at) {
            Some(place) => *place = node,
            None => self.nodes.push(node),
        }
        self.known.insert(address, at);
        if let Some(target) = self.away.find(address) {
            self.reach(at, target)?;
        }
        Ok(at)
    }

    /// A virtual queue pair was closed. If it was the last one to its node, the node that became
    /// idle before is put away, unless nodes may be switched to connections.
    pub(super) fn note_closed(&mut self, node: NodeId) -> Result<(), Error> {
        if self.calls.is_none() || self.config.switching.is_some() || self.pool.is_used(node) {
            return Ok(());
        }
        let before = self.idle.replace(node).filter(|before| *before != node);
        match before {
            // One that has no record would have to be learned again.
            Some(id) if self.has_record(id) && self.pool.remove_node(id) => self.put_away(id),
            _ => Ok(()),
        }
    }

    /// Nodes that may have records beside those of the pool: all that are known are `nodes_max` at
    /// most.
    fn records_max(&self) -> usize {
        (self.config.nodes_max as usize).saturating_sub(self.pool.nodes())
    }

    /// Whether a record has room for what reaches a node.
    fn has_record(&self, id: NodeId) -> bool {
        let node = &self.nodes[id.index()];
        let target = node.target();
        target.is_some_and(|target| Away::fits(node.address, &target))
    }

    /// The pool has removed a node. What reaches it is kept, if that is known to do so.
    fn put_away(&mut self, id: NodeId) -> Result<(), Error> {
        let node = &mut self.nodes[id.index()];
        let address = node.address;
        self.known.remove(&address);
        let target = node.target();
        node.route = None;
        if let Some((_, region)) = node.memory.take() {
            self.pool.remove_remote(region)?;
        }
        match target {
            Some(target) => {
                let most = self.records_max();
                self.away.keep(address, &target, most);
            }
            None => self.away.forget(address),
        }
        let is_unused = |handle: &Rc<Handle>| Rc::strong_count(handle) == 1;
        let host = address.ip();
        if self.hosts.len() > HOSTS_KEPT && self.hosts.get(&host).is_some_and(is_unused) {
            self.hosts.remove(&host);
        }
        Ok(())
    }

    /// The way to a host; none if it cannot be reached.
    pub(super) fn handle_to(&mut self, host: IpAddr) -> Result<Option<Rc<Handle>>, Error> {
        if let Some(handle) = self.hosts.get(&host) {
            return Ok(Some(Rc::clone(handle)));
        }
        let domain = &self.device.domain;
        let Some(path) = path_to(domain, self.from, host)? else {
            return Ok(None);
        };
        let Ok(handle) = Handle::new(domain, path) else {
            return Ok(None);
        };
        self.hosts.insert(host, Rc::clone(&handle));
        Ok(Some(handle))
    }

    /// Takes the way to a host that an answer names.
    pub(super) fn take_path(&mut self, host: IpAddr, answer: &Answer) -> Result<Rc<Handle>, Error> {
        let kept = self.hosts.get(&host);
        if let Some(kept) = kept.filter(|kept| kept.is_of(&answer.path)) {
            return Ok(Rc::clone(kept));
        }
        let handle = Handle::new(&self.device.domain, answer.path)?;
        self.hosts.insert(host, Rc::clone(&handle));
        Ok(handle)
    }

    /// Takes a target as that of a node; `false` if its host cannot be reached so.
    pub(super) fn reach(&mut self, at: usize, target: Target) -> Result<bool, Error> {
        let Some(handle) = self.handle_to(self.nodes[at].address.ip())? else {
            return Ok(false);
        };
        self.describe(at, target.region())?;
        let node = &mut self.nodes[at];
        node.route = Some(Route {
            handle,
            number: target.number(),
            key: target.access_key(),
        });
        node.is_doubtful = false;
        Ok(true)
    }
}
