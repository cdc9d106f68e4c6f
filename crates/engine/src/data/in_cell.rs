//! Reads and atomics of one cell over channels: posted, answered and completed in one step each;
//! and Writes of one cell with immediate data, taken in one step.

use proto_trp::conn::{Completion, Connection, SendWr, Sge};
use proto_trp::wire::message::CELL_LEN;
use proto_trp::wire::{AtomicResponse, MessageHead, MessageKind};
use urdma_channel::CellOctets;
use urdma_trace::probes;
use urdma_types::SlotId;

use super::counts::Owner;
use crate::memory::host::{complete_send, execute_one, read_one, scatter_response_one, write_one};
use crate::objects::direct::Direct;
use crate::objects::entry::QpEntry;
use crate::objects::mr::MrTable;
use crate::objects::qp::{Polled, Qp};
use crate::paths::channels::Channels;
use crate::paths::path::PeerPath;
use crate::shard::Shard;
use crate::types::Access;

/// The memory of the process, and what the peer of a queue pair may do there.
type Memory<'a> = (&'a MrTable, (&'a Qp, Access));

/// Reports that a message from `slot` has completed a receive request of a queue pair.
#[inline(always)]
pub(super) fn report_received(
    (direct, channels): (&mut Direct, &mut Channels),
    entry: &mut QpEntry,
    slot: SlotId,
    completion: Completion,
) {
    let (qp, counts) = (&*entry.qp, &mut entry.counts);
    let is_direct = direct.takes(qp.recv_cq());
    if !is_direct {
        // C5-1: a thread that looks into the ring may end the process at once.
        if let Some(channel) = channels.get_mut(slot) {
            channel.settle();
        }
    }
    let completion = qp.work_completion(entry.attributes.remote_qpn, completion);
    let waits = direct.put(is_direct, qp.recv_cq(), &completion);
    counts.recv_pushed = counts.recv_pushed.wrapping_add(u32::from(waits));
}

impl Shard {
    /// As [`Shard::post_in_cell`], of a read or atomic.
    #[inline(never)]
    pub(crate) fn post_request_in_cell(
        &mut self,
        qp: &Qp,
        polled: &Polled,
        wr: &SendWr<'_>,
    ) -> bool {
        let index = qp.number().index();
        let Some(entry) = self.qps.entry(qp) else {
            return false;
        };
        let Some(PeerPath::Channel(slot)) = entry.path else {
            return false;
        };
        let has_room = entry.sends_in_use(polled) < qp.caps().max_send_wr;
        let is_rare = self.is_put_off | self.is_dead | self.capture.is_some();
        if is_rare || !has_room || !entry.conn.fits_request(wr) {
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
            .post_request_in_cell(wr, position, room.octets_mut());
        room.publish(octets, Owner::of(index).0);
        self.counters.sent += 1;
        if channel.notify() {
            probes::wake(slot.number());
        }
        true
    }

    /// As [`Shard::take_in_cell`], of the request of a read or atomic, of the whole response to
    /// one, or of a whole Write with its immediate data.
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
            MessageKind::ReadRequest => self.answer_in_cell(
                slot,
                &head,
                |conn| conn.answers_in_cell(slot, &head, body),
                |conn, (regions, rights), read, cell| {
                    let payload = read.payload(cell);
                    read_one(regions, rights, read.source(), payload)
                        .then(|| conn.answered_in_cell(read, cell))
                },
            ),
            MessageKind::ReadResponse => self.take_response_in_cell(
                head.destination,
                body,
                |conn| conn.takes_response(slot, &head, body.len()),
                |conn, index| conn.took_response(index, body.len()),
            ),
            MessageKind::WriteImmediate => self.take_whole_write(slot, &head, body),
            _ => self.take_of_atomic(slot, &head, body),
        }
    }

    /// The request of an atomic, or the response to one.
    #[inline(never)]
    fn take_of_atomic(&mut self, slot: SlotId, head: &MessageHead, body: &[u8]) -> bool {
        if head.kind == MessageKind::AtomicRequest {
            return self.answer_in_cell(
                slot,
                head,
                |conn| conn.executes_in_cell(slot, head, body),
                |conn, (regions, rights), atomic, cell| {
                    let (operand, op) = (atomic.operand(), atomic.operation());
                    execute_one(regions, rights, operand, op)
                        .map(|original| conn.executed_in_cell(atomic, original, cell))
                },
            );
        }
        let Ok(response) = AtomicResponse::parse(body) else {
            return false;
        };
        self.take_response_in_cell(
            head.destination,
            &response.original.to_ne_bytes(),
            |conn| conn.takes_original(slot, head, &response),
            Connection::took_original,
        )
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

    /// Answers the request that the connection finds, if it does, by what `answer` writes into a
    /// cell: it returns the octets there, or none if it can not.
    #[inline(always)]
    fn answer_in_cell<R>(
        &mut self,
        slot: SlotId,
        head: &MessageHead,
        find: impl FnOnce(&Connection) -> Option<R>,
        answer: impl FnOnce(&mut Connection, Memory<'_>, &R, &mut [u8; CELL_LEN]) -> Option<usize>,
    ) -> bool {
        let Some(entry) = self.qps.connected.get_mut(head.destination) else {
            return false;
        };
        let Some(request) = find(&entry.conn) else {
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
        let rights = (&*entry.qp, entry.attributes.access);
        let memory = (&self.process.regions, rights);
        let Some(octets) = answer(&mut entry.conn, memory, &request, room.octets_mut()) else {
            return false;
        };
        room.publish(octets, Owner::of(head.destination).0);
        self.counters.received += 1;
        self.counters.sent += 1;
        true
    }

    /// Copies `octets`, the whole response to the request of a queue pair that the connection
    /// finds, if it does.
    #[inline(always)]
    fn take_response_in_cell(
        &mut self,
        index: u16,
        octets: &[u8],
        find: impl FnOnce(&Connection) -> Option<(u32, Sge)>,
        took: impl FnOnce(&mut Connection, u32),
    ) -> bool {
        let Some(entry) = self.qps.connected.get_mut(index) else {
            return false;
        };
        let Some((request, sge)) = find(&entry.conn) else {
            return false;
        };
        if !scatter_response_one(&self.process.regions, &entry.qp, &sge, octets) {
            return false;
        }
        self.counters.received += 1;
        took(&mut entry.conn, request);
        let remote_qpn = entry.attributes.remote_qpn;
        while let Some(completion) = entry.conn.next_answered() {
            let ends = (&*entry.qp, &mut entry.counts);
            complete_send(&mut self.direct, ends, remote_qpn, completion);
        }
        if entry.conn.has_unsent() && !entry.is_queued {
            // A request may have waited for the limit of reads, or for this one by its fence.
            self.qps.make_ready(index);
        }
        true
    }
}
