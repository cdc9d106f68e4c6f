//! Messages over channels: turns of queue pairs, and what arrives.

#![allow(unsafe_code)]

use proto_trp::conn::{answer_unknown, Answer, Handled, Message, Payload, SendWr, Target};
use proto_trp::wire::message::MESSAGE_HEAD_LEN;
use proto_trp::wire::{MessageError, MessageHead, MessageKind};
use urdma_channel::{CellOctets, Kind, Next, Payload as ChannelPayload, CELL_DATA};
use urdma_trace::probes;
use urdma_types::SlotId;

use super::counts::Owner;
use super::in_cell::report_received;
use crate::clock;
use crate::memory::host::{gather_one, scatter_one, write_one};
use crate::objects::note::Note;
use crate::objects::qp::{Polled, Qp};
use crate::paths::channels::{PeerChannel, BURST};
use crate::paths::packet_body::PacketBody;
use crate::paths::packet_path::{Turn, TURN};
use crate::paths::path::PeerPath;
use crate::shard::Shard;
use crate::types::Info;

/// Whether a message is of a kind that [`Shard::take_other_in_cell`] may take.
#[inline(always)]
fn may_be_other(cell: &CellOctets) -> bool {
    let kind = cell[0];
    kind == MessageKind::ReadRequest as u8
        || kind == MessageKind::ReadResponse as u8
        || kind == MessageKind::WriteImmediate as u8
        || kind == MessageKind::AtomicRequest as u8
        || kind == MessageKind::AtomicResponse as u8
}

impl Shard {
    /// The path of a queue pair.
    #[inline]
    pub(super) fn path_of(&self, index: u16) -> Option<PeerPath> {
        self.qps.connected.get(index)?.path
    }

    /// Gives a queue pair one turn on the channel to `slot`, and puts it into the ready list if it
    /// has more to send. No timer begins or ends with a message that is sent.
    #[inline]
    pub(super) fn take_turn_on_channel(&mut self, index: u16, slot: SlotId) {
        if self.is_dead {
            return;
        }
        if self.channels.waiting(slot) > 0 {
            self.wait_for_room(index, slot, false);
            self.resume(slot);
            return;
        }
        match self.write_messages_or_read_counts(index, slot) {
            Turn::Done => {}
            Turn::More => self.qps.make_ready(index),
            Turn::Blocked => self.wait_for_room(index, slot, false),
        }
    }

    #[inline]
    fn write_messages_or_read_counts(&mut self, index: u16, slot: SlotId) -> Turn {
        let turn = self.write_messages(index, slot);
        if turn != Turn::Blocked {
            return turn;
        }
        // The peer may have settled messages since its counts were read.
        self.read_counts(slot);
        self.write_messages(index, slot)
    }

    /// Lets a queue pair wait for room on a channel, instead of in the ready list: with thousands
    /// of them a walk through all would be in vain at each poll.
    fn wait_for_room(&mut self, index: u16, slot: SlotId, is_next: bool) {
        let Some(entry) = self.qps.connected.get_mut(index) else {
            return;
        };
        self.is_blocked = true;
        if !entry.is_queued {
            entry.is_queued = self.channels.wait(slot, index, is_next);
        }
    }

    /// Gives the queue pairs that wait for room on a channel one turn each, until it is full.
    fn resume(&mut self, slot: SlotId) {
        for _ in 0..self.channels.waiting(slot) {
            let Some(index) = self.channels.next_waiting(slot) else {
                break;
            };
            if let Some(entry) = self.qps.connected.get_mut(index) {
                entry.is_queued = false;
            }
            if !matches!(self.path_of(index), Some(PeerPath::Channel(at)) if at == slot) {
                // The channel has ended, or the queue pair has.
                self.qps.make_ready(index);
                continue;
            }
            match self.write_messages_or_read_counts(index, slot) {
                Turn::Done => {}
                Turn::More => self.qps.make_ready(index),
                Turn::Blocked => {
                    self.wait_for_room(index, slot, true);
                    break;
                }
            }
        }
    }

