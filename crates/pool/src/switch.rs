//! Connections of a pool of initiators to nodes that are used much, and when a node gets one again.

use std::collections::HashMap;

use crate::config::Switching;
use crate::slots::Slots;
use crate::types::{NodeId, VirtualId};
use crate::virtual_qp::VirtualQp;

/// Failures in a row after which the time between attempts does not grow any more.
const DOUBLINGS_MAX: u32 = 6;
/// Members of a connection that are kept before the closed ones are looked for.
const MEMBERS_KEPT: usize = 64;

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It is being made; virtual queue pairs go on with initiators.
    Connecting,
    /// Virtual queue pairs switch to it, and are opened on it.
    Connected,
    /// Virtual queue pairs switch back; when none is left, it is destroyed.
    Leaving,
}

/// A connection to a node, from the decision to make it until its queue pair is destroyed.
#[derive(Debug)]
pub(crate) struct Switched {
    pub(crate) slot: u16,
    pub(crate) node: NodeId,
    pub(crate) phase: Phase,
    /// Windows in a row in which the node was quiet.
    pub(crate) quiet: u32,
    /// Virtual queue pairs that are bound to it, or are about to be; others may have left.
    pub(crate) members: Vec<VirtualId>,
    /// How many of these there may be before those that have left are removed.
    members_kept: usize,
}

/// Attempts to connect to a node have failed.
#[derive(Clone, Copy, Debug)]
struct Failed {
    count: u32,
    /// The window in which there may be the next one.
    until: u64,
}

/// What a pool of initiators has for the switch to connections.
#[derive(Debug)]
pub(crate) struct Switch {
    pub(crate) config: Switching,
    /// Windows that have ended.
    window: u64,
    /// Nodes that were used in this window.
    pub(crate) used: Vec<NodeId>,
    pub(crate) connections: Vec<Switched>,
    /// Slots of shared queue pairs that are destroyed.
    pub(crate) vacant: Vec<u16>,
    failed: HashMap<NodeId, Failed>,
}

impl Switch {
    pub(crate) fn new(config: Switching) -> Self {
        Self {
            config,
            window: 0,
            used: Vec::new(),
            connections: Vec::new(),
            vacant: Vec::new(),
            failed: HashMap::new(),
        }
    }

    /// The connection in a slot.
    pub(crate) fn in_slot(&mut self, slot: u16) -> Option<&mut Switched> {
        self.connections.iter_mut().find(|one| one.slot == slot)
    }

    /// The connection to a node.
    pub(crate) fn to(&mut self, node: NodeId) -> Option<&mut Switched> {
        self.connections.iter_mut().find(|one| one.node == node)
    }

    /// A connection to a node is to be made in a slot.
    pub(crate) fn begin(&mut self, slot: u16, node: NodeId) {
        self.connections.push(Switched {
            slot,
            node,
            phase: Phase::Connecting,
            quiet: 0,
            members: Vec::new(),
            members_kept: MEMBERS_KEPT,
        });
    }

    /// Notes that a virtual queue pair is bound to a shared queue pair, or about to be.
    pub(crate) fn add_member(&mut self, slot: u16, id: VirtualId, virtuals: &Slots<VirtualQp>) {
        let Some(switched) = self.in_slot(slot) else {
            return;
        };
        if switched.members.len() >= switched.members_kept {
            let is_member = |id: &VirtualId| {
                let member = virtuals.get(id.0);
                member.is_some_and(|member| member.physical == slot || member.moving == Some(slot))
            };
            switched.members.retain(is_member);
            switched.members_kept = MEMBERS_KEPT.max(2 * switched.members.len());
        }
        switched.members.push(id);
    }

    /// Windows have ended.
    pub(crate) fn pass(&mut self, windows: u32) {
        self.window += u64::from(windows);
        let now = self.window;
        let retry = u64::from(self.config.retry_windows);
        let is_recent = |failed: &Failed| failed.until + (retry << DOUBLINGS_MAX) >= now;
        self.failed.retain(|_, failed| is_recent(failed));
    }

    /// Whether the last connection to a node has failed, and it is not time for another one.
    pub(crate) fn has_failed(&self, node: NodeId) -> bool {
        let failed = self.failed.get(&node);
        failed.is_some_and(|failed| self.window < failed.until)
    }

    /// A connection to a node could not be made, or has failed.
    pub(crate) fn note_failed(&mut self, node: NodeId) {
        let failed = self
            .failed
            .entry(node)
            .or_insert(Failed { count: 0, until: 0 });
        let wait = u64::from(self.config.retry_windows) << failed.count.min(DOUBLINGS_MAX);
        (failed.count, failed.until) = (failed.count.saturating_add(1), self.window + wait);
    }

    /// A node was removed, or its connection has served.
    pub(crate) fn forgive(&mut self, node: NodeId) {
        self.failed.remove(&node);
    }
}
