//! What is posted next, and to which queue pair.

use std::collections::VecDeque;
use std::slice;

use crate::error::PostError;
use crate::exchange::{Control, Exchange, ExchangeId};
use crate::fault::{Fault, Faults};
use crate::header::{HeaderOctets, Message};
use crate::lone::{finish_of, note_posted, Lone, REQUEST_COST};
use crate::per_element::PerElement;
use crate::physical_qp::{Carries, InFlight, PhysicalQp};
use crate::pool::{release, Pool, Stats};
use crate::queued::{last_offset, Checked, Queued, Segment};
use crate::regions::{cut, Piece};
use crate::types::{
    Element, LocalRegionId, NodeId, Operation, Posted, Request, Sge, Transmit, VirtualId,
};
use crate::virtual_qp::VirtualQp;

/// Posts work requests: no closure, so that it can be a part of what calls it.
pub trait PostWork {
    /// Posts one with its scatter-gather list.
    fn post_work(&mut self, work: &Transmit, elements: &[Sge]) -> Posted;
}

impl Pool {
    /// Has `post` post whatever may be posted, each with its scatter-gather list. The last work
    /// request of each queue pair is signaled.
    pub fn transmit(&mut self, mut post: impl FnMut(&Transmit, &[Sge]) -> Posted) {
        if !self.active.is_empty() {
            self.book();
        }
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

    /// Posts the next work request of a queue pair; `false`: none may be posted after it.
    fn transmit_one(
        &mut self,
        slot: u16,
        post: &mut impl FnMut(&Transmit, &[Sge]) -> Posted,
    ) -> bool {
        if !self.has_room(slot) {
            return false;
        }
        let Some((start, id)) = self.permitted_turn(slot) else {
            return false;
        };
        let shared = &mut self.physicals[usize::from(slot)];
        let Some(member) = self.virtuals.get_mut(id.0) else {
            let own = ExchangeId::of_own(id);
            return own.is_some_and(|own| self.transmit_own((slot, own), post));
        };
        let Some(&queued) = member.next(self.faults) else {
            return false;
        };
        if queued.operation.is_send() {
            let most = self.messages.segment_octets_max();
            if member.next_segment(&queued, most) == Segment::Part {
                return self.transmit_part(slot, (start, id), &queued, post);
            }
        }
        shared.end_turn();
        member.is_listed = false;
        let (only, list) = (queued.only(), &mut self.elements);
        let locals = next_locals((member, shared), (&only, queued.pieces), list);
        let next = next_work((member, shared), &queued, self.faults);
        note_posted((member, shared), (start, id), &queued, (next.node, locals));
        let is_waiting = member.is_waiting();
        let header = match queued.operation {
            Operation::Send { immediate } => self.send_header(id, &queued, immediate),
            _ => None,
        };
        if is_waiting {
            self.list(id);
        }
        let is_last = self.is_last(slot);
        let work = Transmit {
            is_signaled: queued.is_signaled || self.is_tail(slot, is_last),
            header,
            ..next
        };
        let elements = match &only {
            Some(only) => slice::from_ref(&only.sge),
            None => &self.elements[..],
        };
        if post(&work, elements) == Posted::Refused {
            self.take_back(slot, id);
            return false;
        }
        self.note_transmitted(slot, work.is_signaled);
        !is_last
    }

    /// [`Pool::post`]; if nothing else waits, the request is posted at once, as
    /// [`Pool::transmit`] would have it posted.
    ///
    /// # Errors
    /// If it is refused; then it has no effect. That the queue pair does not take it is none.
    #[inline]
    pub fn post_at_once(
        &mut self,
        id: VirtualId,
        request: &Request,
        elements: &[Element],
        driver: impl PostWork,
    ) -> Result<(), PostError> {
        match (elements, request.operation == Operation::Read) {
            // Most requests have one, and take no list. Twice, so that the compiler leaves out for
            // a Read what other operations need.
            ([only], true) => self.post_one(id, request, only, driver),
            ([only], false) => self.post_one(id, request, only, driver),
            _ => self.post_list(id, request, elements, driver),
        }
    }

    /// [`Pool::post_at_once`] of a request that has not one element.
    #[inline(never)]
    fn post_list(
        &mut self,
        id: VirtualId,
        request: &Request,
        elements: &[Element],
        driver: impl PostWork,
    ) -> Result<(), PostError> {
        let checked = self.check(id, request, elements)?;
        self.post_checked(id, request, checked, driver)
    }

    /// [`Pool::post_at_once`] of a request of one element, for whose entry in a queue nothing is
    /// copied before it is posted.
    #[inline(always)]
    fn post_one(
        &mut self,
        id: VirtualId,
        request: &Request,
        element: &Element,
        mut driver: impl PostWork,
    ) -> Result<(), PostError> {
        self.book();
        let (faults, with) = (self.faults, (&self.config, &mut self.regions));
        let member = self.virtuals.get_mut(id.0).ok_or(PostError::Closed);
        let checked = member.and_then(|member| {
            let keys = member.check_one(request, element, with, faults)?;
            Ok((member, keys))
        });
        let (member, keys) = checked.inspect_err(|_| self.stats.refused += 1)?;
        if self.switch.is_some() {
            // It switches before it posts this request, if it is to.
            self.note_use(id);
            return self.post_checked(id, request, Checked::of_one(element, keys), driver);
        }
        let shared = &mut self.physicals[usize::from(member.physical)];
        // Also that no virtual queue pair is about to switch to the shared queue pair.
        let is_first = self.active.is_empty() && !shared.has_turns();
        let is_lone = is_first && member.may_post_alone() && shared.may_take_alone();
        if !is_lone || !request.is_signaled {
            return self.post_checked(id, request, Checked::of_one(element, keys), driver);
        }
        let work = Transmit {
            physical: shared.id(),
            node: member.node,
            wr_id: shared.next_wr_id(),
            operation: request.operation,
            remote_addr: request.remote_addr,
            rkey: keys.remote,
            is_signaled: true,
            header: None,
        };
        let sge = Piece::new(element, keys.local).sge;
        let posted = driver.post_work(&work, slice::from_ref(&sge));
        // The rest is done while the node executes it.
        let queued = Queued::new(request, Checked::of_one(element, keys));
        let start = member.finish.max(shared.time);
        member.finish = finish_of(start, &queued);
        shared.begin_first(start);
        self.lone = Some(Lone {
            of: id,
            node: member.node,
            physical: member.physical,
            wr_id: work.wr_id,
            start,
            queued,
            is_complete: false,
        });
        match posted {
            Posted::Accepted => self.stats.note_transmitted(shared, true),
            Posted::Refused => self.take_lone_back(),
        }
        Ok(())
    }

    /// Posts a request at once that was checked, or by turns.
    #[inline(never)]
    fn post_checked(
        &mut self,
        id: VirtualId,
        request: &Request,
        checked: Checked,
        mut driver: impl PostWork,
    ) -> Result<(), PostError> {
        let (faults, config) = (self.faults, &self.config);
        let member = self.virtuals.get_mut(id.0).ok_or(PostError::Closed)?;
        let queued = Queued::new(request, checked);
        let shared = &mut self.physicals[usize::from(member.physical)];
        let start = member.finish.max(shared.time);
        let is_first = self.active.is_empty() && !shared.has_turns();
        let is_alone = is_first || faults.has(Fault::TurnsSkipped);
        let may_post = is_alone
            && member.may_post_newest(faults)
            && shared.has_room(config, faults)
            && shared.is_permitted(start, member.in_flight(), config, faults);
        if !may_post {
            self.regions.use_only(queued.pieces);
            member.push(queued);
            self.list(id);
            return Ok(());
        }
        let (only, list) = (checked.pieces.only(), &mut self.elements);
        let locals = next_locals((member, shared), (&only, checked.pieces), list);
        let elements = match &only {
            Some(only) => slice::from_ref(&only.sge),
            None => &self.elements[..],
        };
        let next = next_work((member, shared), &queued, faults);
        let work = Transmit {
            // Nothing may follow it for now.
            is_signaled: request.is_signaled || !faults.has(Fault::TailUnsignaled),
            ..next
        };
        let posted = driver.post_work(&work, elements);
        // The rest is done while the node executes it.
        self.regions.use_only(queued.pieces);
        member.push(queued);
        note_posted((member, shared), (start, id), &queued, (work.node, locals));
        match posted {
            Posted::Accepted => self.stats.note_transmitted(shared, work.is_signaled),
            Posted::Refused => self.take_back(work.physical.slot, id),
        }
        Ok(())
    }

    /// Posts a segment of the next Send of a virtual queue pair, which is not the last one.
    #[cold]
    fn transmit_part(
        &mut self,
        slot: u16,
        (start, id): (u64, VirtualId),
        queued: &Queued,
        post: &mut impl FnMut(&Transmit, &[Sge]) -> Posted,
    ) -> bool {
        let most = self.messages.segment_octets_max();
        let shared = &mut self.physicals[usize::from(slot)];
        let Some(member) = self.virtuals.get_mut(id.0) else {
            return false;
        };
        shared.end_turn();
        member.is_listed = false;
        member.finish = start + REQUEST_COST + u64::from(most);
        let pieces = cut(
            member.next_pieces(queued.pieces),
            member.begun_octets(),
            most,
        );
        let used = pieces.inspect(|piece| {
            if !self.faults.has(Fault::SegmentsUseNothing) {
                self.regions.use_local(piece);
            }
        });
        let locals = list_elements(used, &mut self.elements, &mut shared.other_locals);
        let node = member.node;
        let in_flight = InFlight {
            of: id,
            node,
            locals,
            carries: Carries::Part,
        };
        let wr_id = shared.next_wr_id();
        shared.push(in_flight, start);
        let header = self.part_header(id, queued.len_octets);
        self.list(id);
        let posted = self.post_message((slot, wr_id), node, header, post);
        if posted.is_none() {
            self.take_part_back(slot, id);
        }
        posted.unwrap_or(false)
    }

    /// Posts a message that is no request, or not all of one, with the elements that the pool has
    /// listed. `None`: it was refused; else whether more may be posted.
    fn post_message(
        &mut self,
        (slot, wr_id): (u16, u64),
        node: NodeId,
        header: Option<HeaderOctets>,
        post: &mut impl FnMut(&Transmit, &[Sge]) -> Posted,
    ) -> Option<bool> {
        let is_last = self.is_last(slot);
        let work = Transmit {
            physical: self.physicals[usize::from(slot)].id(),
            node,
            wr_id,
            operation: Operation::Send { immediate: None },
            remote_addr: 0,
            rkey: 0,
            is_signaled: self.is_tail(slot, is_last),
            header,
        };
        if post(&work, &self.elements) == Posted::Refused {
            return None;
        }
        self.note_transmitted(slot, work.is_signaled);
        Some(!is_last)
    }

    /// Whether nothing may be posted after the work request that is posted now.
    #[inline(always)]
    fn is_last(&mut self, slot: u16) -> bool {
        let has_turns = self.physicals[usize::from(slot)].has_turns();
        !has_turns || !self.has_room(slot) || self.permitted_turn(slot).is_none()
    }

    /// Whether a work request that is posted now has to be signaled, since it is the last one for
    /// now, or of a row.
    #[inline(always)]
    fn is_tail(&self, slot: u16, is_last: bool) -> bool {
        let shared = &self.physicals[usize::from(slot)];
        let is_full_row = shared.unsignaled + 1 >= self.config.signal_every;
        (is_last || is_full_row) && !self.faults.has(Fault::TailUnsignaled)
    }

    fn note_transmitted(&mut self, slot: u16, is_signaled: bool) {
        let shared = &mut self.physicals[usize::from(slot)];
        self.stats.note_transmitted(shared, is_signaled);
    }

    /// Posts the next message of the pool itself, which has a turn.
    #[cold]
    fn transmit_own(
        &mut self,
        (slot, own): (u16, ExchangeId),
        post: &mut impl FnMut(&Transmit, &[Sge]) -> Posted,
    ) -> bool {
        self.end_own_turn(slot, own);
        let shared = &mut self.physicals[usize::from(slot)];
        let met = self.exchanges.get(own).and_then(|found| found.meeting);
        let Some(node) = met.map(|met| met.node).or(shared.node) else {
            return false;
        };
        let in_flight = InFlight {
            of: own.own(),
            node,
            locals: PerElement::default(),
            carries: Carries::Own,
        };
        let wr_id = shared.next_wr_id();
        shared.push(in_flight, shared.time);
        let header = self.take_own(own);
        self.list_own(own);
        self.elements.clear();
        let posted = self.post_message((slot, wr_id), node, header, post);
        if posted.is_none() {
            let refused = self.physicals[usize::from(slot)].note_refused(self.faults, drop);
            refused.and_then(|node| self.take_message_back(node));
            let control = self.exchanges.get_mut(own).and_then(Exchange::note_refused);
            if let Some(control) = control {
                self.tell_again_of(own, control);
            }
            self.begin_failing(slot);
        }
        posted.unwrap_or(false)
    }

    /// The queue pair does not take the work request that was to be posted: it has failed, and the
    /// request had no effect.
    #[cold]
    fn take_back(&mut self, slot: u16, id: VirtualId) {
        let message = self.physicals[usize::from(slot)].note_refused(self.faults, drop);
        message.and_then(|node| self.take_message_back(node));
        if let Some(member) = self.virtuals.get_mut(id.0) {
            member.note_refused(self.messages.segment_octets_max());
        }
        self.list(id);
        self.begin_failing(slot);
    }

    /// The same of a request that is not booked.
    #[cold]
    fn take_lone_back(&mut self) {
        let Some(lone) = self.lone else {
            return;
        };
        self.book();
        self.take_back(lone.physical, lone.of);
    }

    /// The same of a segment that is not the last one of its Send.
    #[cold]
    fn take_part_back(&mut self, slot: u16, id: VirtualId) {
        let (regions, actions) = (&mut self.regions, &mut self.actions);
        let shared = &mut self.physicals[usize::from(slot)];
        let message = shared.note_refused(self.faults, |local| release(regions, actions, local));
        message.map(|node| self.take_message_back(node));
        if let Some(member) = self.virtuals.get_mut(id.0) {
            member.note_part_refused(self.messages.segment_octets_max());
        }
        self.list(id);
        self.begin_failing(slot);
    }

    /// The header of the next message of the pool itself, which is posted.
    fn take_own(&mut self, id: ExchangeId) -> Option<HeaderOctets> {
        let control = self.exchanges.get_mut(id)?.take();
        let message = control.and_then(|control| self.message_of(control));
        let message = message.unwrap_or(Message::Buffers);
        Some(self.exchanges.get_mut(id)?.header(message))
    }

    fn message_of(&mut self, control: Control) -> Option<Message> {
        match control {
            Control::Answer(message) => Some(message),
            Control::Close(destination, source, refused) => Some(Message::Close {
                destination,
                source,
                refused,
            }),
            Control::Taken(id) => {
                let end = self.end_mut(id)?;
                let (ends, sequence) = (end.ends()?, end.tell_taken()?);
                Some(Message::Taken { ends, sequence })
            }
            Control::Open(id) => self.end_mut(id).map(|end| Message::Open {
                service: end.service,
                source: end.own(),
                receives: end.announced.announce(),
            }),
            Control::Accept(id) => self.end_mut(id)?.ends().map(Message::Accept),
            Control::Receives(id) => self.end_mut(id)?.ends().map(Message::Receives),
            Control::Probe => Some(Message::Probe),
            Control::Leave => Some(Message::Leave),
        }
    }

    /// The header of the Send of a virtual queue pair that was noted as posted last, or of its last
    /// segment, to which its elements are cut.
    #[inline(never)]
    fn send_header(
        &mut self,
        id: VirtualId,
        queued: &Queued,
        immediate: Option<u32>,
    ) -> Option<HeaderOctets> {
        let offset = last_offset(queued.len_octets, self.messages.segment_octets_max());
        let member = self.virtuals.get_mut(id.0)?;
        if offset > 0 {
            // The octets before have had their turns.
            member.finish -= u64::from(offset);
            cut_front(&mut self.elements, offset);
        }
        let sequence = member.next_sequence().wrapping_sub(1);
        let ends = member.end.as_mut()?.ends()?;
        let message = Message::Data {
            ends,
            sequence,
            immediate,
        };
        self.message_header(id, message)
    }

    /// The header of the next segment of the next Send of a virtual queue pair, which is noted as
    /// posted with it.
    fn part_header(&mut self, id: VirtualId, len_octets: u32) -> Option<HeaderOctets> {
        let most = self.messages.segment_octets_max();
        let member = self.virtuals.get_mut(id.0)?;
        let (sequence, offset) = (member.next_sequence(), member.begun_octets());
        member.note_part_posted(most);
        let ends = member.end.as_mut()?.ends()?;
        let message = match offset {
            0 => Message::Begin {
                ends,
                sequence,
                len_octets,
            },
            _ => Message::Part {
                ends,
                sequence,
                offset,
            },
        };
        self.message_header(id, message)
    }

    /// The header of a message for a Send of a virtual queue pair, which takes a buffer of the
    /// node.
    fn message_header(&mut self, id: VirtualId, message: Message) -> Option<HeaderOctets> {
        Some(self.exchange_of(id)?.header(message))
    }
}

impl Stats {
    /// Counts a work request that a shared queue pair has taken.
    #[inline(always)]
    fn note_transmitted(&mut self, shared: &mut PhysicalQp, is_signaled: bool) {
        self.posted += 1;
        self.signaled += u64::from(is_signaled);
        (shared.is_unused, shared.refusals) = (false, 0);
        shared.unsignaled = match is_signaled {
            true => 0,
            false => shared.unsignaled + 1,
        };
    }
}

/// The work request of the next request of a virtual queue pair, not signaled, without a header.
#[inline(always)]
fn next_work(
    (member, shared): (&VirtualQp, &PhysicalQp),
    next: &Queued,
    faults: Faults,
) -> Transmit {
    let before = shared.in_flight.back();
    let kept = before.filter(|_| faults.has(Fault::NodeKept));
    Transmit {
        wr_id: shared.next_wr_id(),
        physical: shared.id(),
        node: kept.map_or(member.node, |before| before.node),
        operation: next.operation,
        remote_addr: next.remote_addr,
        rkey: next.rkey,
        is_signaled: false,
        header: None,
    }
}

/// The local regions of the elements of the next request of a virtual queue pair, which are listed
/// but for an only one.
#[inline(always)]
fn next_locals(
    (member, shared): (&VirtualQp, &mut PhysicalQp),
    (only, pieces): (&Option<Piece>, PerElement<Piece>),
    list: &mut Vec<Sge>,
) -> PerElement<LocalRegionId> {
    match only {
        Some(only) => PerElement::new(Some(only.local), 0),
        None => list_elements(member.next_pieces(pieces), list, &mut shared.other_locals),
    }
}

/// Lists the elements of a work request; their regions, but for the first one of which those go
/// into the queue.
#[inline(never)]
fn list_elements(
    pieces: impl Iterator<Item = Piece>,
    list: &mut Vec<Sge>,
    others: &mut VecDeque<LocalRegionId>,
) -> PerElement<LocalRegionId> {
    list.clear();
    let mut locals = PerElement::default();
    for piece in pieces {
        locals.push(piece.local, others);
        list.push(piece.sge);
    }
    locals
}

/// Takes the first octets off a scatter-gather list.
fn cut_front(elements: &mut Vec<Sge>, mut octets: u32) {
    elements.retain_mut(|sge| {
        let skipped = octets.min(sge.len_octets);
        octets -= skipped;
        sge.addr += u64::from(skipped);
        sge.len_octets -= skipped;
        sge.len_octets > 0
    });
}
