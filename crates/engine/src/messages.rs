//! Messages over channels: turns of queue pairs, and what arrives.

use std::collections::VecDeque;

use proto_trp::conn::{answer_unknown, Answer, Handled, Message};
use proto_trp::wire::message::MESSAGE_HEAD_LEN;
use proto_trp::wire::MessageError;
use urdma_channel::{Channel, Kind, Next, CELL_DATA};
use urdma_types::SlotId;

use super::clock;
use super::index_table::IndexTable;
use super::mr::MrTable;
use super::note::Note;
use super::packet_body::PacketBody;
use super::path::PeerPath;
use super::progress::BURST;
use super::shard::{host, QpEntry, Shard};
use super::transmit::{Turn, TURN};

/// The owner of a cell: the index of a queue pair, and whether its request ends with the message.
#[derive(Clone, Copy)]
struct Owner(u32);

impl Owner {
    /// No queue pair is told of the message's settlement.
    const NONE: Self = Self(0);

    #[inline]
    fn of(index: u16) -> Self {
        Self(u32::from(index))
    }

    #[inline]
    fn index(self) -> Option<u16> {
        u16::try_from(self.0).ok().filter(|index| *index != 0)
    }
}

impl Shard {
    /// Whether a queue pair's path is a channel.
    #[inline]
    pub(super) fn is_over_channel(&self, index: u16) -> bool {
        let entry = self.qps.get(index);
        entry.is_some_and(|entry| matches!(entry.path, Some(PeerPath::Channel(_))))
    }

    /// Gives a queue pair a turn on the channel to `slot`.
    #[inline]
    pub(super) fn transmit_messages(&mut self, index: u16, slot: SlotId) -> Turn {
        let turn = self.write_messages(index, slot);
        if turn != Turn::Blocked {
            return turn;
        }
        // The peer may have settled messages since its counts were read.
        self.read_counts(slot);
        self.write_messages(index, slot)
    }

