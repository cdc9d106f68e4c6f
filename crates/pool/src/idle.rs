//! What may be no longer used: nodes by the time of their last use, and places of connections.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::slots::Id;
use crate::types::NodeId;

/// What a pool has of them.
#[derive(Debug, Default)]
pub(crate) struct Idle {
    /// Counts what becomes idle.
    clock: u64,
    /// Nodes that may be idle: since when they were, at the earliest, slot and generation. A node
    /// is in it once, whether it was used since or not.
    nodes: BinaryHeap<Reverse<(u64, u32, u32)>>,
    /// Slots of connections whose nodes were removed.
    pub(crate) vacant: Vec<u16>,
}

impl Idle {
    /// The next moment.
    pub(crate) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Lists a node, which is idle since a moment.
    pub(crate) fn list(&mut self, since: u64, node: NodeId) {
        let Id { slot, generation } = node.0;
        self.nodes.push(Reverse((since, slot, generation)));
    }

    /// Drops the nodes that are not known any more, if most of those that are listed may be such;
    /// `known` is how many are known.
    pub(crate) fn forget(&mut self, is_known: impl Fn(NodeId) -> bool, known: usize) {
        if self.nodes.len() > 2 * known + 4 {
            self.nodes.retain(|Reverse((_, slot, generation))| {
                is_known(NodeId(Id {
                    slot: *slot,
                    generation: *generation,
                }))
            });
        }
    }

    /// The node that was listed with the earliest moment, which is not listed any more.
    pub(crate) fn pop(&mut self) -> Option<(u64, NodeId)> {
        let Reverse((since, slot, generation)) = self.nodes.pop()?;
        Some((since, NodeId(Id { slot, generation })))
    }
}
