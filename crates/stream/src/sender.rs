//! The sending half: adverts received, phase, ring of the peer, and the queue of sends.

mod lone;

use std::collections::VecDeque;

use crate::adverts::Adverts;
use crate::config::{Config, Stats};
use crate::error::{CallError, PeerError};
use crate::fault::{Fault, Faults};
use crate::peer_ring::PeerRing;
use crate::queue::Queue;
use crate::resync::{Pause, Resync};
use crate::sojourn::{Sojourn, SHORT_OCTETS};
use crate::transfer::{Gathering, Piece, Send, Target, Transfer};
use crate::types::{
    AdvertNo, Buffer, Choice, Clock, Event, Kind, Outcome, Part, Parts, Phase, RingNo, SendId, Seq,
    GATHER_MAX,
};
use crate::wire::{Advert, Hello, Immediate, TRANSFER_MAX_OCTETS};

/// Short sends wait to be carried by one RDMA Write while this number of transfers is in progress,
/// for [`GATHER_NS`] at most. A pair of sends, as of a head and a body, does not wait.
const GATHER_AFTER: u64 = 4;
/// The same in a flow of short sends, of which many are posted at once when those before complete:
/// the first of them is sent alone, and not the next ones too.
const GATHER_ON_AFTER: u64 = 1;
/// A flow of short sends ends when this number of transfers in a row has carried a single send.
const LONE_MAX: usize = 2;
const GATHER_NS: u64 = 20_000;
/// The most octets that are carried so, for sends of 1 KB to be as many as shorter ones are: a
/// longer transfer costs more than its work request.
const GATHER_OCTETS: u64 = 4 * SHORT_OCTETS;

/// How far the end of this half has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finish {
    Open,
    Asked,
    Said,
}

/// State of the sending half.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SendHalf<M> {
    faults: Faults,
    kind: Kind,
    uses_adverts: bool,
    uses_ring: bool,
    piece_max: u64,
    gather_max: usize,
    max_sends: usize,
    max_adverts: usize,
    /// S_s: the position of the next octet to be sent.
    position: Seq,
    /// P_s.
    phase: Phase,
    ring: PeerRing,
    /// q_A.
    adverts: Adverts,
    /// The number that the next advert must have.
    next_advert: AdvertNo,
    /// Phase and estimate of the last advert, unless adverts were withdrawn since.
    last_advert: Option<(Phase, Seq)>,
    last_phase: Phase,
    sends: Queue<Send<M>>,
    /// Index of the first send of which octets are still to be taken.
    cursor: usize,
    next_send: u64,
    transfer: Option<Transfer>,
    /// How many pieces were posted, and how many of them are complete.
    pieces_posted: u64,
    pieces_complete: u64,
    /// Until when short sends wait to be gathered.
    gathers_until: Option<u64>,
    /// Transfers since the last one that has carried several; at most [`LONE_MAX`] are counted.
    lone: usize,
    /// What those that wait may be joined by, if the next transfer waits for others.
    gathering: Gathering,
    withdraw: Option<AdvertNo>,
    resync: Resync,
    sojourn: Sojourn,
    waits_until: Option<u64>,
    finish: Finish,
    peer_stopped: bool,
}

impl<M> SendHalf<M> {
    pub(crate) fn new(config: &Config, peer: &Hello, faults: Faults) -> Self {
        let uses_adverts = config.choice != Choice::Indirect;
        let uses_ring = config.choice != Choice::Direct && config.kind == Kind::Octets;
        Self {
            faults,
            kind: config.kind,
            uses_adverts,
            uses_ring: uses_ring && peer.ring.len_octets > 0,
            piece_max: u64::from(config.piece_max_octets.max(1)),
            gather_max: match config.kind {
                Kind::Octets => config.gather_max.min(GATHER_MAX),
                Kind::Messages => 1,
            },
            max_sends: config.max_sends,
            max_adverts: usize::from(config.max_recvs),
            position: Seq(0),
            phase: if uses_adverts { Phase(0) } else { Phase(1) },
            ring: PeerRing::new(peer.ring, faults),
            adverts: Adverts::default(),
            next_advert: AdvertNo(0),
            last_advert: None,
            last_phase: Phase(0),
            sends: Queue::new(),
            cursor: 0,
            next_send: 0,
            transfer: None,
            pieces_posted: 0,
            pieces_complete: 0,
            gathers_until: None,
            lone: LONE_MAX,
            gathering: Gathering::NONE,
            withdraw: None,
            resync: Resync::new(config.pause_every),
            sojourn: Sojourn::new(),
            waits_until: None,
            finish: Finish::Open,
            peer_stopped: false,
        }
    }

