//! A request that is posted while nothing precedes it, and that is not in the queues.

use crate::fault::{Fault, Faults};
use crate::per_element::PerElement;
use crate::physical_qp::{Carries, InFlight, PhysicalQp};
use crate::queued::Queued;
use crate::regions::{Piece, Regions};
use crate::types::{Completion, LocalRegionId, NodeId, Status, VirtualId};
use crate::virtual_qp::VirtualQp;

/// What a request costs in the order of turns beside its octets.
pub(crate) const REQUEST_COST: u64 = 512;

/// The only request in flight of its virtual queue pair and of the shared one, signaled by its user
/// and with one element. If its completion comes next, it has never been in a queue; before
/// anything else happens, it is booked: the state is then as if it had been queued and posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lone {
    /// Whose it is.
    pub(crate) of: VirtualId,
    /// Where it goes.
    pub(crate) node: NodeId,
    /// The slot of its shared queue pair.
    pub(crate) physical: u16,
    pub(crate) wr_id: u64,
    /// Its beginning in virtual time.
    pub(crate) start: u64,
    pub(crate) queued: Queued,
    /// Whether it has succeeded, and its user has not polled that.
    pub(crate) is_complete: bool,
}

impl Lone {
    pub(crate) fn completion(&self) -> Completion {
        self.queued.completion(Status::Success)
    }

    /// Enters it into the queues, in which nothing precedes it.
    pub(crate) fn book(
        &self,
        (member, shared): (&mut VirtualQp, &mut PhysicalQp),
        regions: &mut Regions,
        faults: Faults,
    ) {
        if self.is_complete {
            member.complete(self.completion());
            return;
        }
        if !faults.has(Fault::LoneUsesNothing) {
            regions.use_only(self.queued.pieces);
        }
        member.push(self.queued);
        let locals = self.queued.pieces.map_only(|piece: Piece| piece.local);
        let to = (self.node, locals);
        note_posted((member, shared), (self.start, self.of), &self.queued, to);
    }
}

/// Notes the next request of a virtual queue pair, which begins at `start`, as posted to the shared
/// one, with the local regions of its elements.
#[inline(always)]
pub(crate) fn note_posted(
    (member, shared): (&mut VirtualQp, &mut PhysicalQp),
    (start, id): (u64, VirtualId),
    queued: &Queued,
    (node, locals): (NodeId, PerElement<LocalRegionId>),
) {
    member.finish = finish_of(start, queued);
    member.note_posted(queued);
    let in_flight = InFlight {
        of: id,
        node,
        locals,
        carries: Carries::of(queued),
    };
    shared.push(in_flight, start);
}

/// When a request ends in virtual time that begins at `start`.
#[inline(always)]
pub(crate) fn finish_of(start: u64, queued: &Queued) -> u64 {
    start + REQUEST_COST + u64::from(queued.len_octets)
}
