//! What the pool has posted and done: its work requests, its actions, and completions for it.

use std::time::Instant;

use urdma_pool::{Action, NodeId, PhysicalId, Posted, Status};

use super::links::{Link, Shared};
use super::{Client, Device, CONNECT_LIMIT};
use crate::error::Error;
use crate::ffi::{Calls, Id, Initiator, Service};

impl Client {
    /// Posts what the pool has, and carries its actions out.
    pub(super) fn settle(&mut self) -> Result<(), Error> {
        loop {
            let (shared, nodes) = (&self.shared, &self.nodes);
            self.pool.transmit(|work| {
                let found = shared.iter().find(|one| one.physical == work.physical);
                match found.is_some_and(|found| found.link.post(work, nodes)) {
                    true => Posted::Accepted,
                    false => Posted::Refused,
                }
            });
            let Some(action) = self.pool.poll_action() else {
                return Ok(());
            };
            match action {
                Action::Connect(physical, node) => self.connect(physical, node)?,
                Action::Create(physical) => self.create(physical)?,
                Action::Destroy(physical) => self.destroy(physical)?,
                Action::Deregister(id) => drop(self.memory.remove(&id)),
            }
        }
    }

    /// Hands completions to the pool; whether there were any.
    pub(super) fn poll_queue(&mut self) -> Result<bool, Error> {
        let (pool, silent) = (&mut self.pool, &mut self.silent);
        let nodes = &self.nodes;
        let found = self.device.queue.poll(|wr_id, status| {
            match status {
                Status::RetryExceeded => silent.extend(pool.node_of(wr_id)),
                // A table may have described other memory than the node's.
                Status::RemoteAccess | Status::RemoteInvalidRequest | Status::RemoteOperation => {
                    let node = pool.node_of(wr_id);
                    silent.extend(node.filter(|node| nodes[node.index()].tables_believed > 0));
                }
                _ => {}
            }
            pool.handle_completion(wr_id, status);
        });
        while let Some(id) = self.silent.pop() {
            let node = &mut self.nodes[id.index()];
            // Another one may have the place of one that was forgotten.
            node.is_doubtful |= node.id == id;
        }
        found
    }

    pub(super) fn connect(&mut self, physical: PhysicalId, node: NodeId) -> Result<(), Error> {
        let node = node.index();
        let begun = Id::new(Service::Connection).and_then(|cm| {
            let resolved = cm.resolve_address(self.nodes[node].address);
            resolved.map(|()| cm)
        });
        let cm = match begun {
            Ok(cm) => cm,
            Err(error) => {
                self.pool.handle_unreachable(physical);
                return Err(error);
            }
        };
        let until = Some(Instant::now() + CONNECT_LIMIT);
        let link = Link::Connection { node, cm, until };
        self.shared.push(Shared { physical, link });
        Ok(())
    }

    pub(super) fn create(&mut self, physical: PhysicalId) -> Result<(), Error> {
        let Device { queue, domain } = &self.device;
        let (depth, elements) = (self.config.sq_depth, self.config.elements_max);
        let calls = self.calls.map_or_else(Calls::load, Ok);
        let created = calls.and_then(|calls| Initiator::new(calls, domain, queue, depth, elements));
        match created {
            Ok(initiator) => {
                let link = Link::Initiator(initiator);
                self.shared.push(Shared { physical, link });
                self.pool.handle_connected(physical);
                Ok(())
            }
            Err(error) => {
                self.pool.handle_unreachable(physical);
                Err(error)
            }
        }
    }

    pub(super) fn destroy(&mut self, physical: PhysicalId) -> Result<(), Error> {
        let found = self.shared.iter().position(|one| one.physical == physical);
        if let Some(at) = found {
            self.shared[at].link.break_connection();
            while self.poll_queue()? {}
            self.shared.swap_remove(at);
        }
        self.pool.handle_destroyed(physical);
        Ok(())
    }
}