    /// Gives the queue pairs that wait for room on channels one turn each, as far as there is room.
    pub(super) fn resume_all(&mut self) {
        let mut at = 0;
        while let Some(slot) = self.channels.waited_for(at) {
            at += 1;
            self.resume(slot);
        }
        self.channels.forget_waited_for();
    }

    /// As [`Shard::take_turn_on_channel`] for a request that was just posted.
    #[inline]
    pub(super) fn send_posted(&mut self, index: u16, slot: SlotId) {
        let before = self.counters.sent;
        self.take_turn_on_channel(index, slot);
        if self.counters.sent == before {
            // A request that cannot be sent may end with a timer.
            self.qps.set_timer(index);
        }
    }

    /// Posts a request and writes its message in one step; false, and nothing is done, if it has to
    /// be posted as most are: it has no message of one cell, or something waits before it.
    #[inline(always)]
    pub(crate) fn post_in_cell(&mut self, qp: &Qp, polled: &Polled, wr: &SendWr<'_>) -> bool {
        let index = qp.number().index();
        let Some(entry) = self.qps.entry(qp) else {
            return false;
        };
        let (Some(PeerPath::Channel(slot)), Some(len)) = (entry.path, entry.conn.fits_cell(wr))
        else {
            return false;
        };
        let used = entry.sends_in_use(polled);
        let is_rare = self.is_put_off | self.is_dead | self.capture.is_some();
        if is_rare || used >= qp.caps().max_send_wr {
            return false;
        }
        let Some(channel) = self.channels.get_mut(slot) else {
            return false;
        };
        let Some(mut room) = channel.begin_in_cell() else {
            return false;
        };
        let position = room.position();
        let cell = room.octets_mut();
        let payload = &mut cell[MESSAGE_HEAD_LEN..];
        let is_gathered = match wr.payload {
            Payload::Sges([sge]) => gather_one(&self.process.regions, qp, sge, payload),
            Payload::Inline([part]) => {
                payload[..len].copy_from_slice(part);
                true
            }
            _ => false,
        };
        if !is_gathered {
            return false;
        }
        let octets = entry.conn.post_in_cell(wr, len, position, cell);
        room.publish(octets, Owner::of(index).0);
        self.counters.sent += 1;
        if channel.notify() {
            probes::wake(slot.number());
        }
        true
    }

    #[inline]
    fn write_messages(&mut self, index: u16, slot: SlotId) -> Turn {
        let (Some(entry), Some(channel)) = (
            self.qps.connected.get_mut(index),
            self.channels.get_mut(slot),
        ) else {
            return self.lose_peer(index);
        };
        let before = channel.outgoing().written();
        let mut turn = Turn::More;
        for _ in 0..TURN {
            let Some(plan) = entry.conn.plan_message() else {
                turn = Turn::Done;
                break;
            };
            let Some(mut room) = channel.begin(Kind::Work, plan.frame_octets()) else {
                turn = Turn::Blocked;
                break;
            };
            let position = room.position();
            let (cell, frame) = room.parts_mut();
            let (conn, mut host) = entry.with_host(&mut self.process);
            if let Some(written) = conn.write_message(plan, position, cell, frame, &mut host) {
                if let Some(capture) = &mut self.capture {
                    let (cell, frame) = room.parts_mut();
                    capture.add(self.slot, slot, &[&cell[..written.cell_octets], frame]);
                }
                room.publish(written.cell_octets, Owner::of(index).0);
            }
        }
        let written = channel.outgoing().written() - before;
        if written > 0 {
            self.counters.sent += written;
            self.channels.note_doorbell(slot);
        }
        turn
    }

    /// The queue pair's peer has ended.
    #[cold]
    pub(super) fn lose_peer(&mut self, index: u16) -> Turn {
        if let Some(entry) = self.qps.connected.get_mut(index) {
            let (conn, mut host) = entry.with_host(&mut self.process);
            conn.peer_gone(&mut host);
        }
        Turn::Done
    }

