//! Nodes of a pool of initiators that are used much are connected to, and virtual queue pairs
//! switch between initiators and connections. doc/design/pool-switch.md has the rules.
//!
//! A virtual queue pair switches when nothing of it is in flight. Until then it posts nothing, so
//! that each request is posted to one queue pair at a time, behind those before it.

use std::cmp::Reverse;

use crate::fault::Fault;
use crate::physical_qp::PhysicalQp;
use crate::pool::Pool;
use crate::switch::Phase;
use crate::types::{NodeId, PhysicalState, VirtualId};

/// Which part of the requests for which a node is connected to keeps its connection.
const QUIET_PART: u32 = 4;

impl Pool {
    /// Windows of `Switching::window` have ended since the last call, 1 or more: nodes that were
    /// used much are connected to, and connections of those that were quiet are given up.
    pub fn end_windows(&mut self, windows: u32) {
        self.book();
        let Some(switch) = &mut self.switch else {
            return;
        };
        let windows = windows.max(1);
        switch.pass(windows);
        let least = u64::from(switch.config.requests) * u64::from(windows);
        self.leave_quiet(windows);
        for id in self.take_used_much(least) {
            self.connect_if_possible(id);
        }
    }

    /// Begins to count anew; nodes that got at least this number of requests, the one with the most
    /// first.
    fn take_used_much(&mut self, least: u64) -> Vec<NodeId> {
        let Some(switch) = &mut self.switch else {
            return Vec::new();
        };
        let mut much = Vec::new();
        for id in switch.used.drain(..) {
            let Some(node) = self.nodes.get_mut(id.0) else {
                continue;
            };
            let requests = std::mem::take(&mut node.requests);
            if u64::from(requests) >= least {
                much.push((Reverse(requests), id));
            }
        }
        much.sort_unstable_by_key(|(requests, id)| (*requests, id.0));
        much.into_iter().map(|(_, id)| id).collect()
    }

    /// Gives up the connections to nodes that were quiet for long enough.
    fn leave_quiet(&mut self, windows: u32) {
        let Some(switch) = &mut self.switch else {
            return;
        };
        let least = u64::from((switch.config.requests / QUIET_PART).max(1)) * u64::from(windows);
        let quiet_windows = switch.config.quiet_windows;
        let mut quiet = Vec::new();
        for one in &mut switch.connections {
            let node = self.nodes.get(one.node.0);
            let is_quiet = node.is_none_or(|node| u64::from(node.requests) < least);
            one.quiet = match is_quiet {
                true => one.quiet.saturating_add(windows),
                false => 0,
            };
            if one.phase == Phase::Connected && one.quiet >= quiet_windows {
                quiet.push((one.slot, one.node));
            }
        }
        if !self.faults.has(Fault::SwitchedForever) {
            for (slot, node) in quiet {
                if let Some(switch) = &mut self.switch {
                    switch.forgive(node);
                }
                self.leave_connection(slot);
            }
        }
    }

    /// Connects to a node that is used much, unless an attempt has failed, or makes room for its
    /// connection.
    fn connect_if_possible(&mut self, node: NodeId) {
        let (is_eager, is_unbounded) = (
            self.faults.has(Fault::SwitchRetriedAtOnce),
            self.faults.has(Fault::SwitchUnbounded),
        );
        let Some(switch) = &mut self.switch else {
            return;
        };
        let has_to_wait = switch.has_failed(node) && !is_eager;
        if has_to_wait || switch.to(node).is_some() {
            return;
        }
        if switch.connections.len() < switch.config.connections_max.into() || is_unbounded {
            self.begin_connection(node);
            return;
        }
        // The least recently used one. The node gets its place if it is still used much when that
        // is vacant.
        let connected = switch.connections.iter();
        let connected = connected.filter(|one| one.phase == Phase::Connected && one.quiet > 0);
        let quiet = connected.max_by_key(|one| one.quiet).map(|one| one.slot);
        if let Some(slot) = quiet {
            self.leave_connection(slot);
        }
    }

    fn begin_connection(&mut self, node: NodeId) {
        let Some(switch) = &mut self.switch else {
            return;
        };
        let slot = match switch.vacant.pop() {
            Some(slot) => slot,
            None => {
                let Ok(slot) = u16::try_from(self.physicals.len()) else {
                    return;
                };
                self.physicals.push(PhysicalQp::new(slot, Some(node)));
                slot
            }
        };
        switch.begin(slot, node);
        let shared = &mut self.physicals[usize::from(slot)];
        (shared.node, shared.refusals) = (Some(node), 0);
        self.connect(slot);
    }

    /// A queue pair is connected. If it is a connection of a pool of initiators, virtual queue
    /// pairs to its node switch to it, each when it posts its next request.
    pub(crate) fn note_switchable(&mut self, slot: u16) {
        let switch = self.switch.as_deref_mut();
        let Some(switched) = switch.and_then(|switch| switch.in_slot(slot)) else {
            return;
        };
        switched.phase = Phase::Connected;
        if let Some(node) = self.nodes.get_mut(switched.node.0) {
            node.physicals.push(slot);
        }
    }