    /// Whether a send of this length may be posted.
    pub(crate) fn may_post(&self, len_octets: u64) -> Result<(), CallError> {
        if self.finish != Finish::Open {
            return Err(CallError::Finished);
        }
        if len_octets == 0 && self.kind == Kind::Octets {
            return Err(CallError::BadBuffer);
        }
        if len_octets > TRANSFER_MAX_OCTETS && self.kind == Kind::Messages {
            return Err(CallError::BadBuffer);
        }
        match self.sends.len() < self.max_sends {
            true => Ok(()),
            false => Err(CallError::QueueFull),
        }
    }

    /// Whether a send of this length joins others that wait, and they wait on. It may be posted
    /// then.
    #[inline]
    pub(crate) fn joins(&self, len_octets: u64) -> bool {
        self.gathering.sends > 1 && (1..self.gathering.room).contains(&len_octets)
    }

    /// Queues a send that may be posted.
    #[inline]
    pub(crate) fn post(&mut self, len_octets: u64, memory: M) -> SendId {
        let id = SendId(self.next_send);
        self.next_send += 1;
        self.sends.push_back(Send {
            id,
            memory,
            len_octets,
            taken: 0,
            last_piece: 0,
            ended: None,
        });
        if self.gathering.sends > 0 {
            self.gathering.add(len_octets);
        }
        id
    }

    /// What the sends were posted with.
    pub(crate) fn memory(&self) -> impl Iterator<Item = &M> {
        self.sends.rest(0).map(|send| &send.memory)
    }

    /// The parts of a work request that is not complete, with what their sends were posted with.
    #[inline]
    pub(crate) fn each_part(&self, parts: &Parts, mut take: impl FnMut(Part, &M)) {
        let first = parts.first();
        let place = self.index_of(first.send);
        let place = place.expect("a part is of a send in progress");
        take(first, &self.sends[place].memory);
        // Most have no others.
        if parts.count() > 1 {
            // Sends that were canceled before left no gaps in the queue, and none can be since.
            for (send, part) in self.sends.rest(place + 1).zip(parts.others()) {
                debug_assert_eq!(part.send, send.id);
                take(part, &send.memory);
            }
        }
    }

    /// Ends a send after the transfer in progress, if it is a part of it.
    pub(crate) fn cancel(
        &mut self,
        id: SendId,
        events: &mut VecDeque<Event<M>>,
    ) -> Result<(), CallError> {
        let index = self.index_of(id).ok_or(CallError::NoSuchOperation)?;
        if index >= self.cursor {
            self.gathering = Gathering::NONE;
            self.end_from(index, index + 1, Outcome::Canceled, events);
        }
        Ok(())
    }

    /// No more sends are taken; the end is announced when those queued have been sent.
    pub(crate) fn finish(&mut self) {
        self.gathering = Gathering::NONE;
        if self.finish == Finish::Open {
            self.finish = Finish::Asked;
        }
    }

    /// The peer receives no more.
    pub(crate) fn peer_stopped(&mut self, events: &mut VecDeque<Event<M>>) {
        self.peer_stopped = true;
        self.end_from(self.cursor, self.sends.len(), Outcome::PeerStopped, events);
        self.adverts.clear();
        self.finish();
    }

    /// Whether the peer drops what this end sends.
    pub(crate) fn is_peer_stopped(&self) -> bool {
        self.peer_stopped
    }

