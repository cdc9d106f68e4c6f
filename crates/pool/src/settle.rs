//! What becomes of requests when a shared queue pair has failed.
//!
//! The queue pair is destroyed: no memory is accessed any more, and no completion follows. Those
//! before the first completion in error succeeded. What is left is settled by virtual queue pair:
//!
//! - the one whose request failed gets its status, and its other requests are flushed;
//! - if the node refused that request, nothing that was posted behind it was executed;
//! - if the node did not answer, it may have executed those behind that request that go to it, up
//!   to the first to another node: an initiator sends nothing to that one before all requests to
//!   the node before are complete;
//! - if no request is known to be the cause, nodes may have executed anything that is left.
//!
//! What was not executed is posted again, to the replacement. Of the rest, Reads are posted again,
//! and a virtual queue pair with a Write or an atomic among its requests fails: it must not be
//! executed twice. Its oldest request gets the status that a connection of its own would have got.
//! Sends are posted again, since the node drops those that it has had.

use std::collections::VecDeque;

use crate::exchange::{Exchange, ExchangeId};
use crate::fault::Fault;
use crate::physical_qp::{Carries, Executed, InFlight};
use crate::pool::{release, Pool};
use crate::types::{
    LocalRegionId, NodeId, PhysicalId, PhysicalState, Status, VirtualId, VirtualState,
};

/// Queue pairs in a row that may refuse their first work request; then the requests that wait fail,
/// since the next one would refuse them, too.
const REFUSALS_MAX: u8 = 2;

/// How requests are settled.
struct Settled {
    /// With which status, if they end.
    status: Status,
    /// Whose request has failed.
    culprit: Option<VirtualId>,
    /// Whether nodes may have executed them.
    executed: Executed,
}

impl Pool {
    /// The queue pair is destroyed.
    pub fn handle_destroyed(&mut self, id: PhysicalId) {
        self.book();
        if self.physical_state(id) != Some(PhysicalState::Failing) {
            return;
        }
        let shared = &mut self.physicals[usize::from(id.slot)];
        let cause = shared.cause.take();
        let is_refusing = shared.refusals == REFUSALS_MAX;
        let mut left = std::mem::take(&mut shared.in_flight);
        let mut others = std::mem::take(&mut shared.other_locals);
        shared.renew();
        shared.state = PhysicalState::Down;
        let mut settled = Settled {
            status: cause.map_or(Status::Flushed, |cause| cause.status),
            culprit: cause.and_then(|cause| cause.of),
            executed: cause.map_or(Executed::Any, |cause| cause.executed),
        };
        let is_switched = self.switch.is_some() && shared.node.is_some();
        if is_switched && self.faults.has(Fault::SwitchRepeated) {
            settled.executed = Executed::Nothing;
        }
        self.begin_ending(id.slot);
        let failed_node = left.front().map(|first| first.node);
        let untold = cause.and_then(|cause| cause.untold);
        let mut met = Vec::new();
        while let Some(in_flight) = left.pop_front() {
            let is_other_node = Some(in_flight.node) != failed_node;
            if settled.executed == Executed::SameNode
                && is_other_node
                && !self.faults.has(Fault::OtherNodesFail)
            {
                settled.executed = Executed::Nothing;
            }
            if in_flight.carries != Carries::Request {
                met.extend(self.take_message_back(in_flight.node));
            }
            self.settle(&in_flight, &mut others, &settled);
        }
        let shared = &mut self.physicals[usize::from(id.slot)];
        // Its memory is used again.
        (shared.in_flight, shared.other_locals) = (left, others);
        let exchange = self.exchanges.id_of_connection(id.slot);
        self.exchanges.get_mut(exchange).map(Exchange::reset);
        self.settle_exchanges(met, untold);
        if self.end_connection(id.slot) {
            return;
        }
        let shared = &mut self.physicals[usize::from(id.slot)];
        let is_initiator = shared.node.is_none();
        if is_refusing {
            shared.refusals = 0;
            self.fail_waiting(id.slot);
        } else if shared.state == PhysicalState::Down {
            match shared.members {
                0 if !is_initiator => self.forget_exchange(exchange),
                0 if !shared.has_turns() => {}
                _ => self.connect(id.slot),
            }
        }
    }

    /// Settles the exchanges whose messages over an initiator are not known to have arrived. That
    /// with the node which has not taken one ends, if there is one.
    fn settle_exchanges(&mut self, mut met: Vec<ExchangeId>, untold: Option<NodeId>) {
        met.dedup();
        let untold = untold.and_then(|node| self.exchanges.id_of_node(node));
        if let Some(id) = untold.filter(|_| !self.faults.has(Fault::UntoldKept)) {
            self.fail_exchange(id);
        }
        met.into_iter().for_each(|id| self.tell_again(id));
    }

    fn settle(&mut self, in_flight: &InFlight, others: &mut VecDeque<LocalRegionId>, by: &Settled) {
        let id = in_flight.of;
        let is_closed = self.virtuals.get(id.0).is_none();
        let releases = is_closed || in_flight.carries == Carries::Part;
        in_flight.locals.take_oldest(others, |local| {
            if releases {
                release(&mut self.regions, &mut self.actions, local);
            }
        });
        let Some(member) = self.virtuals.get_mut(id.0) else {
            self.stats.closed += u64::from(ExchangeId::of_own(id).is_none());
            return;
        };
        if member.in_flight() == 0 {
            // Settled by an earlier one.
            return;
        }
        let must_not_repeat = match by.executed {
            Executed::Nothing => self.faults.has(Fault::InnocentFail),
            Executed::SameNode | Executed::Any => {
                member.has_posted_effects()
                    && !self.faults.has(Fault::EffectsRepeated)
                    && !(by.executed == Executed::SameNode
                        && self.faults.has(Fault::NeighboursRepeated))
            }
        };
        // Its other end was closed: what was posted before ends now.
        let is_ending = member.state == VirtualState::Error;
        if by.culprit == Some(id) || must_not_repeat || is_ending {
            self.fail(id, by.status);
        } else if !self.faults.has(Fault::NotRepeated) {
            member.repeat(self.faults);
            self.stats.repeated += 1;
            self.list(id);
        }
    }
}
