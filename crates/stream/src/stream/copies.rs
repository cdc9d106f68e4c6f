//! Copies out of the ring.

use crate::fault::Fault;
use crate::receiver::RingCopy;

use super::{Due, Stream};

impl<M> Stream<M> {
    /// Whether [`Stream::poll_copy`] has a copy.
    #[inline]
    pub fn has_copy(&self) -> bool {
        self.receiver.has_copy() && self.failure.is_none()
    }

    /// The next copy from the ring to the memory of a receive is made by `copy`; whether there is
    /// one. The stream takes the octets of the ring as free then.
    #[inline]
    pub fn poll_copy(&mut self, copy: impl FnOnce(&RingCopy, &mut M)) -> bool {
        let is_made = self.failure.is_none() && self.next_copy(copy);
        if is_made {
            self.copied();
        }
        is_made
    }

    /// [`Stream::poll_copy`] until there is none.
    #[inline]
    pub fn poll_copies(&mut self, mut copy: impl FnMut(&RingCopy, &mut M)) {
        let mut is_any = false;
        while self.failure.is_none() && self.next_copy(&mut copy) {
            is_any = true;
        }
        if is_any {
            self.copied();
        }
    }

    #[inline]
    fn next_copy(&mut self, copy: impl FnOnce(&RingCopy, &mut M)) -> bool {
        self.receiver
            .next_copy(copy, &mut self.stats, &mut self.events)
    }

    /// What can follow from copies.
    #[inline]
    fn copied(&mut self) {
        if self.receiver.owes_message() && !self.faults.has(Fault::CopiesUnseen) {
            self.due = Due::All;
        }
        self.check_closed();
    }

    /// Whether [`Stream::poll_copies`] does what repeated calls of [`Stream::poll_copy`] do.
    #[cfg(test)]
    pub(crate) fn is_copied_alike(&self) -> bool
    where
        M: Clone + PartialEq,
    {
        let [mut together, mut each] = [(); 2].map(|()| (self.clone(), Vec::new()));
        together.0.poll_copies(|copy, _| together.1.push(*copy));
        while each.0.poll_copy(|copy, _| each.1.push(*copy)) {}
        // What was due between two copies need not be due after the last.
        (together.0.due, each.0.due) = (Due::All, Due::All);
        together == each
    }
}
