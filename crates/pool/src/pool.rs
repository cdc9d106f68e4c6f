//! The pool: turns of virtual queue pairs and of its own messages, and what ends with an error.

use std::collections::{BTreeSet, VecDeque};
use std::mem::take;

use crate::config::Config;
use crate::credit::{Class, Grant};
use crate::end::End;
use crate::error::ConfigError;
use crate::exchange::{Control, Exchange, ExchangeId, Exchanges};
use crate::fault::{Fault, Faults};
use crate::idle::Idle;
use crate::lone::Lone;
use crate::meeting::PoolTerms;
use crate::physical_qp::PhysicalQp;
use crate::regions::Regions;
use crate::services::Messages;
use crate::slots::Slots;
use crate::switch::{Phase, Switch};
use crate::types::{
    Action, BufferAction, EndState, LocalRegionId, NodeId, PhysicalState, Sge, Status, VirtualId,
    VirtualState,
};
use crate::virtual_qp::VirtualQp;

/// Counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Work requests that were posted.
    pub posted: u64,
    /// Of them, those that were signaled.
    pub signaled: u64,
    /// Requests of users that were refused.
    pub refused: u64,
    /// Shared queue pairs that failed.
    pub failed: u64,
    /// Virtual queue pairs whose requests were posted again to a replacement.
    pub repeated: u64,
    /// Completions of virtual queue pairs that had been closed.
    pub closed: u64,
    /// Completions of shared queue pairs that had been destroyed.
    pub stale: u64,
    /// Nodes that were removed.
    pub removed: u64,
    /// Shared queue pairs without members that were destroyed for another node, or with their own.
    pub retired: u64,
    /// Messages that were dropped, since no pool sends them, or not to the virtual queue pair that
    /// they name.
    pub dropped: u64,
    /// Sends that were dropped, since they had been delivered before.
    pub duplicates: u64,
    /// Virtual queue pairs that have switched from an initiator to a connection, or were opened on
    /// one.
    pub switched_to_connections: u64,
    /// Those that have switched back.
    pub switched_back: u64,
    /// Connections of a pool of initiators that could not be made, or have failed.
    pub switches_failed: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Node {
    pub(crate) physicals: Vec<u16>,
    /// Virtual queue pairs to it.
    pub(crate) members: u32,
    /// Requests to it in this window, if nodes may be switched to connections.
    pub(crate) requests: u32,
    /// When it was added, or the last of them was closed.
    pub(crate) idle_since: u64,
    /// Whether it is among those that may be idle.
    pub(crate) is_listed: bool,
    /// The last terms that it has told by which messages were exchanged over initiators.
    pub(crate) told: Option<PoolTerms>,
}

/// Virtual queue pairs on shared ones.
///
/// Users call `open`, `post`, `poll`, `reset` and `close`. The driver calls `handle_completion` and
/// the other `handle_` calls when something happens, and after any call of either drains
/// `poll_buffer_action`, `transmit` and `poll_action`, in this order.
#[derive(Debug)]
pub struct Pool {
    pub(crate) config: Config,
    pub(crate) nodes: Slots<Node>,
    pub(crate) idle: Idle,
    pub(crate) regions: Regions,
    pub(crate) virtuals: Slots<VirtualQp>,
    pub(crate) physicals: Vec<PhysicalQp>,
    /// Slots of those that reach every node.
    pub(crate) initiators: Vec<u16>,
    /// Slots of those that may have something to post.
    pub(crate) active: VecDeque<u16>,
    pub(crate) actions: VecDeque<Action>,
    pub(crate) messages: Messages,
    pub(crate) exchanges: Exchanges,
    /// A request that is posted, or has succeeded, and is not booked.
    pub(crate) lone: Option<Lone>,
    /// None if each virtual queue pair stays with its transport.
    pub(crate) switch: Option<Box<Switch>>,
    /// The scatter-gather list of the work request that is being posted.
    pub(crate) elements: Vec<Sge>,
    pub(crate) stats: Stats,
    pub(crate) faults: Faults,
}

