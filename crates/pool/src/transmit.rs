//! What is posted next, and to which queue pair.

use crate::exchange::{Control, OWN};
use crate::fault::Fault;
use crate::header::{Header, Message, HEADER_OCTETS};
use crate::physical_qp::InFlight;
use crate::pool::Pool;
use crate::queued::Queued;
use crate::types::{Operation, Posted, Sge, Transmit, VirtualId};

/// What a request costs in the order of turns beside its octets.
const REQUEST_COST: u64 = 512;

impl Pool {
    /// Has `post` post whatever may be posted, each with its scatter-gather list. The last work
    /// request of each queue pair is signaled.
    pub fn transmit(&mut self, mut post: impl FnMut(&Transmit, &[Sge]) -> Posted) {
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
            return self.transmit_own(slot, post);
        };
        let Some(&queued) = member.next(&self.config, self.faults) else {
            return false;
        };
        let Queued { request, rkey, .. } = queued;
        shared.end_turn();
        member.is_listed = false;
        member.finish = start + REQUEST_COST + u64::from(queued.len_octets);
        self.elements.clear();
        for piece in member.next_pieces(&queued) {
            shared.locals.push_back(piece.local);
            self.elements.push(piece.sge);
        }
        member.note_posted(&queued);
        let before = shared.in_flight.back().map(|before| before.node);
        let kept = before.filter(|_| self.faults.has(Fault::NodeKept));
        let node = kept.unwrap_or(member.node);
        let in_flight = InFlight {
            of: id,
            node,
            pieces: queued.pieces,
        };
        let wr_id = shared.push(in_flight, start);
        let physical = shared.id();
        let header = match request.operation {
            Operation::Send { immediate } => self.send_header(slot, id, immediate),
            _ => None,
        };
        self.list(id);
        let is_last = !self.has_room(slot) || self.permitted_turn(slot).is_none();
        let work = Transmit {
            physical,
            node,
            wr_id,
            operation: request.operation,
            remote_addr: request.remote_addr,
            rkey,
            is_signaled: request.is_signaled || self.is_tail(slot, is_last),
            header,
        };
        if post(&work, &self.elements) == Posted::Refused {
            self.take_back(slot, id, &queued);
            return false;
        }
        self.note_transmitted(slot, work.is_signaled);
        !is_last
    }

    /// Whether a work request that is posted now has to be signaled, since it is the last one for
    /// now, or of a row.
    #[inline(always)]
    fn is_tail(&self, slot: u16, is_last: bool) -> bool {
        let shared = &self.physicals[usize::from(slot)];
        let is_full_row = shared.unsignaled + 1 >= self.config.signal_every;
        (is_last || is_full_row) && !self.faults.has(Fault::TailUnsignaled)
    }

    #[inline(always)]
    fn note_transmitted(&mut self, slot: u16, is_signaled: bool) {
        self.stats.posted += 1;
        self.stats.signaled += u64::from(is_signaled);
        let shared = &mut self.physicals[usize::from(slot)];
        (shared.is_unused, shared.refusals) = (false, 0);
        shared.unsignaled = match is_signaled {
            true => 0,
            false => shared.unsignaled + 1,
        };
    }

    /// Posts the next message of the pool itself, which has a turn.
    #[cold]
    fn transmit_own(
        &mut self,
        slot: u16,
        post: &mut impl FnMut(&Transmit, &[Sge]) -> Posted,
    ) -> bool {
        self.end_own_turn(slot);
        let shared = &mut self.physicals[usize::from(slot)];
        let Some(node) = shared.node else {
            return false;
        };
        let physical = shared.id();
        let in_flight = InFlight {
            of: OWN,
            node,
            pieces: 0,
        };
        let wr_id = shared.push(in_flight, shared.time);
        let header = self.take_own(slot);
        self.list_own(slot);
        let is_last = !self.has_room(slot) || self.permitted_turn(slot).is_none();
        let work = Transmit {
            physical,
            node,
            wr_id,
            operation: Operation::Send { immediate: None },
            remote_addr: 0,
            rkey: 0,
            is_signaled: self.is_tail(slot, is_last),
            header: Some(header),
        };
        if post(&work, &[]) == Posted::Refused {
            let shared = &mut self.physicals[usize::from(slot)];
            shared.note_refused(self.faults);
            shared.exchange.note_refused();
            self.begin_failing(slot);
            return false;
        }
        self.note_transmitted(slot, work.is_signaled);
        !is_last
    }

    /// The queue pair does not take the work request that was to be posted: it has failed, and the
    /// request had no effect.
    #[cold]
    fn take_back(&mut self, slot: u16, id: VirtualId, queued: &Queued) {
        self.physicals[usize::from(slot)].note_refused(self.faults);
        if let Some(member) = self.virtuals.get_mut(id.0) {
            member.note_refused(queued);
        }
        self.list(id);
        self.begin_failing(slot);
    }

    /// The header of the next message of the pool itself, which is posted.
    fn take_own(&mut self, slot: u16) -> [u8; HEADER_OCTETS] {
        let exchange = &mut self.physicals[usize::from(slot)].exchange;
        let control = exchange.take();
        let buffers = exchange.grant.announce();
        let message = control.and_then(|control| self.message_of(control));
        let message = message.unwrap_or(Message::Buffers);
        Header { buffers, message }.encode()
    }

    fn message_of(&mut self, control: Control) -> Option<Message> {
        match control {
            Control::Answer(message) => Some(message),
            Control::Close(destination, source) => Some(Message::Close {
                destination,
                source,
            }),
            Control::Open(id) => self.end_mut(id).map(|end| Message::Open {
                service: end.service,
                source: end.own(),
                receives: end.announced.announce(),
            }),
            Control::Accept(id) => self.end_mut(id)?.ends().map(Message::Accept),
            Control::Receives(id) => self.end_mut(id)?.ends().map(Message::Receives),
        }
    }

    /// The header of the Send of a virtual queue pair that was noted as posted last.
    #[inline(never)]
    pub(crate) fn send_header(
        &mut self,
        slot: u16,
        id: VirtualId,
        immediate: Option<u32>,
    ) -> Option<[u8; HEADER_OCTETS]> {
        let member = self.virtuals.get_mut(id.0)?;
        let sequence = member.next_sequence().wrapping_sub(1);
        let ends = member.end.as_mut()?.ends()?;
        let exchange = &mut self.physicals[usize::from(slot)].exchange;
        exchange.credit.note_sent();
        let header = Header {
            buffers: exchange.grant.announce(),
            message: Message::Data {
                ends,
                sequence,
                immediate,
            },
        };
        Some(header.encode())
    }
}
