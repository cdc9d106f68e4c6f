//! The calls of users and of the driver.

use std::collections::VecDeque;

use crate::config::{Config, Transport};
use crate::error::{CallError, ConfigError, PostError};
use crate::fault::{Fault, Faults};
use crate::idle::Idle;
use crate::physical_qp::{parts_of, Cause, Executed, InFlight, PhysicalQp};
use crate::regions::{check_shape, needed, Regions};
use crate::slots::{Id, Slots};
use crate::types::{
    Access, Action, Completion, Element, LocalRegion, LocalRegionId, NodeId, PhysicalId,
    PhysicalState, Posted, RemoteRegion, RemoteRegionId, Request, Status, Transmit, UserId,
    VirtualId, VirtualState,
};
use crate::virtual_qp::{Queued, VirtualQp};

/// What a request costs in the order of turns beside its octets.
const REQUEST_COST: u64 = 512;

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
}

#[derive(Debug, Default)]
pub(crate) struct Node {
    pub(crate) physicals: Vec<u16>,
    /// Virtual queue pairs to it.
    pub(crate) members: u32,
    /// When it was added, or the last of them was closed.
    pub(crate) idle_since: u64,
    /// Whether it is among those that may be idle.
    pub(crate) is_listed: bool,
}

/// Virtual queue pairs on shared ones.
///
/// Users call `open`, `post`, `poll`, `reset` and `close`. The driver calls `handle_completion` and
/// the other `handle_` calls when something happens, and after any call of either drains `transmit`
/// and `poll_action`.
#[derive(Debug)]
pub struct Pool {
    config: Config,
    pub(crate) nodes: Slots<Node>,
    pub(crate) idle: Idle,
    pub(crate) regions: Regions,
    pub(crate) virtuals: Slots<VirtualQp>,
    pub(crate) physicals: Vec<PhysicalQp>,
    /// Slots of those that reach every node.
    initiators: Vec<u16>,
    /// Slots of those that may have something to post.
    active: VecDeque<u16>,
    pub(crate) actions: VecDeque<Action>,
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
            stats: Stats::default(),
            faults: Faults::default(),
        })
    }

    /// Counters.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Adds a node.
    ///
    /// # Errors
    /// If there are as many as configured: [`Pool::remove_idle_node`] makes room.
    pub fn add_node(&mut self) -> Result<NodeId, CallError> {
        const LIMIT: CallError = CallError::Limit("nodes");
        if self.nodes.len() >= self.config.nodes_max as usize {
            return Err(LIMIT);
        }
        let id = self.nodes.add(Node::default()).ok_or(LIMIT)?;
        self.note_idle_node(NodeId(id));
        Ok(NodeId(id))
    }

    /// Adds memory of a node.
    ///
    /// # Errors
    /// If the node is unknown, or the region has no end.
    pub fn add_remote(&mut self, region: RemoteRegion) -> Result<RemoteRegionId, CallError> {
        self.nodes.get(region.node.0).ok_or(CallError::Unknown)?;
        self.regions.add_remote(region)
    }

    /// Forgets memory of a node; requests that were posted before are not concerned.
    ///
    /// # Errors
    /// If it is unknown.
    pub fn remove_remote(&mut self, id: RemoteRegionId) -> Result<(), CallError> {
        self.regions.remove_remote(id)
    }

    /// Memory of a node.
    pub fn remote(&self, id: RemoteRegionId) -> Option<&RemoteRegion> {
        self.regions.remote(id)
    }

    /// Adds local memory, which the caller has registered.
    ///
    /// # Errors
    /// If it has no end.
    pub fn add_local(&mut self, region: LocalRegion) -> Result<LocalRegionId, CallError> {
        self.regions.add_local(region)
    }

    /// Ends local memory: no further request may name it, and [`Action::Deregister`] follows when
    /// the last one that does is complete.
    ///
    /// # Errors
    /// If it is unknown, or has ended.
    pub fn remove_local(&mut self, id: LocalRegionId) -> Result<(), CallError> {
        if self.regions.end_local(id, self.faults)? {
            self.actions.push_back(Action::Deregister(id));
        }
        Ok(())
    }

    /// Opens a virtual queue pair to a node, with a send queue of `depth` requests and these
    /// operations. It takes requests at once; if no shared queue pair is connected, they wait.
    ///
    /// # Errors
    /// If the node is unknown, the depth is 0, or a limit is reached.
    pub fn open(
        &mut self,
        user: UserId,
        node: NodeId,
        depth: u32,
        operations: Access,
    ) -> Result<VirtualId, CallError> {
        if depth == 0 {
            return Err(CallError::Limit("requests: the depth is 0"));
        }
        if self.virtuals.len() >= self.config.virtual_max as usize {
            return Err(CallError::Limit("virtual queue pairs"));
        }
        let physical = self.choose_physical(node)?;
        let opened = VirtualQp::new(user, node, physical, depth, operations);
        let id = self.virtuals.add(opened);
        let id = id.ok_or(CallError::Limit("virtual queue pairs"))?;
        let shared = &mut self.physicals[usize::from(physical)];
        shared.members += 1;
        if shared.state == PhysicalState::Down {
            self.connect(physical);
        }
        if let Some(known) = self.nodes.get_mut(node.0) {
            known.members += 1;
        }
        Ok(VirtualId(id))
    }

    /// The shared queue pair that reaches a node and has the fewest members; a new one if there may
    /// be one more.
    fn choose_physical(&mut self, node: NodeId) -> Result<u16, CallError> {
        let known = self.nodes.get_mut(node.0).ok_or(CallError::Unknown)?;
        let (reaching, most, only) = match self.config.transport {
            Transport::Connections { per_node } => (&mut known.physicals, per_node, Some(node)),
            Transport::Initiators { count } => (&mut self.initiators, count, None),
        };
        let members = |slot: &u16| self.physicals[usize::from(*slot)].members;
        let least = reaching.iter().copied().min_by_key(members);
        if let Some(slot) = least.filter(|slot| members(slot) == 0) {
            return Ok(slot);
        }
        // Check 2: the completion queue has a place for each request that can be posted.
        let places = (self.physicals.len() as u64 + 1) * u64::from(self.config.sq_depth);
        let has_places = places <= u64::from(self.config.cq_depth)
            || self.faults.has(Fault::CompletionQueueUnreserved);
        let may_grow = reaching.len() < usize::from(most)
            || (only.is_none() && self.faults.has(Fault::InitiatorsUnbounded));
        let slot = u16::try_from(self.physicals.len()).ok();
        let has_vacant = may_grow && !self.idle.vacant.is_empty();
        if let Some(slot) = slot.filter(|_| has_places && may_grow && !has_vacant) {
            reaching.push(slot);
            self.physicals.push(PhysicalQp::new(slot, only));
            return Ok(slot);
        }
        match least {
            Some(least) if !has_vacant => Ok(least),
            _ => self.take_idle_physical(node),
        }
    }

    /// Closes a virtual queue pair. Requests that are posted end without a completion, and those
    /// that are not are dropped. Completions that were not polled are lost.
    ///
    /// # Errors
    /// If it is closed.
    pub fn close(&mut self, id: VirtualId) -> Result<(), CallError> {
        let closed = self.virtuals.remove(id.0).ok_or(CallError::Unknown)?;
        for local in closed.unposted() {
            release(&mut self.regions, &mut self.actions, local);
        }
        let shared = &mut self.physicals[usize::from(closed.physical)];
        shared.members -= 1;
        if closed.is_listed {
            let virtuals = &self.virtuals;
            shared.note_closed_turn(|id| virtuals.get(id.0).is_some());
        }
        self.note_closed(closed.physical, closed.node);
        Ok(())
    }

    /// Notes that no virtual queue pair is open to a node.
    fn note_idle_node(&mut self, id: NodeId) {
        let now = self.idle.tick();
        let Some(node) = self.nodes.get_mut(id.0) else {
            return;
        };
        node.idle_since = now;
        if !std::mem::replace(&mut node.is_listed, true) {
            self.idle.list(now, id);
        }
    }

    /// Notes that a virtual queue pair of a shared queue pair to a node was closed.
    fn note_closed(&mut self, slot: u16, id: NodeId) {
        let shared = &mut self.physicals[usize::from(slot)];
        if shared.members == 0 {
            shared.idle_since = self.idle.tick();
        }
        if let Some(node) = self.nodes.get_mut(id.0) {
            node.members -= 1;
            if node.members == 0 {
                self.note_idle_node(id);
            }
        }
    }

    /// Has a connection to a node take the place of one that is vacant or without members.
    fn take_idle_physical(&mut self, node: NodeId) -> Result<u16, CallError> {
        let slot = match self.idle.vacant.pop() {
            Some(slot) => slot,
            None => self.take_from_its_node()?,
        };
        let shared = &mut self.physicals[usize::from(slot)];
        // What the node before has refused says nothing of this one.
        (shared.node, shared.refusals) = (Some(node), 0);
        let known = self.nodes.get_mut(node.0).ok_or(CallError::Unknown)?;
        known.physicals.push(slot);
        Ok(slot)
    }

    /// Destroys the connection that has had no member for the longest time.
    fn take_from_its_node(&mut self) -> Result<u16, CallError> {
        let in_use = self.faults.has(Fault::ConnectionsTakenInUse);
        let slots = (0..).zip(&self.physicals);
        let idle =
            slots.filter(|(_, shared)| shared.node.is_some() && (shared.members == 0 || in_use));
        let longest = idle.min_by_key(|(_, shared)| shared.idle_since);
        let (slot, shared) = longest.ok_or(CallError::Limit("shared queue pairs"))?;
        if let Some(before) = shared.node.and_then(|node| self.nodes.get_mut(node.0)) {
            before.physicals.retain(|reaching| *reaching != slot);
        }
        self.retire_physical(slot);
        Ok(slot)
    }

    /// Destroys a shared queue pair without members, if there is one in the slot.
    pub(crate) fn retire_physical(&mut self, slot: u16) {
        let shared = &mut self.physicals[usize::from(slot)];
        match shared.state {
            PhysicalState::Down | PhysicalState::Failing => {}
            PhysicalState::Connecting | PhysicalState::Ready => {
                self.stats.retired += 1;
                if self.faults.has(Fault::ConnectionsKept) {
                    shared.renew();
                    shared.in_flight.clear();
                    shared.locals.clear();
                    shared.state = PhysicalState::Down;
                    return;
                }
                shared.state = PhysicalState::Failing;
                self.actions.push_back(Action::Destroy(shared.id()));
            }
        }
    }

    /// Makes a virtual queue pair ready again after an error.
    ///
    /// # Errors
    /// If it is closed.
    pub fn reset(&mut self, id: VirtualId) -> Result<(), CallError> {
        let found = self.virtuals.get_mut(id.0).ok_or(CallError::Unknown)?;
        found.state = VirtualState::Ready;
        Ok(())
    }

    /// The state of a virtual queue pair that is open.
    pub fn state(&self, id: VirtualId) -> Option<VirtualState> {
        self.virtuals.get(id.0).map(|found| found.state)
    }

    /// Requests of a virtual queue pair that are not complete.
    pub fn outstanding(&self, id: VirtualId) -> usize {
        self.virtuals.get(id.0).map_or(0, VirtualQp::outstanding)
    }

    /// The state of a shared queue pair that was not replaced.
    pub fn physical_state(&self, id: PhysicalId) -> Option<PhysicalState> {
        let shared = self.physicals.get(usize::from(id.slot))?;
        (shared.id() == id).then_some(shared.state)
    }

    /// Takes a request with its scatter-gather list.
    ///
    /// # Errors
    /// If it is refused; then it has no effect.
    #[inline]
    pub fn post(
        &mut self,
        id: VirtualId,
        request: &Request,
        elements: &[Element],
    ) -> Result<(), PostError> {
        let taken = self.check_and_push(id, request, elements);
        match taken {
            Ok(()) => self.list(id),
            Err(_) => self.stats.refused += 1,
        }
        taken
    }

    fn check_and_push(
        &mut self,
        id: VirtualId,
        request: &Request,
        elements: &[Element],
    ) -> Result<(), PostError> {
        let poster = self.virtuals.get_mut(id.0).ok_or(PostError::Closed)?;
        if poster.state != VirtualState::Ready {
            return Err(PostError::InvalidState);
        }
        if !poster.operations.includes(needed(request.operation)) {
            return Err(PostError::Operation);
        }
        let (regions, faults) = (&mut self.regions, self.faults);
        let len_octets = check_shape(request, elements, &self.config, faults)?;
        let pieces = regions.check_local(poster.user, request.operation, elements, faults)?;
        let rkey = regions.check_remote(poster.node, request, len_octets, faults)?;
        if poster.is_full(faults) {
            return Err(PostError::QueueFull);
        }
        for piece in &pieces {
            regions.use_local(piece.local);
        }
        let queued = Queued {
            request: *request,
            rkey,
            len_octets,
            pieces: pieces.len(),
        };
        poster.push(queued, &pieces);
        Ok(())
    }

    /// The next completion of a virtual queue pair.
    #[inline]
    pub fn poll(&mut self, id: VirtualId) -> Option<Completion> {
        self.virtuals.get_mut(id.0)?.poll()
    }

    /// Gives a virtual queue pair a turn if it has something to send and none yet.
    pub(crate) fn list(&mut self, id: VirtualId) {
        let Some(member) = self.virtuals.get_mut(id.0) else {
            return;
        };
        if member.is_listed || member.next(&self.config, self.faults).is_none() {
            return;
        }
        member.is_listed = true;
        let slot = member.physical;
        let shared = &mut self.physicals[usize::from(slot)];
        shared.add_turn(member.finish.max(shared.time), id);
        match shared.state {
            PhysicalState::Ready => self.activate(slot),
            PhysicalState::Down => self.connect(slot),
            PhysicalState::Connecting | PhysicalState::Failing => {}
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

    fn activate(&mut self, slot: u16) {
        let shared = &mut self.physicals[usize::from(slot)];
        if !std::mem::replace(&mut shared.is_active, true) {
            self.active.push_back(slot);
        }
    }

    /// The virtual queue pair whose turn it is, unless it has to wait: it is ahead of its share by
    /// a limit at most, which is less while others have requests in flight.
    fn permitted_turn(&mut self, slot: u16) -> Option<(u64, VirtualId)> {
        let (start, id) = self.first_turn(slot)?;
        let shared = &self.physicals[usize::from(slot)];
        if shared.in_flight.is_empty() {
            return Some((start, id));
        }
        let posted = self.virtuals.get(id.0).map_or(0, VirtualQp::posted);
        let limit = match shared.in_flight.len() == posted {
            true => self.config.in_flight_octets_max,
            false => self.config.lead_octets_max,
        };
        let is_permitted =
            start.saturating_sub(shared.time) <= limit || self.faults.has(Fault::LeadUnbounded);
        is_permitted.then_some((start, id))
    }

    /// The virtual queue pair whose next request begins first.
    fn first_turn(&mut self, slot: u16) -> Option<(u64, VirtualId)> {
        let shared = &mut self.physicals[usize::from(slot)];
        loop {
            let (start, id) = shared.first_turn()?;
            let Some(member) = self.virtuals.get_mut(id.0) else {
                shared.skip_closed_turn();
                continue;
            };
            if member.next(&self.config, self.faults).is_some() {
                return Some((start, id));
            }
            // Its requests that are posted have to be complete first, or it has failed.
            member.is_listed = false;
            shared.end_turn();
        }
    }

    /// Has `post` post whatever may be posted. The last work request of each queue pair is
    /// signaled.
    pub fn transmit(&mut self, mut post: impl FnMut(&Transmit) -> Posted) {
        while let Some(&slot) = self.active.front() {
            if self.transmit_one(slot, &mut post) {
                // Queue pairs take turns.
                self.active.rotate_left(1);
            } else {
                self.active.pop_front();
                self.physicals[usize::from(slot)].is_active = false;
            }
        }
    }

    fn has_room(&self, slot: u16) -> bool {
        let shared = &self.physicals[usize::from(slot)];
        let has_place = shared.in_flight.len() < self.config.sq_depth as usize
            || self.faults.has(Fault::SendQueueUnbounded);
        shared.state == PhysicalState::Ready && has_place
    }

    /// Posts the next work request of a queue pair; `false`: none may be posted.
    fn transmit_one(&mut self, slot: u16, post: &mut impl FnMut(&Transmit) -> Posted) -> bool {
        if !self.has_room(slot) {
            return false;
        }
        let Some((start, id)) = self.permitted_turn(slot) else {
            return false;
        };
        let shared = &mut self.physicals[usize::from(slot)];
        let Some(member) = self.virtuals.get_mut(id.0) else {
            return false;
        };
        let Some(&queued) = member.next(&self.config, self.faults) else {
            return false;
        };
        let Queued { request, rkey, .. } = queued;
        shared.end_turn();
        member.is_listed = false;
        member.finish = start + REQUEST_COST + u64::from(queued.len_octets);
        let elements = member.next_pieces(&queued).map(|piece| {
            shared.locals.push_back(piece.local);
            piece.sge
        });
        let elements = elements.collect();
        member.note_posted(&queued);
        let before = shared.in_flight.back().map(|before| before.node);
        let kept = before.filter(|_| self.faults.has(Fault::NodeKept));
        let node = kept.unwrap_or(member.node);
        let in_flight = InFlight {
            of: id,
            node,
            pieces: queued.pieces,
        };
        let wr_id = shared.push(in_flight, start);
        let physical = shared.id();
        let is_full_row = shared.unsignaled + 1 >= self.config.signal_every;
        self.list(id);
        let is_last = !self.has_room(slot) || self.permitted_turn(slot).is_none();
        let is_tail = (is_last || is_full_row) && !self.faults.has(Fault::TailUnsignaled);
        let work = Transmit {
            physical,
            node,
            wr_id,
            operation: request.operation,
            elements,
            remote_addr: request.remote_addr,
            rkey,
            is_signaled: request.is_signaled || is_tail,
        };
        if post(&work) == Posted::Refused {
            self.take_back(slot, id, &queued);
            return false;
        }
        self.stats.posted += 1;
        self.stats.signaled += u64::from(work.is_signaled);
        let shared = &mut self.physicals[usize::from(slot)];
        (shared.is_unused, shared.refusals) = (false, 0);
        shared.unsignaled = match work.is_signaled {
            true => 0,
            false => shared.unsignaled + 1,
        };
        true
    }

    /// The queue pair does not take the work request that was to be posted: it has failed, and the
    /// request had no effect.
    #[cold]
    fn take_back(&mut self, slot: u16, id: VirtualId, queued: &Queued) {
        let shared = &mut self.physicals[usize::from(slot)];
        shared.take_back();
        if shared.is_unused && !self.faults.has(Fault::RefusalsRepeated) {
            shared.refusals += 1;
        }
        if let Some(member) = self.virtuals.get_mut(id.0) {
            member.note_refused(queued);
        }
        self.list(id);
        self.begin_failing(slot);
    }

    /// What the driver is to do next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The queue pair is connected.
    pub fn handle_connected(&mut self, id: PhysicalId) {
        if self.physical_state(id) == Some(PhysicalState::Connecting) {
            self.physicals[usize::from(id.slot)].state = PhysicalState::Ready;
            self.activate(id.slot);
        }
    }

    /// The queue pair cannot be connected: the requests that wait for it fail.
    pub fn handle_unreachable(&mut self, id: PhysicalId) {
        if self.physical_state(id) == Some(PhysicalState::Connecting) {
            self.physicals[usize::from(id.slot)].state = PhysicalState::Down;
            self.fail_waiting(id.slot);
        }
    }

    /// Ends the requests that wait for a queue pair.
    pub(crate) fn fail_waiting(&mut self, slot: u16) {
        while let Some((_, waiting)) = self.first_turn(slot) {
            self.physicals[usize::from(slot)].end_turn();
            if let Some(member) = self.virtuals.get_mut(waiting.0) {
                member.is_listed = false;
            }
            self.fail(waiting, Status::RetryExceeded);
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
    }

    /// The node to which a work request goes that is in flight.
    pub fn node_of(&self, wr_id: u64) -> Option<NodeId> {
        let (slot, generation, number) = parts_of(wr_id);
        let shared = self.physicals.get(usize::from(slot))?;
        let shared = Some(shared).filter(|shared| shared.id().generation == generation)?;
        let in_flight = shared.in_flight.get(shared.place_of(number)?)?;
        Some(in_flight.node)
    }

    /// A completion arrived.
    #[inline]
    pub fn handle_completion(&mut self, wr_id: u64, status: Status) {
        // Check 3: of which queue pair it is, and of which incarnation.
        let (slot, generation, number) = parts_of(wr_id);
        let shared = self.physicals.get(usize::from(slot));
        let is_current = |shared: &&PhysicalQp| {
            shared.id().generation == generation
                || self.faults.has(Fault::PhysicalGenerationIgnored)
        };
        let place = shared
            .filter(is_current)
            .and_then(|shared| shared.place_of(number));
        let Some(place) = place else {
            self.stats.stale += 1;
            return;
        };
        if status == Status::Success {
            self.handle_success(slot, place);
        } else {
            self.handle_error(slot, place, status);
        }
    }

    fn handle_success(&mut self, slot: u16, place: usize) {
        if let Some(cause) = &mut self.physicals[usize::from(slot)].cause {
            // Behind one that has failed: what the node executed is not known.
            cause.executed = Executed::Any;
            return;
        }
        let retired = match self.faults.has(Fault::OneRetired) {
            true => 1,
            false => place + 1,
        };
        self.retire(slot, retired);
        let has_turns = self.physicals[usize::from(slot)].first_turn().is_some();
        if has_turns && self.has_room(slot) {
            self.activate(slot);
        }
    }

    /// Completes the oldest requests of a queue pair.
    fn retire(&mut self, slot: u16, count: usize) {
        for _ in 0..count {
            let shared = &mut self.physicals[usize::from(slot)];
            let Some(InFlight { of, pieces, .. }) = shared.pop() else {
                return;
            };
            let mut locals = shared.locals.drain(..pieces);
            let first = locals.next();
            let others = locals.filter(|_| !self.faults.has(Fault::FirstElementReleased));
            for local in first.into_iter().chain(others) {
                release(&mut self.regions, &mut self.actions, local);
            }
            let id = self.receiver_of(of);
            match self.virtuals.get_mut(id.0) {
                Some(member) => {
                    member.retire(self.faults);
                    self.list(id);
                }
                None => self.stats.closed += 1,
            }
        }
    }

    /// Check 3: a completion is for the incarnation of the slot that posted the request.
    fn receiver_of(&self, of: VirtualId) -> VirtualId {
        let Id { slot, .. } = of.0;
        let occupant = self.virtuals.occupant(slot).map(VirtualId);
        let ignored = self.faults.has(Fault::VirtualGenerationIgnored);
        occupant.filter(|_| ignored).unwrap_or(of)
    }

    #[cold]
    fn handle_error(&mut self, slot: u16, place: usize, status: Status) {
        if self.physicals[usize::from(slot)].cause.is_some() {
            return;
        }
        // Those before it succeeded.
        self.retire(slot, place);
        let shared = &mut self.physicals[usize::from(slot)];
        let culprit = shared.in_flight.front().map(|first| first.of);
        shared.cause = Some(Cause {
            status,
            of: culprit.filter(|_| status != Status::Flushed),
            executed: match status {
                Status::Flushed => Executed::Any,
                _ if status.is_refusal() => Executed::Nothing,
                _ => Executed::SameNode,
            },
        });
        self.begin_failing(slot);
    }

    /// The queue pair is in ERR for another reason than a request: an event says so.
    pub fn handle_broken(&mut self, id: PhysicalId) {
        if self.physical_state(id) == Some(PhysicalState::Ready) {
            self.begin_failing(id.slot);
        }
    }

    #[cold]
    fn begin_failing(&mut self, slot: u16) {
        let shared = &mut self.physicals[usize::from(slot)];
        if shared.state == PhysicalState::Ready {
            shared.state = PhysicalState::Failing;
            self.stats.failed += 1;
            self.actions.push_back(Action::Destroy(shared.id()));
        }
    }
}

/// Notes that a request uses local memory no more.
pub(crate) fn release(regions: &mut Regions, actions: &mut VecDeque<Action>, id: LocalRegionId) {
    if regions.release(id) {
        actions.push_back(Action::Deregister(id));
    }
}