    /// Counts a request, and has its virtual queue pair switch if its node is connected.
    #[inline(never)]
    pub(crate) fn note_use(&mut self, id: VirtualId) {
        let (Some(member), Some(switch)) = (self.virtuals.get_mut(id.0), &mut self.switch) else {
            return;
        };
        if member.end.is_some() {
            // Its requests are in order with its messages.
            return;
        }
        let Some(node) = self.nodes.get_mut(member.node.0) else {
            return;
        };
        if node.requests == 0 {
            switch.used.push(member.node);
        }
        node.requests = node.requests.saturating_add(1);
        let connection = node.physicals.first().copied();
        let Some(slot) = connection.filter(|slot| *slot != member.physical) else {
            return;
        };
        let is_ready = self.physicals[usize::from(slot)].state == PhysicalState::Ready;
        if is_ready && member.moving.is_none() {
            self.begin_move(id, slot);
        }
    }

    /// A virtual queue pair posts nothing until it has switched.
    fn begin_move(&mut self, id: VirtualId, to: u16) {
        let (Some(member), Some(switch)) = (self.virtuals.get_mut(id.0), &mut self.switch) else {
            return;
        };
        member.begin_move(to);
        let from = member.physical;
        switch.add_member(to, id, &self.virtuals);
        if self.physicals[usize::from(from)].state == PhysicalState::Ready {
            // If it has a turn, that ends first.
            self.activate(from);
        }
        self.try_rebind(id);
    }

    /// Has the virtual queue pairs of a connection switch back, and destroys it then.
    fn leave_connection(&mut self, slot: u16) {
        self.begin_leaving(slot);
        self.retire_left(slot);
    }

    /// Has the virtual queue pairs of a connection switch back to initiators; those that were about
    /// to switch to it stay.
    fn begin_leaving(&mut self, slot: u16) {
        let switch = self.switch.as_deref_mut();
        let Some(switched) = switch.and_then(|switch| switch.in_slot(slot)) else {
            return;
        };
        switched.phase = Phase::Leaving;
        let members = std::mem::take(&mut switched.members);
        if let Some(node) = self.nodes.get_mut(switched.node.0) {
            node.physicals.clear();
        }
        for id in &members {
            self.leave(slot, *id);
        }
        // Some are bound to it until their requests are complete.
        let switch = self.switch.as_deref_mut();
        if let Some(switched) = switch.and_then(|switch| switch.in_slot(slot)) {
            switched.members = members;
        }
    }

    /// Has a virtual queue pair switch back from a connection, or not switch to it.
    fn leave(&mut self, slot: u16, id: VirtualId) {
        let Some(member) = self.virtuals.get_mut(id.0) else {
            return;
        };
        if member.physical != slot {
            if member.moving == Some(slot) && !self.faults.has(Fault::SwitchNotCancelled) {
                member.end_move(self.config.in_flight_max);
                self.list(id);
            }
        } else if member.moving.is_none() {
            let members = |slot: &u16| self.physicals[usize::from(*slot)].members;
            let initiator = self.initiators.iter().copied().min_by_key(members);
            if let Some(initiator) = initiator {
                self.begin_move(id, initiator);
            }
        }
    }

    /// The queue pair of a connection is destroyed, or was not made: its virtual queue pairs switch
    /// back, those with requests in flight when these are settled.
    pub(crate) fn begin_ending(&mut self, slot: u16) {
        let Some(switch) = &mut self.switch else {
            return;
        };
        let Some(switched) = switch.in_slot(slot) else {
            return;
        };
        if switched.phase != Phase::Leaving {
            let node = switched.node;
            switch.note_failed(node);
            self.stats.switches_failed += 1;
        }
        for id in self.physicals[usize::from(slot)].take_turns() {
            if let Some(member) = self.virtuals.get_mut(id.0) {
                member.is_listed = false;
            }
        }
        if !self.faults.has(Fault::SwitchForgotten) {
            self.begin_leaving(slot);
        }
    }

    /// The requests of a queue pair that is destroyed, or was not made, are settled. If it was a
    /// connection of a pool of initiators, its place is vacant.
    pub(crate) fn end_connection(&mut self, slot: u16) -> bool {
        let Some(switch) = &mut self.switch else {
            return false;
        };
        let Some(at) = switch.connections.iter().position(|one| one.slot == slot) else {
            return false;
        };
        let ended = switch.connections.swap_remove(at);
        switch.vacant.push(slot);
        for id in ended.members {
            let member = self.virtuals.get(id.0);
            if member.is_some_and(|member| member.physical == slot) {
                self.try_rebind(id);
            }
        }
        true
    }

    /// A node was removed: its connection is destroyed. Whether that is done here.
    pub(crate) fn drop_connection(&mut self, node: NodeId) -> bool {
        let Some(switch) = &mut self.switch else {
            return false;
        };
        switch.forgive(node);
        if let Some(switched) = switch.to(node) {
            switched.phase = Phase::Leaving;
            let slot = switched.slot;
            self.retire_physical(slot);
        }
        true
    }
}
