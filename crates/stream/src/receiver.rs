//! The receiving half: adverts sent, estimate, phase, ring, and the queue of receives.

mod lone;

use std::collections::VecDeque;

use crate::config::{Config, Stats};
use crate::error::{CallError, PeerError};
use crate::fault::{Fault, Faults};
use crate::own_ring::{OwnRing, Place};
use crate::queue::Queue;
use crate::sojourn::mean;
use crate::types::{AdvertNo, Buffer, Choice, Event, Kind, Outcome, Phase, RecvId, RingNo, Seq};
use crate::wire::{Advert, Hello};

/// So many receives in the queue on average are of a flow, in which receives of up to twice the
/// length have no adverts either: several of their sends are one transfer through the ring. A
/// single message, for which the user waits, arrives earlier with an advert.
const FLOW_RECVS: u64 = 8;
/// The mean number of receives is kept in eighths, without which small numbers have no mean.
const QUEUED_UNIT: u64 = 8;

/// Octets to be copied from the ring into the buffer of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingCopy {
    /// The ring.
    pub ring: RingNo,
    /// Where they begin in it.
    pub ring_offset: u64,
    /// The receive into whose buffer they go.
    pub recv: RecvId,
    /// Where they go in that buffer.
    pub offset: u64,
    /// The address of that place.
    pub addr: u64,
    /// How many.
    pub len_octets: u64,
}

/// A queued receive.
#[derive(Clone, Debug, PartialEq)]
struct Recv<M> {
    id: RecvId,
    memory: M,
    buffer: Buffer,
    waitall: bool,
    filled: u64,
    /// Its advert, which the peer may use, or has discarded without this end knowing.
    advert: Option<(AdvertNo, Phase)>,
    canceled: bool,
}

impl<M> Recv<M> {
    fn left(&self) -> u64 {
        self.buffer.len_octets - self.filled
    }

    /// The copy of the first octets of a place of the ring behind those that it has.
    #[inline(always)]
    fn copy_of(&self, from: &Place, len_octets: u64) -> RingCopy {
        RingCopy {
            ring: from.ring,
            ring_offset: from.offset,
            recv: self.id,
            offset: self.filled,
            addr: self.buffer.addr + self.filled,
            len_octets,
        }
    }

    /// It ends so.
    #[inline]
    fn end(self, outcome: Outcome) -> Event<M> {
        Event::Received {
            id: self.id,
            memory: self.memory,
            octets: self.filled,
            outcome,
        }
    }

    /// The least number of octets that it still takes.
    fn promise(&self) -> u64 {
        if self.waitall {
            self.left()
        } else {
            1
        }
    }
}

/// Adverts that the peer is asked to give back.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Withdrawal {
    from: AdvertNo,
    said: bool,
}

/// The answer to a pause of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Renewal {
    /// There is no pause.
    None,
    /// The adverts that are out are still to be taken back.
    Asked,
    /// They are; the next advert is the first of the answer.
    Begun,
    /// Adverts of the answer are out.
    Sent,
}

/// State of the receiving half.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RecvHalf<M> {
    faults: Faults,
    kind: Kind,
    sends_adverts: bool,
    /// The mean length of receives below which they have no adverts; recent ones count more.
    advert_min_octets: u64,
    mean_octets: u64,
    /// The mean number of receives that are queued, in units of [`QUEUED_UNIT`].
    mean_queued: u64,
    /// Whether receives are so short on average that they have no adverts.
    are_short: bool,
    max_recvs: usize,
    max_adverts: usize,
    /// S_r: octets in the buffers of receives.
    delivered: Seq,
    /// S'_r: where the next receive without advert begins at the earliest.
    estimate: Seq,
    /// P_r.
    phase: Phase,
    ring: OwnRing,
    recvs: Queue<Recv<M>>,
    /// How many receives have an advert: the first ones of the queue.
    advertised: usize,
    /// How many receives are canceled and not returned.
    canceled: usize,
    next_recv: u64,
    next_advert: AdvertNo,
    withdrawal: Option<Withdrawal>,
    renewal: Renewal,
    /// The peer has announced its end.
    finished: bool,
    stopped: bool,
}

