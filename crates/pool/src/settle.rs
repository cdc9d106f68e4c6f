//! What becomes of requests when a shared queue pair has failed.
//!
//! The queue pair is destroyed: no memory is accessed any more, and no completion follows. Those
//! before the first completion in error succeeded. What is left is settled by virtual queue pair:
//!
//! - the one whose request failed gets its status, and its other requests are flushed;
//! - if the node refused that request, it has executed nothing that was posted behind it, and the
//!   others' requests are posted again, to the replacement;
//! - otherwise the node may have executed them. Reads are posted again. A virtual queue pair with a
//!   Write or an atomic among them fails: it must not be executed twice. Its oldest request gets
//!   the status, which a connection of its own would have got.

use crate::fault::Fault;
use crate::physical_qp::InFlight;
use crate::pool::{release, Pool};
use crate::types::{PhysicalId, PhysicalState, Status, VirtualId};

impl Pool {
    /// The queue pair is destroyed.
    pub fn handle_destroyed(&mut self, id: PhysicalId) {
        if self.physical_state(id) != Some(PhysicalState::Failing) {
            return;
        }
        let shared = &mut self.physicals[usize::from(id.slot)];
        let cause = shared.cause.take();
        let mut left = std::mem::take(&mut shared.in_flight);
        shared.renew();
        shared.state = PhysicalState::Down;
        let status = cause.map_or(Status::Flushed, |cause| cause.status);
        let culprit = cause.and_then(|cause| cause.of);
        let is_refusal = cause.is_some_and(|cause| cause.is_refusal);
        for in_flight in left.drain(..) {
            self.settle(&in_flight, culprit, is_refusal, status);
        }
        let shared = &mut self.physicals[usize::from(id.slot)];
        // Its memory is used again.
        shared.in_flight = left;
        if shared.state == PhysicalState::Down && shared.members > 0 {
            self.connect(id.slot);
        }
    }

    fn settle(
        &mut self,
        in_flight: &InFlight,
        culprit: Option<VirtualId>,
        is_refusal: bool,
        status: Status,
    ) {
        let id = in_flight.of;
        let Some(member) = self.virtuals.get_mut(id.0) else {
            release(&mut self.regions, &mut self.actions, in_flight.local);
            self.stats.closed += 1;
            return;
        };
        if member.posted() == 0 {
            // Settled by an earlier one.
            return;
        }
        let must_not_repeat = match is_refusal {
            true => self.faults.has(Fault::InnocentFail),
            false => member.has_posted_effects() && !self.faults.has(Fault::EffectsRepeated),
        };
        if culprit == Some(id) || must_not_repeat {
            self.fail(id, status);
        } else if !self.faults.has(Fault::NotRepeated) {
            member.repeat();
            self.stats.repeated += 1;
            self.list(id);
        }
    }
}
