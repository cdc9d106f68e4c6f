//! Messages that arrive. The pool of a node is not trusted: what it may change is what this end has
//! for virtual queue pairs to that node.

use crate::end::{Begun, Delivered, Places};
use crate::exchange::{Control, ExchangeId};
use crate::fault::Fault;
use crate::header::{EndId, Ends, Header, Message};
use crate::pool::{release, Pool};
use crate::regions::Pieces;
use crate::services::Incoming;
use crate::types::{BufferAction, EndState, NodeId, PhysicalId, Status, VirtualId};

/// From where a message comes, and where it is.
#[derive(Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) exchange: ExchangeId,
    pub(crate) node: NodeId,
    pub(crate) buffer: u32,
}

impl Pool {
    /// A Receive of a queue pair is complete: a message of `len_octets` is in a buffer. `first` has
    /// its first octets, as many as there are up to [`crate::HEADER_OCTETS`]. The driver hands
    /// messages over in the order in which they have arrived, whichever their queue pairs, as
    /// one completion queue has them, and all of a queue pair before `handle_destroyed`. Buffers
    /// whose queue pair is destroyed are the driver's.
    pub fn handle_message(&mut self, id: PhysicalId, buffer: u32, first: &[u8], len_octets: usize) {
        self.book();
        let exchange = self.exchanges.id_of_connection(id.slot);
        let node = self.physical_state(id).and_then(|_| {
            let node = self.physicals[usize::from(id.slot)].node?;
            let found = self.exchanges.get_mut(exchange)?;
            found.grant.take().then_some(node)
        });
        let Some(node) = node else {
            self.stats.dropped += 1;
            return;
        };
        let arrival = Arrival {
            exchange,
            node,
            buffer,
        };
        self.handle_arrival(&arrival, first, len_octets);
        self.free_buffer(exchange, buffer);
    }

    /// What follows from a message of a node, the first octets of which begin with its header.
    pub(crate) fn handle_arrival(&mut self, from: &Arrival, first: &[u8], len_octets: usize) {
        let Ok((header, len_octets)) = Header::decode(first, len_octets) else {
            self.stats.dropped += 1;
            return;
        };
        let exchange = self.exchanges.get_mut(from.exchange);
        let is_possible =
            exchange.is_some_and(|found| found.credit.handle_announced(header.buffers));
        self.stats.dropped += u64::from(!is_possible);
        if is_possible {
            self.feed(from.exchange);
        }
        if !self.is_heard(from.exchange) {
            return;
        }
        let answer = self.handle_header(from, &header.message, len_octets);
        if let Some(answer) = answer {
            self.answer(from.exchange, answer);
        }
    }

    /// What is answered to a message, if it has to be.
    fn handle_header(
        &mut self,
        from: &Arrival,
        message: &Message,
        len_octets: usize,
    ) -> Option<Message> {
        match *message {
            Message::Open {
                service,
                source,
                receives,
            } => self.handle_open(from, service, source, receives),
            Message::Accept(ends) => self.handle_accept(from, &ends),
            Message::Refuse { destination } => {
                self.handle_refuse(from, destination);
                None
            }
            Message::Data { ends, sequence, .. }
            | Message::Begin { ends, sequence, .. }
            | Message::Part { ends, sequence, .. } => {
                let id = self.find_end(from, &ends);
                let Some(id) = id else {
                    return self.answer_unknown(&ends);
                };
                let len_octets = u32::try_from(len_octets).unwrap_or(u32::MAX);
                self.handle_send((from, message), id, sequence, len_octets);
                None
            }
            Message::Taken { ends, sequence } => {
                let id = self.find_end(from, &ends);
                let Some(id) = id else {
                    return self.answer_unknown(&ends);
                };
                self.handle_taken(id, sequence);
                None
            }
            Message::Receives(ends) => match self.find_end(from, &ends) {
                Some(_) => None,
                None => self.answer_unknown(&ends),
            },
            Message::Close {
                destination,
                source,
                refused,
            } => {
                let opening = self.opening_end(from, destination);
                match self.known_end(from, destination, source).or(opening) {
                    Some(id) => self.handle_close(id, refused),
                    None => self.stats.dropped += 1,
                }
                None
            }
            Message::Buffers => None,
            Message::Probe => Some(Message::Buffers),
            Message::Leave => {
                self.handle_leave(from.exchange);
                None
            }
        }
    }