impl<M> RecvHalf<M> {
    pub(crate) fn new(config: &Config, own: &Hello, peer: &Hello, faults: Faults) -> Self {
        Self {
            faults,
            kind: config.kind,
            sends_adverts: config.choice != Choice::Indirect,
            advert_min_octets: match own.ring.len_octets > 0 && peer.choice != Choice::Direct {
                true => config.advert_min_octets,
                false => 0,
            },
            mean_octets: 0,
            mean_queued: 0,
            are_short: false,
            max_recvs: usize::from(config.max_recvs),
            max_adverts: usize::from(peer.max_adverts),
            delivered: Seq(0),
            estimate: Seq(0),
            phase: Phase(0),
            ring: OwnRing::new(own.ring.len_octets, config.ring_max_octets, faults),
            recvs: Queue::new(),
            advertised: 0,
            canceled: 0,
            next_recv: 0,
            next_advert: AdvertNo(0),
            withdrawal: None,
            renewal: Renewal::None,
            finished: false,
            stopped: false,
        }
    }

    /// Whether a receive into this buffer may be posted.
    pub(crate) fn may_post(&self, buffer: Buffer) -> Result<(), CallError> {
        if self.stopped {
            return Err(CallError::Finished);
        }
        let empty = buffer.len_octets == 0 && self.kind == Kind::Octets;
        if empty || !buffer.is_addressable() {
            return Err(CallError::BadBuffer);
        }
        match self.recvs.len() < self.max_recvs {
            true => Ok(()),
            false => Err(CallError::QueueFull),
        }
    }

    /// Queues a receive that may be posted.
    #[inline]
    pub(crate) fn post(
        &mut self,
        buffer: Buffer,
        memory: M,
        waitall: bool,
        events: &mut VecDeque<Event<M>>,
    ) -> RecvId {
        self.mean_octets = mean(self.mean_octets, buffer.len_octets);
        let id = RecvId(self.next_recv);
        self.next_recv += 1;
        self.recvs.push_back(Recv {
            id,
            memory,
            buffer,
            waitall: waitall && self.kind == Kind::Octets,
            filled: 0,
            advert: None,
            canceled: false,
        });
        self.mean_queued = mean(self.mean_queued, self.recvs.len() as u64 * QUEUED_UNIT);
        self.are_short = self.are_short();
        self.end_of_stream(events);
        id
    }

    /// What the receives were posted with.
    pub(crate) fn memory(&self) -> impl Iterator<Item = &M> {
        self.recvs.rest(0).map(|recv| &recv.memory)
    }

    /// Whether a receive may be advertised if ring and phase permit it.
    pub(crate) fn may_advertise(&self) -> bool {
        let is_asked = || self.withdrawal.is_some() || self.renewal == Renewal::Asked;
        // Most that have none are short.
        !self.are_short
            && self.sends_adverts
            && !(self.finished || self.stopped || is_asked())
            && self.advertised < self.recvs.len().min(self.max_adverts)
    }

    /// Whether receives are so short on average that they have no adverts.
    fn are_short(&self) -> bool {
        let is_flow = self.mean_queued >= FLOW_RECVS * QUEUED_UNIT;
        let min_octets = self.advert_min_octets;
        self.mean_octets < min_octets
            || (is_flow && self.mean_octets < min_octets.saturating_mul(2))
    }

    /// Whether octets of the ring can be copied to a receive.
    #[inline]
    pub(crate) fn has_copy(&self) -> bool {
        !self.is_drained() && !self.recvs.is_empty()
    }

    /// Whether a message of this half can follow from what has arrived or was copied.
    pub(crate) fn owes_message(&self) -> bool {
        self.owes_update() || self.renewal != Renewal::None || self.may_advertise()
    }

    /// The next advert, if the rule permits one (algorithm 2).
    pub(crate) fn next_advert(&mut self, stats: &mut Stats) -> Option<Advert> {
        if !self.may_advertise() {
            return None;
        }
        let out_of_order = self.faults.has(Fault::AdvertOutOfOrder);
        let index = self.advertised;
        // k_b: the receives with adverts come first, so this one is the oldest without.
        let index = if out_of_order {
            self.recvs.rest(0).rposition(|recv| recv.advert.is_none())?
        } else {
            index
        };
        if self.ring.held() > 0 && !self.faults.has(Fault::AdvertOverRing) {
            return None;
        }
        // k_a: adverts are sent in order, so if any is of an earlier phase, the oldest is.
        let oldest = self.recvs.front().and_then(|recv| recv.advert);
        let stale = oldest.is_some_and(|(_, phase)| phase != self.phase);
        if stale && !self.faults.has(Fault::AdvertOverStale) {
            return None;
        }
        if !self.phase.is_direct() {
            self.phase = self.phase.next();
        }
        let number = self.next_advert;
        self.next_advert.0 += 1;
        let recv = &mut self.recvs[index];
        recv.advert = Some((number, self.phase));
        self.advertised += 1;
        let estimate = self.estimate;
        self.estimate = estimate.after(recv.promise());
        stats.adverts_sent += 1;
        let renewed = self.renewal == Renewal::Begun;
        if renewed {
            self.renewal = Renewal::Sent;
        }
        Some(Advert {
            number,
            phase: self.phase,
            estimate,
            buffer: Buffer {
                addr: recv.buffer.addr + recv.filled,
                len_octets: recv.left(),
                rkey: recv.buffer.rkey,
            },
            waitall: recv.waitall,
            renewed,
        })
    }

