//! The calls of users and of the driver.

use crate::config::Transport;
use crate::error::{CallError, PostError};
use crate::exchange::ExchangeId;
use crate::fault::Fault;
use crate::lone::Lone;
use crate::physical_qp::{parts_of, Carries, Cause, Executed, InFlight, PhysicalQp};
use crate::pool::{has_places, release, Node, Pool};
use crate::queued::{Checked, Queued};
use crate::slots::Id;
use crate::types::{
    Access, Action, Completion, Element, EndState, LocalRegion, LocalRegionId, NodeId, PhysicalId,
    PhysicalState, RemoteRegion, RemoteRegionId, Request, Status, UserId, VirtualId, VirtualState,
};
use crate::virtual_qp::VirtualQp;

impl Pool {
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
        self.book();
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
        self.book();
        self.check_open(depth)?;
        let physical = self.choose_physical(node)?;
        let limits = (depth, self.config.in_flight_max);
        let opened = VirtualQp::new(user, node, physical, limits, operations);
        self.bind(opened)
    }

    /// Adds a virtual queue pair to its shared queue pair.
    pub(crate) fn bind(&mut self, opened: VirtualQp) -> Result<VirtualId, CallError> {
        let (physical, node) = (opened.physical, opened.node);
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
        if let Some(switch) = &mut self.switch {
            switch.add_member(physical, VirtualId(id), &self.virtuals);
            let is_connection = self.physicals[usize::from(physical)].node.is_some();
            self.stats.switched_to_connections += u64::from(is_connection);
        }
        Ok(VirtualId(id))
    }

    /// Whether there may be one more virtual queue pair, with a queue of `depth`.
    pub(crate) fn check_open(&self, depth: u32) -> Result<(), CallError> {
        if depth == 0 {
            return Err(CallError::Limit("requests: the depth is 0"));
        }
        match self.virtuals.len() < self.config.virtual_max as usize {
            true => Ok(()),
            false => Err(CallError::Limit("virtual queue pairs")),
        }
    }

    /// The shared queue pair that reaches a node and has the fewest members; a new one if there may
    /// be one more.
    pub(crate) fn choose_physical(&mut self, node: NodeId) -> Result<u16, CallError> {
        let known = self.nodes.get(node.0).ok_or(CallError::Unknown)?;
        match (self.config.transport, known.physicals.first()) {
            // It was switched to a connection.
            (Transport::Initiators { .. }, Some(connection)) => Ok(*connection),
            _ => self.choose_unswitched(node),
        }
    }

    /// [`Pool::choose_physical`], but no connection of a pool of initiators.
    pub(crate) fn choose_unswitched(&mut self, node: NodeId) -> Result<u16, CallError> {
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
        let has_places = has_places(&self.config, self.physicals.len())
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
        self.book();
        self.break_end(id, EndState::Closed, true);
        let closed = self.virtuals.remove(id.0).ok_or(CallError::Unknown)?;
        for local in closed.unposted() {
            release(&mut self.regions, &mut self.actions, local);
        }
        let shared = &mut self.physicals[usize::from(closed.physical)];
        shared.members -= 1;
        if closed.is_listed {
            let virtuals = &self.virtuals;
            shared.note_closed_turn(|id| {
                ExchangeId::of_own(id).is_some() || virtuals.get(id.0).is_some()
            });
        }
        self.note_closed(closed.physical, closed.node);
        Ok(())
    }

    /// Notes that a virtual queue pair of a shared queue pair to a node was closed.
    fn note_closed(&mut self, slot: u16, id: NodeId) {
        let shared = &mut self.physicals[usize::from(slot)];
        if shared.members == 0 {
            shared.idle_since = self.idle.tick();
            self.retire_left(slot);
        }
        self.leave_node(id);
    }

    /// Has a connection to a node take the place of one that is vacant or without members.
    pub(crate) fn take_idle_physical(&mut self, node: NodeId) -> Result<u16, CallError> {
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
        self.forget_connection(slot);
        self.retire_physical(slot);
        Ok(slot)
    }

    /// Makes a virtual queue pair ready again after an error.
    ///
    /// # Errors
    /// If it is closed, or has Sends and Receives: then its other end has ended, too.
    pub fn reset(&mut self, id: VirtualId) -> Result<(), CallError> {
        self.book();
        let found = self.virtuals.get_mut(id.0).ok_or(CallError::Unknown)?;
        if found.end.is_some() {
            return Err(CallError::TwoEnded);
        }
        found.state = VirtualState::Ready;
        Ok(())
    }

    /// The state of a virtual queue pair that is open.
    pub fn state(&self, id: VirtualId) -> Option<VirtualState> {
        self.virtuals.get(id.0).map(|found| found.state)
    }

    /// The node of a virtual queue pair that is open.
    pub fn node(&self, id: VirtualId) -> Option<NodeId> {
        self.virtuals.get(id.0).map(|found| found.node)
    }

    /// Requests of a virtual queue pair that are not complete.
    pub fn outstanding(&self, id: VirtualId) -> usize {
        let is_its = |lone: &Lone| lone.of == id && !lone.is_complete;
        let unbooked = self.lone.as_ref().is_some_and(is_its);
        let booked = self.virtuals.get(id.0).map_or(0, VirtualQp::outstanding);
        booked + usize::from(unbooked)
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
    pub fn post(
        &mut self,
        id: VirtualId,
        request: &Request,
        elements: &[Element],
    ) -> Result<(), PostError> {
        let checked = self.check(id, request, elements)?;
        if let Some(poster) = self.virtuals.get_mut(id.0) {
            self.regions.use_only(checked.pieces);
            poster.push(Queued::new(request, checked));
        }
        self.list(id);
        Ok(())
    }

    /// Checks a request before anything is done with it; the caller notes the use of the local
    /// memory of an only element.
    #[inline(always)]
    pub(crate) fn check(
        &mut self,
        id: VirtualId,
        request: &Request,
        elements: &[Element],
    ) -> Result<Checked, PostError> {
        self.book();
        let (faults, with) = (self.faults, (&self.config, &mut self.regions));
        let poster = self.virtuals.get_mut(id.0).ok_or(PostError::Closed);
        let checked = poster.and_then(|poster| poster.check(request, elements, with, faults));
        let checked = checked.inspect_err(|_| self.stats.refused += 1)?;
        if self.switch.is_some() {
            // The virtual queue pair switches before it posts this request, if it is to.
            self.note_use(id);
        }
        Ok(checked)
    }

    /// The next completion of a virtual queue pair.
    #[inline]
    pub fn poll(&mut self, id: VirtualId) -> Option<Completion> {
        if let Some(lone) = &self.lone {
            if lone.of == id || self.faults.has(Fault::LonePolledByAny) {
                return match lone.is_complete {
                    true => self.lone.take().map(|lone| lone.completion()),
                    // Nothing precedes it.
                    false => None,
                };
            }
        }
        self.poll_booked(id)
    }

    /// Apart from the poll of a request that is alone.
    #[inline(never)]
    fn poll_booked(&mut self, id: VirtualId) -> Option<Completion> {
        self.virtuals.get_mut(id.0)?.poll()
    }

    /// Whether there is nothing to transmit now, and no action.
    #[inline]
    pub fn is_settled(&self) -> bool {
        self.active.is_empty() && self.actions.is_empty()
    }

    /// What the driver is to do next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The queue pair is connected.
    pub fn handle_connected(&mut self, id: PhysicalId) {
        self.book();
        let state = self.physical_state(id);
        if matches!(
            state,
            Some(PhysicalState::Connecting | PhysicalState::Accepting)
        ) {
            self.physicals[usize::from(id.slot)].state = PhysicalState::Ready;
            self.activate(id.slot);
            self.note_switchable(id.slot);
        }
    }

    /// The queue pair cannot be connected: the requests that wait for it fail.
    pub fn handle_unreachable(&mut self, id: PhysicalId) {
        self.book();
        if self.physical_state(id) == Some(PhysicalState::Connecting) {
            self.physicals[usize::from(id.slot)].state = PhysicalState::Down;
            self.fail_waiting(id.slot);
            self.begin_ending(id.slot);
            self.end_connection(id.slot);
        }
    }

    /// Ends the requests that wait for a queue pair.
    pub(crate) fn fail_waiting(&mut self, slot: u16) {
        self.fail_ends(slot);
        self.fail_exchanges(slot);
        while let Some((_, waiting)) = self.first_turn(slot) {
            self.physicals[usize::from(slot)].end_turn();
            if let Some(member) = self.virtuals.get_mut(waiting.0) {
                member.is_listed = false;
            }
            self.fail(waiting, Status::RetryExceeded);
        }
    }

    /// The node to which a work request goes that is in flight.
    pub fn node_of(&self, wr_id: u64) -> Option<NodeId> {
        if let Some(lone) = self.lone.as_ref().filter(|lone| lone.wr_id == wr_id) {
            return (!lone.is_complete).then_some(lone.node);
        }
        let (slot, generation, number) = parts_of(wr_id);
        let shared = self.physicals.get(usize::from(slot))?;
        let shared = Some(shared).filter(|shared| shared.id().generation == generation)?;
        let in_flight = shared.in_flight.get(shared.place_of(number)?)?;
        Some(in_flight.node)
    }

    /// A completion arrived.
    // Apart from the poll, most of which find none.
    #[inline(never)]
    pub fn handle_completion(&mut self, wr_id: u64, status: Status) {
        if !self.complete_lone(wr_id, status) {
            self.handle_booked(wr_id, status);
        }
    }

    /// Whether a completion is the one that follows a request that is not booked.
    #[inline(always)]
    fn complete_lone(&mut self, wr_id: u64, status: Status) -> bool {
        let Some(lone) = &mut self.lone else {
            return false;
        };
        let succeeded = status == Status::Success || self.faults.has(Fault::LoneAlwaysSucceeds);
        if lone.wr_id != wr_id || lone.is_complete || !succeeded {
            return false;
        }
        lone.is_complete = true;
        if !self.faults.has(Fault::LoneNumberKept) {
            self.physicals[usize::from(lone.physical)].end_lone();
        }
        true
    }

    /// A completion arrived of a request that is in the queues, or is to be.
    #[inline(never)]
    fn handle_booked(&mut self, wr_id: u64, status: Status) {
        self.book();
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

    #[inline(always)]
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
        if self.physicals[usize::from(slot)].has_turns() {
            self.go_on(slot);
        }
    }

    /// Turns wait for a queue pair, which may have room now.
    #[inline(never)]
    fn go_on(&mut self, slot: u16) {
        if self.has_room(slot) {
            self.activate(slot);
        }
    }

    /// Completes the oldest requests of a queue pair.
    #[inline(always)]
    fn retire(&mut self, slot: u16, count: usize) {
        for _ in 0..count {
            let shared = &mut self.physicals[usize::from(slot)];
            let Some(InFlight {
                of,
                node,
                locals,
                carries,
            }) = shared.pop()
            else {
                return;
            };
            let mut releases = true;
            locals.take_oldest(&mut shared.other_locals, |local| {
                if releases {
                    release(&mut self.regions, &mut self.actions, local);
                }
                releases &= !self.faults.has(Fault::FirstElementReleased);
            });
            if carries != Carries::Request {
                self.note_message_retired(node, of);
            }
            let id = self.receiver_of(of);
            match self.virtuals.get_mut(id.0) {
                Some(member) => {
                    match carries {
                        Carries::Part => member.retire_part(),
                        _ => member.retire(self.faults),
                    }
                    if member.is_waiting() {
                        self.list(id);
                    }
                }
                None => self.stats.closed += u64::from(ExchangeId::of_own(id).is_none()),
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
        let culprit = shared.in_flight.front();
        let culprit = culprit.filter(|_| status != Status::Flushed);
        let message = culprit.filter(|first| first.carries != Carries::Request);
        shared.cause = Some(Cause {
            status,
            of: culprit.map(|first| first.of),
            untold: message.map(|first| first.node),
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
        self.book();
        if self.physical_state(id) == Some(PhysicalState::Ready) {
            self.begin_failing(id.slot);
        }
    }
}
