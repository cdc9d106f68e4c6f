//! Checks and placement of segments: the payload of messages and read responses is placed on
//! arrival, because the application may not look at receive buffers and sinks of reads before the
//! completion; the payload of writes that are ahead of a missing packet waits in the reorder
//! buffer. The module `commit` applies the effects in the order of the sequence numbers.

use super::connection::Connection;
use super::ending::tagged_cause;
use super::host::Host;
use super::num::len32;
use super::packet::Refusal;
use super::queues::Kind;
use super::responder::{InboundRequest, NotAdmitted};
use super::rxwindow::Commit;
use super::types::{Event, RemoteAddr};
use crate::wire::{
    AtomicResponse, ImmediateData, Msn, Segment, SegmentKind, Stag, TaggedOffset, TerminateCause,
};

pub(super) type Placed = Result<Commit, Refusal>;

impl Connection {
    /// Places the payload of a segment and returns the effect that remains for its turn.
    #[inline]
    pub(super) fn place<H: Host>(
        &mut self,
        segment: &Segment,
        body: &H::Body,
        host: &mut H,
    ) -> Placed {
        let payload = (segment.payload_offset, segment.payload_len);
        match segment.kind {
            // RFC5040-5.1-2
            //# An RDMA Write is placed, and not delivered to the application.
            SegmentKind::Write { stag, offset } => {
                place_write(stag, offset, payload, body, host)?;
                Ok(Commit::Nothing)
            }
            SegmentKind::Send {
                msn,
                offset,
                solicited,
                invalidate,
                immediate,
            } => {
                self.rq.place(msn.0, offset, payload, body, host)?;
                Ok(Commit::Message {
                    msn: msn.0,
                    offset,
                    len: len32(segment.payload_len),
                    last: segment.last,
                    solicited,
                    imm: immediate,
                    invalidate: invalidate.map(|stag| stag.0),
                })
            }
            SegmentKind::ReadResponse { stag, offset } => {
                self.place_response(stag, offset, segment, body, host)
            }
            SegmentKind::Immediate {
                msn,
                solicited,
                data,
            } => self.place_immediate(msn, solicited, data, host),
            // RFC5040-5.2.1-3
            //# The responder executes Read Requests itself, and does not deliver them to the
            //# application.
            SegmentKind::ReadRequest { msn, request } => {
                self.admit(msn, InboundRequest::Read(request))
            }
            // RFC7306-5.2.1-2
            //# The responder executes Atomic Requests itself, in the order in which they were sent,
            //# and does not deliver them to the application.
            SegmentKind::AtomicRequest { msn, request } => {
                self.admit(msn, InboundRequest::Atomic(request, 0))
            }
            SegmentKind::AtomicResponse { response, .. } => {
                self.place_atomic_response(&response, host)
            }
            SegmentKind::Terminate { .. } | SegmentKind::Absent => Ok(Commit::Nothing),
        }
    }

    pub(super) fn place_immediate<H: Host>(
        &mut self,
        msn: Msn,
        solicited: bool,
        data: ImmediateData,
        host: &mut H,
    ) -> Placed {
        // RFC7306-6.3-2
        //# Immediate Data consumes one untagged buffer.
        self.rq.find(msn.0, host)?;
        Ok(Commit::Immediate {
            msn: msn.0,
            solicited,
            imm: data.immediate,
            write_len: data.write_len_octets,
        })
    }

    fn admit(&mut self, msn: Msn, request: InboundRequest) -> Placed {
        // RFC5040-5.2.1-2, RFC7306-5.2.1-1
        //# A Read Request consumes one untagged buffer.
        //# An Atomic Request consumes one untagged buffer.
        match self.responder.admit(msn, request) {
            Ok(entry) => Ok(Commit::Request { entry }),
            Err(NotAdmitted::TooMany) => Err(Refusal::Fault(TerminateCause::NO_BUFFER)),
            Err(NotAdmitted::Busy) => Err(Refusal::Later),
        }
    }

    /// The work request of a response: started, its request acknowledged, not answered yet.
    #[inline]
    fn asked_by(&self, id: u32) -> Option<u32> {
        self.sq.awaiting(id, self.accepted_before())
    }

    #[inline]
    fn place_response<H: Host>(
        &mut self,
        stag: Stag,
        offset: TaggedOffset,
        segment: &Segment,
        body: &H::Body,
        host: &mut H,
    ) -> Placed {
        let fault = |cause| Err(Refusal::Fault(cause));
        let Some(index) = self.asked_by(stag.0) else {
            return fault(TerminateCause::TAGGED_INVALID_STAG);
        };
        let len = segment.payload_len;
        let wqe = self.sq.get(index);
        if wqe.kind != Kind::Read {
            return fault(TerminateCause::TAGGED_INVALID_STAG);
        }
        let end = offset.0.checked_add(len as u64);
        // RFC5041-7.1-2
        //# A tagged segment is placed only if its STag is valid for the stream and has a buffer,
        //# and the octets are within it and do not wrap.
        if end.is_none_or(|end| end > u64::from(wqe.length)) {
            return fault(TerminateCause::TAGGED_BOUNDS);
        }
        if len > 0 {
            host.scatter_response(
                self.sq.sges(index),
                offset.0,
                body,
                segment.payload_offset,
                len,
            )
            .map_err(|_| Refusal::Sink(index))?;
        }
        let len = len32(len);
        if self.sq.note_response(index, len, segment.last) {
            self.complete_sends(host);
        }
        Ok(Commit::Nothing)
    }

    fn place_atomic_response<H: Host>(
        &mut self,
        response: &AtomicResponse,
        host: &mut H,
    ) -> Placed {
        // RFC7306-5.2.2-2: the work request that waits is the buffer.
        let index = self
            .asked_by(response.request_id)
            .filter(|&index| self.sq.get(index).kind != Kind::Read)
            .ok_or(Refusal::Fault(TerminateCause::UNEXPECTED_OPCODE))?;
        let tells_original = self.sq.get(index).kind != Kind::AtomicWrite;
        if tells_original
            && host
                .scatter_u64(self.sq.sges(index), response.original)
                .is_err()
        {
            return Err(Refusal::Sink(index));
        }
        // RFC7306-5.4-2
        //# An atomic is not complete before its response has arrived.
        self.sq.note_answered(index);
        self.complete_sends(host);
        Ok(Commit::Nothing)
    }

    #[inline]
    pub(super) fn note_established<H: Host>(&mut self, host: &mut H) {
        if self.phase.establish() {
            host.event(Event::Established);
        }
    }
}

/// Writes `len` octets of `body` from `at`, the payload of a segment of a Write.
#[inline]
pub(super) fn place_write<H: Host>(
    stag: Stag,
    offset: TaggedOffset,
    (at, len): (usize, usize),
    body: &H::Body,
    host: &mut H,
) -> Result<(), Refusal> {
    // RFC5041-5.2-7
    //# (A Read Response of no octets is matched to its read by the STag.)
    if len > 0 {
        let remote = RemoteAddr {
            stag: stag.0,
            to: offset.0,
        };
        host.write_remote(remote, body, at, len)
            .map_err(|error| Refusal::Fault(tagged_cause(error)))?;
    }
    Ok(())
}