    /// The peer sends nothing after this position until it is answered. It has discarded all
    /// adverts, and discards those that are on the way.
    pub(crate) fn handle_pause(&mut self, position: Seq) -> Result<(), PeerError> {
        let arrived = self.delivered.after(self.ring.held());
        if self.renewal != Renewal::None || self.finished || position != arrived {
            return Err(PeerError::UnexpectedPause);
        }
        self.renewal = Renewal::Asked;
        Ok(())
    }

    /// Takes all adverts back if the peer waits for that, as soon as the ring is empty or cannot
    /// be emptied.
    pub(crate) fn renew(&mut self, events: &mut VecDeque<Event<M>>) {
        let settled = self.ring.held() == 0 || self.recvs.is_empty();
        if self.renewal != Renewal::Asked || self.withdrawal.is_some() || !settled {
            return;
        }
        self.renewal = Renewal::Begun;
        if self.phase.is_direct() {
            self.phase = self.phase.next();
        }
        self.retire_canceled(events);
        for recv in self.recvs.rest_mut(0) {
            if recv.advert.take().is_some() {
                self.estimate = Seq(self.estimate.0 - recv.promise());
            }
        }
        self.advertised = 0;
    }

    /// Whether the answer to a pause is complete, once no advert can be sent.
    pub(crate) fn resume_due(&self) -> bool {
        matches!(self.renewal, Renewal::Begun | Renewal::Sent)
    }

    pub(crate) fn resume_said(&mut self) {
        self.renewal = Renewal::None;
    }

    /// A direct transfer has been placed.
    pub(crate) fn handle_direct(
        &mut self,
        len_octets: u64,
        events: &mut VecDeque<Event<M>>,
    ) -> Result<(), PeerError> {
        if self.finished {
            return Err(PeerError::AfterFinish);
        }
        if len_octets == 0 && self.kind == Kind::Octets {
            return Err(PeerError::FalseLength);
        }
        let phase = self.phase;
        let recv = self.recvs.front_mut();
        let recv = recv.filter(|recv| recv.advert.is_some_and(|(_, sent)| sent == phase));
        let recv = recv.ok_or(PeerError::UnexpectedDirect)?;
        if !phase.is_direct() {
            return Err(PeerError::UnexpectedDirect);
        }
        if len_octets > recv.left() {
            return Err(PeerError::DirectOverflow);
        }
        recv.filled += len_octets;
        self.delivered = self.delivered.after(len_octets);
        if !recv.waitall {
            self.estimate = Seq((self.estimate.0 + len_octets) - 1);
        }
        if !recv.waitall || recv.left() == 0 {
            self.complete_first(events);
        }
        Ok(())
    }

    /// An indirect transfer has been placed.
    #[inline]
    pub(crate) fn handle_indirect(
        &mut self,
        len_octets: u64,
        events: &mut VecDeque<Event<M>>,
    ) -> Result<(), PeerError> {
        if self.finished {
            return Err(PeerError::AfterFinish);
        }
        if len_octets == 0 {
            return Err(PeerError::FalseLength);
        }
        self.ring.handle_written(len_octets)?;
        if self.phase.is_direct() {
            self.phase = self.phase.next();
        }
        // The peer has passed every advert that it has had, so canceled receives are free.
        self.retire_canceled(events);
        if self.stopped {
            self.drop_ring();
        }
        Ok(())
    }

    /// The next copy out of the ring is made by `copy`; whether there is one. The octets count as
    /// free from then on.
    #[inline]
    pub(crate) fn next_copy(
        &mut self,
        copy: impl FnOnce(&RingCopy, &mut M),
        stats: &mut Stats,
        events: &mut VecDeque<Event<M>>,
    ) -> bool {
        let (Some(recv), Some(from)) = (self.recvs.front_mut(), self.ring.first()) else {
            return false;
        };
        let len_octets = from.len_octets.min(recv.left());
        let of_recv = recv.copy_of(&from, len_octets);
        copy(&of_recv, &mut recv.memory);
        recv.filled += len_octets;
        self.ring.copy(len_octets);
        self.delivered = self.delivered.after(len_octets);
        stats.copied_octets += len_octets;
        let complete = recv.left() == 0 || (!recv.waitall && self.ring.held() == 0);
        match recv.advert {
            // The line that the printed algorithm lacks: no advert has counted these octets.
            None => {
                if !self.faults.has(Fault::PrintedEstimate) {
                    self.estimate = self.estimate.after(len_octets);
                }
            }
            Some(_) if !recv.waitall => {
                let counted = u64::from(complete);
                self.estimate = Seq((self.estimate.0 + len_octets) - counted);
            }
            Some(_) => {}
        }
        if complete {
            self.complete_first(events);
        }
        self.end_of_stream(events);
        true
    }