    #[inline]
    fn write_messages(&mut self, index: u16, slot: SlotId) -> Turn {
        let (Some(entry), Some(channel)) = (self.qps.get_mut(index), self.channels.get_mut(slot))
        else {
            return Turn::Done;
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
            let mut host = host!(entry, self.regions, self.notes);
            if let Some(written) = entry
                .conn
                .write_message(plan, position, cell, frame, &mut host)
            {
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

    /// Takes messages from all channels, and reads the counts of those from which nothing came;
    /// on an application's poll, the latest of so many that found nothing, only if it is time.
    #[inline]
    pub(super) fn receive_messages(&mut self, empty_polls: Option<u32>) -> usize {
        let mut taken = 0;
        for at in 0..self.channels.open().len() {
            // A channel may be closed meanwhile.
            let Some(&slot) = self.channels.open().get(at) else {
                break;
            };
            let of_channel = self.receive_from(slot);
            taken += of_channel;
            if of_channel > 0 {
                continue;
            }
            let is_time = |polls| self.channels.wants_counts(slot, polls);
            if empty_polls.is_none_or(is_time) && self.read_counts(slot) && empty_polls.is_some() {
                self.channels.note_completed(slot, false);
            }
        }
        taken
    }

    /// Takes a burst of messages from the channel of a slot's process.
    #[inline]
    pub(super) fn receive_from(&mut self, slot: SlotId) -> usize {
        let mut cell = [0; CELL_DATA];
        let mut taken = 0;
        let mut has_completed = false;
        while taken < BURST {
            let Some(channel) = self.channels.get_mut(slot) else {
                break;
            };
            let mut position = channel.outgoing().completed();
            let next = channel.next(&mut cell, |owner| {
                position += 1;
                has_completed = true;
                if let Some(index) = Owner(owner).index() {
                    let shared = (&mut self.regions, &mut self.notes, &mut self.ready);
                    complete_sends(&mut self.qps, shared, index, position);
                }
            });
            let (len, payload) = match next {
                Next::Empty => break,
                Next::Corrupt => {
                    self.end_channel(slot);
                    break;
                }
                Next::Message { len, payload, .. } => (len, payload),
            };
            taken += 1;
            let (body, frame_octets) = match payload {
                Some(payload) => {
                    let Some(incoming) = channel.incoming() else {
                        break;
                    };
                    let at = incoming.payload_ptr(payload);
                    let octets = payload.len();
                    // SAFETY: the payload is readable for its length while the region is mapped,
                    // and nothing closes the channel before the message is taken.
                    let body = unsafe { PacketBody::behind(MESSAGE_HEAD_LEN, at, octets) };
                    (body, octets)
                }
                // SAFETY: the cell's copy outlives the message.
                None => (unsafe { PacketBody::new(cell.as_ptr(), len, CELL_DATA) }, 0),
            };
            match self.take_message(slot, &cell[..len], frame_octets, &body) {
                Ok(Some(answer)) => self.write_answer(slot, &answer),
                Ok(None) => {}
                Err(_) => {
                    self.end_channel(slot);
                    break;
                }
            }
            if let Some(channel) = self.channels.get_mut(slot) {
                channel.settle();
            }
        }
        if taken > 0 {
            self.channels.note_doorbell(slot);
        }
        if has_completed {
            self.channels.note_completed(slot, true);
        }
        taken
    }

    #[inline]
    fn take_message(
        &mut self,
        from: SlotId,
        cell: &[u8],
        frame_octets: usize,
        body: &PacketBody<'_>,
    ) -> Result<Option<Answer>, MessageError> {
        self.counters.received += 1;
        let message = Message::parse(from, cell, frame_octets, body)?;
        let index = message.head.destination;
        let Some(entry) = self.qps.get_mut(index) else {
            self.counters.unknown_qp += 1;
            return Ok(answer_unknown(&message.head));
        };
        let mut host = host!(entry, self.regions, self.notes);
        let handled = entry.conn.handle_message(clock::now, &message, &mut host);
        if !entry.is_queued && entry.conn.may_have_tx() {
            entry.is_queued = true;
            self.ready.push_back(index);
        }
        // Only answers and the end of the peer's queue pair set timers.
        if !message.head.kind.is_of_work_request() {
            self.wheel.set(index, entry.conn.next_deadline());
        }
        Ok(match handled {
            Handled::Settled => None,
            Handled::Answer(answer) => Some(answer),
        })
    }

    /// The process in a slot has written what no process writes: its connections end.
    #[cold]
    fn end_channel(&mut self, slot: SlotId) {
        self.counters.malformed += 1;
        let generation = self.endpoint.arena().generation(slot);
        self.slot_gone(clock::now(), slot, generation);
        self.channels.close(slot);
    }

    #[cold]
    fn write_answer(&mut self, slot: SlotId, answer: &Answer) {
        let Some(channel) = self.channels.get_mut(slot) else {
            return;
        };
        if let Some(mut room) = channel.begin(Kind::Answer, 0) {
            let octets = answer.octets();
            room.octets_mut()[..octets.len()].copy_from_slice(octets);
            room.publish(octets.len(), Owner::NONE.0);
            self.channels.note_doorbell(slot);
        }
    }

    /// Reads what the peer in a slot has settled; whether requests completed.
    #[inline]
    pub(super) fn read_counts(&mut self, slot: SlotId) -> bool {
        let Some(channel) = self.channels.get_mut(slot) else {
            return false;
        };
        if is_all_completed(channel) {
            return false;
        }
        let before = channel.outgoing().completed();
        let mut position = before;
        channel.complete(|owner| {
            position += 1;
            if let Some(index) = Owner(owner).index() {
                let shared = (&mut self.regions, &mut self.notes, &mut self.ready);
                complete_sends(&mut self.qps, shared, index, position);
            }
        });
        position > before
    }
}

#[inline]
fn is_all_completed(channel: &Channel) -> bool {
    let outgoing = channel.outgoing();
    outgoing.completed() == outgoing.written()
}

/// The messages before a position of the channel are settled, the last of them of this queue pair.
#[inline]
fn complete_sends(
    qps: &mut IndexTable<QpEntry>,
    (regions, notes, ready): (&mut MrTable, &mut Vec<Note>, &mut VecDeque<u16>),
    index: u16,
    position: u64,
) {
    if let Some(entry) = qps.get_mut(index) {
        let mut host = host!(entry, *regions, *notes);
        entry.conn.settled(position, &mut host);
        // Requests may have waited for this one.
        if !entry.is_queued && entry.conn.may_have_tx() {
            entry.is_queued = true;
            ready.push_back(index);
        }
    }
}