impl Pool {
    /// A pool that knows no node.
    ///
    /// # Errors
    /// If the configuration does not work.
    pub fn new(config: &Config) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            config: *config,
            nodes: Slots::default(),
            idle: Idle::default(),
            regions: Regions::default(),
            virtuals: Slots::default(),
            physicals: Vec::new(),
            initiators: Vec::new(),
            active: VecDeque::new(),
            actions: VecDeque::new(),
            messages: Messages::default(),
            exchanges: Exchanges::new(config.transport),
            lone: None,
            switch: config.switching.map(|config| Box::new(Switch::new(config))),
            elements: Vec::new(),
            stats: Stats::default(),
            faults: Faults::default(),
        })
    }

    /// Counters.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Books the request that is not, if there is one. Every call does so before it looks at queues
    /// or changes what a request in flight needs.
    #[inline(always)]
    pub(crate) fn book(&mut self) {
        if self.lone.is_some() {
            self.book_lone();
        }
    }

    #[inline(never)]
    fn book_lone(&mut self) {
        let Some(lone) = self.lone.take() else {
            return;
        };
        let Some(member) = self.virtuals.get_mut(lone.of.0) else {
            return;
        };
        let shared = &mut self.physicals[usize::from(lone.physical)];
        if !self.faults.has(Fault::LoneForgotten) {
            lone.book((member, shared), &mut self.regions, self.faults);
        }
    }

    /// Notes that no virtual queue pair is open to a node.
    pub(crate) fn note_idle_node(&mut self, id: NodeId) {
        let now = self.idle.tick();
        let Some(node) = self.nodes.get_mut(id.0) else {
            return;
        };
        node.idle_since = now;
        if !std::mem::replace(&mut node.is_listed, true) {
            self.idle.list(now, id);
        }
    }

    /// What has needed a node does not any more.
    pub(crate) fn leave_node(&mut self, id: NodeId) {
        if let Some(node) = self.nodes.get_mut(id.0) {
            node.members -= 1;
            if node.members == 0 {
                self.note_idle_node(id);
            }
        }
    }

    /// Gives a virtual queue pair a turn if it has something to send and none yet.
    pub(crate) fn list(&mut self, id: VirtualId) {
        let Some(member) = self.virtuals.get_mut(id.0) else {
            return;
        };
        if member.is_listed {
            return;
        }
        if member.next(self.faults).is_none() {
            if member.moving.is_some() {
                self.try_rebind(id);
            }
            return;
        }
        member.is_listed = true;
        let slot = member.physical;
        let shared = &mut self.physicals[usize::from(slot)];
        shared.add_turn(member.finish.max(shared.time), id);
        match shared.state {
            PhysicalState::Ready => self.activate(slot),
            PhysicalState::Down => self.connect(slot),
            PhysicalState::Connecting | PhysicalState::Accepting | PhysicalState::Failing => {}
        }
    }

    pub(crate) fn connect(&mut self, slot: u16) {
        let shared = &mut self.physicals[usize::from(slot)];
        shared.state = PhysicalState::Connecting;
        let id = shared.id();
        let action = match shared.node {
            Some(node) => Action::Connect(id, node),
            None => Action::Create(id),
        };
        self.actions.push_back(action);
    }

    pub(crate) fn activate(&mut self, slot: u16) {
        let shared = &mut self.physicals[usize::from(slot)];
        if !std::mem::replace(&mut shared.is_active, true) {
            self.active.push_back(slot);
        }
    }

    /// Ends all requests of a virtual queue pair.
    pub(crate) fn fail(&mut self, id: VirtualId, status: Status) {
        let Some(member) = self.virtuals.get_mut(id.0) else {
            return;
        };
        let (regions, actions) = (&mut self.regions, &mut self.actions);
        member.fail(status, self.faults, |local| {
            release(regions, actions, local);
        });
        self.break_end(id, EndState::Closed, true);
    }

    /// Binds a virtual queue pair to the queue pair to which it switches, if it has no turn at the
    /// one before, and nothing in flight.
    #[cold]
    pub(crate) fn try_rebind(&mut self, id: VirtualId) {
        let Some(member) = self.virtuals.get_mut(id.0) else {
            return;
        };
        let is_drained = member.in_flight() == 0 || self.faults.has(Fault::SwitchedInFlight);
        let has_turn = member.is_listed && !self.faults.has(Fault::SwitchTurnsKept);
        if !is_drained || has_turn {
            return;
        }
        let Some(to) = member.end_move(self.config.in_flight_max) else {
            return;
        };
        let from = std::mem::replace(&mut member.physical, to);
        // The virtual time of the other one differs.
        (member.finish, member.is_listed) = (0, false);
        self.physicals[usize::from(from)].members -= 1;
        let shared = &mut self.physicals[usize::from(to)];
        shared.members += 1;
        match shared.node {
            Some(_) => self.stats.switched_to_connections += 1,
            None => self.stats.switched_back += 1,
        }
        self.retire_left(from);
        self.list(id);
    }

    /// Destroys a connection that all virtual queue pairs have left.
    pub(crate) fn retire_left(&mut self, slot: u16) {
        let switch = self.switch.as_deref_mut();
        let switched = switch.and_then(|switch| switch.in_slot(slot));
        let is_leaving = switched.is_some_and(|switched| switched.phase == Phase::Leaving);
        if is_leaving && self.physicals[usize::from(slot)].members == 0 {
            self.retire_physical(slot);
        }
    }

    /// Destroys a shared queue pair without members, if there is one in the slot.
    pub(crate) fn retire_physical(&mut self, slot: u16) {
        let shared = &mut self.physicals[usize::from(slot)];
        match shared.state {
            PhysicalState::Down | PhysicalState::Failing => {}
            PhysicalState::Connecting | PhysicalState::Accepting | PhysicalState::Ready => {
                self.stats.retired += 1;
                if self.faults.has(Fault::ConnectionsKept) {
                    shared.renew();
                    shared.in_flight.truncate(0);
                    shared.other_locals.clear();
                    shared.state = PhysicalState::Down;
                    return;
                }
                shared.state = PhysicalState::Failing;
                self.actions.push_back(Action::Destroy(shared.id()));
                let exchange = self.exchanges.id_of_connection(slot);
                if let Some(exchange) = self.exchanges.get_mut(exchange) {
                    // What still arrives is not from the node that gets its place.
                    exchange.grant = Grant::default();
                }
            }
        }
    }

    #[cold]
    pub(crate) fn begin_failing(&mut self, slot: u16) {
        let shared = &mut self.physicals[usize::from(slot)];
        if shared.state == PhysicalState::Ready {
            shared.state = PhysicalState::Failing;
            self.stats.failed += 1;
            self.actions.push_back(Action::Destroy(shared.id()));
        }
    }

    /// The virtual queue pair whose turn it is, unless it has to wait: it is ahead of its share by
    /// a limit at most, which is less while others have requests in flight.
    #[inline]
    pub(crate) fn permitted_turn(&mut self, slot: u16) -> Option<(u64, VirtualId)> {
        let (start, id) = self.first_turn(slot)?;
        let shared = &self.physicals[usize::from(slot)];
        let posted = self.virtuals.get(id.0).map_or(0, VirtualQp::in_flight);
        let is_permitted = shared.is_permitted(start, posted, &self.config, self.faults);
        is_permitted.then_some((start, id))
    }

    /// The virtual queue pair whose next request begins first.
    #[inline]
    pub(crate) fn first_turn(&mut self, slot: u16) -> Option<(u64, VirtualId)> {
        let (start, id) = self.physicals[usize::from(slot)].first_turn()?;
        let member = self.virtuals.get(id.0);
        match member.and_then(|member| member.next(self.faults)) {
            Some(next) if !next.operation.is_send() => Some((start, id)),
            _ => self.find_turn(slot),
        }
    }

    /// [`Pool::first_turn`], where that may be of a Send, of the pool itself, or of none.
    #[inline(never)]
    fn find_turn(&mut self, slot: u16) -> Option<(u64, VirtualId)> {
        loop {
            let shared = &mut self.physicals[usize::from(slot)];
            let (start, id) = shared.first_turn()?;
            let Some(member) = self.virtuals.get_mut(id.0) else {
                match ExchangeId::of_own(id) {
                    None => shared.skip_closed_turn(),
                    Some(own) if self.has_own(slot, own) => return Some((start, id)),
                    Some(own) => self.end_own_turn(slot, own),
                }
                continue;
            };
            match member.next(self.faults) {
                Some(next) if !next.operation.is_send() => return Some((start, id)),
                Some(next) => {
                    let segment = member.next_segment(next, self.messages.segment_octets_max());
                    let send = (member.next_sequence(), segment);
                    let has_credit = member.in_flight() < self.config.in_flight_max as usize;
                    let exchange = self.exchanges.id_of(slot, member.node);
                    let end = member.end.as_mut().filter(|_| has_credit);
                    let ends = self.exchanges.get_mut(exchange).zip(end);
                    if ends.is_some_and(|(exchange, end)| {
                        exchange.permits_send(id, end, send, self.faults)
                    }) {
                        return Some((start, id));
                    }
                }
                None => {}
            }
            // Its requests that are posted have to be complete first, or it switches, or a Send has
            // no credit or is not taken, or it has failed.
            member.is_listed = false;
            shared.end_turn();
            if member.moving.is_some() {
                self.try_rebind(id);
            }
        }
    }

    pub(crate) fn has_room(&self, slot: u16) -> bool {
        self.physicals[usize::from(slot)].has_room(&self.config, self.faults)
    }

    /// Whether a message of the pool itself waits that may be posted. Those that have become
    /// pointless are dropped.
    pub(crate) fn has_own(&mut self, slot: u16, id: ExchangeId) -> bool {
        // A turn may be that of an exchange before.
        let exchange = self.exchanges.get_mut(id);
        let Some(exchange) = exchange.filter(|found| found.physical == slot && found.may_send())
        else {
            return false;
        };
        while let Some(control) = exchange.controls.front() {
            let end_of = |id: &VirtualId| self.virtuals.get(id.0)?.end.as_ref();
            let is_needed = match control {
                Control::Open(id) => end_of(id).is_some_and(|end| end.state == EndState::Opening),
                Control::Accept(id) => {
                    end_of(id).is_some_and(|end| end.state == EndState::Accepted)
                }
                Control::Receives(id) => {
                    end_of(id).is_some_and(|end| end.is_announcing && end.remote.is_some())
                }
                Control::Taken(id) => {
                    end_of(id).is_some_and(|end| end.is_filling() && end.remote.is_some())
                }
                Control::Answer(_) | Control::Close(..) | Control::Probe | Control::Leave => true,
            };
            if is_needed {
                break;
            }
            exchange.controls.pop_front();
        }
        let has_control = !exchange.controls.is_empty() && exchange.credit.permits(Class::Control);
        has_control || exchange.is_buffers_due()
    }

    /// Has a message of the pool itself sent.
    pub(crate) fn send_own(&mut self, id: ExchangeId, control: Control) {
        if let Some(exchange) = self.exchanges.get_mut(id) {
            exchange.controls.push_back(control);
            self.list_own(id);
        }
    }

    /// The exchange of a virtual queue pair.
    pub(crate) fn exchange_of(&mut self, id: VirtualId) -> Option<&mut Exchange> {
        let member = self.virtuals.get(id.0)?;
        let exchange = self.exchanges.id_of(member.physical, member.node);
        self.exchanges.get_mut(exchange)
    }

    /// Has a message sent to the other end of a virtual queue pair, or to the node that may have
    /// one.
    pub(crate) fn tell_other(&mut self, id: VirtualId, control: Control) {
        if let Some(member) = self.virtuals.get(id.0) {
            self.send_own(self.exchanges.id_of(member.physical, member.node), control);
        }
    }

    /// Gives the pool itself a turn, if it may have a message to send and has no turn yet.
    pub(crate) fn list_own(&mut self, id: ExchangeId) {
        let Some(exchange) = self.exchanges.get_mut(id) else {
            return;
        };
        let slot = exchange.physical;
        let may_send = !exchange.controls.is_empty() || exchange.is_buffers_due();
        if may_send && exchange.begin_turn() {
            // Before all others: a Send must not be ahead of the message that accepts its end.
            self.physicals[usize::from(slot)].add_turn(0, id.own());
        }
        let shared = &self.physicals[usize::from(slot)];
        if may_send && shared.state == PhysicalState::Down && shared.node.is_none() {
            self.connect(slot);
        }
        if may_send && self.has_room(slot) {
            self.activate(slot);
        }
    }

    /// Ends the turn of the pool itself, which is the next one of its queue pair.
    pub(crate) fn end_own_turn(&mut self, slot: u16, id: ExchangeId) {
        self.physicals[usize::from(slot)].end_turn();
        self.exchanges.get_mut(id).map(Exchange::end_turn);
    }

    /// The node has posted buffers: what has waited for them may be posted.
    pub(crate) fn feed(&mut self, exchange: ExchangeId) {
        let fed = self.exchanges.get_mut(exchange);
        for id in fed.map_or(Vec::new(), Exchange::take_starved) {
            if self.faults.has(Fault::StarvedForgotten) {
                continue;
            }
            if let Some(end) = self.end_mut(id) {
                end.is_starved = false;
            }
            self.list(id);
        }
        self.list_own(exchange);
    }

    /// The buffer of a message is posted again.
    pub(crate) fn free_buffer(&mut self, id: ExchangeId, buffer: u32) {
        let Some(exchange) = self.exchanges.get_mut(id) else {
            return;
        };
        exchange.grant.note_posted();
        let physical = self.physicals[usize::from(exchange.physical)].id();
        let post = BufferAction::Post { physical, buffer };
        self.messages.actions.push_back(post);
        self.list_own(id);
    }

    pub(crate) fn end_mut(&mut self, id: VirtualId) -> Option<&mut End> {
        self.virtuals.get_mut(id.0)?.end.as_deref_mut()
    }

    /// A virtual queue pair and its other end do without each other from now on: Receives are
    /// flushed, and the other end is told, if it is to be.
    pub(crate) fn break_end(&mut self, id: VirtualId, state: EndState, is_told: bool) {
        let Some(member) = self.virtuals.get_mut(id.0) else {
            return;
        };
        let Some(end) = &mut member.end else {
            return;
        };
        if matches!(end.state, EndState::Refused | EndState::Closed) {
            return;
        }
        let (regions, actions) = (&mut self.regions, &mut self.actions);
        if !self.faults.has(Fault::ReceivesKept) {
            end.flush(|local| release(regions, actions, local));
        }
        (end.state, member.state) = (state, VirtualState::Error);
        let (slot, node, source) = (member.physical, member.node, end.own());
        let (remote, refused) = (end.remote.take(), end.refused);
        let exchange = self.exchanges.id_of(slot, node);
        let now = self.idle.tick();
        if let Some(exchange) = self.exchanges.get_mut(exchange) {
            exchange.remove_end(id, now);
        }
        let Some(destination) = remote else {
            return;
        };
        self.messages.by_remote.remove(&(node, destination));
        if is_told && !self.faults.has(Fault::CloseUntold) {
            let close = Control::Close(destination, source, refused);
            let is_down = self.physicals[usize::from(slot)].state == PhysicalState::Down;
            if !is_down || !self.send_otherwise(slot, node, close) {
                self.send_own(exchange, close);
            }
        }
    }

    /// Has a message of the pool itself sent over another connection to the same node, if there is
    /// one.
    fn send_otherwise(&mut self, slot: u16, node: NodeId, control: Control) -> bool {
        let reaching = self.nodes.get(node.0).map(|known| &known.physicals);
        let is_ready = |other: &&u16| {
            **other != slot && self.physicals[usize::from(**other)].state == PhysicalState::Ready
        };
        let other = reaching.and_then(|slots| slots.iter().find(is_ready));
        let other = other.copied();
        if let Some(other) = other {
            self.send_own(self.exchanges.id_of_connection(other), control);
        }
        other.is_some()
    }

    /// A queue pair is not connected to its node again: what the node has to know it is told over
    /// another one. If there is none, each of the node has failed, and it asks when it has one.
    pub(crate) fn forget_connection(&mut self, slot: u16) {
        self.forget_exchange(self.exchanges.id_of_connection(slot));
    }

    /// The same of its exchange.
    pub(crate) fn forget_exchange(&mut self, id: ExchangeId) {
        let Some(exchange) = self.exchanges.get_mut(id) else {
            return;
        };
        let (slot, closes) = (exchange.physical, exchange.forget());
        if let Some(node) = self.physicals[usize::from(slot)].node {
            for close in closes {
                self.send_otherwise(slot, node, close);
            }
        }
    }

    /// A virtual queue pair ends because of its other end or of a message.
    pub(crate) fn fail_end(&mut self, id: VirtualId, state: EndState, is_told: bool) {
        self.fail_end_with(id, (state, Status::RetryExceeded), is_told);
    }

    /// The same with a status for the oldest request that is not posted.
    pub(crate) fn fail_end_with(
        &mut self,
        id: VirtualId,
        (state, status): (EndState, Status),
        is_told: bool,
    ) {
        let Some(member) = self.virtuals.get_mut(id.0) else {
            return;
        };
        let (regions, actions) = (&mut self.regions, &mut self.actions);
        let released = |local| release(regions, actions, local);
        match member.in_flight() {
            0 => member.fail(status, self.faults, released),
            _ => member.fail_unposted(status, released),
        }
        self.break_end(id, state, is_told);
    }

    /// The node of a queue pair cannot be reached: all ends there have ended.
    pub(crate) fn fail_ends(&mut self, slot: u16) {
        let exchange = self.exchanges.id_of_connection(slot);
        self.close_ends(exchange, true);
        self.forget_exchange(exchange);
    }

    /// All virtual queue pairs of an exchange end, of which the node is told, if it is to be.
    pub(crate) fn close_ends(&mut self, exchange: ExchangeId, is_told: bool) {
        let ends = self.exchanges.get_mut(exchange);
        for id in ends.map_or(BTreeSet::new(), |found| take(&mut found.ends)) {
            self.fail_end(id, EndState::Closed, is_told);
        }
    }
}

/// Check 2: whether the completion queue has a place for each request that can be posted, if there
/// is one queue pair more than this number.
pub(crate) fn has_places(config: &Config, physicals: usize) -> bool {
    let places = (physicals as u64 + 1) * u64::from(config.sq_depth);
    places <= u64::from(config.cq_depth)
}

/// Notes that a request uses local memory no more.
#[inline(always)]
pub(crate) fn release(regions: &mut Regions, actions: &mut VecDeque<Action>, id: LocalRegionId) {
    if regions.release(id) {
        actions.push_back(Action::Deregister(id));
    }
}