    /// The virtual queue pair that a message is for, if it and its other end are so named.
    fn known_end(
        &mut self,
        from: &Arrival,
        destination: EndId,
        source: EndId,
    ) -> Option<VirtualId> {
        let id = self.messages.virtual_id(destination);
        let member = self.virtuals.get(id.0)?;
        let is_known = member.node == from.node && member.end.as_ref()?.remote == Some(source);
        (is_known || self.faults.has(Fault::EndsUnchecked)).then_some(id)
    }

    /// The virtual queue pair that a message is for; notes the Receives of its other end.
    fn find_end(&mut self, from: &Arrival, ends: &Ends) -> Option<VirtualId> {
        let id = self.known_end(from, ends.destination, ends.source)?;
        let end = self.end_mut(id)?;
        if end.state == EndState::Accepted {
            end.state = EndState::Open;
        }
        self.note_receives(id, ends.receives);
        Some(id)
    }

    /// The other end of a virtual queue pair has posted Receives.
    fn note_receives(&mut self, id: VirtualId, receives: u32) {
        let end = self.end_mut(id);
        if end.is_some_and(|end| end.covered.handle_announced(receives)) {
            self.list(id);
        }
    }

    /// The other end has ended, or never was: its peer is to end, too.
    fn answer_unknown(&mut self, ends: &Ends) -> Option<Message> {
        self.stats.dropped += 1;
        Some(Message::Close {
            destination: ends.source,
            source: ends.destination,
            refused: None,
        })
    }

    fn handle_open(
        &mut self,
        from: &Arrival,
        service: u32,
        source: EndId,
        receives: u32,
    ) -> Option<Message> {
        // If it is asked again, a connection has failed, and it may have more Receives.
        let known = self.messages.by_remote.get(&(from.node, source));
        if let Some(&id) = known.filter(|_| !self.faults.has(Fault::OpenedTwice)) {
            self.note_receives(id, receives);
            return None;
        }
        let most = self.messages.config.map_or(0, |config| config.backlog) as usize;
        let refuse = Some(Message::Refuse {
            destination: source,
        });
        let Some(waiting) = self.messages.services.get_mut(&service) else {
            return refuse;
        };
        let is_same = |one: &&mut Incoming| one.node == from.node && one.source == source;
        if let Some(same) = waiting.iter_mut().find(is_same) {
            // One that was late has fewer.
            let more = receives.wrapping_sub(same.receives);
            if more <= u32::MAX / 2 {
                same.receives = receives;
            }
            return None;
        }
        if waiting.len() >= most {
            return refuse;
        }
        waiting.push_back(Incoming {
            exchange: from.exchange,
            node: from.node,
            source,
            receives,
        });
        None
    }

    fn handle_accept(&mut self, from: &Arrival, ends: &Ends) -> Option<Message> {
        if self.find_end(from, ends).is_some() {
            // It is told again, since a connection has failed.
            return None;
        }
        let opening = self.opening_end(from, ends.destination);
        let opening = opening.and_then(|id| Some((id, self.virtuals.get_mut(id.0)?)));
        let opening = opening.and_then(|(id, member)| Some((id, member.end.as_mut()?)));
        let Some((id, end)) = opening else {
            return self.answer_unknown(ends);
        };
        (end.state, end.remote) = (EndState::Open, Some(ends.source));
        end.covered.handle_announced(ends.receives);
        end.is_announcing = true;
        let by_remote = &mut self.messages.by_remote;
        by_remote.insert((from.node, ends.source), id);
        self.list(id);
        // The other end may have ended since, and what it was told of Receives may be lost.
        self.tell_other(id, Control::Receives(id));
        None
    }

    /// The virtual queue pair that a node may accept or refuse.
    fn opening_end(&self, from: &Arrival, destination: EndId) -> Option<VirtualId> {
        let id = self.messages.virtual_id(destination);
        let member = self.virtuals.get(id.0)?;
        let is_opening = member.end.as_ref()?.state == EndState::Opening;
        (is_opening && member.node == from.node).then_some(id)
    }

    fn handle_refuse(&mut self, from: &Arrival, destination: EndId) {
        match self.opening_end(from, destination) {
            Some(id) => self.fail_end(id, EndState::Refused, false),
            None => self.stats.dropped += 1,
        }
    }

