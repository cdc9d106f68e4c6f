//! Nodes are removed, and others take their places.

use super::work::fail;
use super::world::{World, NODES};
use super::{Finding, Rng};
use crate::{Access, UserId};

impl World {
    /// A node is removed, and another one added.
    pub(super) fn replace_node(&mut self, rng: &mut Rng) -> Result<(), Finding> {
        if self.pool.add_node().is_ok() {
            return fail("there are more nodes than configured");
        }
        let removed = match rng.percent(70) {
            true => self.remove_idle_node()?,
            false => self.remove_any_node(rng)?,
        };
        match removed {
            Some(at) => self.add_node_at(at),
            None => Ok(()),
        }
    }

    /// Any node is removed, unless it is used; where it was.
    fn remove_any_node(&mut self, rng: &mut Rng) -> Result<Option<usize>, Finding> {
        let at = rng.below(NODES) as usize;
        let (node, is_used) = (self.nodes[at], self.is_used(self.nodes[at]));
        if self.pool.is_used(node) != is_used || self.pool.remove_node(node) == is_used {
            return fail("a node is removed that is used, or one is kept that is not");
        }
        Ok((!is_used).then_some(at))
    }

    /// The node that was not used for the longest time is removed; where it was.
    fn remove_idle_node(&mut self) -> Result<Option<usize>, Finding> {
        let idle = (0..NODES as usize).filter(|at| !self.is_used(self.nodes[*at]));
        let expected = idle.min_by_key(|at| self.idle_since[*at]);
        let removed = self.pool.remove_idle_node();
        if removed != expected.map(|at| self.nodes[at]) {
            return fail(format!("node {removed:?} is removed, not {expected:?}"));
        }
        Ok(expected)
    }

    /// Another node takes the place of one that was removed.
    fn add_node_at(&mut self, at: usize) -> Result<(), Finding> {
        let node = self.nodes[at];
        if self.pool.open(UserId(0), node, 1, Access::ALL).is_ok() {
            return fail("a node that was removed can be reached");
        }
        for remote in &mut self.remotes {
            if remote.region.node != node {
                continue;
            }
            remote.is_valid = false;
            if std::mem::replace(&mut remote.is_known, false) {
                let ended = self.pool.remove_remote(remote.id);
                ended.map_err(|error| error.to_string())?;
            }
        }
        self.nodes[at] = self.pool.add_node().map_err(|error| error.to_string())?;
        self.note_idle(self.nodes[at]);
        self.add_remotes(at);
        Ok(())
    }
}