    /// The position at which this half ends, when that can be announced.
    pub(crate) fn finish_due(&self) -> Option<Seq> {
        let left = self.sends.len() - self.cursor;
        let early = self.faults.has(Fault::FinishEarly) && left <= 1;
        let all_sent = (left == 0 && self.transfer.is_none()) || early;
        (self.finish == Finish::Asked && all_sent).then_some(self.position)
    }

    pub(crate) fn finish_said(&mut self) {
        self.finish = Finish::Said;
    }

    /// Completes every send: the connection is gone.
    pub(crate) fn fail(&mut self, outcome: Outcome, events: &mut VecDeque<Event<M>>) {
        self.transfer = None;
        self.gathering = Gathering::NONE;
        self.finish = Finish::Said;
        self.cursor = 0;
        events.extend(self.sends.drain().map(|send| send.end(outcome)));
    }

    pub(crate) fn handle_emptied(
        &mut self,
        emptied: u64,
        clock: &mut impl Clock,
    ) -> Result<(), PeerError> {
        let least_ns = self.sojourn.least_ns();
        self.ring.handle_emptied(emptied, clock, least_ns)
    }

    /// The peer answers the wish for another ring.
    pub(crate) fn handle_ring(&mut self, number: RingNo, ring: Buffer) -> Result<(), PeerError> {
        self.ring.handle_ring(number, ring)
    }

    /// The length of the ring that the peer is to be asked for.
    pub(crate) fn want_due(&self) -> Option<u64> {
        let may = self.finish != Finish::Said;
        self.ring.want_due().filter(|_| may)
    }

    pub(crate) fn want_said(&mut self) {
        self.ring.want_said();
    }

    /// The ring that is taken now. A transfer in progress ends in the old one.
    pub(crate) fn taken_due(&self) -> Option<RingNo> {
        let is_between = self.transfer.is_none() || self.faults.has(Fault::TakenInTransfer);
        let may = is_between && self.finish != Finish::Said;
        self.ring.taken_due().filter(|_| may)
    }

    pub(crate) fn taken_said(&mut self, stats: &mut Stats) {
        self.ring.taken_said(self.position);
        stats.rings_taken += 1;
    }

    /// The ring of the peer.
    #[cfg(test)]
    pub(crate) fn ring(&mut self) -> &mut PeerRing {
        &mut self.ring
    }

    pub(crate) fn handle_advert(
        &mut self,
        advert: Advert,
        stats: &mut Stats,
    ) -> Result<(), PeerError> {
        self.check_advert(&advert)?;
        if advert.renewed {
            if self.resync.pause != Pause::Asked {
                return Err(PeerError::UnexpectedResume);
            }
            self.resync.pause = Pause::Renewed;
        }
        self.next_advert.0 += 1;
        self.last_advert = Some((advert.phase, advert.estimate));
        self.last_phase = advert.phase;
        self.adverts.push(advert);
        self.drop_stale(stats);
        // Stale adverts are gone, so those left are of receives that are still queued there.
        if self.adverts.len() > self.max_adverts {
            return Err(PeerError::TooManyAdverts);
        }
        Ok(())
    }

    fn check_advert(&self, advert: &Advert) -> Result<(), PeerError> {
        if advert.number != self.next_advert {
            return Err(PeerError::AdvertSequence);
        }
        let empty = advert.buffer.len_octets == 0 && self.kind == Kind::Octets;
        if empty || !advert.buffer.is_addressable() {
            return Err(PeerError::AdvertBuffer);
        }
        let latest = if self.phase.is_direct() {
            self.phase
        } else {
            self.phase.next()
        };
        if !advert.phase.is_direct() || advert.phase < self.last_phase || advert.phase > latest {
            return Err(PeerError::AdvertPhase);
        }
        if self.kind == Kind::Messages || advert.phase < self.phase {
            return Ok(());
        }
        let follows = match self.last_advert {
            Some((phase, estimate)) if phase == advert.phase => advert.estimate > estimate,
            _ => true,
        };
        // Since the first advert of a phase is exact, all that the others can add is promised.
        let promised = self.adverts.promised();
        if !follows || advert.estimate > self.position.after(promised) {
            return Err(PeerError::AdvertEstimate);
        }
        Ok(())
    }

