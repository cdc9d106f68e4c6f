//! Which segment is next, its header and payload, and the record that it was sent: the same for
//! packets and for messages of a channel.

use super::connection::Connection;
use super::host::Host;
use super::qp_state::QpState;
use super::queues::{SegmentSource, SegmentSpec};
use super::types::{SendOp, Status};
use crate::wire::{
    AtomicOperation, AtomicRequest, ImmediateData, Msn, ReadRequest, SegmentKind, Stag,
    TaggedOffset,
};

impl Connection {
    /// The segment header of a send or write request.
    #[inline(always)]
    pub(super) fn message_kind(&self, index: u32, spec: &SegmentSpec) -> SegmentKind {
        let wqe = self.sq.get(index);
        if wqe.kind.is_write() {
            let remote = wqe.remote();
            // RFC5040-5.1-3, RFC5041-4.2-2, RFC5041-5.2-5
            //# An RDMA Write writes to one tagged buffer.
            //# All segments of a tagged message carry the same STag and ULP field, as the ULP gave
            //# them.
            //# The tagged offset of a segment is that of the message plus the offset of the payload
            //# in it.
            return SegmentKind::Write {
                stag: Stag(remote.stag),
                offset: TaggedOffset(remote.to.wrapping_add(u64::from(spec.offset))),
            };
        }
        let (invalidate, immediate) = if wqe.kind.is_plain() {
            (None, None)
        } else {
            let extra = self.sq.extra(index);
            match extra.op {
                // RFC5040-5.3-4
                //# A Send with Invalidate names an STag.
                SendOp::SendInvalidate { stag } => (Some(Stag(stag)), None),
                _ => (None, extra.imm),
            }
        };
        // RFC5041-4.3-2, RFC5041-5.2-4
        //# All segments of an untagged message carry the same queue number, MSN and ULP field.
        //# The message offset of a segment is the offset of its payload in the message.
        SegmentKind::Send {
            msn: Msn(wqe.msn),
            offset: spec.offset,
            solicited: wqe.flags.solicited,
            invalidate,
            immediate,
        }
    }

    /// Writes the payload of a segment of a send or write request, from `offset` in the message on.
    /// False if the local memory may not be read: the request then fails.
    #[inline(always)]
    #[must_use]
    pub(super) fn put_payload<H: Host>(
        &mut self,
        index: u32,
        offset: u32,
        payload: &mut [u8],
        host: &mut H,
    ) -> bool {
        let (wqe, slot, lists) = self.sq.entry(index);
        let copied = lists.copy_payload(wqe, slot, offset, payload, host);
        if !copied {
            self.poison(index, Status::LocalProtectionError, host);
        }
        copied
    }

    /// The segment header of a read, an atomic or immediate data.
    pub(super) fn request_kind(&self, index: u32, spec: &SegmentSpec) -> SegmentKind {
        let wqe = self.sq.get(index);
        let msn = Msn(wqe.msn);
        let op = self.sq.op(index);
        if let Some(request) = self.atomic_request(index, &op) {
            return SegmentKind::AtomicRequest { msn, request };
        }
        match op {
            SendOp::Read { .. } => SegmentKind::ReadRequest {
                msn,
                request: self.read_request(index),
            },
            SendOp::Send
            | SendOp::SendInvalidate { .. }
            | SendOp::Write { .. }
            | SendOp::CompareSwap { .. }
            | SendOp::FetchAdd { .. }
            | SendOp::AtomicWrite { .. }
            | SendOp::LocalInvalidate { .. }
            | SendOp::BindWindow(_) => {
                debug_assert!(matches!(spec.source, SegmentSource::Immediate(_)));
                SegmentKind::Immediate {
                    msn,
                    solicited: wqe.flags.solicited,
                    data: ImmediateData {
                        immediate: self.sq.imm(index).unwrap_or(0),
                        write_len_octets: wqe.length,
                    },
                }
            }
        }
    }

    /// What the request of a read says.
    #[inline(always)]
    pub(super) fn read_request(&self, index: u32) -> ReadRequest {
        let wqe = self.sq.get(index);
        let remote = wqe.remote();
        // RFC5040-5.2.1-5
        //# A Read Request names one tagged buffer.
        ReadRequest {
            sink_stag: Stag(self.sq.id(index)),
            sink_offset: TaggedOffset(0),
            len_octets: wqe.length,
            source_stag: Stag(remote.stag),
            source_offset: TaggedOffset(remote.to),
        }
    }

    /// What the request of an atomic says; `None` of any other operation.
    #[inline(always)]
    pub(super) fn atomic_request(&self, index: u32, op: &SendOp) -> Option<AtomicRequest> {
        let (remote, operation) = match *op {
            SendOp::CompareSwap {
                remote,
                compare,
                swap,
            } => {
                let operation = AtomicOperation::CompareSwap {
                    swap,
                    swap_mask: u64::MAX,
                    compare,
                    compare_mask: u64::MAX,
                };
                (remote, operation)
            }
            SendOp::FetchAdd { remote, add } => {
                (remote, AtomicOperation::FetchAdd { add, mask: 0 })
            }
            SendOp::AtomicWrite { remote, octets } => (remote, AtomicOperation::Write { octets }),
            _ => return None,
        };
        Some(AtomicRequest {
            request_id: self.sq.id(index),
            stag: Stag(remote.stag),
            offset: TaggedOffset(remote.to),
            operation,
        })
    }

    /// Advances the work request or response by the segment that was sent.
    #[inline]
    pub(super) fn note_sent(&mut self, seq: u64, spec: &SegmentSpec) {
        if matches!(spec.source, SegmentSource::Response(_)) {
            self.responder.sent(spec);
        } else {
            self.responder.take_turn();
            self.sq.note_sent(spec, seq + 1);
        }
    }

    /// The next segment of the response whose turn it is.
    #[inline]
    pub(super) fn next_answer_segment(&self) -> Option<SegmentSpec> {
        self.responder.next_segment(self.peer.max_tagged)
    }

    /// The next segment of the work request whose turn it is.
    #[inline(always)]
    pub(super) fn next_request_segment(&self) -> Option<SegmentSpec> {
        self.next_segment_up_to(self.peer.max_tagged, self.peer.max_untagged)
    }

    /// As [`Connection::next_request_segment`], where segments have at most the given octets of
    /// payload.
    #[inline(always)]
    pub(super) fn next_segment_up_to(
        &self,
        max_tagged: u32,
        max_untagged: u32,
    ) -> Option<SegmentSpec> {
        // RFC5040-6.1-2
        //# An end has no more Read Requests outstanding than were agreed.
        let starts = self.phase.state() == QpState::Rts;
        self.sq.next_segment(max_tagged, max_untagged, starts)
    }
}
