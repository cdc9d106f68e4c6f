//! Completion of send requests: those that are done, and the one that fails in its turn.

use super::connection::Connection;
use super::host::Host;
use super::qp_state::QpState;
use super::transport::Transport;
use super::types::{Event, Status};
use crate::wire::{Terminate, TerminateCause};

impl Connection {
    /// Completes the requests at the head of the send queue that are done.
    #[inline(never)]
    pub(super) fn complete_sends<H: Host>(&mut self, host: &mut H) {
        self.complete_sends_before(self.accepted_before(), host);
    }

    /// The peer is known to have accepted every segment before this sequence number, or every
    /// message before this position of the channel.
    #[inline]
    pub(super) fn accepted_before(&self) -> u64 {
        match self.transport {
            Transport::Stream | Transport::Unreliable => self.sender.oldest(),
            Transport::Channel => self.channel.settled,
        }
    }

    /// As [`Connection::complete_sends`], where the peer has accepted everything before `una`.
    #[inline(always)]
    pub(super) fn complete_sends_before<H: Host>(&mut self, una: u64, host: &mut H) {
        self.sq.complete_before(una, host);
        if self.sq.is_stopped() || self.phase.state() == QpState::Sqd {
            self.after_completions(host);
        }
    }

    #[cold]
    fn after_completions<H: Host>(&mut self, host: &mut H) {
        match self.sq.failed() {
            Some(status) => self.fail_send(status, host),
            None => self.note_drained(host),
        }
    }

    /// Executes a local request.
    #[cold]
    pub(super) fn do_local<H: Host>(&mut self, index: u32, host: &mut H) {
        match self.sq.execute(index, host) {
            Ok(()) => self.complete_sends(host),
            Err(status) => self.poison(index, status, host),
        }
    }

    /// A request cannot be finished: it fails when those before it are done.
    #[cold]
    pub(super) fn poison<H: Host>(&mut self, index: u32, status: Status, host: &mut H) {
        self.sq.stop_at(index, status);
        self.complete_sends(host);
    }

    /// The request at the head of the send queue fails locally: the peer gets a Terminate,
    /// everything is flushed. An unreliable connection only stops its send queue.
    pub(super) fn fail_send<H: Host>(&mut self, status: Status, host: &mut H) {
        let blame = Some((self.sq.head(), status));
        if self.config.unreliable {
            self.stop_sends(blame, host);
        } else {
            self.flush(blame, None, host);
            // R8.5-4, RFC5040-7.1-2, RFC7306-8.1-1
            //# An end that cannot go on for reasons of its own (memory that a work request named is
            //# gone) MUST send 0.0.00 without a header.
            //# An end sends a Terminate for an error in creating a message, or for another reason
            //# of its own, without the headers of a message.
            //# An end sends a Terminate for its own errors and for errors in messages that arrived.
            self.send_terminate(Terminate::new(TerminateCause::RDMAP_CATASTROPHIC));
        }
    }

    /// A send request has failed: to SQE, in which no send request is executed.
    #[cold]
    pub(super) fn stop_sends<H: Host>(&mut self, blame: Option<(u32, Status)>, host: &mut H) {
        // R13-1
        //# A work request that fails after a part of it was sent MUST be followed by a PSN that is
        //# left out, so that the receiver does not count that part to the next message.
        if self.sq.get(self.sq.head()).progress > 0 {
            // Else the receiver would take the part that it has for the start of the next message.
            match self.transport {
                Transport::Stream | Transport::Unreliable => self.sender.skip(),
                Transport::Channel => self.channel.start_anew(),
            }
        }
        self.phase.stop_sends();
        self.sq.flush(blame, host);
    }

    /// Completes requests whose packets are all sent.
    #[cold]
    pub(super) fn forget_sent<H: Host>(&mut self, host: &mut H) {
        self.sender.abandon();
        self.complete_sends(host);
    }

    /// In SQD: raises [`Event::SqDrained`] when every request that had started is done.
    pub(super) fn note_drained<H: Host>(&mut self, host: &mut H) {
        if self.phase.drains() && !self.sq.has_begun() {
            self.phase.on_drained();
            host.event(Event::SqDrained);
        }
    }
}