    pub(crate) fn handle_withdraw(&mut self, from: AdvertNo) -> Result<(), PeerError> {
        if self.withdraw.is_some() || from >= self.next_advert {
            return Err(PeerError::UnexpectedWithdraw);
        }
        if let Some(phase) = self.adverts.discard_from(from) {
            self.pass(phase);
        }
        self.last_advert = None;
        self.withdraw = Some(from);
        Ok(())
    }

    /// The withdrawal to be answered: not before the transfer in progress has ended, which may be
    /// one into a buffer that is withdrawn.
    pub(crate) fn withdrawn_due(&self) -> Option<AdvertNo> {
        let may = self.transfer.is_none() || self.faults.has(Fault::WithdrawnEarly);
        self.withdraw.filter(|_| may)
    }

    pub(crate) fn withdrawn_said(&mut self) {
        self.withdraw = None;
    }

    /// Discards adverts for octets that have been sent indirectly (algorithm 1, lines 1 to 7).
    /// Whether an advert is stale does not change between its arrival and the next transfer.
    fn drop_stale(&mut self, stats: &mut Stats) {
        while let Some((&advert, _)) = self.adverts.first() {
            if !self.is_stale(&advert) {
                return;
            }
            let on_the_way = self.position.0.saturating_sub(advert.estimate.0);
            self.resync.handle_stale(self.sojourn.of_path(on_the_way));
            if !self.faults.has(Fault::NoPhaseAdvance) {
                self.pass(advert.phase);
            }
            self.adverts.discard_first();
            stats.adverts_stale += 1;
        }
    }

    /// An advert of a phase is discarded: while transfers are indirect, this passes the phase.
    fn pass(&mut self, phase: Phase) {
        if self.phase < phase {
            self.phase = phase.next();
        }
    }

    fn is_stale(&self, advert: &Advert) -> bool {
        if !self.uses_adverts {
            return true;
        }
        // The receiver takes back what it has sent before it knew of the pause.
        if self.resync.pause == Pause::Asked && !self.faults.has(Fault::PauseKeepsAdverts) {
            return true;
        }
        if self.phase.is_direct() {
            // Estimates are lower bounds: transfers longer than one octet have passed this one.
            return self.faults.has(Fault::PositionInDirect) && advert.estimate < self.position;
        }
        let passed = advert.estimate < self.position && !self.faults.has(Fault::NoPositionCheck);
        let old = advert.phase < self.phase && !self.faults.has(Fault::NoPhaseCheck);
        old || passed
    }

    /// The next RDMA Write, if anything may be sent.
    pub(crate) fn next_piece(
        &mut self,
        clock: &mut impl Clock,
        stats: &mut Stats,
    ) -> Option<Piece> {
        let transfer = match self.transfer.take() {
            Some(transfer) => transfer,
            None => self.begin(clock, stats)?,
        };
        let left = (transfer.len_octets - transfer.written).min(self.piece_max);
        let (addr, rkey, len) = match transfer.to {
            Target::Direct { addr, rkey } => (addr + transfer.written, rkey, left),
            Target::Ring { position } => {
                let (addr, rkey, to_end) = self.ring.place(position + transfer.written);
                let wraps = !self.faults.has(Fault::NoWrap);
                (addr, rkey, if wraps { left.min(to_end) } else { left })
            }
        };
        let first = transfer.written == 0;
        let parts = transfer.parts.piece(transfer.written, len);
        let written = transfer.written + len;
        let last = written == transfer.len_octets;
        let tells = if self.faults.has(Fault::ImmediateFirst) {
            first
        } else {
            last
        };
        let whole = u32::try_from(transfer.len_octets).expect("a transfer has 30 bits");
        let immediate = tells.then(|| match transfer.to {
            Target::Direct { .. } => Immediate::Direct(whole).encode(),
            Target::Ring { .. } => Immediate::Indirect(whole).encode(),
        });
        if last {
            if let Target::Ring { position } = transfer.to {
                self.ring.posted(position + transfer.len_octets, clock);
            }
        } else {
            self.transfer = Some(Transfer {
                written,
                ..transfer
            });
        }
        self.pieces_posted += 1;
        self.carried(&parts);
        Some(Piece {
            parts,
            len_octets: u32::try_from(len).expect("a piece is a part of a transfer"),
            addr,
            rkey,
            immediate,
        })
    }