    /// The ring of this end.
    pub(crate) fn ring(&mut self) -> &mut OwnRing {
        &mut self.ring
    }

    /// The peer asks for a ring of `octets` octets.
    pub(crate) fn handle_want(&mut self, octets: u64) -> Result<(), PeerError> {
        match self.finished {
            true => Err(PeerError::UnexpectedWant),
            false => self.ring.handle_want(octets),
        }
    }

    /// What the peer sends indirectly from now on is in the ring that it was offered.
    pub(crate) fn handle_taken(&mut self, number: RingNo) -> Result<(), PeerError> {
        match self.finished {
            true => Err(PeerError::UnexpectedTaken),
            false => self.ring.handle_taken(number),
        }
    }

    /// The length of the ring that the peer wishes and this end has to make, while it is of use.
    pub(crate) fn ring_wanted(&self) -> Option<u64> {
        let wanted = self.ring.wanted()?;
        (!self.finished && !self.stopped).then_some(wanted)
    }

    /// The oldest ring in use.
    pub(crate) fn oldest_ring(&self) -> RingNo {
        self.ring.oldest()
    }

    /// Whether enough of the ring is free for the peer to be told.
    pub(crate) fn owes_update(&self) -> bool {
        self.ring.owes_update()
    }

    /// Cancels a receive: at once if the peer cannot use its buffer, else after a withdrawal.
    pub(crate) fn cancel(
        &mut self,
        id: RecvId,
        events: &mut VecDeque<Event<M>>,
    ) -> Result<(), CallError> {
        let index = self.recvs.place_of(id.0, |recv| recv.id.0);
        let index = index.ok_or(CallError::NoSuchOperation)?;
        let was_canceled = std::mem::replace(&mut self.recvs[index].canceled, true);
        self.canceled += usize::from(!was_canceled);
        let at_once = self.faults.has(Fault::CancelAtOnce);
        if !self.is_live(&self.recvs[index]) || at_once {
            self.retire(index, Outcome::Canceled, events);
        } else {
            self.ask_for_canceled();
        }
        Ok(())
    }

    /// Whether the peer may write into the buffer of a receive.
    fn is_live(&self, recv: &Recv<M>) -> bool {
        recv.advert.is_some_and(|(_, phase)| phase == self.phase) && !self.finished
    }

    /// Asks for the adverts of canceled receives, unless an answer is awaited.
    fn ask_for_canceled(&mut self) {
        if self.stopped || self.withdrawal.is_some_and(|withdrawal| withdrawal.said) {
            return;
        }
        let oldest = self
            .recvs
            .rest(0)
            .find(|recv| recv.canceled && self.is_live(recv));
        if let Some((from, _)) = oldest.and_then(|recv| recv.advert) {
            self.withdrawal = Some(Withdrawal { from, said: false });
        }
    }

    /// The withdrawal that is to be sent.
    pub(crate) fn withdrawal_due(&self) -> Option<AdvertNo> {
        self.withdrawal
            .filter(|withdrawal| !withdrawal.said)
            .map(|withdrawal| withdrawal.from)
    }

    pub(crate) fn withdrawal_said(&mut self) {
        if let Some(withdrawal) = &mut self.withdrawal {
            withdrawal.said = true;
        }
    }

    pub(crate) fn handle_withdrawn(
        &mut self,
        from: AdvertNo,
        events: &mut VecDeque<Event<M>>,
    ) -> Result<(), PeerError> {
        let expected = self.withdrawal.filter(|withdrawal| withdrawal.said);
        if expected.map(|withdrawal| withdrawal.from) != Some(from) {
            return Err(PeerError::UnexpectedWithdrawn);
        }
        self.withdrawal = None;
        for recv in self.recvs.rest_mut(0) {
            if recv.advert.is_some_and(|(number, _)| number >= from) {
                recv.advert = None;
                self.advertised -= 1;
                self.estimate = Seq(self.estimate.0 - recv.promise());
            }
        }
        self.retire_canceled(events);
        self.ask_for_canceled();
        Ok(())
    }

