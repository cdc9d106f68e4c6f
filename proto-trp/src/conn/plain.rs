//! The sending half for the usual segment: a part of an RDMA Write that waits for nothing and has
//! no immediate data. The effect is that of writing any other segment, without what such a one
//! cannot need.

use super::connection::Connection;
use super::host::Host;
use super::num::len32;
use super::queues::{next_part, next_part_within, Kind, SendWqe};
use super::transmit::{Next, Run, TransmitPlan, SEGMENT_HEADERS, TRAIN_MESSAGE_OCTETS_MAX};
use super::types::Status;
use crate::wire::rdmap::Opcode;
use crate::wire::{self, Flags, PacketType, Stag, TaggedHeader, TaggedOffset};
use urdma_types::Time;

impl Connection {
    /// The plan for the next segment if nothing comes before it and it is a part of a plain Send or
    /// RDMA Write that is too long for a train.
    #[inline(always)]
    pub(super) fn plan_plain(&self) -> Option<TransmitPlan> {
        let index = self.sq.next();
        // No `&&`: the usual case is one branch.
        let is_undisturbed = self.phase.starts_requests()
            & !(self.acks.due | self.controls.any())
            & !self.responder.has_answers()
            & self.sender.is_undisturbed()
            & (self.sq.unsent() > 0);
        if !is_undisturbed || !self.sender.has_room() || self.sq.is_stopped_at(index) {
            return None;
        }
        let wqe = self.sq.get(index);
        let part = next_part(index, wqe, self.peer.max_tagged, self.peer.max_untagged);
        if !wqe.kind.is_plain() || part.len <= TRAIN_MESSAGE_OCTETS_MAX {
            return None;
        }
        let run = match (self.writes_plain(wqe), part.last) {
            (false, _) => 0,
            (true, true) => 1,
            (true, false) => self.run(wqe, part.len),
        };
        // Exact for a run: its datagrams may be written one behind the other.
        let headers = match run {
            0 => SEGMENT_HEADERS,
            _ => wire::TAGGED_OVERHEAD,
        };
        Some(TransmitPlan {
            next: Next::Request,
            is_followed: !part.last,
            run,
            len: (headers + part.len as usize).min(self.peer.max_datagram),
        })
    }

    /// Whether a request is one that [`Connection::write_plain`] writes.
    #[inline(always)]
    pub(super) fn writes_plain(&self, wqe: &SendWqe) -> bool {
        (wqe.kind == Kind::PlainWrite)
            & self.transport.is_stream()
            & !self.config.names_shared_queue
    }

    /// How many segments of `octets` octets of the request may be sent now, the last one included.
    #[inline]
    fn run(&self, wqe: &SendWqe, octets: u32) -> u16 {
        let left = (wqe.length - wqe.progress).div_ceil(octets);
        let allowed = left.min(self.sender.sendable());
        u16::try_from(allowed).unwrap_or(u16::MAX)
    }

    /// Writes the next segments of the RDMA Write whose turn it is into `rooms`, a datagram each,
    /// as many as there are rooms and at most [`TransmitPlan::run`]: the plan was just made, and
    /// each room has as many octets as it says. Fewer are written if the request ends, or if its
    /// payload could not be gathered, with which it ends with an error.
    ///
    /// # Panics
    /// If a room is shorter.
    #[inline]
    pub fn write_run<'r, H: Host>(
        &mut self,
        now: Time,
        plan: TransmitPlan,
        rooms: impl Iterator<Item = &'r mut [u8]>,
        host: &mut H,
    ) -> Run {
        let mut run = Run::default();
        if plan.run > 0 {
            self.write_plain(now, rooms.take(usize::from(plan.run)), host, &mut run);
        }
        self.stats.tx_datagrams += u64::from(run.count);
        self.stats.tx_octets += u64::from(len32(run.octets()));
        run
    }

    /// Writes segments of the request whose turn it is, a plain RDMA Write, until it or the rooms
    /// end.
    #[inline(always)]
    pub(super) fn write_plain<'r, H: Host>(
        &mut self,
        now: Time,
        rooms: impl Iterator<Item = &'r mut [u8]>,
        host: &mut H,
        run: &mut Run,
    ) {
        let index = self.sq.next();
        let mut trp = self.header(PacketType::Data, self.sender.epoch());
        let max = self.peer.max_tagged;
        let is_half_full = self.sq.is_half_full();
        let was_empty = self.sender.is_empty();
        let (wqe, slot, lists) = self.sq.entry(index);
        let remote = wqe.remote();
        let asks_at_end = wqe.flags.signaled || is_half_full;
        // As `begin_segment`.
        wqe.started = true;
        let mut copied = true;
        let mut flags = trp.flags;
        for room in rooms {
            let seq = self.sender.next();
            let spec = next_part_within(index, wqe, max);
            let ack_requested = self.sender.requests_ack(seq) || spec.last && asks_at_end;
            // As `write_segment`.
            trp.psn = self.sender.psn(seq);
            trp.flags = flags;
            if ack_requested {
                trp.flags = flags | Flags::ACK_REQUESTED;
            }
            // RFC5040-5.1-3, RFC5041-4.2-2, RFC5041-5.2-5
            //# An RDMA Write writes to one tagged buffer.
            //# All segments of a tagged message carry the same STag and ULP field, as the ULP gave
            //# them.
            //# The tagged offset of a segment is that of the message plus the offset of the payload
            //# in it.
            let tagged = TaggedHeader {
                last: spec.last,
                rdmap_control: Opcode::Write.control(),
                stag: Stag(remote.stag),
                offset: TaggedOffset(remote.to.wrapping_add(u64::from(spec.offset))),
            };
            let end = wire::TAGGED_OVERHEAD + spec.len as usize;
            let (headers, payload) = room[..end].split_at_mut(wire::TAGGED_OVERHEAD);
            let (head, ddp) = headers.split_at_mut(wire::trp::HEADER_LEN);
            if trp.encode(head).is_err() || tagged.encode(ddp).is_err() {
                break;
            }
            copied = lists.copy_payload(wqe, slot, spec.offset, payload, host);
            if !copied {
                break;
            }
            // As `note_new`.
            self.sender.push(now, spec, ack_requested);
            run.add(end);
            if !self.rx.has_gap() {
                // Marks are reported once.
                flags = flags.without(Flags::ECN_ECHO);
            }
            // As `note_sent`.
            if wqe.advance(spec.len, spec.last, seq + 1) {
                self.sq.pass(index);
                break;
            }
        }
        if run.count > 0 {
            self.note_acknowledged();
            self.responder.take_turn();
            self.sender.on_sent(now, was_empty);
        }
        if !copied {
            self.poison(index, Status::LocalProtectionError, host);
        }
    }
}