    /// A transfer is chosen: what the last choice has said of a wait is over.
    fn begun(&mut self) {
        self.waits_until = None;
        self.gathering = Gathering::NONE;
    }

    /// Begins the next transfer (algorithm 1).
    fn begin(&mut self, clock: &mut impl Clock, stats: &mut Stats) -> Option<Transfer> {
        self.begun();
        if self.resync.pause != Pause::None {
            return None;
        }
        let send = self.sends.get(self.cursor)?;
        let left = send.left().min(TRANSFER_MAX_OCTETS);
        let advert = self.adverts.first().map(|(&advert, room)| (advert, room));
        let [room, contiguous] = match advert {
            Some((_, room)) => [room, room],
            None => [self.ring.free(), self.ring.contiguous()],
        };
        let contiguous = contiguous.min(GATHER_OCTETS).min(self.piece_max);
        let (parts, len_octets) = self.gather([room, contiguous]);
        let is_possible = advert.is_some() || (self.uses_ring && len_octets > 0);
        if !is_possible {
            self.ring.wait();
            return None;
        }
        if self.waits_for_sends(parts.count(), contiguous.saturating_sub(len_octets), clock) {
            return None;
        }
        let to = if let Some((advert, _)) = advert {
            if !self.phase.is_direct() {
                self.phase = advert.phase;
            }
            let (mut addr, rkey) = self.adverts.use_first(len_octets)?;
            if self.faults.has(Fault::WaitallRestart) {
                addr = advert.buffer.addr;
            }
            stats.direct_transfers += 1;
            stats.direct_octets += len_octets;
            self.sojourn.begin_direct(len_octets);
            Target::Direct { addr, rkey }
        } else {
            if self.waits_for_advert(left, clock) {
                return None;
            }
            if self.phase.is_direct() {
                self.phase = self.phase.next();
            }
            let position = self.ring.take(len_octets);
            stats.indirect_transfers += 1;
            stats.indirect_octets += len_octets;
            Target::Ring { position }
        };
        self.take(&parts, len_octets);
        Some(Transfer {
            parts,
            len_octets,
            written: 0,
            to,
        })
    }

    /// What the next transfer carries in the room that there is, and, for short sends, in that
    /// before the end of the ring: octets of the next send, or short sends as a whole.
    fn gather(&self, [room, contiguous]: [u64; 2]) -> (Parts, u64) {
        let first = &self.sends[self.cursor];
        let mut octets = first.left().min(room).min(TRANSFER_MAX_OCTETS);
        let mut parts = Parts::one(first.id, first.taken, octets);
        // Most sends are the last: a range takes longer to make than that to see.
        if octets == first.left() && self.cursor + 1 < self.sends.len() {
            let others = self.sends.rest(self.cursor + 1);
            for send in others.take(self.gather_max.saturating_sub(1)) {
                if octets + send.len_octets > contiguous || !parts.push(send.id, send.len_octets) {
                    break;
                }
                octets += send.len_octets;
            }
        }
        (parts, octets)
    }

    /// Whether short sends, of which more can follow, wait for those to be carried with them. While
    /// transfers are in progress they lose little by it.
    fn waits_for_sends(&mut self, count: usize, room: u64, clock: &mut impl Clock) -> bool {
        if self.in_flight() < self.gathers_after() {
            return false;
        }
        let more = self.may_join(count, room);
        if more.sends == 0 {
            return false;
        }
        let now_ns = clock.now_ns();
        let until = *self.gathers_until.get_or_insert(now_ns + GATHER_NS);
        self.waits_until = (now_ns < until).then_some(until);
        if self.waits_until.is_some() {
            self.gathering = more;
        }
        self.waits_until.is_some()
    }

