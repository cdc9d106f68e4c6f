//! Unreliable connections (verbs: UC; doc/spec/trp.md, section 13): without acknowledgement and
//! retransmission. This file has what differs from [`Connection`]'s reliable service.
//!
//! A request is done when its last packet is written. The receiver counts packets: a late one is
//! dropped, and a missing one drops its whole message, without notice to the sender.

use super::connection::Connection;
use super::host::Host;
use super::packet::{Datagram, Refusal};
use super::rxwindow::Commit;
use super::types::{Event, Status};
use crate::wire::{PacketType, Segment, SegmentKind, TrpHeader};

impl Connection {
    /// Whether the service is UC: without acknowledgement and retransmission.
    #[inline]
    pub fn is_unreliable(&self) -> bool {
        self.config.unreliable
    }

    /// Processes a packet of the peer, whose connection id is right.
    #[cold]
    pub(super) fn handle_unreliable<H: Host>(
        &mut self,
        trp: &TrpHeader,
        datagram: &Datagram<'_, H::Body>,
        host: &mut H,
    ) {
        let segment = Segment::parse_after(trp, datagram.head, datagram.len);
        let segment = match segment {
            // R13-3
            //# An end of one service MUST drop packets of the other.
            Ok(segment) if trp.kind == PacketType::UnreliableData => segment,
            _ => {
                self.stats.rx_malformed += 1;
                return;
            }
        };
        if !self.arrived.admit(trp.psn) {
            self.stats.rx_duplicates += 1;
            return;
        }
        self.note_established(host);
        self.on_unreliable(&segment, datagram.body, host);
    }

    /// Takes the segment of a packet that is not late.
    pub(super) fn on_unreliable<H: Host>(
        &mut self,
        segment: &Segment,
        body: &H::Body,
        host: &mut H,
    ) {
        let refusal = match self.begin(segment) {
            Ok(()) => self.take_unreliable(segment, body, host).err(),
            Err(refusal) => Some(refusal),
        };
        match refusal {
            None => {}
            // Local memory fails this end; the peer gets no notice.
            Some(Refusal::Receive(Status::LocalProtectionError, _)) => {
                self.flush(None, Some(Status::LocalProtectionError), host);
                host.event(Event::Fatal);
            }
            // R13-7
            //# **Errors.** What cannot be received (no receive request, one too short, no right, no
            //# such STag, an opcode that does not belong to the service) MUST be dropped without an
            //# answer, and is counted.
            Some(_) => self.stats.rx_dropped_messages += 1,
        }
    }

    /// Whether a segment begins a message or continues the one that is arriving.
    fn begin(&mut self, segment: &Segment) -> Result<(), Refusal> {
        match segment.kind {
            SegmentKind::Write { .. } => Ok(()),
            SegmentKind::Send { msn, offset: 0, .. } => {
                self.rq.begin(msn.0);
                Ok(())
            }
            SegmentKind::Send { msn, offset, .. } if self.rq.expects(msn.0, offset) => Ok(()),
            // R13-6
            //# Immediate Data MUST be accepted only if as many octets of Write as it names have
            //# arrived since the last gap, in segments up to one with L set that is the last Write
            //# before it; otherwise it is dropped.
            // All of its write has arrived.
            SegmentKind::Immediate { msn, data, .. }
                if data.write_len_octets == 0
                    || data.write_len_octets == self.arrived.ended_write_octets =>
            {
                self.rq.begin(msn.0);
                Ok(())
            }
            // R13-5
            //# It MUST drop every other segment.
            _ => Err(Refusal::Later),
        }
    }

    fn take_unreliable<H: Host>(
        &mut self,
        segment: &Segment,
        body: &H::Body,
        host: &mut H,
    ) -> Result<(), Refusal> {
        let placed = self.place(segment, body, host);
        if matches!(segment.kind, SegmentKind::Write { .. }) {
            let octets = if placed.is_ok() {
                segment.payload_len
            } else {
                0
            };
            self.arrived.note_write(octets, segment.last);
        }
        match placed? {
            Commit::Nothing => Ok(()),
            commit => self.commit(&commit, host).map_err(|(_, refusal)| refusal),
        }
    }
}
