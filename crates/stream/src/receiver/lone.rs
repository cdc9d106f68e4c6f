//! The most frequent receive: the octets of one transfer through the ring, which holds no others.

use std::collections::VecDeque;

use crate::config::Stats;
use crate::fault::Fault;
use crate::types::Event;

use super::{RecvHalf, Renewal, RingCopy};

impl<M> RecvHalf<M> {
    /// Whether an indirect transfer of this length, if it has now been placed, is all that the next
    /// receive gets, and no message is due after it. `is_last`: no other follows at once, by which
    /// a receive that is not full would be filled further.
    #[inline]
    pub(crate) fn is_lone(&self, len_octets: u64, is_last: bool) -> bool {
        let Some(recv) = self.recvs.front() else {
            return false;
        };
        let left = recv.left();
        let completes = left == len_octets || (left > len_octets && is_last && !recv.waitall);
        let is_open = !(self.finished || self.stopped) && self.canceled == 0;
        // The first receives are those with adverts.
        let has_advert = self.phase.is_direct() || self.advertised > 0;
        let is_quiet = self.renewal == Renewal::None && !self.may_advertise();
        completes && is_open && !has_advert && is_quiet && self.ring.is_passed_by(len_octets)
    }

    /// Copies the octets of such a transfer by `copy`, and completes the receive.
    #[inline]
    pub(crate) fn receive_lone(
        &mut self,
        len_octets: u64,
        copy: impl FnOnce(&RingCopy, &mut M),
        stats: &mut Stats,
        events: &mut VecDeque<Event<M>>,
    ) {
        let from = self.ring.pass(len_octets);
        let recv = self.recvs.front_mut().expect("a receive is queued");
        copy(&recv.copy_of(&from, len_octets), &mut recv.memory);
        recv.filled += len_octets;
        self.delivered = self.delivered.after(len_octets);
        if !self.faults.has(Fault::PrintedEstimate) {
            self.estimate = self.estimate.after(len_octets);
        }
        stats.copied_octets += len_octets;
        self.complete_first(events);
    }
}