    /// Pieces posted and not complete.
    fn in_flight(&self) -> u64 {
        self.pieces_posted - self.pieces_complete
    }

    /// The number of transfers in progress from which on short sends wait for others.
    fn gathers_after(&self) -> u64 {
        match self.lone < LONE_MAX {
            true => GATHER_ON_AFTER,
            false => GATHER_AFTER,
        }
    }

    /// What a transfer of the next `count` sends, with room for so many octets, can carry besides.
    fn may_join(&self, count: usize, room: u64) -> Gathering {
        let are_all = self.cursor + count == self.sends.len();
        let may_join = self.finish == Finish::Open && are_all && room > 0;
        let sends = self.gather_max.saturating_sub(count);
        let sends = sends.min(self.max_sends.saturating_sub(self.sends.len()));
        match may_join {
            true => Gathering { sends, room },
            false => Gathering::NONE,
        }
    }

    /// Whether octets of sends are still to be transmitted.
    pub(crate) fn has_unsent(&self) -> bool {
        self.transfer.is_some() || self.cursor < self.sends.len()
    }

    /// Whether short sends wait for others: unless that has changed with a send, nothing follows
    /// from the send.
    pub(crate) fn is_gathering(&self) -> bool {
        self.gathering.sends > 0
    }

    /// The next transfer waits for no other sends.
    pub(crate) fn stop_gathering(&mut self) {
        self.gathers_until = Some(0);
        self.gathering = Gathering::NONE;
    }

    /// Takes octets from their sends.
    fn take(&mut self, parts: &Parts, len_octets: u64) {
        self.taken(parts.count(), len_octets);
        self.ring.reached(self.position);
        if parts.count() > 1 {
            // One piece, the next, carries them as a whole.
            let piece = self.pieces_posted + 1;
            for send in self.sends.rest_mut(self.cursor).take(parts.count()) {
                (send.taken, send.last_piece) = (send.len_octets, piece);
            }
            self.cursor += parts.count();
            return;
        }
        let send = &mut self.sends[self.cursor];
        send.taken += len_octets;
        self.cursor += usize::from(send.left() == 0);
    }

    /// A transfer has taken octets of this number of sends.
    #[inline]
    fn taken(&mut self, sends: usize, len_octets: u64) {
        self.gathers_until = None;
        self.lone = match sends > 1 {
            true => 0,
            false => (self.lone + 1).min(LONE_MAX),
        };
        self.position = self.position.after(len_octets);
        self.resync.count(len_octets, self.phase.is_direct());
    }

    /// Whether the next transfer waits for an advert although the ring has room.
    fn waits_for_advert(&mut self, left: u64, clock: &mut impl Clock) -> bool {
        let until = match self.phase.is_direct() {
            true => self.sojourn.wait_until(left),
            false => None,
        };
        self.waits_until = until.filter(|&until| clock.now_ns() < until);
        self.waits_until.is_some()
    }

    /// What is decided before the next message or transfer is chosen.
    #[inline]
    pub(crate) fn prepare(&mut self, events: &mut VecDeque<Event<M>>) {
        if self.kind == Kind::Messages {
            self.refuse_long_messages(events);
        }
        let idle = self.transfer.is_none() && self.cursor < self.sends.len();
        let next_is_indirect = idle && self.adverts.len() == 0 && !self.phase.is_direct();
        self.resync.consider(next_is_indirect && self.uses_adverts);
    }

    /// The position of the pause that is to be announced.
    pub(crate) fn pause_due(&self) -> Option<Seq> {
        (self.resync.pause == Pause::Due).then_some(self.position)
    }

    pub(crate) fn pause_said(&mut self) {
        self.resync.pause = Pause::Asked;
    }

    /// Whether a message of this half is due, or can be once the transfer in progress has ended.
    pub(crate) fn owes_message(&self) -> bool {
        self.finish == Finish::Asked
            || self.withdraw.is_some()
            || self.resync.pause == Pause::Due
            || self.ring.owes_message()
    }

