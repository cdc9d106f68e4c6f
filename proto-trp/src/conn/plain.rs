//! The sending half for the usual segment: a part of an RDMA Write that waits for nothing and has
//! no immediate data. The effect is that of writing any other segment, without what such a one
//! cannot need.

use super::connection::Connection;
use super::host::Host;
use super::plan::{next_part, SEGMENT_HEADERS, TRAIN_MESSAGE_OCTETS_MAX};
use super::qp_state::QpState;
use super::transmit::{Next, Transmit, TransmitPlan};
use super::types::Status;
use super::wqe::Kind;
use crate::wire::rdmap::Opcode;
use crate::wire::{self, Flags, PacketType, Stag, TaggedHeader, TaggedOffset};
use urdma_types::Time;

impl Connection {
    /// The plan for the next segment if nothing comes before it and it is a part of a plain Send or
    /// RDMA Write that is too long for a train.
    #[inline(always)]
    pub(super) fn plan_plain(&self) -> Option<TransmitPlan> {
        let index = self.sq.next;
        // No `&&`: the usual case is one branch.
        let is_undisturbed = (self.state == QpState::Rts)
            & self.sends_stream
            & !(self.peer_closed | self.closing | self.acks.due | self.controls.any())
            & (self.tx.lost | self.rnr.retries == 0)
            & !self.responder.has_answers()
            & (self.tx.in_flight < self.control.window())
            & (index != self.sq.tail);
        if !is_undisturbed || !self.tx.has_room() || self.sq.is_stopped_at(index) {
            return None;
        }
        let wqe = self.sq.get(index);
        let len = next_part(index, wqe, self.peer.max_tagged, self.peer.max_untagged).len;
        if !wqe.kind.is_plain() || len <= TRAIN_MESSAGE_OCTETS_MAX {
            return None;
        }
        Some(TransmitPlan {
            next: Next::Request,
            len: (SEGMENT_HEADERS + len as usize).min(self.peer.max_datagram),
        })
    }

    /// Writes the next segment of the request whose turn it is, if it is a part of a plain RDMA
    /// Write; the inner `None` as for [`Connection::write_transmit`].
    #[inline(always)]
    pub(super) fn write_plain<H: Host>(
        &mut self,
        now: Time,
        buf: &mut [u8],
        host: &mut H,
    ) -> Option<Option<Transmit>> {
        if self.unreliable || self.config.names_shared_queue {
            return None;
        }
        let (index, seq) = (self.sq.next, self.tx.next);
        let mut trp = self.header(PacketType::Data, self.epoch);
        let is_half_full = self.sq.is_half_full();
        let (wqe, slot, lists) = self.sq.entry(index);
        if wqe.kind != Kind::PlainWrite {
            return None;
        }
        let remote = wqe.remote();
        // As `begin_segment`.
        let spec = next_part(index, wqe, self.peer.max_tagged, self.peer.max_untagged);
        wqe.started = true;
        let ack_requested = seq - self.last_ack_request >= self.peer.ack_request_interval
            || spec.last && (wqe.flags.signaled || is_half_full);
        // As `write_segment`.
        if ack_requested {
            trp.flags = trp.flags | Flags::ACK_REQUESTED;
        }
        // RFC5040-5.1-3, RFC5041-4.2-2, RFC5041-5.2-5
        let tagged = TaggedHeader {
            last: spec.last,
            rdmap_control: Opcode::Write.control(),
            stag: Stag(remote.stag),
            offset: TaggedOffset(remote.to.wrapping_add(u64::from(spec.offset))),
        };
        let end = wire::TAGGED_OVERHEAD + spec.len as usize;
        let buf = &mut buf[..end];
        let (headers, payload) = buf.split_at_mut(wire::TAGGED_OVERHEAD);
        let (head, ddp) = headers.split_at_mut(wire::trp::HEADER_LEN);
        if trp.encode(head).is_err() || tagged.encode(ddp).is_err() {
            return Some(None);
        }
        let copied = lists.copy_payload(wqe, slot, spec.offset, payload, host);
        // As `note_sent`.
        if copied && wqe.advance(spec.len, spec.last, seq + 1) {
            self.sq.next = index.wrapping_add(1);
        }
        self.note_acknowledged();
        if !copied {
            self.poison(index, Status::LocalProtectionError, host);
            return Some(None);
        }
        self.answers_turn = true;
        // As `note_new`.
        self.recovery.on_sent(now, self.tx.is_empty());
        self.tx.push(now, spec, ack_requested);
        if ack_requested {
            self.last_ack_request = seq;
        }
        Some(Some(Transmit {
            len: end,
            ecn_capable: true,
        }))
    }
}
