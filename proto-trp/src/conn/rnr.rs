//! Receiver not ready (RNR): what both ends do when a message finds no receive request
//! (doc/spec/trp.md, section 7.9).
//!
//! The refusing end continues to acknowledge, so that responses to its own reads pass. It accepts
//! no request until the peer has received the RNR and starts again from the refused request, under
//! new sequence numbers and in the other epoch.

use super::connection::Connection;
use super::ending::Offender;
use super::host::Host;
use super::packet::{Datagram, Refusal};
use super::queues::SegmentSource;
use super::rxwindow::Commit;
use super::transmit::Controls;
use super::types::Status;
use crate::wire::{Flags, RnrTimer, Segment, SegmentKind, TrpHeader};
use urdma_types::Time;

/// The RNR timer code of 10 us.
const SHORTEST_RNR_TIMER: u8 = 1;
/// The `rnr_retry` without a bound.
const RNR_RETRY_FOREVER: u8 = 7;

/// Whether a segment is a request, and not a response to a read or atomic of this end.
fn is_request(segment: &Segment) -> bool {
    !matches!(
        segment.kind,
        SegmentKind::ReadResponse { .. } | SegmentKind::AtomicResponse { .. }
    )
}

impl Connection {
    /// The expected request finds no receive request: it and those after it are refused until the
    /// peer starts again.
    #[cold]
    pub(super) fn begin_refusing(&mut self, segment: &Segment) {
        self.stats.rx_deferred += 1;
        self.phase.refuse(true);
        self.controls.add(Controls::RNR);
        self.rx.refuse_from_here(epoch_of(segment));
        self.pass_refused();
    }

    /// The code of the pause that the peer of a refused request is to make: the shortest if a
    /// receive request was posted since the refusal.
    pub(super) fn rnr_code(&self) -> u8 {
        if self.rq.len() > 0 {
            SHORTEST_RNR_TIMER
        } else {
            self.peer.min_rnr_timer
        }
    }

    /// Whether a request may be refused once more.
    pub(super) fn may_be_refused(&self, refusals: u32) -> bool {
        let limit = self.peer.rnr_retry;
        limit >= RNR_RETRY_FOREVER || refusals <= u32::from(limit)
    }

    /// Whether a segment is the first request after the peer received the RNR.
    #[cold]
    pub(super) fn begins_again(&self, segment: &Segment) -> bool {
        // R7.9-9
        //# The receiver MUST stop refusing at the first expected request of epoch e + 1: it accepts
        //# that request, or refuses it in turn.
        is_request(segment) && epoch_of(segment) != self.rx.refused_epoch()
    }

    /// The expected packet while requests are refused: a response is accepted, a request is
    /// skipped.
    #[cold]
    pub(super) fn on_expected_refusing<H: Host>(
        &mut self,
        segment: &Segment,
        datagram: &Datagram<'_, H::Body>,
        host: &mut H,
    ) {
        // R7.9-2
        //# Answers MUST be accepted as before.
        if !is_request(segment) {
            if let Err(refusal) = self.place(segment, datagram.body, host) {
                self.refuse(refusal, &Offender::Segment(segment), host);
                return;
            }
        }
        self.pass_refused();
    }

    /// Skips the expected packet, and those after it that have arrived.
    fn pass_refused(&mut self) {
        // R7.9-1
        //# The receiver that finds no receive request for the request with PSN n, of epoch e,
        //# refuses: n and all requests of epoch e after it, whether they have arrived already or
        //# arrive later, MUST count as arrived and MUST NOT have an effect.
        self.rx.pass();
        while let Some(commit) = self.rx.take_expected() {
            match commit {
                Commit::Request { entry } => self.responder.release(entry),
                Commit::Write { buffer, len, .. } => self.rx.reorder.release(buffer, len as usize),
                _ => {}
            }
            self.rx.pass();
        }
        self.acks.due = true;
    }

    /// As `place`, for a packet ahead of a missing one while requests are refused.
    #[cold]
    pub(super) fn place_refusing<H: Host>(
        &mut self,
        segment: &Segment,
        datagram: &Datagram<'_, H::Body>,
        host: &mut H,
    ) -> Result<Commit, Refusal> {
        if !is_request(segment) {
            self.place(segment, datagram.body, host)
        } else if self.begins_again(segment) {
            // R7.9-10
            //# Such a request that arrives ahead of a missing packet while it refuses MUST be
            //# dropped.
            Err(Refusal::Later)
        } else {
            Ok(Commit::Nothing)
        }
    }

    /// An RNR: all requests from the refused one on are void. Called before the acknowledgement of
    /// the same packet is processed, which covers the skipped packets.
    #[cold]
    pub(super) fn on_rnr<H: Host>(
        &mut self,
        now: Time,
        trp: &TrpHeader,
        timer: RnrTimer,
        host: &mut H,
    ) {
        let until = now.plus_ns(u64::from(timer.as_us()) * 1_000);
        let Some(refused) = self.sender.on_refusal(trp.psn, until) else {
            return;
        };
        let (SegmentSource::Message(index) | SegmentSource::Immediate(index)) = refused.spec.source
        else {
            return;
        };
        self.stats.rnr_received += 1;
        // R7.9-12
        //# More than `rnr_retry` of them MUST end the work request with RNR_RETRY_EXC_ERR; 7 means
        //# no bound.
        if !self.may_be_refused(refused.refusals) {
            self.flush(Some((index, Status::RnrRetryExceeded)), None, host);
            return;
        }
        self.sender.void_from(&refused, now, until);
        // What a Write has placed stays: only its immediate data is refused.
        let wqe = self.sq.get(index);
        let kept = match wqe.kind.is_write() {
            true => wqe.progress,
            false => wqe.progress.min(refused.spec.offset),
        };
        self.sq.rewind(index, kept);
    }

    /// A segment was not accepted.
    #[cold]
    pub(super) fn refuse<H: Host>(
        &mut self,
        refusal: Refusal,
        offender: &Offender<'_>,
        host: &mut H,
    ) {
        match refusal {
            Refusal::Later => {
                self.stats.rx_deferred += 1;
                self.acks.due = true;
            }
            Refusal::NotReady => {
                if let Offender::Segment(segment) = offender {
                    self.begin_refusing(segment);
                }
            }
            fault => self.end_by(fault, offender, host),
        }
    }
}

const fn epoch_of(segment: &Segment) -> Flags {
    segment.flags.and(Flags::EPOCH)
}