    /// The other end has ended. If it has refused a Send, that one says so, as long as it is not
    /// complete.
    fn handle_close(&mut self, id: VirtualId, refused: Option<u32>) {
        let member = self.virtuals.get(id.0);
        let is_refused = refused
            .zip(member)
            .is_some_and(|(sequence, member)| member.is_next_send(sequence));
        let status = match is_refused && !self.faults.has(Fault::RefusalUntold) {
            true => Status::RemoteInvalidRequest,
            false => Status::RetryExceeded,
        };
        self.fail_end_with(id, (EndState::Closed, status), false);
    }

    /// The other end has taken a Send: its last segment may be posted.
    fn handle_taken(&mut self, id: VirtualId, sequence: u32) {
        let member = self.virtuals.get_mut(id.0);
        let member = member.filter(|member| member.may_have_send(sequence));
        let Some(end) = member.and_then(|member| member.end.as_mut()) else {
            self.stats.dropped += 1;
            return;
        };
        match end.note_taken(sequence) {
            true => self.list(id),
            false => self.stats.duplicates += 1,
        }
    }

    /// A Send of the other end, or a segment of one. One that was delivered is dropped; one that
    /// skips another one, or has no Receive, breaks the rules.
    fn handle_send(
        &mut self,
        (from, message): (&Arrival, &Message),
        id: VirtualId,
        sequence: u32,
        len_octets: u32,
    ) {
        let Some(end) = self.end_mut(id) else {
            return;
        };
        let ahead = sequence.wrapping_sub(end.expected);
        let is_repeated = ahead > u32::MAX / 2;
        if is_repeated && !self.faults.has(Fault::DuplicatesDelivered) {
            self.stats.duplicates += 1;
            return;
        }
        let is_next = ahead == 0 || is_repeated;
        let is_taken = is_next
            && match *message {
                Message::Begin {
                    len_octets: all, ..
                } => self.handle_begin(from, id, all, len_octets),
                Message::Part { offset, .. } => self.handle_part(from, id, offset, len_octets),
                Message::Data { immediate, .. } => {
                    self.handle_data(from, id, immediate, len_octets)
                }
                _ => false,
            };
        if !is_taken {
            self.stats.dropped += 1;
            self.fail_end(id, EndState::Closed, true);
        }
    }

    /// The first segment of a Send; whether it is possible.
    fn handle_begin(&mut self, from: &Arrival, id: VirtualId, all: u32, len_octets: u32) -> bool {
        let Some(end) = self.end_mut(id) else {
            return false;
        };
        if end.is_filling() {
            // It was posted again after a failure.
            self.stats.duplicates += 1;
            return true;
        }
        match end.begin(all, len_octets) {
            Some(Begun::Taken(to)) => {
                let is_told = end.begin_telling();
                self.copy(from.buffer, to);
                if is_told {
                    self.tell_other(id, Control::Taken(id));
                }
            }
            Some(Begun::TooLong(pieces)) => {
                self.release_all(&pieces);
                self.fail_end(id, EndState::Closed, true);
            }
            None => return false,
        }
        true
    }

    /// A further segment of a Send; whether it is possible.
    fn handle_part(&mut self, from: &Arrival, id: VirtualId, offset: u32, len_octets: u32) -> bool {
        let faults = self.faults;
        let filled = self.end_mut(id).ok_or(());
        match filled.and_then(|end| end.fill(offset, len_octets, faults)) {
            Ok(Some(to)) => self.copy(from.buffer, to),
            Ok(None) => self.stats.duplicates += 1,
            Err(()) => return false,
        }
        true
    }

    /// A Send, or its last segment; whether it is possible.
    fn handle_data(
        &mut self,
        from: &Arrival,
        id: VirtualId,
        immediate: Option<u32>,
        len_octets: u32,
    ) -> bool {
        let faults = self.faults;
        let end = self.end_mut(id);
        let delivered = end.and_then(|end| end.deliver(len_octets, immediate, faults));
        let Some(Delivered { status, to, pieces }) = delivered else {
            return false;
        };
        if status == Status::Success {
            self.copy(from.buffer, to);
        }
        self.release_all(&pieces);
        match status {
            Status::Success => self.announce_receives(id),
            _ => self.fail_end(id, EndState::Closed, true),
        }
        true
    }

    fn release_all(&mut self, pieces: &Pieces) {
        for piece in pieces {
            release(&mut self.regions, &mut self.actions, piece.local);
        }
    }

    fn copy(&mut self, buffer: u32, elements: Places) {
        let copy = BufferAction::Copy { buffer, elements };
        self.messages.actions.push_back(copy);
    }
}