    /// Takes messages from all channels, and reads the counts of those from which nothing came.
    pub(super) fn receive_all(&mut self, info: &Info) -> usize {
        let mut taken = 0;
        let mut at = 0;
        // A channel may be opened or closed meanwhile.
        while let Some(slot) = self.channels.open.get(at) {
            at += 1;
            let of_channel = self.receive_from(info, slot);
            if of_channel == 0 {
                self.read_counts(slot);
            }
            taken += of_channel;
        }
        taken
    }

    /// As [`Shard::receive_all`] for an application's poll, the latest of `empty_polls` that found
    /// nothing: from the channels that it is time to look at.
    #[inline]
    pub(super) fn receive_polled(&mut self, info: &Info, empty_polls: u32) -> usize {
        let mut taken = 0;
        let mut at = 0;
        while let Some(slot) = self.channels.open.polled(at) {
            at += 1;
            let of_channel = self.receive_from(info, slot);
            taken += of_channel;
            let came = of_channel > 0 || self.read_counts_if_due(slot, empty_polls);
            self.channels.open.note(slot, came);
        }
        taken
    }

    /// Reads the counts of a channel from which nothing came, if no answer will bring them; whether
    /// requests completed.
    #[inline]
    fn read_counts_if_due(&mut self, slot: SlotId, empty_polls: u32) -> bool {
        let came = self.channels.wants_counts(slot, empty_polls) && self.read_counts(slot);
        if came {
            if let Some(peer) = self.channels.entry_mut(slot) {
                peer.note_completed(false);
            }
        }
        came
    }

    /// Takes a burst of messages from the channel of a slot's process.
    #[inline]
    pub(super) fn receive_from(&mut self, info: &Info, slot: SlotId) -> usize {
        if !self.channels.has_message(slot) {
            return 0;
        }
        let mut cell = [0; CELL_DATA];
        let mut taken = 0;
        let mut has_completed = false;
        while taken < BURST {
            let Some(channel) = self.channels.get_mut(slot) else {
                break;
            };
            // A word of the cell says so sooner than an empty `next`.
            if taken > 0 && !channel.has_message() {
                break;
            }
            let next = channel.take(&mut cell);
            if let Some(position) = channel.settled_by(&next) {
                has_completed = true;
                self.complete_sends(slot, position);
            }
            taken += match next {
                Next::Empty => break,
                Next::Message {
                    len, payload: None, ..
                } if self.take_in_cell(slot, &cell, len)
                    || may_be_other(&cell) && self.take_other_in_cell(slot, &cell, len) =>
                {
                    1
                }
                Next::Message { len, payload, .. } => {
                    let Ok(messages) = self.take_any(info, slot, (&cell, len), payload) else {
                        self.end_corrupt(slot);
                        break;
                    };
                    messages
                }
                Next::Corrupt => {
                    self.end_corrupt(slot);
                    break;
                }
            };
        }
        self.settle_handled();
        if let Some(peer) = self.channels.entry_mut(slot) {
            peer.channel.settle();
            if peer.channel.notify() {
                probes::wake(slot.number());
            }
            if has_completed {
                peer.note_completed(true);
            }
        }
        taken
    }

    /// Takes a message of one cell that its connection takes in one step; false if it has to be
    /// taken as any.
    #[inline(always)]
    fn take_in_cell(&mut self, slot: SlotId, cell: &CellOctets, len: usize) -> bool {
        let Some((head, payload)) = cell[..len].split_first_chunk() else {
            return false;
        };
        let Ok(head) = MessageHead::decode(head) else {
            return false;
        };
        let Some(entry) = self.qps.connected.get_mut(head.destination) else {
            return false;
        };
        let is_placed = match entry.conn.takes_in_cell(slot, &head, payload.len()) {
            Some(Target::Receive(sge)) => {
                scatter_one(&self.process.regions, &entry.qp, &sge, payload)
            }
            Some(Target::Remote(remote)) => {
                let access = entry.attributes.access;
                write_one(&self.process.regions, (&entry.qp, access), remote, payload)
            }
            None => false,
        };
        if !is_placed {
            return false;
        }
        self.counters.received += 1;
        if let Some(completion) = entry.conn.took_in_cell(&head, payload.len()) {
            report_received(
                (&mut self.direct, &mut self.channels),
                entry,
                slot,
                completion,
            );
        }
        true
    }

