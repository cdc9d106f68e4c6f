//! Reads of one cell over channels: posted, answered and completed in one step each; and Writes of
//! one cell with immediate data, taken in one step.

use proto_trp::conn::{Completion, SendWr};
use proto_trp::wire::message::MESSAGE_HEAD_LEN;
use proto_trp::wire::{MessageHead, MessageKind};
use urdma_channel::CellOctets;
use urdma_trace::probes;
use urdma_types::SlotId;

use super::counts::Owner;
use crate::memory::host::{
    complete_recv, complete_send, read_one, scatter_response_one, write_one,
};
use crate::objects::direct::Direct;
use crate::objects::entry::QpEntry;
use crate::objects::qp::{Polled, Qp};
use crate::paths::channels::Channels;
use crate::paths::path::PeerPath;
use crate::shard::Shard;

/// Reports that a message from `slot` has completed a receive request of a queue pair.
#[inline(always)]
pub(super) fn report_received(
    (direct, channels): (&mut Direct, &mut Channels),
    entry: &mut QpEntry,
    slot: SlotId,
    completion: Completion,
) {
    let remote_qpn = entry.attributes.remote_qpn;
    if !direct.takes(entry.qp.recv_cq()) {
        // C5-1: a thread that looks into the ring may end the process at once.
        if let Some(channel) = channels.get_mut(slot) {
            channel.settle();
        }
    }
    let ends = (&*entry.qp, &mut entry.counts);
    complete_recv(direct, ends, remote_qpn, completion);
}

impl Shard {
    /// As [`Shard::post_in_cell`], of a read.
    #[inline(never)]
    pub(crate) fn post_read_in_cell(&mut self, qp: &Qp, polled: &Polled, wr: &SendWr<'_>) -> bool {
        let index = qp.number().index();
        let Some(entry) = self.qps.entry(qp) else {
            return false;
        };
        let Some(PeerPath::Channel(slot)) = entry.path else {
            return false;
        };
        let has_room = entry.sends_in_use(polled) < qp.caps().max_send_wr;
        let is_rare = self.is_put_off | self.is_dead | self.capture.is_some();
        if is_rare || !has_room || !entry.conn.fits_read(wr) {
            return false;
        }
        let Some(channel) = self.channels.get_mut(slot) else {
            return false;
        };
        let Some(mut room) = channel.begin_in_cell() else {
            return false;
        };
        let position = room.position();
        let octets = entry
            .conn
            .post_read_in_cell(wr, position, room.octets_mut());
        room.publish(octets, Owner::of(index).0);
        self.counters.sent += 1;
        if channel.notify() {
            probes::wake(slot.number());
        }
        true
    }

    /// As [`Shard::take_in_cell`], of the request of a read, of the whole response to one, or of a
    /// whole Write with its immediate data.
    #[inline(never)]
    pub(super) fn take_other_in_cell(
        &mut self,
        slot: SlotId,
        cell: &CellOctets,
        len: usize,
    ) -> bool {
        let Some((head, body)) = cell[..len].split_first_chunk() else {
            return false;
        };
        let Ok(head) = MessageHead::decode(head) else {
            return false;
        };
        match head.kind {
            MessageKind::ReadRequest => self.answer_in_cell(slot, &head, body),
            MessageKind::WriteImmediate => self.take_whole_write(slot, &head, body),
            _ => self.take_response_in_cell(slot, &head, body),
        }
    }

    fn take_whole_write(&mut self, slot: SlotId, head: &MessageHead, payload: &[u8]) -> bool {
        let Some(entry) = self.qps.connected.get_mut(head.destination) else {
            return false;
        };
        let Some(remote) = entry.conn.takes_whole_write(slot, head, payload.len()) else {
            return false;
        };
        let rights = (&*entry.qp, entry.attributes.access);
        if !write_one(&self.process.regions, rights, remote, payload) {
            return false;
        }
        self.counters.received += 1;
        let completion = entry.conn.took_whole_write(head, payload.len());
        report_received(
            (&mut self.direct, &mut self.channels),
            entry,
            slot,
            completion,
        );
        true
    }

    fn answer_in_cell(&mut self, slot: SlotId, head: &MessageHead, body: &[u8]) -> bool {
        let Some(entry) = self.qps.connected.get_mut(head.destination) else {
            return false;
        };
        let Some(read) = entry.conn.answers_in_cell(slot, head, body) else {
            return false;
        };
        if self.is_dead || self.capture.is_some() || self.channels.waiting(slot) > 0 {
            return false;
        }
        let Some(channel) = self.channels.get_mut(slot) else {
            return false;
        };
        // The requester takes a response only if its count says that the request was accepted.
        channel.settle();
        let Some(mut room) = channel.begin_in_cell() else {
            return false;
        };
        let cell = room.octets_mut();
        let payload = &mut cell[MESSAGE_HEAD_LEN..][..read.octets()];
        let rights = (&*entry.qp, entry.attributes.access);
        if !read_one(&self.process.regions, rights, read.source(), payload) {
            return false;
        }
        let octets = entry.conn.answered_in_cell(&read, cell);
        room.publish(octets, Owner::of(head.destination).0);
        self.counters.received += 1;
        self.counters.sent += 1;
        true
    }

    fn take_response_in_cell(&mut self, slot: SlotId, head: &MessageHead, payload: &[u8]) -> bool {
        let Some(entry) = self.qps.connected.get_mut(head.destination) else {
            return false;
        };
        let Some((index, sge)) = entry.conn.takes_response(slot, head, payload.len()) else {
            return false;
        };
        if !scatter_response_one(&self.process.regions, &entry.qp, &sge, payload) {
            return false;
        }
        self.counters.received += 1;
        entry.conn.took_response(index, payload.len());
        let remote_qpn = entry.attributes.remote_qpn;
        while let Some(completion) = entry.conn.next_answered() {
            let ends = (&*entry.qp, &mut entry.counts);
            complete_send(&mut self.direct, ends, remote_qpn, completion);
        }
        if entry.conn.has_unsent() && !entry.is_queued {
            // A request may have waited for the limit of reads, or for this one by its fence.
            self.qps.make_ready(head.destination);
        }
        true
    }
}
