//! A send and its work request by one call; a send that joins others; a transfer and its copy by
//! one call.

use crate::credit::Purpose;
use crate::fault::Fault;
use crate::receiver::RingCopy;
use crate::transfer::Lone;
use crate::types::{Clock, SendId};
use crate::wire::Immediate;
#[cfg(test)]
use crate::{transfer::Piece, types::Parts};

#[cfg(test)]
use super::Transmit;
use super::{Due, Stream};

impl<M> Stream<M> {
    /// The work request that a send of this length is, if it is one RDMA Write that may be posted
    /// at once, and nothing else is to be posted before or after it. The driver posts it, signaled,
    /// and then calls [`Stream::send_lone`], in place of [`Stream::send`] and
    /// [`Stream::poll_transmit`]: what the stream keeps of the send does not delay the peer.
    #[inline]
    pub fn lone(&self, len_octets: u64) -> Option<Lone> {
        // A stream that has failed has everything due.
        let is_lone = (self.due == Due::Nothing || self.faults.has(Fault::LoneOverOthers))
            && !self.is_full()
            && self.permits(Purpose::Ordinary)
            && self.sender.is_lone(len_octets);
        is_lone.then(|| self.sender.lone(len_octets))
    }

    /// Queues the send for which [`Stream::lone`] has just given a work request. No other one is
    /// due after it.
    #[inline]
    pub fn send_lone(&mut self, len_octets: u64, memory: M, clock: &mut impl Clock) -> SendId {
        let id = self
            .sender
            .send_lone(len_octets, memory, clock, &mut self.stats);
        self.posts(short(len_octets), true, clock);
        id
    }

    /// Whether a send of this length joins others that wait, and they wait on.
    #[inline]
    pub fn joins(&self, len_octets: u64) -> bool {
        self.sender.joins(len_octets)
    }

    /// [`Stream::send`] of a length of which [`Stream::joins`] is true.
    #[inline]
    pub fn join(&mut self, len_octets: u64, memory: M) -> SendId {
        self.sender.post(len_octets, memory)
    }

    /// Whether [`Stream::join`] does what [`Stream::send`] does, after which sends still wait.
    #[cfg(test)]
    pub(crate) fn is_joined_alike(&self, len_octets: u64, memory: M) -> bool
    where
        M: Clone + PartialEq,
    {
        let [mut joined, mut sent] = [(); 2].map(|()| self.clone());
        let id = joined.join(len_octets, memory.clone());
        let is_sent = sent.send(len_octets, memory).is_ok_and(|sent| sent == id);
        is_sent && joined.is_gathering() && joined == sent
    }

    /// What [`Stream::handle_immediate`] and [`Stream::poll_copy`] do, if the transfer is through
    /// the ring, which holds no other octets, and completes a receive without an advert; no message
    /// is due after it then. `false`: it is not so, and nothing is done. `is_last`: no other
    /// transfer has arrived that a receive with room may get as well.
    #[inline]
    pub fn receive_lone(
        &mut self,
        word: u32,
        written_octets: u32,
        is_last: bool,
        copy: impl FnOnce(&RingCopy, &mut M),
    ) -> bool {
        let Ok(Immediate::Indirect(whole)) = Immediate::decode(word) else {
            return false;
        };
        let len_octets = u64::from(whole);
        // A stream that has failed has everything due.
        let is_lone = self.due != Due::All
            && (1..=whole).contains(&written_octets)
            && !self.credits.owes_update_after(1)
            && self.receiver.is_lone(len_octets, is_last);
        if is_lone {
            self.credits.pass();
            self.receiver
                .receive_lone(len_octets, copy, &mut self.stats, &mut self.events);
        }
        is_lone
    }

    /// [`Stream::receive_lone`]: its copy, and whether it ends as a transfer and its copy do, or
    /// changes nothing.
    #[cfg(test)]
    pub(crate) fn receive_lone_twice(
        &mut self,
        word: u32,
        written_octets: u32,
    ) -> (Option<RingCopy>, bool)
    where
        M: Clone + PartialEq,
    {
        let mut other = self.clone();
        let [mut copied, mut expected] = [None; 2];
        if self.receive_lone(word, written_octets, true, |copy, _| copied = Some(*copy)) {
            let is_taken = other.handle_immediate(word, written_octets).is_ok();
            other.poll_copy(|copy, _| expected = Some(*copy));
            let is_one = is_taken && !other.poll_copy(|_, _| {});
            return (copied, is_one && copied == expected && other == *self);
        }
        (None, other == *self)
    }

    /// [`Stream::lone`] and [`Stream::send_lone`]: the work request as a piece, and whether they
    /// end as a send and its work request do. `None`: the send is not of that kind.
    #[cfg(test)]
    pub(crate) fn send_lone_twice(
        &mut self,
        len_octets: u64,
        memory: M,
        now_ns: u64,
    ) -> Option<(Piece, bool)>
    where
        M: Clone + PartialEq,
    {
        let lone = self.lone(len_octets)?;
        let mut other = self.clone();
        let id = self.send_lone(len_octets, memory.clone(), &mut { now_ns });
        let piece = Piece {
            parts: Parts::one(id, 0, len_octets),
            len_octets: short(len_octets),
            addr: lone.addr,
            rkey: lone.rkey,
            immediate: Some(lone.immediate),
        };
        let is_queued = other.send(len_octets, memory).is_ok();
        let next = other.poll_transmit(&mut { now_ns });
        let is_same = is_queued && next == Some(Transmit::Write(piece)) && other == *self;
        Some((piece, is_same))
    }
}

/// The length of a lone send.
fn short(len_octets: u64) -> u32 {
    u32::try_from(len_octets).expect("a lone send is short")
}