    /// Takes a message or packets of any kind; returns how many there were.
    #[inline(never)]
    fn take_any(
        &mut self,
        info: &Info,
        slot: SlotId,
        (cell, len): (&CellOctets, usize),
        payload: Option<ChannelPayload>,
    ) -> Result<usize, MessageError> {
        let is_packet = cell[0] == MessageKind::Packet as u8;
        let (body, frame_octets) = match payload {
            Some(payload) => {
                let channel = self.channels.get_mut(slot);
                let Some(incoming) = channel.and_then(|channel| channel.incoming()) else {
                    return Ok(0);
                };
                let at = incoming.payload_ptr(payload);
                let octets = payload.len();
                let skipped = if is_packet { 0 } else { MESSAGE_HEAD_LEN };
                // SAFETY: the payload is readable for its length while the region is mapped,
                // and nothing closes the channel before the message is taken.
                let body = unsafe { PacketBody::behind(skipped, at, octets) };
                (body, octets)
            }
            // SAFETY: the cell's copy outlives the message.
            None => (unsafe { PacketBody::new(cell.as_ptr(), len, CELL_DATA) }, 0),
        };
        if is_packet {
            return self.take_packet(info, slot, &cell[..len], (frame_octets, &body));
        }
        if let Handled::Answer(answer) =
            self.take_message(slot, &cell[..len], frame_octets, &body)?
        {
            self.write_answer(slot, &answer);
        }
        if let Some(channel) = self.channels.get_mut(slot) {
            channel.settle();
        }
        Ok(1)
    }

    #[inline]
    fn take_message(
        &mut self,
        from: SlotId,
        cell: &[u8],
        frame_octets: usize,
        body: &PacketBody<'_>,
    ) -> Result<Handled, MessageError> {
        self.counters.received += 1;
        let message = Message::parse(from, cell, frame_octets, body)?;
        let index = message.head.destination;
        let Some(entry) = self.qps.connected.get_mut(index) else {
            self.counters.unknown_qp += 1;
            return Ok(answer_unknown(&message.head).map_or(Handled::Settled, Handled::Answer));
        };
        let (conn, mut host) = entry.with_host(&mut self.process);
        let handled = conn.handle_message(clock::now, &message, &mut host);
        if !entry.is_queued && entry.conn.may_have_tx() {
            entry.is_queued = true;
            self.qps.ready.push_back(index);
        }
        // Only answers and the end of the peer's queue pair set timers.
        if !message.head.kind.is_of_work_request() {
            self.qps.wheel.set(index, entry.conn.next_deadline());
        }
        Ok(handled)
    }

    /// Ends the channel to a slot, whose process has ended, or does not keep to the protocol: each
    /// queue pair over it learns that its peer has ended. A rare event, so all queue pairs are
    /// walked. For the channel, see [`Channels::close`].
    #[must_use]
    pub(crate) fn end_channel(&mut self, slot: SlotId) -> Option<Box<PeerChannel>> {
        // C8.4-1: what it had settled is completed.
        self.read_counts(slot);
        for index in self.qps.connected.indices() {
            let Some(entry) = self
                .qps
                .connected
                .get_mut(index)
                .filter(|entry| entry.is_over(slot))
            else {
                continue;
            };
            entry.path = Some(PeerPath::Ended);
            let (conn, mut host) = entry.with_host(&mut self.process);
            conn.peer_gone(&mut host);
            self.qps.wheel.set(index, entry.conn.next_deadline());
        }
        self.slot_gone_of_kinds(clock::now(), slot);
        let mut closed = self.channels.close(slot);
        for index in closed
            .iter_mut()
            .flat_map(|channel| channel.waiting.drain(..))
        {
            if let Some(entry) = self.qps.connected.get_mut(index) {
                entry.is_queued = false;
            }
            self.qps.make_ready(index);
        }
        closed
    }

