//! Nodes, the shared queue pairs that reach them, connections or initiators, and questions to them.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use urdma_node_table::{Region, Target};
use urdma_pool::{HeaderOctets, NodeId, PhysicalId, PoolTerms, RemoteRegionId, Sge, Transmit};

use crate::asking::Terms;
use crate::buffers::{Buffers, Headers};
use crate::ffi::{Id, Initiator, Route};

/// How long a connection may take.
pub(crate) const CONNECT_LIMIT: Duration = Duration::from_secs(30);

/// How long one may take that a pool of initiators makes in the background. A request to connect is
/// sent six times in this time (50 ms after the first, and each further wait is doubled), so that a
/// link with losses does not end the attempt. A node that does not answer takes a place of
/// `Switching::connections_max` no longer than this.
pub(super) const BACKGROUND_LIMIT: Duration = Duration::from_secs(2);

/// After how long a node is asked again that has refused for now.
pub(super) const ASK_AGAIN: Duration = Duration::from_millis(5);

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

    /// What reaches it, if that is known to do so.
    pub(super) fn target(&self) -> Option<Target> {
        let (route, (described, _)) = self.route.as_ref().zip(self.memory)?;
        let target = Target::new(route.number, route.key, described);
        target.filter(|_| !self.is_doubtful)
    }
}

/// A shared queue pair.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) physical: PhysicalId,
    pub(super) link: Link,
}

/// The shared queue pairs, in any order.
#[derive(Debug, Default)]
pub(super) struct SharedPairs {
    all: Vec<Shared>,
    /// Where each is, by [`PhysicalId::index`].
    places: Vec<usize>,
}

impl SharedPairs {
    pub(super) fn push(&mut self, shared: Shared) {
        let index = shared.physical.index();
        if index >= self.places.len() {
            self.places.resize(index + 1, 0);
        }
        self.places[index] = self.all.len();
        self.all.push(shared);
    }

    /// Removes the one at a place, which the last one takes.
    pub(super) fn swap_remove(&mut self, at: usize) -> Shared {
        let removed = self.all.swap_remove(at);
        if let Some(moved) = self.all.get(at) {
            self.places[moved.physical.index()] = at;
        }
        removed
    }

    /// Where the one with an id is, without a search unless another incarnation has its place.
    #[inline]
    pub(super) fn find(&self, id: PhysicalId) -> Option<usize> {
        let at = *self.places.get(id.index())?;
        match self.all.get(at) {
            Some(found) if found.physical == id => Some(at),
            _ => self.search(id),
        }
    }

    /// The one with an id.
    #[inline(always)]
    pub(super) fn of(&self, id: PhysicalId) -> Option<&Shared> {
        let at = *self.places.get(id.index())?;
        match self.all.get(at) {
            Some(found) if found.physical == id => Some(found),
            _ => self.all.get(self.search(id)?),
        }
    }

    #[cold]
    fn search(&self, id: PhysicalId) -> Option<usize> {
        self.all.iter().position(|one| one.physical == id)
    }
}

impl Deref for SharedPairs {
    type Target = [Shared];

    fn deref(&self) -> &[Shared] {
        &self.all
    }
}

impl DerefMut for SharedPairs {
    fn deref_mut(&mut self) -> &mut [Shared] {
        &mut self.all
    }
}

#[derive(Debug)]
pub(super) enum Link {
    Connection(Connection),
    /// With the headers of its messages, if there are any.
    Initiator(Initiator, Option<Headers>),
}

/// A connection that is made, or is to be.
#[derive(Debug)]
pub(super) struct Connection {
    /// The index of the node.
    pub(super) node: usize,
    pub(super) cm: Id,
    /// When it is given up; none once it is connected.
    pub(super) until: Option<Instant>,
    /// When the node is asked again, which has refused for now.
    pub(super) again: Option<Instant>,
    /// Its memory for messages.
    pub(super) block: Option<usize>,
    /// What the node has told, if it has asked for the connection, until that is complete.
    pub(super) told: Option<Terms>,
}

impl Connection {
    /// One that is given up if it takes longer than `limit`.
    pub(super) fn new(node: usize, cm: Id, limit: Duration) -> Self {
        Self {
            node,
            cm,
            until: Some(Instant::now() + limit),
            again: None,
            block: None,
            told: None,
        }
    }
}

/// A question of this client.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) node: NodeId,
    pub(super) terms: PoolTerms,
    pub(super) cm: Id,
    /// When it is given up.
    pub(super) until: Instant,
    /// When the other one is asked again, which has refused for now.
    pub(super) again: Option<Instant>,
}

impl Link {
    /// Posts a work request; `false`: the queue pair does not take it.
    #[inline(always)]
    pub(super) fn post(&self, work: &Transmit, elements: &[Sge], nodes: &[Node]) -> bool {
        match self {
            Self::Connection(connection) => connection.cm.post(work, elements),
            Self::Initiator(initiator, _) => {
                let node = nodes.get(work.node.index());
                let route = node.and_then(|node| node.route.as_ref());
                // A copy, so that the work request of a connection needs no place in memory.
                let work = *work;
                route.is_some_and(|route| initiator.post(&work, elements, route))
            }
        }
    }

    /// Posts a Send with its header; `false`: the queue pair does not take it.
    #[inline(never)]
    pub(super) fn post_message(
        &self,
        work: &Transmit,
        elements: &[Sge],
        header: &HeaderOctets,
        (buffers, nodes): (&Buffers, &[Node]),
    ) -> bool {
        match self {
            Self::Connection(Connection { cm, block, .. }) => {
                let header = block.and_then(|block| buffers.header(block, work.wr_id, header).ok());
                header.is_some_and(|header| cm.post_with_header(work, header, elements))
            }
            Self::Initiator(initiator, headers) => {
                let header = headers.as_ref().map(|own| own.write(work.wr_id, header));
                let node = nodes.get(work.node.index());
                let route = node.and_then(|node| node.route.as_ref());
                let ready = header.and_then(Result::ok).zip(route);
                ready.is_some_and(|(header, route)| {
                    initiator.post_with_header(work, header, elements, route)
                })
            }
        }
    }

    /// The index of its only node.
    pub(super) fn node(&self) -> Option<usize> {
        match self {
            Self::Connection(connection) => Some(connection.node),
            Self::Initiator(..) => None,
        }
    }

    /// Its memory for messages.
    pub(super) fn block(&self) -> Option<usize> {
        match self {
            Self::Connection(connection) => connection.block,
            Self::Initiator(..) => None,
        }
    }

    pub(super) fn break_connection(&self) {
        match self {
            Self::Connection(connection) => connection.cm.break_connection(),
            Self::Initiator(initiator, _) => initiator.break_connection(),
        }
    }
}
