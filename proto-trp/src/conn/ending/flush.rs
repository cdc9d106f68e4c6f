//! The end of all work requests of a connection, and of everything that it would send.

use super::super::connection::Connection;
use super::super::host::Host;
use super::super::transmit::Controls;
use super::super::types::{Event, Status, Trace};
use crate::wire::Terminate;
use urdma_types::Time;

impl Connection {
    /// Any state to ERROR: every request is flushed to [`Host::complete`]. No Terminate is sent.
    pub fn to_error<H: Host>(&mut self, host: &mut H) {
        self.flush(None, None, host);
    }

    /// Goes to ERROR and ends every work request: the blamed one with its status, the expected
    /// receive with `recv_status`, all others flushed.
    #[cold]
    pub(in crate::conn) fn flush<H: Host>(
        &mut self,
        blame: Option<(u32, Status)>,
        recv_status: Option<Status>,
        host: &mut H,
    ) {
        if let Some(status) = blame.map(|(_, status)| status).or(recv_status) {
            host.trace(Trace::Failed(status));
        }
        let had_failed = self.phase.fail();
        // RFC5040-7.1-1, RFC5041-6.2.2-1
        //# An error is reported to the application of this end.
        //# The application learns of a fatal error: a lost stream, an invalid header.
        self.sq.flush(blame, host);
        self.rq.flush(recv_status, host);
        self.silence();
        if self.rq.is_shared() && !had_failed {
            host.event(Event::LastRecvReached);
        }
    }

    /// Cancels everything that is due to be sent, and all timers.
    fn silence(&mut self) {
        self.sender.silence();
        self.rx.abandon();
        self.channel.silence();
        self.acks.on_sent();
        self.controls = Controls::default();
        self.ending.fail_at(Time::NEVER);
    }

    /// Sends a Terminate, and retransmits it until the peer answers or the limit is reached.
    pub(in crate::conn) fn send_terminate(&mut self, terminate: Terminate) {
        // The peer of a channel is reached before RTS.
        let may_send = self.phase.sends_stream() || self.transport.is_channel();
        if may_send && !self.config.unreliable {
            self.ending.begin_terminate(terminate);
            self.controls.add(Controls::TERMINATE);
        }
    }
}
