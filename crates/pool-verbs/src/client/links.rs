//! Nodes, and the shared queue pairs that reach them: connections, or initiators.

use std::net::SocketAddr;
use std::time::Instant;

use urdma_node_table::{Region, Target};
use urdma_pool::{NodeId, PhysicalId, RemoteRegionId, Transmit};

use crate::ffi::{Id, Initiator, Route};

/// A node.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) id: NodeId,
    pub(super) address: SocketAddr,
    /// What it has described, and the region of the pool that stands for it.
    pub(super) memory: Option<(Region, RemoteRegionId)>,
    /// Its target, for initiators.
    pub(super) route: Option<Route>,
    /// Its target has not answered, or the node has refused a request: what is known of it is
    /// learned again before the next virtual queue pair is opened.
    pub(super) is_doubtful: bool,
    /// What a table had of it when that was last used.
    pub(super) by_table: Option<Target>,
    /// How often tables were believed since the node was asked itself.
    pub(super) tables_believed: u8,
}

impl Node {
    pub(super) fn new(id: NodeId, address: SocketAddr) -> Self {
        Self {
            id,
            address,
            memory: None,
            route: None,
            is_doubtful: false,
            by_table: None,
            tables_believed: 0,
        }
    }
}

/// A shared queue pair.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) physical: PhysicalId,
    pub(super) link: Link,
}

#[derive(Debug)]
pub(super) enum Link {
    Connection {
        /// The index of the node.
        node: usize,
        cm: Id,
        /// When it is given up; none once it is connected.
        until: Option<Instant>,
    },
    Initiator(Initiator),
}

impl Link {
    /// Posts a work request; `false`: the queue pair does not take it.
    pub(super) fn post(&self, work: &Transmit, nodes: &[Node]) -> bool {
        match self {
            Self::Connection { cm, .. } => cm.post(work),
            Self::Initiator(initiator) => {
                let node = nodes.get(work.node.index());
                let route = node.and_then(|node| node.route.as_ref());
                route.is_some_and(|route| initiator.post(work, route))
            }
        }
    }

    pub(super) fn break_connection(&self) {
        match self {
            Self::Connection { cm, .. } => cm.break_connection(),
            Self::Initiator(initiator) => initiator.break_connection(),
        }
    }
}
