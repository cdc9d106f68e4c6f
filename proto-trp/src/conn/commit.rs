//! The effects of accepted segments, in the order of the sequence numbers.

use super::connection::Connection;
use super::ending::{tagged_cause, untagged_cause};
use super::host::{Host, RemoteAccess};
use super::packet::Refusal;
use super::responder::{atomic_op, Granted, InboundRequest};
use super::rxwindow::Commit;
use super::types::{CompletionOp, RemoteAddr};
use crate::wire::TerminateCause;

impl Connection {
    /// Applies the effect of a segment, after everything before it has arrived.
    #[inline]
    pub(super) fn commit<H: Host>(
        &mut self,
        commit: &Commit,
        host: &mut H,
    ) -> Result<(), (Commit, Refusal)> {
        let done = match *commit {
            Commit::Nothing => Ok(()),
            Commit::Write {
                stag,
                to,
                buffer,
                len,
                ..
            } => {
                let octets = self.rx.reorder.octets(buffer);
                let written = host.write_kept(RemoteAddr { stag, to }, octets);
                self.rx.reorder.release(buffer, len as usize);
                written.map_err(|error| Refusal::Fault(tagged_cause(error)))
            }
            Commit::Message {
                msn,
                offset,
                len,
                last,
                solicited,
                imm,
                invalidate,
            } => self
                .rq
                .advance(msn, offset, len)
                .map_err(Refusal::from)
                .and_then(|()| {
                    if !last {
                        return Ok(());
                    }
                    self.end_message(solicited, imm, invalidate, host)
                }),
            Commit::Immediate {
                msn,
                solicited,
                imm,
                write_len,
            } => self.rq.advance(msn, 0, 0).map_err(Refusal::from).map(|()| {
                // RFC7306-6.3-3
                //# Immediate Data is delivered in the order in which it was sent.
                self.rq.complete(
                    CompletionOp::RecvWriteImm,
                    write_len,
                    solicited,
                    (Some(imm), None),
                    host,
                );
            }),
            Commit::Request { entry } => self.commit_request(entry, host),
        };
        done.map_err(|refusal| (*commit, refusal))
    }

    /// The last segment of a Send has arrived.
    #[inline(always)]
    pub(super) fn end_message<H: Host>(
        &mut self,
        solicited: bool,
        imm: Option<u32>,
        invalidate: Option<u32>,
        host: &mut H,
    ) -> Result<(), Refusal> {
        // RFC5040-5.3-5
        //# The receiver of a Send with Invalidate invalidates the STag if it belongs to the stream,
        //# and otherwise sends a Terminate that says that the STag cannot be invalidated.
        if let Some(stag) = invalidate {
            host.invalidate(stag)
                .map_err(|error| Refusal::Fault(untagged_cause(error)))?;
        }
        // RFC5040-5.3-3, RFC5040-5.5-1
        //# Sends are delivered to the application in the order in which they were sent.
        //# Sends are delivered after DDP has delivered them, and in that order (rules 10 and 16).
        self.rq.complete(
            CompletionOp::Recv,
            self.rq.arrived_octets(),
            solicited,
            (imm, invalidate),
            host,
        );
        Ok(())
    }

    fn commit_request<H: Host>(&mut self, entry: u16, host: &mut H) -> Result<(), Refusal> {
        // RFC5040-5.2.1-4, RFC7306-5.2.1-2
        //# The responder executes Read Requests in the order in which they were sent.
        //# The responder executes Atomic Requests itself, in the order in which they were sent, and
        //# does not deliver them to the application.
        if !self.responder.is_next(entry) {
            return Err(Refusal::Fault(TerminateCause::MSN_OUT_OF_RANGE));
        }
        // RFC5040-6.1-3
        //# An end accepts no more Read Requests in progress than were agreed.
        if self.responder.is_at_limit() {
            return Err(Refusal::Fault(TerminateCause::NO_BUFFER));
        }
        // RFC5040-5.5-2, RFC7306-5.4-1
        //# The execution of a Read Request starts when DDP has delivered it, not before (rules 12
        //# and 17).
        //# An Atomic Request is executed when DDP has delivered it, not before.
        let granted = self.grant(entry, host);
        let original = granted.map_err(|error| Refusal::Fault(untagged_cause(error)))?;
        self.responder.answer(entry, original);
        Ok(())
    }

    /// Checks a read, executes an atomic.
    fn grant<H: Host>(&self, entry: u16, host: &mut H) -> Granted {
        match self.responder.request(entry).1 {
            // RFC5040-5.2.1-8
            //# The responder checks neither STag nor offset of a Read Request of no octets, and
            //# answers it with a Read Response of no octets.
            InboundRequest::Read(read) if read.len_octets == 0 => Ok(0),
            InboundRequest::Read(read) => {
                let source = RemoteAddr {
                    stag: read.source_stag.0,
                    to: read.source_offset.0,
                };
                // RFC5040-5.2.1-7
                //# The responder checks source STag and offset of a Read Request, unless its length
                //# is 0.
                host.check_remote(source, u64::from(read.len_octets), RemoteAccess::Read)
                    .map(|()| 0)
            }
            InboundRequest::Atomic(atomic, _) => {
                let operand = RemoteAddr {
                    stag: atomic.stag.0,
                    to: atomic.offset.0,
                };
                let op = atomic_op(atomic.operation);
                let original = host.atomic(operand, op)?;
                // R10-9
                //# It requires the right to write and not the right for atomics, so the response
                //# MUST NOT reveal the old value.
                // The right to write does not include the right to read the old value.
                Ok(match op.access() {
                    RemoteAccess::Atomic => original,
                    RemoteAccess::Write | RemoteAccess::Read => 0,
                })
            }
        }
    }
}
