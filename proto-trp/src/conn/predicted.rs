//! The receiving half for the usual packet of a stream: the expected one, with a part of an RDMA
//! Write. The effect is that of [`Connection::handle_datagram`] without what such a packet cannot
//! need.

use super::connection::Connection;
use super::ending::Offender;
use super::host::Host;
use super::num::len32;
use super::packet::{Datagram, Refusal};
use super::placement::place_write;
use crate::wire::{Flags, PredictedWrite, Segment, TAGGED_OVERHEAD};
use urdma_types::Time;

/// Octets by which a packet is recognised as predicted.
pub const PREDICTED_OCTETS: usize = TAGGED_OVERHEAD;

impl Connection {
    /// Processes a datagram as [`Connection::handle_datagram`] does, if it is the packet that is
    /// predicted to come next in a stream; otherwise nothing is done. Of its head,
    /// [`PREDICTED_OCTETS`] are enough.
    #[inline(always)]
    pub fn handle_as_predicted<H: Host>(
        &mut self,
        now: Time,
        datagram: &Datagram<'_, H::Body>,
        host: &mut H,
    ) -> bool {
        let Some(write) = self.predicted(datagram.head) else {
            return false;
        };
        self.stats.rx_datagrams += 1;
        self.stats.rx_octets += u64::from(len32(datagram.len));
        self.handle_predicted(now, &write, datagram, host);
        true
    }

    /// The packet, if it is as predicted and nothing but its own effect is to be done.
    #[inline(always)]
    fn predicted(&self, head: &[u8]) -> Option<PredictedWrite> {
        let is_usual = self.phase.exchanges() && self.peer.takes_trains && !self.rx.has_ahead();
        if !is_usual {
            return None;
        }
        self.peer.prediction.parse(self.rx.expected_psn(), head)
    }

    /// Processes such a packet.
    #[inline(always)]
    fn handle_predicted<H: Host>(
        &mut self,
        now: Time,
        write: &PredictedWrite,
        datagram: &Datagram<'_, H::Body>,
        host: &mut H,
    ) {
        // R7.7-2
        //# Any valid packet from the peer's queue pair ends the silence; a RESET MUST NOT end it.
        self.sender.on_heard(now);
        self.keepalive.on_heard(now);
        if self.on_plain_ack(now, write, host) {
            self.note_mark(datagram);
            host.taken(self.rx.after_expected_psn());
            let payload = (TAGGED_OVERHEAD, datagram.len - TAGGED_OVERHEAD);
            let placed = place_write(write.stag, write.offset, payload, datagram.body, host);
            if let Err(refusal) = placed {
                self.refuse_predicted(refusal, write, datagram, host);
                return;
            }
            self.rx.advance();
            self.acks
                .on_segment(now, write.flags.contains(Flags::ACK_REQUESTED));
        }
    }

    /// Processes the acknowledgement of a packet without extensions; false if the rest of it is not
    /// to be processed.
    #[inline(always)]
    fn on_plain_ack<H: Host>(&mut self, now: Time, write: &PredictedWrite, host: &mut H) -> bool {
        if write.ack == self.sender.psn(self.sender.oldest()) {
            self.sender.set_peer_window(write.window_packets);
            return true;
        }
        let marked = write.flags.contains(Flags::ECN_ECHO);
        self.on_ack(now, (write.ack, write.window_packets, marked), None, host);
        self.phase.receives()
    }

    /// The write is refused: nothing was written.
    #[cold]
    fn refuse_predicted<H: Host>(
        &mut self,
        refusal: Refusal,
        write: &PredictedWrite,
        datagram: &Datagram<'_, H::Body>,
        host: &mut H,
    ) {
        let at = TAGGED_OVERHEAD - crate::wire::ddp::TAGGED_LEN;
        let ddp = datagram.head.get(at..).unwrap_or(&[]);
        host.taken(self.rx.ack());
        if let Ok(segment) = Segment::parse_at(write.flags, ddp, at, datagram.len) {
            self.refuse(refusal, &Offender::Segment(&segment), host);
        }
    }
}
