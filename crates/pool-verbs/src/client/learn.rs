//! What initiators need of nodes: from the tables of metadata services, or from the nodes.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use urdma_node_table::{Answer, NodeKey, Target};

use super::{Client, Learned, CONNECT_LIMIT};
use crate::described;
use crate::error::Error;
use crate::ffi::{self, Event, Id, Route, Service};
use crate::metadata::{SERVICES_MAX, TOO_MANY_SERVICES};
use crate::replica::Replica;

/// How often in a row a node is learned from tables, if requests to it fail.
const TABLES_BELIEVED_MAX: u8 = 2;
/// How long [`Client::use_metadata`] waits for the services.
const METADATA_LIMIT: Duration = Duration::from_secs(1);

impl Client {
    /// Learns of nodes from the tables of metadata services, up to two, instead of asking the
    /// nodes. It waits for up to a second until one has answered or none can. Those that do not
    /// answer then are connected to again, a second apart, while unknown nodes are opened.
    ///
    /// # Errors
    /// If there are more than two services, or the pool is over connections, each of which learns
    /// everything from its node.
    pub fn use_metadata(&mut self, services: &[SocketAddr]) -> Result<(), Error> {
        if services.len() > SERVICES_MAX {
            return Err(Error::Metadata(TOO_MANY_SERVICES));
        }
        if self.calls.is_none() {
            return Err(Error::Metadata(
                "a pool over connections has no use for metadata services: take initiators",
            ));
        }
        self.replicas = services.iter().copied().map(Replica::new).collect();
        let until = Instant::now() + METADATA_LIMIT;
        loop {
            self.turn_replicas();
            let ready = self.replicas.iter().any(Replica::is_ready);
            let may_become = self.replicas.iter().any(Replica::is_connecting);
            if ready || !may_become || Instant::now() >= until {
                return Ok(());
            }
            std::thread::yield_now();
        }
    }

    pub(super) fn turn_replicas(&mut self) {
        for replica in &mut self.replicas {
            replica.turn(&self.device.domain);
        }
    }

    /// Why a metadata service was last given up, if one was.
    pub fn metadata_error(&self) -> Option<&Error> {
        self.replicas.iter().find_map(Replica::error)
    }

    /// Where the client has learned of nodes.
    pub fn learned(&self) -> Learned {
        self.learned
    }

    /// What the tables of the metadata services have of the node at an address, in order; of those
    /// that cannot be asked nothing.
    pub fn look_up(&mut self, address: SocketAddr) -> Vec<Answer> {
        let key = NodeKey::new(address);
        self.turn_replicas();
        let replicas = self.replicas.iter_mut();
        replicas
            .filter_map(|replica| replica.look_up(key))
            .collect()
    }

    /// Learns of a node, from the first table that has something new of it, or from the node.
    pub(super) fn learn(&mut self, at: usize) -> Result<(), Error> {
        let node = &self.nodes[at];
        let (address, known) = (node.address, node.by_table);
        if node.tables_believed < TABLES_BELIEVED_MAX {
            let key = NodeKey::new(address);
            for n in 0..self.replicas.len() {
                let replica = &mut self.replicas[n];
                // Events are a system call. A READ of a service that has ended fails without them.
                if !replica.is_ready() {
                    replica.turn(&self.device.domain);
                }
                if let Some(Answer::Found(found)) = replica.look_up(key) {
                    // What has failed is not tried again.
                    if Some(found.target) != known && self.believe(at, found.target)? {
                        return Ok(());
                    }
                }
            }
        }
        self.ask(at)
    }

    /// Takes what a table has of a node; `false` if its host cannot be reached so.
    pub(super) fn believe(&mut self, at: usize, target: Target) -> Result<bool, Error> {
        if !self.reach(at, target)? {
            return Ok(false);
        }
        let node = &mut self.nodes[at];
        node.by_table = Some(target);
        node.tables_believed += 1;
        self.learned.by_table += 1;
        Ok(true)
    }

    /// Asks a node for its target.
    pub(super) fn ask(&mut self, at: usize) -> Result<(), Error> {
        let address = self.nodes[at].address;
        let cm = Id::new(Service::Datagram)?;
        cm.resolve_address(address)?;
        let until = Instant::now() + CONNECT_LIMIT;
        while Instant::now() < until {
            match cm.next_event()? {
                Some(Event::AddressResolved) => cm.resolve_route()?,
                Some(Event::RouteResolved) => {
                    self.device.domain.expect(&cm)?;
                    cm.connect(&[])?;
                }
                Some(Event::Answer(answer)) => return self.answered(at, &answer),
                Some(Event::Ended | Event::Rejected(_)) => break,
                Some(_) => {}
                None => {
                    self.turn()?;
                    std::thread::yield_now();
                }
            }
        }
        Err(Error::Unreachable(address))
    }

    pub(super) fn answered(&mut self, at: usize, answer: &ffi::Answer) -> Result<(), Error> {
        let (described, key) = described::decode_with_key(&answer.private)
            .ok_or(Error::Unreachable(self.nodes[at].address))?;
        let handle = self.take_path(self.nodes[at].address.ip(), answer)?;
        self.describe(at, described)?;
        let node = &mut self.nodes[at];
        node.route = Some(Route {
            handle,
            number: answer.number,
            key,
        });
        (node.is_doubtful, node.tables_believed) = (false, 0);
        self.learned.by_asking += 1;
        Ok(())
    }
}
