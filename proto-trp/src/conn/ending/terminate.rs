//! The end of a connection by an error: the Terminate that the peer gets, and the status of each
//! work request.

use super::super::connection::Connection;
use super::super::host::{Host, ProtectionError};
use super::super::packet::Refusal;
use super::super::queues::SendWqe;
use super::super::responder::InboundRequest;
use super::super::rxwindow::Commit;
use super::super::types::{Event, Status};
use crate::wire::ddp::{TaggedHeader, UntaggedHeader};
use crate::wire::terminate::TerminatedDdp;
use crate::wire::{
    self, Flags, ImmediateData, Msn, QueueNumber, Segment, SegmentKind, Stag, TaggedOffset,
    Terminate, TerminateCause,
};

/// The segment that an error is about.
#[derive(Debug)]
pub(in crate::conn) enum Offender<'a> {
    /// One that has just arrived.
    Segment(&'a Segment),
    /// One that arrived earlier and whose effect is applied now.
    Commit(Commit),
    /// The first octets of a segment that could not be parsed, and its length.
    Octets(&'a [u8], usize),
}

/// The Terminate cause of a tagged segment (RFC 5041 section 7.2; access rights are RDMAP's, RFC
/// 5040 section 7.2).
pub(in crate::conn) const fn tagged_cause(error: ProtectionError) -> TerminateCause {
    // R11-1
    //# An error that a responder finds MUST end the connection with a Terminate of the following
    //# layer, type and code, which are those of RFC 5040 section 4.8.
    match error {
        ProtectionError::InvalidStag => TerminateCause::TAGGED_INVALID_STAG,
        ProtectionError::Bounds => TerminateCause::TAGGED_BOUNDS,
        ProtectionError::NotAssociated => TerminateCause::TAGGED_NOT_ASSOCIATED,
        ProtectionError::Wrap => TerminateCause::TAGGED_OFFSET_WRAP,
        ProtectionError::Access
        | ProtectionError::Misaligned
        | ProtectionError::CannotInvalidate => untagged_cause(error),
    }
}

/// The Terminate cause of a read, an atomic or an invalidation (RFC 5040 section 7.2).
pub(in crate::conn) const fn untagged_cause(error: ProtectionError) -> TerminateCause {
    // R11-1
    //# An error that a responder finds MUST end the connection with a Terminate of the following
    //# layer, type and code, which are those of RFC 5040 section 4.8.
    match error {
        ProtectionError::InvalidStag => TerminateCause::INVALID_STAG,
        ProtectionError::Bounds => TerminateCause::BOUNDS,
        ProtectionError::Access => TerminateCause::ACCESS,
        ProtectionError::NotAssociated => TerminateCause::STAG_NOT_ASSOCIATED,
        ProtectionError::Wrap => TerminateCause::OFFSET_WRAP,
        ProtectionError::Misaligned => TerminateCause::REMOTE_OPERATION_UNSPECIFIED,
        ProtectionError::CannotInvalidate => TerminateCause::CANNOT_INVALIDATE_PROTECTED,
    }
}

/// The status of the request that the peer's Terminate is about.
fn status_of(cause: TerminateCause) -> Status {
    // R11-2
    //# The requester MUST complete the work request with the status in the last column.
    if cause.is_access_error() {
        return Status::RemoteAccessError;
    }
    match cause {
        TerminateCause::STREAM_CATASTROPHIC
        | TerminateCause::GLOBAL_CATASTROPHIC
        | TerminateCause::RDMAP_CATASTROPHIC
        | TerminateCause::DDP_CATASTROPHIC => Status::RemoteOperationError,
        _ => Status::RemoteInvalidRequestError,
    }
}

impl Connection {
    /// A segment cannot be accepted, now or later.
    #[cold]
    pub(in crate::conn) fn end_by<H: Host>(
        &mut self,
        refusal: Refusal,
        offender: &Offender<'_>,
        host: &mut H,
    ) {
        match refusal {
            Refusal::Later | Refusal::NotReady => {}
            Refusal::Fault(cause) => {
                let recv_status = self.recv_status_of(offender, host);
                self.blame_peer(cause, offender, recv_status, host);
            }
            Refusal::Receive(status, cause) => {
                self.blame_peer(cause, offender, Some(status), host);
            }
            Refusal::Sink(index) => self.poison(index, Status::LocalProtectionError, host),
        }
    }

    /// The status of the receive request that the refused write announced: its immediate data will
    /// not arrive. `None` for other segments.
    fn recv_status_of<H: Host>(&mut self, offender: &Offender<'_>, host: &mut H) -> Option<Status> {
        let announces = match offender {
            Offender::Segment(segment) => {
                matches!(segment.kind, SegmentKind::Write { .. })
                    && segment.flags.contains(Flags::IMMEDIATE)
            }
            Offender::Commit(Commit::Write { announces, .. }) => *announces,
            Offender::Commit(_) | Offender::Octets(..) => false,
        };
        // Without a receive request there is nothing to complete.
        let found = announces && self.rq.is_ready(host);
        // R10-6
        //# If the receiver refuses the Write (section 11), the receive request that the Immediate
        //# Data would have used MUST end with LOC_ACCESS_ERR.
        found.then_some(Status::LocalAccessError)
    }

    /// The memory of a read that was granted may no longer be read.
    #[cold]
    pub(in crate::conn) fn refuse_read<H: Host>(
        &mut self,
        entry: u16,
        error: ProtectionError,
        host: &mut H,
    ) {
        let offender = Offender::Commit(Commit::Request { entry });
        self.blame_peer(untagged_cause(error), &offender, None, host);
    }

    /// The peer is at fault: it gets a Terminate, everything is flushed.
    fn blame_peer<H: Host>(
        &mut self,
        cause: TerminateCause,
        offender: &Offender<'_>,
        recv_status: Option<Status>,
        host: &mut H,
    ) {
        // RFC5040-7.1-3, RFC7306-8.1-1
        //# An end sends a Terminate for an error in a message that arrived, with its headers.
        //# An end sends a Terminate for its own errors and for errors in messages that arrived.
        let terminate = self.describe(cause, offender);
        // RFC5040-7.1-4: nothing after it is accepted.
        self.flush(None, recv_status, host);
        // R8.5-1
        //# **Sender.** An end that finds its peer at fault (section 11) MUST send a Terminate (RFC
        //# 5040 section 4.8) in a DATA packet, goes to ERR, and accepts nothing more.
        self.send_terminate(terminate);
        host.event(if cause.is_access_error() {
            Event::RemoteAccessError
        } else if recv_status == Some(Status::LocalProtectionError) {
            Event::Fatal
        } else {
            Event::RemoteInvalidRequest
        });
    }

    /// The peer has ended the connection by an error.
    #[cold]
    pub(in crate::conn) fn on_terminate<H: Host>(&mut self, segment: &SegmentKind, host: &mut H) {
        let &SegmentKind::Terminate { terminate, .. } = segment else {
            return;
        };
        // An error local to the peer is the fault of no request; the oldest is the one that it
        // prevents.
        let is_own =
            terminate.ddp.is_none() && terminate.cause == TerminateCause::RDMAP_CATASTROPHIC;
        let offender = if is_own {
            self.sq.oldest()
        } else {
            self.find_offender(&terminate)
        };
        if is_own && offender.is_none() && !self.config.fails_with_peer {
            return;
        }
        let blame = offender.map(|index| (index, status_of(terminate.cause)));
        // R8.5-7, RFC5040-5.4-2, RFC5040-5.4-3
        //# Its queue pair goes to ERR: the work request that the error belongs to, found by the DDP
        //# header in the Terminate, MUST end with the status of section 11, and the others are
        //# flushed.
        //# One Terminate is placed in a stream, in one untagged buffer.
        //# A Terminate is delivered to RDMAP and to the application.
        self.flush(blame, None, host);
        if blame.is_none() {
            host.event(Event::Fatal);
        }
    }

    /// The work request that a Terminate of the peer is about.
    fn find_offender(&self, terminate: &Terminate) -> Option<u32> {
        let Some((_, header)) = &terminate.ddp else {
            return self.sq.begun().next().map(|(index, _)| index);
        };
        let found = match header {
            TerminatedDdp::Tagged(octets) => {
                let header = TaggedHeader::parse(octets).ok()?;
                self.sq.begun().find(|(_, wqe)| writes_to(wqe, &header))
            }
            TerminatedDdp::Untagged(octets) => {
                let header = UntaggedHeader::parse(octets).ok()?;
                let requests = header.queue_number == QueueNumber::Request as u32;
                self.sq.begun().find(|(_, wqe)| {
                    wqe.is_request() == requests && wqe.msn == header.msn.0 && wqe.has_msn()
                })
            }
        };
        found.map(|(index, _)| index)
    }

    /// The Terminate about a segment.
    fn describe(&self, cause: TerminateCause, offender: &Offender<'_>) -> Terminate {
        let (kind, last, payload_len) = match offender {
            Offender::Octets(octets, len) => return Terminate::about(cause, octets, *len),
            Offender::Segment(segment) => (segment.kind, segment.last, segment.payload_len),
            Offender::Commit(Commit::Nothing) => return Terminate::new(cause),
            Offender::Commit(Commit::Write {
                stag,
                to,
                len,
                last,
                ..
            }) => {
                let kind = SegmentKind::Write {
                    stag: Stag(*stag),
                    offset: TaggedOffset(*to),
                };
                (kind, *last, *len as usize)
            }
            Offender::Commit(Commit::Message {
                msn,
                offset,
                len,
                last,
                solicited,
                imm,
                invalidate,
            }) => {
                let kind = SegmentKind::Send {
                    msn: Msn(*msn),
                    offset: *offset,
                    solicited: *solicited,
                    invalidate: invalidate.map(Stag),
                    immediate: *imm,
                };
                (kind, *last, *len as usize)
            }
            Offender::Commit(Commit::Immediate {
                msn,
                solicited,
                imm,
                write_len,
            }) => {
                let kind = SegmentKind::Immediate {
                    msn: Msn(*msn),
                    solicited: *solicited,
                    data: ImmediateData {
                        immediate: *imm,
                        write_len_octets: *write_len,
                    },
                };
                (kind, true, 0)
            }
            Offender::Commit(Commit::Request { entry }) => {
                let (msn, request) = self.responder.request(*entry);
                let kind = match request {
                    InboundRequest::Read(request) => SegmentKind::ReadRequest { msn, request },
                    InboundRequest::Atomic(request, _) => {
                        SegmentKind::AtomicRequest { msn, request }
                    }
                };
                (kind, true, 0)
            }
        };
        let mut octets = [0; wire::HEAD_LEN_MAX];
        match wire::encode_segment(&kind, last, &mut octets) {
            Ok(len) => Terminate::about(cause, &octets[..len], len + payload_len),
            Err(_) => Terminate::new(cause),
        }
    }
}

/// Whether a segment with this header can be part of a write request.
fn writes_to(wqe: &SendWqe, header: &TaggedHeader) -> bool {
    if !wqe.kind.is_write() {
        return false;
    }
    let remote = wqe.remote();
    let write = wire::Opcode::Write.control();
    let offset = header.offset.0.wrapping_sub(remote.to);
    header.rdmap_control == write
        && header.stag.0 == remote.stag
        && offset < u64::from(wqe.length).max(1)
}
