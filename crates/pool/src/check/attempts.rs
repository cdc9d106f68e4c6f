//! When a pool of initiators may connect to a node.

use super::work::fail;
use super::Finding;
use crate::{NodeId, Switching};

/// What the checker has of the attempts.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    /// Windows that have ended.
    pub(super) window: u64,
    /// Nodes whose connections could not be made, and when.
    failures: Vec<(NodeId, u64)>,
}

impl Attempts {
    /// A connection cannot be made.
    pub(super) fn note_failure(&mut self, node: NodeId) {
        self.failures.push((node, self.window));
    }

    /// The pool connects to a node: not soon after a failure.
    pub(super) fn check(&self, node: NodeId, switching: &Switching) -> Result<(), Finding> {
        let mut failures = self.failures.iter().rev();
        let last = failures.find(|(failed, _)| *failed == node);
        match last {
            Some((_, window)) if self.window < window + u64::from(switching.retry_windows) => {
                fail("a node is connected to too soon after a failure")
            }
            _ => Ok(()),
        }
    }
}