    /// The peer has sent the adverts that it can send.
    pub(crate) fn handle_resume(&mut self) -> Result<(), PeerError> {
        if !matches!(self.resync.pause, Pause::Asked | Pause::Renewed) {
            return Err(PeerError::UnexpectedResume);
        }
        self.resync.pause = Pause::None;
        Ok(())
    }

    /// Ends messages that are longer than the receive that is next.
    fn refuse_long_messages(&mut self, events: &mut VecDeque<Event<M>>) {
        loop {
            let (send, advert) = (self.sends.get(self.cursor), self.adverts.first());
            let (Some(send), Some((_, room))) = (send, advert) else {
                return;
            };
            if send.len_octets <= room {
                return;
            }
            self.end_from(self.cursor, self.cursor + 1, Outcome::TooLong, events);
        }
    }

    /// Whether a piece of this length, which is now posted, is timed: not every one that costs
    /// little.
    pub(crate) fn is_timed(&mut self, len_octets: u32) -> bool {
        let is_short = u64::from(len_octets) <= SHORT_OCTETS;
        !is_short || self.phase.is_direct() || self.sojourn.is_due()
    }

    /// How long transfers take.
    pub(crate) fn sojourn(&mut self) -> &mut Sojourn {
        &mut self.sojourn
    }

    /// When the transfer that waits for an advert is no longer to wait.
    pub(crate) fn waits_until(&self) -> Option<u64> {
        self.waits_until
    }

    /// The oldest piece that is not complete is: the peer has it.
    #[inline]
    pub(crate) fn handle_written(&mut self, events: &mut VecDeque<Event<M>>) {
        self.pieces_complete += 1;
        self.complete(events);
    }

    /// The last piece carries these parts. Of several, their transfer has told the sends.
    fn carried(&mut self, parts: &Parts) {
        if parts.count() > 1 {
            return;
        }
        let place = self.index_of(parts.first().send);
        if let Some(send) = place.and_then(|place| self.sends.rest_mut(place).next()) {
            send.last_piece = self.pieces_posted;
        }
    }

    /// Ends the sends of a range that begins at the cursor or later.
    fn end_from(&mut self, from: usize, to: usize, how: Outcome, events: &mut VecDeque<Event<M>>) {
        let mut index = from;
        for _ in from..to {
            if self.sends[index].taken == 0 {
                let send = self.sends.remove(index).expect("the range is of the queue");
                events.push_back(send.end(how));
            } else {
                // Only the send at the cursor can have been taken in part.
                debug_assert_eq!(index, self.cursor);
                self.sends[index].ended = Some(how);
                self.cursor += 1;
                index += 1;
            }
        }
        self.complete(events);
    }

    /// Completes sends in the order of the queue.
    #[inline(always)]
    fn complete(&mut self, events: &mut VecDeque<Event<M>>) {
        while self.cursor > 0 && self.is_first_complete() {
            self.cursor -= 1;
            if events.is_empty() {
                self.sends.complete_front();
            } else {
                let send = self.sends.remove(0);
                events.extend(send.map(|send| send.end(Outcome::Done)));
            }
        }
    }

    /// Whether a send is complete, the event of which precedes those that are queued.
    #[inline]
    pub(crate) fn has_complete(&self) -> bool {
        self.sends.has_complete()
    }

    /// The event of the oldest of these.
    #[inline]
    pub(crate) fn take_complete(&mut self) -> Option<Event<M>> {
        Some(self.sends.take_complete()?.end(Outcome::Done))
    }

    /// Whether nothing of the first send, which was taken, is still to be written.
    #[inline]
    fn is_first_complete(&self) -> bool {
        let is_written_of = |send: &Send<M>| {
            let transfer = self.transfer.as_ref();
            transfer.is_some_and(|transfer| transfer.parts.first().send == send.id)
        };
        let first = self.sends.front();
        first.is_some_and(|send| send.last_piece <= self.pieces_complete && !is_written_of(send))
    }

    fn index_of(&self, id: SendId) -> Option<usize> {
        self.sends.place_of(id.0, |send| send.id.0)
    }
}