    /// The process in a slot has written what no process writes: its connections end.
    #[cold]
    pub(crate) fn end_corrupt(&mut self, slot: SlotId) {
        self.counters.malformed += 1;
        let closed = self.end_channel(slot);
        self.process.notes.extend(closed.map(Note::Closed));
        let generation = self.channels.directory().generation(slot.number());
        self.channels.refuse(slot, generation);
    }

    #[cold]
    fn write_answer(&mut self, slot: SlotId, answer: &Answer) {
        let Some(channel) = self.channels.get_mut(slot) else {
            return;
        };
        channel.settle_before_last();
        if let Some(mut room) = channel.begin(Kind::Answer, 0) {
            let octets = answer.octets();
            room.octets_mut()[..octets.len()].copy_from_slice(octets);
            if let Some(capture) = &mut self.capture {
                capture.add(self.slot, slot, &[octets]);
            }
            room.publish(octets.len(), Owner::NONE.0);
            self.channels.note_doorbell(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use urdma_engine::{Access, Engine, SendOp};

    use crate::rig::{connect, instance, parts, End, DEPTH};

    // Regression: each poll walked through all queue pairs that waited for the same channel.
    #[test]
    fn queue_pairs_that_wait_for_room_are_not_walked_through_at_each_poll() {
        let engine = Engine::start_without_thread(parts(&instance(), 1)).unwrap();
        let slot = engine.info.slot;
        let pairs: Vec<[End; 2]> = (0..64)
            .map(|_| {
                let [a, b] = [(); 2].map(|()| End::new(engine.clone(), 64));
                connect(&a, &b, Access::all());
                [a, b]
            })
            .collect();
        engine.shard.lock().flush();
        let mut posted = 0;
        for _ in 0..DEPTH {
            for [a, b] in &pairs {
                let write = SendOp::Write {
                    remote: b.remote(0),
                };
                a.post(posted, write, &[a.sge(0, 64)]).unwrap();
                posted += 1;
            }
        }
        {
            let mut shard = engine.shard.lock();
            assert!(shard.qps.ready.is_empty());
            assert_eq!(shard.channels.waiting(slot), pairs.len());
            while shard.progress(&engine.info) > 0 {}
            assert!(shard.qps.ready.is_empty() && !shard.channels.has_waiting());
        }
        let completed = |[a, _]: &[End; 2]| a.wait(DEPTH as usize).len() as u64;
        assert_eq!(pairs.iter().map(completed).sum::<u64>(), posted);
    }

    #[test]
    fn queue_pairs_that_wait_for_a_channel_that_ends_are_flushed() {
        let engine = Engine::start_without_thread(parts(&instance(), 1)).unwrap();
        let slot = engine.info.slot;
        let [a, b] = [(); 2].map(|()| End::new(engine.clone(), 1 << 20));
        connect(&a, &b, Access::all());
        let write = SendOp::Write {
            remote: b.remote(0),
        };
        engine.shard.lock().flush();
        let mut posted = 0;
        while engine.shard.lock().channels.waiting(slot) == 0 {
            assert!(posted < u64::from(DEPTH));
            a.post(posted, write, &[a.sge(0, 1 << 20)]).unwrap();
            posted += 1;
        }
        drop(engine.shard.lock().end_channel(slot));
        engine.shard.lock().flush();
        assert!(!engine.shard.lock().channels.has_waiting());
        assert_eq!(a.poll().len() as u64, posted);
    }
}
