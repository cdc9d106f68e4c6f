//! Removal of nodes without virtual queue pairs, in the order of their last use, when the driver
//! asks for it. Their connections are destroyed, and the places of these are vacant: they are taken
//! before further ones.

use crate::fault::Fault;
use crate::pool::Pool;
use crate::types::NodeId;

impl Pool {
    /// Nodes that are known.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Removes the node to which the last virtual queue pair was closed the longest time ago, or,
    /// if none was opened, which was added then; none if virtual queue pairs are open to all. What
    /// is posted to it ends without a completion. The caller removes its memory.
    pub fn remove_idle_node(&mut self) -> Option<NodeId> {
        self.book();
        let id = self.longest_idle()?;
        self.remove(id).then_some(id)
    }

    /// Whether virtual queue pairs are open to a node.
    pub fn is_used(&self, id: NodeId) -> bool {
        self.nodes.get(id.0).is_some_and(|node| node.members > 0)
    }

    /// Removes a node as [`Pool::remove_idle_node`] does; `false` if it is not known, or virtual
    /// queue pairs are open to it.
    pub fn remove_node(&mut self, id: NodeId) -> bool {
        self.book();
        let is_removed = !self.is_used(id) && self.remove(id);
        if is_removed {
            let nodes = &self.nodes;
            self.idle
                .forget(|other| nodes.get(other.0).is_some(), nodes.len());
        }
        is_removed
    }

    fn remove(&mut self, id: NodeId) -> bool {
        let Some(removed) = self.nodes.remove(id.0) else {
            return false;
        };
        let is_switched = self.drop_connection(id);
        for slot in removed.physicals.into_iter().filter(|_| !is_switched) {
            self.forget_connection(slot);
            self.retire_physical(slot);
            self.idle.vacant.push(slot);
        }
        self.stats.removed += 1;
        true
    }

    /// Takes the node out of those that may be idle which is so for the longest time.
    fn longest_idle(&mut self) -> Option<NodeId> {
        loop {
            let (since, id) = self.idle.pop()?;
            let Some(node) = self.nodes.get_mut(id.0) else {
                continue;
            };
            node.is_listed = false;
            if node.members > 0 && !self.faults.has(Fault::NodesRemovedInUse) {
                // It is listed again when it becomes idle.
                continue;
            }
            if node.idle_since == since || self.faults.has(Fault::NodesRemovedInAnyOrder) {
                return Some(id);
            }
            node.is_listed = true;
            self.idle.list(node.idle_since, id);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        Access, Action, CallError, Config, NodeId, Operation, Pool, Posted, RemoteRegion, Request,
        Transport, UserId, VirtualId,
    };

    const SQ_DEPTH: u32 = 4;
    const CONNECTIONS: u32 = 3;

    fn pool_of(nodes_max: u32) -> Pool {
        let config = Config {
            sq_depth: SQ_DEPTH,
            cq_depth: CONNECTIONS * SQ_DEPTH,
            transport: Transport::Connections { per_node: 1 },
            nodes_max,
            ..Config::default()
        };
        Pool::new(&config).unwrap()
    }

    /// Connects and destroys as the pool says; `connected` changes by it.
    fn drive(pool: &mut Pool, connected: &mut u32) {
        while let Some(action) = pool.poll_action() {
            match action {
                Action::Connect(id, _) => {
                    pool.handle_connected(id);
                    *connected += 1;
                }
                Action::Destroy(id) => {
                    pool.handle_destroyed(id);
                    *connected -= 1;
                }
                other => panic!("{other:?}"),
            }
            assert!(*connected <= CONNECTIONS, "more than the queue serves");
        }
    }

    /// A READ without octets.
    fn read_of(pool: &mut Pool, node: NodeId) -> Request {
        let region = RemoteRegion {
            node,
            addr: 0,
            len_octets: 8,
            rkey: 1,
            access: Access::ALL,
        };
        Request {
            id: 1,
            operation: Operation::Read,
            remote: pool.add_remote(region).unwrap(),
            remote_addr: 0,
            is_signaled: true,
        }
    }

    fn open(pool: &mut Pool, node: NodeId) -> Result<VirtualId, CallError> {
        pool.open(UserId(0), node, 1, Access::ALL)
    }

    #[test]
    fn ten_thousand_nodes_need_the_places_of_a_few() {
        let mut pool = pool_of(5);
        let mut connected = 0;
        for n in 0..10_000 {
            if n >= 5 {
                assert_eq!(pool.add_node(), Err(CallError::Limit("nodes")));
                assert!(pool.remove_idle_node().is_some());
            }
            let node = pool.add_node().unwrap();
            let opened = open(&mut pool, node).unwrap();
            drive(&mut pool, &mut connected);
            pool.close(opened).unwrap();
            assert!(node.index() < 5 && pool.physicals.len() <= CONNECTIONS as usize);
        }
        assert_eq!((pool.nodes(), pool.stats().removed), (5, 9_995));
    }

    /// Two connections have refused their first requests, and the second is being destroyed, when
    /// the place goes to another node.
    #[test]
    fn refusals_of_a_node_do_not_count_for_the_next_one_in_its_place() {
        let mut pool = pool_of(5);
        let nodes: Vec<NodeId> = (0..4).map(|_| pool.add_node().unwrap()).collect();
        let mut connected = 0;
        let _others = [open(&mut pool, nodes[1]), open(&mut pool, nodes[2])];
        let refusing = open(&mut pool, nodes[0]).unwrap();
        drive(&mut pool, &mut connected);
        let read = read_of(&mut pool, nodes[0]);
        pool.post(refusing, &read, &[]).unwrap();
        pool.transmit(|_, _| Posted::Refused);
        drive(&mut pool, &mut connected);
        pool.transmit(|_, _| Posted::Refused);
        pool.close(refusing).unwrap();
        let next = open(&mut pool, nodes[3]).unwrap();
        let read = read_of(&mut pool, nodes[3]);
        pool.post(next, &read, &[]).unwrap();
        drive(&mut pool, &mut connected);
        assert_eq!(pool.poll(next), None, "its node was not asked");
        let mut posted = 0;
        pool.transmit(|_, _| {
            posted += 1;
            Posted::Accepted
        });
        assert_eq!(posted, 1);
    }

    #[test]
    fn connection_of_an_idle_node_gives_its_place_to_a_new_one() {
        let mut pool = pool_of(5);
        let mut connected = 0;
        let nodes: Vec<NodeId> = (0..5).map(|_| pool.add_node().unwrap()).collect();
        let first: Vec<VirtualId> = (0..3).map(|n| open(&mut pool, nodes[n]).unwrap()).collect();
        drive(&mut pool, &mut connected);
        let limit = Err(CallError::Limit("shared queue pairs"));
        assert_eq!(open(&mut pool, nodes[3]), limit);
        pool.close(first[1]).unwrap();
        pool.close(first[0]).unwrap();
        // The second one is idle for a longer time.
        let fourth = open(&mut pool, nodes[3]).unwrap();
        drive(&mut pool, &mut connected);
        assert_eq!((connected, pool.stats().retired), (CONNECTIONS, 1));
        open(&mut pool, nodes[0]).unwrap();
        assert_eq!(pool.poll_action(), None, "its connection is there");
        assert_eq!(open(&mut pool, nodes[1]), limit);
        pool.close(fourth).unwrap();
        open(&mut pool, nodes[1]).unwrap();
        drive(&mut pool, &mut connected);
        assert_eq!((connected, pool.stats().retired), (CONNECTIONS, 2));
    }
}