    /// Completes the canceled receives into whose buffers the peer can no longer write.
    #[inline]
    fn retire_canceled(&mut self, events: &mut VecDeque<Event<M>>) {
        if self.canceled > 0 {
            self.retire_each_canceled(events);
        }
    }

    #[cold]
    fn retire_each_canceled(&mut self, events: &mut VecDeque<Event<M>>) {
        let mut index = 0;
        while self.canceled > 0 {
            let Some(recv) = self.recvs.get(index) else {
                return;
            };
            if recv.canceled && !self.is_live(recv) {
                self.retire(index, Outcome::Canceled, events);
            } else {
                index += 1;
            }
        }
    }

    /// Completes a receive that gets no more octets.
    fn retire(&mut self, index: usize, outcome: Outcome, events: &mut VecDeque<Event<M>>) {
        let recv = &self.recvs[index];
        if recv.advert.is_some() {
            self.estimate = Seq(self.estimate.0 - recv.promise());
        }
        self.remove(index, outcome, events);
    }

    /// The first receive has all that it gets. Its event follows those that are queued.
    #[inline]
    fn complete_first(&mut self, events: &mut VecDeque<Event<M>>) {
        if !events.is_empty() {
            return self.remove(0, Outcome::Done, events);
        }
        let recv = &self.recvs[0];
        self.advertised -= usize::from(recv.advert.is_some());
        self.canceled -= usize::from(recv.canceled);
        self.recvs.complete_front();
    }

    /// Whether a receive is complete, the event of which precedes those that are queued.
    #[inline]
    pub(crate) fn has_complete(&self) -> bool {
        self.recvs.has_complete()
    }

    /// The event of the oldest of these.
    #[inline]
    pub(crate) fn take_complete(&mut self) -> Option<Event<M>> {
        Some(self.recvs.take_complete()?.end(Outcome::Done))
    }

    #[inline(never)]
    fn remove(&mut self, index: usize, outcome: Outcome, events: &mut VecDeque<Event<M>>) {
        let recv = self.recvs.remove(index);
        let recv = recv.expect("the index is of a queued receive");
        self.advertised -= usize::from(recv.advert.is_some());
        self.canceled -= usize::from(recv.canceled);
        events.push_back(recv.end(outcome));
    }

    /// No more octets are wanted: what the ring holds is dropped, and receives end when the peer
    /// cannot write into their buffers.
    pub(crate) fn stop(&mut self, events: &mut VecDeque<Event<M>>) {
        self.stopped = true;
        self.drop_ring();
        for recv in self.recvs.rest_mut(0) {
            recv.canceled = true;
        }
        self.canceled = self.recvs.len();
        self.retire_canceled(events);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped
    }

    fn drop_ring(&mut self) {
        self.delivered = self.delivered.after(self.ring.held());
        self.estimate = self.estimate.after(self.ring.held());
        self.ring.clear();
    }

    /// The peer has announced where its octets end.
    pub(crate) fn handle_finish(
        &mut self,
        end: Seq,
        events: &mut VecDeque<Event<M>>,
    ) -> Result<(), PeerError> {
        if self.finished {
            return Err(PeerError::AfterFinish);
        }
        if end != self.delivered.after(self.ring.held()) {
            return Err(PeerError::FalseFinish);
        }
        self.finished = true;
        self.retire_canceled(events);
        self.end_of_stream(events);
        Ok(())
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.finished
    }

    /// Whether the ring is empty.
    pub(crate) fn is_drained(&self) -> bool {
        self.ring.held() == 0
    }

    /// Completes all receives if no octet follows.
    #[inline]
    fn end_of_stream(&mut self, events: &mut VecDeque<Event<M>>) {
        if self.finished && self.ring.held() == 0 {
            self.retire_all(Outcome::EndOfStream, events);
        }
    }

    /// Completes every receive: no octet follows, or the connection is gone.
    #[cold]
    pub(crate) fn retire_all(&mut self, outcome: Outcome, events: &mut VecDeque<Event<M>>) {
        while !self.recvs.is_empty() {
            self.retire(0, outcome, events);
        }
    }

    /// S_r, and S_r as the estimate and the queue give it; the same in a correct end.
    #[cfg(test)]
    pub(crate) fn positions(&self) -> (u64, u64) {
        let advertised = self.recvs.rest(0).filter(|recv| recv.advert.is_some());
        let promised: u64 = advertised.map(Recv::promise).sum();
        (self.delivered.0, self.estimate.0.wrapping_sub(promised))
    }
}
